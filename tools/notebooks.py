"""Runs the notebooks and keeps their outputs in them: `python -m tools.notebooks`.

What differs from run to run, or names this machine, is left out: times, ids of tables, metadata.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "simstrag" / "analysis" / "notebooks"
SECONDS = 300
"""What a cell may take on a busy machine; the longest takes about ten seconds on two cores."""
TEXTS = ("text/plain", "text/markdown", "text/html")
"""Kinds of output that are the same in every run."""
SHOWN = {*TEXTS, "image/png"}
"""Kinds of output that are kept."""


def read(name: str) -> nbformat.NotebookNode:
    """A notebook by its name."""
    found: nbformat.NotebookNode = nbformat.read(  # type: ignore[no-untyped-call]
        FOLDER / f"{name}.ipynb", as_version=4
    )
    return found


def names() -> list[str]:
    """The names of the notebooks."""
    return sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def digest(notebook: nbformat.NotebookNode) -> str:
    """A digest of the code, which says whether outputs are of it."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()[:16]


def execute(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Run all cells in a folder, and clean their outputs."""
    client = NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )  # fmt: skip
    client.execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            _clean(output)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "simstrag": {"outputs_of": digest(notebook)},
    }


def _clean(output: nbformat.NotebookNode) -> None:
    """Leave out what differs from run to run."""
    if "data" not in output:
        return
    output.metadata = {}
    data = {kind: text for kind, text in output.data.items() if kind in SHOWN}
    if len(data) > 1:  # the same in plain text, with paths of this machine
        data.pop("text/plain", None)
    for kind in TEXTS:
        if kind in data:
            data[kind] = re.sub(r"T_[0-9a-f]{5}(?=_|\b)", "T", data[kind])
    output.data = data


def main() -> None:
    """Run and rewrite every notebook."""
    for name in names():
        notebook = read(name)
        with tempfile.TemporaryDirectory() as folder:
            os.environ["IPYTHONDIR"] = f"{folder}/ipython"
            execute(notebook, Path(folder))
        nbformat.write(notebook, FOLDER / f"{name}.ipynb")  # type: ignore[no-untyped-call]
        print(f"{name}: {(FOLDER / name).with_suffix('.ipynb').stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
