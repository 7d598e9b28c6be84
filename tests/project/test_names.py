"""One meaning a name: the public name of a class or a union stands for one in the whole project."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"


def files() -> list[Path]:
    return sorted((ROOT / "simstrag").rglob("*.py"))


def classes() -> dict[str, set[str]]:
    """The modules that define each public class, or union of classes such as `A | B`."""
    modules = defaultdict(set)
    for path in files():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            for name in defined_by(node):
                modules[name].add(str(path.relative_to(ROOT)))
    return modules


def defined_by(node: ast.stmt) -> list[str]:
    """The public class or union that a statement defines, if any."""
    match node:
        case ast.ClassDef(name=name):
            pass
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp(op=ast.BitOr())) if (
            not name.isupper()  # a constant, such as flags
        ):
            pass
        case _:
            return []
    return [] if name.startswith("_") else [name]


def test_no_two_modules_define_a_public_class_or_union_of_the_same_name() -> None:
    assert {name: paths for name, paths in classes().items() if len(paths) > 1} == {}


def test_the_glossary_is_alphabetical_and_names_classes_that_exist() -> None:
    entries = re.findall(r"(?m)^- \*\*(.+?)\*\*: (.+)$", GLOSSARY.read_text(encoding="utf-8"))
    words = [word for word, _ in entries]
    assert words == sorted(set(words), key=str.lower)
    named = {name for _, text in entries for name in re.findall(r"`([A-Z]\w+)`", text)}
    assert named <= classes().keys()


def test_every_package_names_the_file_to_open_first() -> None:
    """A file, or a folder of them, that exists; so does the one after it, where it names one."""
    faults = []
    for path in files():
        if path.name != "__init__.py" or path.parent.name == "simstrag":
            continue
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        first = re.findall(r"Start\s+with\s+`([\w.]+)`", text)
        for name in [*first, *re.findall(r"then\s+`([\w.]+)`", text)] if first else [""]:
            file, module = path.parent / name, path.parent / f"{name.replace('.', '/')}.py"
            if not name or not (file.exists() or module.exists()):
                faults.append(f"{path.relative_to(ROOT)}: {name or 'names none'}")
    assert faults == []
