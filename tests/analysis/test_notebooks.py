"""The notebooks run from the first cell to the last, without a network, and hold what they show.

Each is executed once, in its own folder and its own kernel.
"""

import ast
import itertools
import json
import re

import nbformat
import pytest

from tools.notebooks import FOLDER, TEXTS, digest, execute, names, read

NAMES = names()
LARGEST = 500_000
"""Bytes of a notebook with its outputs."""

NO_NETWORK = """
import socket

def refuse(self, address, *rest):
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise OSError(f"a notebook asked for {address}")
    return connect(self, address, *rest)

connect, socket.socket.connect = socket.socket.connect, refuse
"""
"""The `sitecustomize` of the kernel and of all processes that it starts."""
GUARDED = """
import socket

assert socket.socket.connect.__name__ == "refuse"
"""


def code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture(scope="module", params=NAMES)
def executed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> nbformat.NotebookNode:
    """A notebook with the outputs of this run; an error in any cell is an error here."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "sitecustomize.py").write_text(NO_NETWORK)
    notebook = read(request.param)
    notebook.cells.append(nbformat.v4.new_code_cell(GUARDED))  # type: ignore[no-untyped-call]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        execute(notebook, folder)
    notebook.name = request.param
    return notebook


def outputs(cell: nbformat.NotebookNode, kind: str) -> list[str]:
    """What a cell shows of one kind, such as `image/png`."""
    return [o.data[kind] for o in cell.outputs if kind in o.get("data", {})]


def texts(cell: nbformat.NotebookNode, kind: str) -> list[str]:
    """The same without styles, which say nothing."""
    return [re.sub(r"(?s)<style>.*?</style>", "", text) for text in outputs(cell, kind)]


@pytest.mark.thorough
class TestExecuted:
    def test_nothing_is_warned_of(self, executed: nbformat.NotebookNode) -> None:
        said = [o.text for cell in code(executed) for o in cell.outputs if "stderr" in o.values()]
        assert said == []

    def test_it_shows_what_is_kept_in_it(self, executed: nbformat.NotebookNode) -> None:
        """Else run python -m tools.notebooks."""
        for now, kept in zip(code(executed), code(read(executed.name)), strict=False):
            for kind in TEXTS:
                assert texts(now, kind) == texts(kept, kind), now.id

    def test_every_figure_is_shown(self, executed: nbformat.NotebookNode) -> None:
        drawn = 0
        for cell in code(executed):
            asked = cell.source.count("figures.") + cell.source.count("plt.subplots(")
            asked -= cell.source.count("import figures.")
            assert len(outputs(cell, "image/png")) >= asked
            drawn += asked
        assert drawn >= 1

    def test_its_conclusions_are_text_from_this_run(self, executed: nbformat.NotebookNode) -> None:
        said = "".join(text for cell in code(executed) for text in outputs(cell, "text/markdown"))
        assert "bsp" in said or "asgd" in said
        assert "nan" not in said


@pytest.mark.parametrize("name", NAMES)
class TestCommitted:
    def test_it_is_valid_and_small(self, name: str) -> None:
        nbformat.validate(read(name))  # type: ignore[no-untyped-call]
        assert (FOLDER / f"{name}.ipynb").stat().st_size < LARGEST

    def test_its_outputs_are_of_its_code(self, name: str) -> None:
        """Else run python -m tools.notebooks."""
        notebook = read(name)
        assert notebook.metadata["simstrag"] == {"outputs_of": digest(notebook)}
        assert [c.execution_count for c in code(notebook)] == [
            k for k, _ in enumerate(code(notebook), start=1)
        ]
        assert sum(bool(cell.outputs) for cell in code(notebook)) >= 3

    def test_its_text_holds_no_result(self, name: str) -> None:
        """A number in prose with a decimal point, a percentage or a unit would be one."""
        text = [cell.source for cell in read(name).cells if cell.cell_type == "markdown"]
        words = " ".join(text).replace("95 % interval", "").split()
        pairs = itertools.pairwise(words)
        assert not [b for a, b in pairs if b == "%" and a[0].isdigit()]
        assert not [w for w in words if w.strip("(),;").replace(".", "", 1).isdigit() and "." in w]

    def test_its_code_reads_as_a_program(self, name: str) -> None:
        """No shell commands; magics only where a file is written."""
        for cell in code(read(name)):
            magic, _, rest = cell.source.partition("\n")
            ast.parse(rest if magic.startswith("%%writefile ") else cell.source)

    def test_it_names_no_machine(self, name: str) -> None:
        notebook = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
        assert notebook["metadata"]["language_info"] == {"name": "python"}
        assert not re.search(r"/(home|root|tmp|work|usr)/", json.dumps(notebook))
        assert all(cell["metadata"] == {} for cell in notebook["cells"])


def test_there_are_three() -> None:
    assert NAMES == ["decision", "own_policy", "sensitivity"]
