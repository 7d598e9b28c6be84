"""The imports of every module of simstrag, read from the source; those inside functions count."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "simstrag"
DOORSTEP = {"arrays", "contract", "errors", "rendering"}
"""The room and the three modules beside it that every room may import."""


class Import(NamedTuple):
    """One import: module `by` imports `target`.

    ours: both are modules of simstrag; their names leave out `simstrag.`.
    """

    by: str
    target: str
    ours: bool


def room(module: str) -> str:
    """The package of a module, or a module on the doorstep itself.

    >>> room("engine.kernel")
    'engine'
    """
    return module.partition(".")[0]


def _module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def _imports_of(by: str, path: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            head, _, rest = name.partition(".")
            if head != "simstrag":
                yield Import(by, name, False)
                continue
            while rest and rest not in MODULES:  # a name inside a module
                rest = rest.rpartition(".")[0]
            yield Import(by, rest, True)


@functools.cache
def imports() -> list[Import]:
    """All imports, in the order of the modules."""
    return [found for by, path in MODULES.items() for found in _imports_of(by, path)]
