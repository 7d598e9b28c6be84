"""Sentences of the pages have at most 30 words, and the first page is read in three minutes.

Blocks of code and addresses of links do not count, code in a sentence is one word.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from simstrag.policies import describe, names

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    p
    for p in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
    if p.parent.name != "policy"
]
FIRST = DOCS / "first.md"
SKIPPED = re.compile(
    r"(?ms)^```.*?^```$"
    r"|<!--.*?-->"
    r"|(?<=\n\n) {4}[^\n]*\n(?: {4}[^\n]*\n|\n(?= {4}))*"
)
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)")
ROW = re.compile(r"(?m)^\|.*$")
BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*#]|\d+\.)\s?)")
END = re.compile(r"(?<=[.?!])[)\"'*_]*\s+(?=[\W_]*[A-Z0-9])")


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page; a cell, a heading and an item of a list end one."""
    text = re.sub(r"`[^`]*`", "X", LINK.sub(r"\1", SKIPPED.sub("\n\n", text)))
    text = ROW.sub(lambda row: re.sub(r"(?<!\\)\|", "\n\n", row[0]), text)
    for block in BLOCK.split(text):
        yield from (" ".join(part.split()) for part in END.split(block.strip()))


def long(text: str) -> list[str]:
    return [s for s in sentences(text) if len(re.findall(r"\S*\w\S*", s)) > 30]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_of_a_page_has_more_than_30_words(page: Path) -> None:
    assert long(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", names())
def test_no_sentence_of_a_policy_has_more_than_30_words(name: str) -> None:
    d = describe(name)
    assert long("\n\n".join([d.sentence, *d.details, d.source, *d.remarks])) == []


def test_a_reader_of_the_first_page_has_at_most_250_words_to_read() -> None:
    sections = re.split(r"(?m)^## ", FIRST.read_text(encoding="utf-8"))[1:]
    assert len(sections) == 4
    assert max(len(section.split()) for section in sections) <= 250
