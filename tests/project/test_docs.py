"""Pages name tests, files and members that exist, and all of those that they should."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from simstrag.contract import Policy, View
from tools import format_tables, reference_page

ROOT = Path(__file__).parents[2]
RULES = (ROOT / "docs" / "semantics.md").read_text(encoding="utf-8")


def test_no_link_of_a_page_leads_nowhere() -> None:
    """Of all pages, those beside code and data too; of those in docs/ the built site is tested."""
    folders = ("docs", "examples", "simstrag", "tools")
    pages = [*ROOT.glob("*.md"), *(p for name in folders for p in (ROOT / name).rglob("*.md"))]
    links = [
        (page, link)
        for page in pages
        if page.parent != ROOT / "docs" / "policy"  # made with the site
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
        if "://" not in link
    ]
    assert len({page.parent for page, _ in links}) > 5
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_every_test_that_a_page_names_exists() -> None:
    pages = (path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    named = {pair for text in pages for pair in re.findall(r"`(tests/\S+?)::(\w+)`", text)}
    assert len(named) > 100
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path, _ in named}
    assert [pair for pair in named if f"def {pair[1]}(" not in texts[pair[0]]] == []


def test_every_rule_names_a_test() -> None:
    rules = re.split(r"(?m)^\*\*(?=\d+\.)", RULES)[1:]
    numbers = [int(rule.split(".")[0]) for rule in rules]
    assert numbers == list(range(34))
    silent = {n for n, rule in zip(numbers, rules, strict=True) if "::test_" not in rule}
    assert silent == set()


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md", "README.md"])
def test_a_file_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.\w+)?)`", text))
    own = {name for name in named if name.split("/")[0] not in {"reports", "runs"}}
    assert [n for n in own if not ((ROOT / n).exists() or (ROOT / "simstrag" / n).exists())] == []


def test_authors_of_policies_are_told_of_every_optional_member() -> None:
    optional = (Policy.__doc__ or "").partition("Optional members:")[2]
    members = re.findall(r"(?m)^ *(\w+): ", optional)
    assert {"summary", "reduces_precision"} <= set(members)
    page = (ROOT / "docs" / "howto" / "policy.md").read_text(encoding="utf-8")
    assert [member for member in members if not re.search(rf"`{member}\b", page)] == []


def test_the_reference_page_is_that_of_the_docstrings() -> None:
    made = reference_page.page()
    shown = reference_page.PAGE.read_text(encoding="utf-8")
    assert shown == made, "run python -m tools.reference_page"


@pytest.mark.parametrize("cls", reference_page.FIELDS, ids=lambda cls: cls.__name__)
def test_the_reference_page_has_every_public_field_with_its_rule(cls: type) -> None:
    section = reference_page.page().partition(f"## {cls.__name__}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"(?m)^\| `(\w+)` \| (.+) \| .+ \| \[\d+[a-d]?\]\(semantics", section)
    assert [name for name, _ in rows] == [f.name for f in fields(cls) if f.name[0] != "_"]


def test_a_field_without_a_rule_is_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {name: entry for name, entry in reference_page.FIELDS[View].items() if name != "amp"}
    monkeypatch.setitem(reference_page.FIELDS, View, known)
    with pytest.raises(ValueError, match=r"View: no meaning or rule, or no field: \['amp'\]"):
        reference_page.page()
    monkeypatch.setitem(known, "amp", "99")
    with pytest.raises(ValueError, match=r"docs/semantics\.md has no rule 99"):
        reference_page.page()


@pytest.mark.parametrize("path", format_tables.PAGES, ids=lambda path: path.stem)
def test_a_page_on_a_format_has_the_keys_of_the_code(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert format_tables.filled(text) == text, "run python -m tools.format_tables"


def test_no_page_needs_to_be_built_to_be_read() -> None:
    """A list of pages, which a built site shows as its menu, is all that it may hide."""
    pages = {path: path.read_text("utf-8") for path in (ROOT / "docs").rglob("*.md")}
    used = {
        (path.name, name)
        for path, text in pages.items()
        for name in re.findall(r"(?m)^[`:]{3}\{([\w-]+)\}", text)
        if path.parent.name != "policy"  # made with the site
    }
    assert used == {("index.md", "toctree"), ("policies.md", "toctree")}


def test_a_key_that_a_page_forgets_is_an_error() -> None:
    head = "<!-- simstrag.scenario.sections:StepSection -->\n| key | meaning |\n|---|---|\n"
    with pytest.raises(ValueError, match=r"'host_share'.*not there: \['speed'\]"):
        format_tables.filled(f"{head}| `compute` | seconds |\n| `speed` | no |\n")
