"""One meaning a name: a public class name stands for one class in the whole project."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("simstrag", "analysis", "calibration", "traces", "validation")
PERMITTED = {"Limits", "Lost", "Plan", "Point", "Table"}
"""Names that two classes still share; a name leaves this list with its second class."""


def files() -> list[Path]:
    return [
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not path.is_symlink()
    ]


def test_no_two_modules_define_a_public_class_of_the_same_name() -> None:
    modules = defaultdict(set)
    for path in files():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].add(str(path.relative_to(ROOT)))
    shared = {name: sorted(paths) for name, paths in modules.items() if len(paths) > 1}
    assert {name: shared[name] for name in shared.keys() - PERMITTED} == {}
