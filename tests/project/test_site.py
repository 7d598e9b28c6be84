"""The documentation site: it builds strictly, stands alone, and its commands do what they show."""

import doctest
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urldefrag

import pandas as pd
import pytest

import simstrag
from simstrag.engine.recorder import GRADIENT_COLUMNS, STEP_COLUMNS
from simstrag.learning.noise_scale import unmodelled
from simstrag.policies import WORLD, ask, describe, load, names
from tests.support.commands import Call

pytest.importorskip("sphinx", reason="the extra `docs` is not installed")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r"(?ms)(?:^`(\S+)`:\n\n)?^```(\w+)\n(.*?)^```$")
ALIKE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def read(page: str) -> str:
    """The source of a page, by its path as seen from docs/."""
    return (DOCS / page).read_text(encoding="utf-8")


# -- pages as they are built ---------------------------------------------------------------------


class Page(HTMLParser):
    """What a built page refers to, and the places in it that can be referred to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {key: value for key, value in attributes if value}
        self.places |= {given[key] for key in ("id", "name") if key in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and "href" in given:
            self.loaded.append(given["href"])
        elif "src" in given:
            self.loaded.append(given["src"])


def build(target: Path, docs: Path = DOCS) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", f"{target}.trees"]
    return subprocess.run(
        [*command, str(docs), str(target)], capture_output=True, text=True, timeout=540, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; fails where a strict build does."""
    target = tmp_path_factory.mktemp("site") / "html"
    built = build(target)
    assert (built.returncode, built.stderr) == (0, "")
    return target


def pages(site: Path) -> Iterator[tuple[Path, Page]]:
    for path in sorted(site.rglob("*.html")):
        yield path, Page(path.read_text(encoding="utf-8"))


def test_no_link_of_the_site_is_broken(site: Path) -> None:
    known = dict(pages(site))
    broken = []
    for path, page in known.items():
        for link in page.links:
            file, place = map(unquote, urldefrag(link))
            if "://" in file:
                continue
            target = (path.parent / file).resolve() if file else path
            if not target.exists() or (
                place and target in known and place not in known[target].places
            ):
                broken.append((path.name, link))
    assert broken == []


def test_the_site_loads_nothing_from_outside(site: Path) -> None:
    loaded = [(path.name, what) for path, page in pages(site) for what in page.loaded]
    styles = [(path.name, path.read_text(encoding="utf-8")) for path in site.rglob("*.css")]
    imported = [(name, url) for name, css in styles for url in re.findall(r"url\(([^)]*)\)", css)]
    assert len(loaded) > 0
    foreign = [pair for pair in [*loaded, *imported] if re.match(r"""['"]?(https?:)?//""", pair[1])]
    assert foreign == []


def test_every_example_is_shown_as_code(site: Path) -> None:
    """Outside a fence `>>>` would be a quotation of a quotation."""
    pages_with_quotes = [
        path.name for path in site.rglob("*.html") if "<blockquote" in path.read_text("utf-8")
    ]
    assert pages_with_quotes == []


def test_the_landing_page_shows_the_report_and_leads_everywhere(site: Path) -> None:
    page = Page((site / "index.html").read_text(encoding="utf-8"))
    assert any(what.endswith("answer.png") for what in page.loaded)
    written = {str(p.relative_to(DOCS).with_suffix(".html")) for p in DOCS.rglob("*.md")}
    assert written - {urldefrag(link).url for link in page.links} <= {"index.html"}


def bare(text: str) -> str:
    """Letters and digits alone: typography changes the rest."""
    return re.sub(r"\W+", "", re.sub(r"<[^>]*>|&\w+;", "", text))


@pytest.mark.parametrize("name", names())
def test_the_page_of_a_policy_says_all_that_it_says_of_itself(site: Path, name: str) -> None:
    d = describe(name)
    said = [d.sentence, *d.details, d.architecture, d.source.removeprefix("Source: "), *d.remarks]
    said += [part for line in d.plan for part in line]
    said += [part for p in d.parameters for part in (p.name, p.default, p.allowed, p.meaning)]
    shown = bare(
        (site / "policy" / f"{name}.html").read_text(encoding="utf-8").partition('id="code')[0]
    )
    assert [text for text in said if bare(text) not in shown] == []


# -- commands as they are shown ------------------------------------------------------------------


class Shown(NamedTuple):
    """A command of a page and what the page shows of its answer."""

    command: str
    answer: str


def blocks(page: str) -> Iterator[tuple[str, str, str]]:
    """Language, file name and contents of each fenced block of a page."""
    for name, language, text in FENCE.findall(read(page)):
        yield language, name, text


def commands(block: str) -> list[Shown]:
    """Lines after `$ ` are commands, the lines that follow their answers."""
    parts = (part.partition("\n") for part in re.split(r"(?m)^\$ ", block)[1:])
    return [Shown(command, answer) for command, _, answer in parts]


SOURCES = ["../README.md", *(str(path.relative_to(DOCS)) for path in sorted(DOCS.rglob("*.md")))]
PAGES = [page for page in SOURCES if "```console" in read(page)]


def answer(command: str, folder: Path, call: Call) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command; a plain `simstrag ...` runs in this process."""
    program, *arguments = shlex.split(command)
    if program == "simstrag" and not re.search(r"[|;&$<>]", command):
        return call(*arguments)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_answers_as_shown(
    page: str, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(DOCS.parent / "examples")
    monkeypatch.setenv("COLUMNS", "100" if page == "../README.md" else "200")
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")  # processes would import more than they compute
    before = {*sys.modules}
    for language, name, text in blocks(page):
        if name:
            (tmp_path / name).write_text(text, encoding="utf-8")
        for shown in commands(text) if language == "console" else ():
            code, out, err = answer(shown.command, tmp_path, call)
            assert (code, err) == (0, ""), shown.command
            right = doctest.OutputChecker().check_output(shown.answer, out, ALIKE)
            assert right, f"{shown.command} answers\n{out}"
    for name in {*sys.modules} - before:  # a page's own policies
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def test_the_readme_shows_every_answer_whole_on_80_lines() -> None:
    text = read("../README.md")
    assert text.count("\n") <= 80
    shown = [one for kind, _, block in blocks("../README.md") for one in commands(block)]
    assert shown
    assert [one.command for one in shown if "..." in one.answer] == []


def test_the_tutorial_is_run_from_its_trace_to_its_report() -> None:
    """The test above runs what it finds; this one says that there is something to find."""
    parts = list(blocks("tutorial.md"))
    assert {name for _, name, _ in parts if name} == {"slow.csv", "mine.yaml"}
    shown = [one.command for kind, _, text in parts if kind == "console" for one in commands(text)]
    assert "simstrag trace describe slow.csv" in shown
    assert "simstrag compare mine.yaml --out reports/mine" in shown


# -- the command line as it is described ---------------------------------------------------------

COMMANDS = {
    "demo", "run", "compare", "sensitivity", "policies", "report", "init", "doctor",
    "trace describe", "trace generate", "trace import", "trace resample", "sweep", "cluster",
    "diagnose", "record", "watch", "claims", "calibrate",
    "calibrate show",
    "calibrate compare", "calibrate check", "calibrate derive", "calibrate import",
    "calibrate workloads", "ddp", "validate", "schema",
    "fit", "advise",
}  # fmt: skip


def listed(help_: str) -> list[str]:
    """Names of the commands that a help lists."""
    sections = re.findall(r"(?m)^(\w[^:\n]*):\n((?:  .*\n)+)", help_)
    options = {"Arguments", "Options", *(title for title, rows in sections if "  --" in rows)}
    rows = "".join(rows for title, rows in sections if title not in options)
    return re.findall(r"(?m)^  ([a-z]+)  ", rows)


def test_every_command_has_its_line(call: Call) -> None:
    there = {
        f"{group} {name}".strip()
        for group in ("", "calibrate", "trace")
        for name in listed(call(*group.split(), "--help")[1])
    }
    rows = re.findall(r"(?m)^\| `simstrag ([a-z ]+?)(?: \[?[A-Z].*?)?` \|", read("cli.md"))
    assert (there - {"trace"}, set(rows)) == (COMMANDS, COMMANDS)


def test_scripts_are_served_where_the_page_says(call: Call) -> None:
    text = re.sub(r"\s+", " ", read("cli.md"))
    assert "`--json`, on every command, prints" in text
    assert "`--quiet`, or `-q`, on every command that writes something" in text
    helps = {command: call(*command.split(), "--help")[1] for command in COMMANDS}
    options = {command: help_.partition("Examples:")[0] for command, help_ in helps.items()}
    assert [name for name, text in options.items() if "--json" not in text] == ["schema"]
    writers = {command for command, text in options.items() if "--out" in text}
    assert writers == {command for command, text in options.items() if "--quiet" in text}


# -- pictures as they are made -------------------------------------------------------------------


def test_every_picture_that_a_page_names_is_there_and_small() -> None:
    named = {
        (DOCS / page).parent / picture
        for page in SOURCES
        for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", read(page))
    }
    assert {picture.resolve() for picture in named} == set((DOCS / "pictures").iterdir())
    assert [picture for picture in named if picture.stat().st_size >= 200_000] == []


def test_the_report_has_the_sections_of_which_there_are_pictures() -> None:
    script = (DOCS / "screenshots.py").read_text(encoding="utf-8")
    sections = set(re.findall(r'"#(\w+)', script))
    page = (ROOT / "simstrag/analysis/pages/html/report.html").read_text(encoding="utf-8")
    assert sections >= {"ranking", "workers", "progress", "waiting", "spent", "thresholds"}
    ids = set(re.findall(r'(?:id=|fold\()"(\w+)"', page))
    assert sections <= ids


# -- files as they are described -----------------------------------------------------------------

SCENARIO = simstrag.Scenario(
    workers=2, samples=2 * 128 * 4, target_progress=1, step={"compute": 0.1}, seeds=1
)


SUMMARY = read("formats/run.md").partition("### The summary")[2].partition("\n## ")[0]


def test_every_number_of_a_summary_is_explained() -> None:
    summary = simstrag.simulate(SCENARIO, "bsp").summary
    assert [name for name in summary if f"`{name}`" not in SUMMARY] == []


def test_the_columns_described_are_those_that_are_written(tmp_path: Path) -> None:
    run = simstrag.simulate(SCENARIO, "asgd", record_steps=True, record_gradients=True)
    run.write(tmp_path / "run")
    for table, columns in (("steps", STEP_COLUMNS), ("gradients", GRADIENT_COLUMNS)):
        assert tuple(pd.read_parquet(tmp_path / "run" / f"{table}.parquet").columns) == columns


@pytest.mark.usefixtures("no_page")
def test_every_file_and_column_of_a_comparison_folder_is_described(tmp_path: Path) -> None:
    text = read("formats/comparison.md")
    simstrag.compare(SCENARIO, ["bsp", "asgd"], jobs=1).write(tmp_path / "c")
    assert [p.name for p in (tmp_path / "c").iterdir() if f"`{p.name}" not in text] == []
    for name in ("comparison", "controls", "ranking", "sensitivity", "curves"):
        columns = pd.read_csv(tmp_path / "c" / f"{name}.csv").columns
        described = {re.sub(r"_(low|high)$", "", column) for column in columns}
        assert [c for c in described if f"`{c}`" not in text + SUMMARY] == [], name


def test_where_progress_is_unknown_the_page_on_the_model_says_so() -> None:
    text = read("modelled.md")
    unknown = text.partition("**Progress is null")[2].partition("\n## ")[0]
    for name in (*names(), "backup:weigh=members"):
        reason = unmodelled(ask(load(name), WORLD, name))
        rows = [row for row in unknown.splitlines() if row.startswith("|") and f"`{name}`" in row]
        assert [row for row in rows if reason is None] == [], name
        assert reason is None or any(reason in row for row in rows), name
