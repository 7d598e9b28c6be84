"""Reports of what was written earlier."""

from __future__ import annotations

from pathlib import Path

from simstrag.documents.paths import write_whole
from simstrag.errors import InputError

__all__ = ["report"]


def report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the HTML report of a comparison or run directory; its path.

    Of a training on real ranks that was killed, a run is made of what it recorded.  Raises
    `InputError` where `folder` is neither, or `out` cannot be written.
    """
    from simstrag.analysis.pages.report import render, render_run
    from simstrag.ddp.record.journal import NAME
    from simstrag.ddp.record.replay import finish
    from simstrag.experiments.compare import Comparison
    from simstrag.runs.run import Run

    folder = Path(folder)
    if (folder / "comparison.csv").exists():
        page = render(Comparison.read(folder))
    elif (folder / "run.json").exists():
        page = render_run(Run.read(folder))
    elif (folder / NAME).exists():
        page = render_run(finish(folder))
    else:
        raise InputError(
            f"{folder}: holds neither a comparison nor a run; give a folder that "
            "`simstrag compare`, `simstrag run --out` or `simstrag ddp --out` wrote"
        )
    path = folder / "report.html" if out is None else Path(out)
    write_whole(path, lambda part: part.write_text(page, encoding="utf-8"))
    return path
