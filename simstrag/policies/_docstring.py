"""What a policy says of itself: its decision, its source, and what of it is whose."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from types import ModuleType

__all__ = ["Docstring", "read"]

SOURCE = "Source:"
AUTHORS = re.compile(r'Source: (?:[^"]*(?:: | of ))?([^"]+?), "')  # Source: what of whom, "title"
YEAR = re.compile(r"\b(?:19|20)\d\d\b")
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
TITLE = re.compile(r'"[^"]*"')


@dataclass(frozen=True, slots=True)
class Docstring:
    """The paragraphs before the one that begins with `Source:`, that one, and those after it."""

    decides: tuple[str, ...]
    source: str
    remarks: tuple[str, ...]

    @property
    def paper(self) -> str:
        """The first paper of the source, in short; nothing where there is none.

        >>> text = 'Source: Ho et al., "More Effective ...", NIPS 2013; before: Li, "A", 2012.'
        >>> Docstring((), text, ()).paper
        'Ho et al. 2013'
        """
        first = TITLE.sub('""', self.source).partition(";")[0]
        authors = AUTHORS.search(first)
        name = authors[1] if authors else ""
        if "," in name:
            name = f"{name.partition(',')[0]} et al."
        year, arxiv = YEAR.search(first), ARXIV.search(first)
        dated = " ".join(part for part in (name, year[0] if year else "") if part)
        return ", ".join(part for part in (dated, arxiv[0] if arxiv else "") if part)


def read(cls: type, module: ModuleType, alone: bool) -> Docstring:
    """The docstring of a policy's file, or its own where the file says nothing of it alone.

    alone: whether it is the only policy of its file.
    """
    text = inspect.getdoc(module) if alone else None
    if not text:
        text = inspect.getdoc(cls) or ""
        if text.startswith(f"{cls.__name__}("):  # what a dataclass writes by itself
            text = ""
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    at = next((k for k, text in enumerate(paragraphs) if text.startswith(SOURCE)), len(paragraphs))
    source = paragraphs[at] if at < len(paragraphs) else ""
    return Docstring(tuple(paragraphs[:at]), source, tuple(paragraphs[at + 1 :]))
