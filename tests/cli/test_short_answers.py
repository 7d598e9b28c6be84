"""Diagnose, sensitivity and cluster answer a terminal in twelve lines, and say all when asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from simstrag.analysis.text.brief import LINES, WIDTH
from tests.analysis.test_cluster_report import CERTAIN
from tests.cluster.test_managers import NOISY
from tests.support.commands import SCENARIO, TRACE, Call

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "tests" / "data" / "records"
LOGS = (
    *sorted(path for path in RECORDS.glob("*.*") if path.name != "names.csv"),
    RECORDS / "cases" / "13-restarted-job" / "steps.csv",
    RECORDS / "cases" / "16-whole-node-slow" / "steps.csv",
    ROOT / "examples" / "recorded-fsdp2",
)
STUDIES = {
    "certain": CERTAIN,
    "unfinished": CERTAIN | {"horizon": 30},
    "managers": NOISY | {"managers": ["none", "star"]},
    "many": CERTAIN | {"policies": ["bsp", "asgd", "ssp", "cgp"], "placers": ["packed", "spread"]},
}
OWN = "placeholders: [server.service, learner.noise_scale, learner.c_tau]\n"
ASKED = {
    **{path.name if path.suffix else path.parent.name: ("diagnose", str(path)) for path in LOGS},
    "one constant": ("sensitivity", "case.yaml", "-k", "server.service"),
    "one seed": ("sensitivity", "case.yaml", "--seeds", "1"),
    "three policies": ("sensitivity", "case.yaml", "-p", "bsp", "-p", "asgd", "-p", "lb_bsp"),
    **{name: ("cluster", f"{name}.yaml") for name in STUDIES},
    "a comparison": ("compare", "case.yaml"),
    "placeholders": ("compare", "own.yaml"),
    "advice": ("advise", "own.yaml", "-p", "lb_bsp", "-p", "asgd", "-p", "cgp"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_page: None) -> None:
    """A folder with a scenario and studies, and a terminal of `WIDTH` columns."""
    monkeypatch.chdir(tmp_path)
    Path("case.yaml").write_text(SCENARIO)
    Path("slow.csv").write_text(TRACE)
    Path("own.yaml").write_text(SCENARIO + OWN)
    for name, study in STUDIES.items():
        Path(f"{name}.yaml").write_text(json.dumps(study))

    def terminal(stderr: bool = False) -> Console:
        return Console(stderr=stderr, force_terminal=True, color_system=None, width=WIDTH)

    monkeypatch.setattr("simstrag.cli.console.console", terminal)


def options(command: str) -> tuple[str, ...]:
    return ("--jobs", "1", "--out", "table.csv" if command == "sensitivity" else "out")


def said(out: str) -> str:
    """What was printed, as words with one space between them."""
    return " ".join(out.split())


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_an_answer_has_twelve_lines_with_its_report(asked: tuple[str, ...], call: Call) -> None:
    code, out, _ = call(*asked, *options(asked[0]))
    lines = out.splitlines()
    assert code == 0
    assert 3 <= len(lines) <= LINES
    assert max(map(len, lines[:-2])) <= WIDTH
    assert lines[-1].startswith(("report: ", "table: "))


@pytest.mark.parametrize(
    ("asked", "both", "more"),
    [
        (
            ("diagnose", str(RECORDS / "throughput.csv")),
            "Rank 1 on gpu01 takes 1.82 times as long",
            "not by Pauses common to all ranks, scattered pauses",
        ),
        (ASKED["three policies"], "has the shortest mean time to the target", "server.service"),
        (ASKED["many"], "has the shortest mean", "cores used"),
    ],
)
def test_verbose_says_what_the_short_answer_leaves_out(
    asked: tuple[str, ...], both: str, more: str, call: Call
) -> None:
    short, whole = (said(call(*asked, *options(asked[0]), *v)[1]) for v in ((), ("-v",)))
    assert both in short
    assert both in whole
    assert more in whole
    assert more not in short


@pytest.mark.parametrize("name", ["throughput.csv", "one constant", "certain"])
def test_json_does_not_depend_on_how_much_is_printed(name: str, call: Call) -> None:
    asked = (*ASKED[name], *options(ASKED[name][0]), "--json")
    short, whole = (json.loads(call(*asked, *more)[1]) for more in ((), ("--verbose",)))
    assert short == whole


def test_a_label_says_how_many_lines_it_has_more(call: Call) -> None:
    out = said(call("diagnose", str(RECORDS / "megatron-straggler.log"))[1])
    assert "SM clock: 1290 MHz on rank 21, 1980 MHz on rank 0. (3 more with --verbose)" in out


def test_a_record_that_hides_the_rank_is_no_all_clear(call: Call) -> None:
    out = said(call("diagnose", str(RECORDS / "backward-hides.csv"))[1])
    assert out.startswith("who This record does not show a rank whose own backward was slow")
    assert "as far as this record shows" in out
    assert "No rank is slower" not in out


def test_the_nearest_value_that_changes_the_lead_comes_first(call: Call) -> None:
    out = said(call("sensitivity", "case.yaml", "-k", "learner.c_tau")[1])
    assert "asgd has the shortest mean time to the target, unless the cost of staleness is" in out
    assert "(now 1): then bsp is faster" in out
    assert "A gradient is stale where the model has moved on before it arrives." in out
