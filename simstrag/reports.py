"""Reports of what was written earlier."""

from __future__ import annotations

from pathlib import Path

from simstrag.errors import InputError
from simstrag.paths import write_whole

__all__ = ["report"]


def report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the HTML report of a comparison or run directory; its path.

    Raises `InputError` where `folder` is neither, or `out` cannot be written.
    """
    from simstrag.analysis.report import render, render_run
    from simstrag.comparison import Comparison
    from simstrag.run import Run

    folder = Path(folder)
    if (folder / "comparison.csv").exists():
        page = render(Comparison.read(folder))
    elif (folder / "run.json").exists():
        page = render_run(Run.read(folder))
    else:
        raise InputError(
            f"{folder}: holds neither a comparison nor a run; give a folder that "
            "`simstrag compare` or `simstrag run --out` wrote"
        )
    path = folder / "report.html" if out is None else Path(out)
    write_whole(path, lambda part: part.write_text(page, encoding="utf-8"))
    return path
