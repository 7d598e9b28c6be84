"""The Makefile starts programs that exist, and in a way in which they find their modules."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Makefile").read_text(encoding="utf-8")


def test_a_program_that_the_makefile_starts_exists() -> None:
    started = set(re.findall(r"python (docs/\S+)|\t(tools/\S+)", TEXT))
    scripts = {path for pair in started for path in pair if path}
    assert {"docs/screenshots.py", "tools/try_wheel.sh"} <= scripts
    assert [path for path in scripts if not (ROOT / path).is_file()] == []


def test_tools_and_benchmarks_are_started_as_modules() -> None:
    """By its path a program would not find the folders beside its own."""
    assert re.findall(r"python (?:tools|benchmarks)/\S+", TEXT) == []
    modules = set(re.findall(r"-m ((?:tools|benchmarks)[.\w]*)", TEXT))
    assert "tools.architecture" in modules
    paths = [ROOT / module.replace(".", "/") for module in modules]
    assert [p for p in paths if not (p.is_dir() or p.with_suffix(".py").exists())] == []
