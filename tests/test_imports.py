"""Who may import whom (design: vocabulary <- thought <- world <- use), read from the source.

A module of the core that `LAYERS` does not name belongs to the world: what only the engine needs
there is its own affair.  A satellite that needs another module of the core needs a word in
`SATELLITES`.  Imports inside functions count like all others, unless it is said.
"""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import simstrag

ROOT = Path(__file__).parent.parent

LAYERS = {
    "vocabulary": (
        "checks", "collectives", "columns", "documents", "errors", "histories", "measurements",
        "names", "noise", "paths", "pieces", "places", "plan", "policy", "profile", "quantity",
        "quorum", "run", "slowdown", "tables", "trace", "trace_files", "trace_rows", "validation",
        "view",
    ),
    "thought": (
        "batches", "constants", "contention", "inputs", "learning", "learning.noise_scale", "loops",
        "metrics", "modes", "noise_tables", "policies", "predictors", "quantities", "responses",
        "scenario", "sections", "stragglers", "timing", "windows",
    ),
    "world": (
        "compiled", "ddp", "engine", "kernel", "learning.real", "live", "recorder", "summary",
        "workloads",
    ),
    "use": (
        "__main__", "backends", "cli", "comparison", "doctor", "finished", "processes", "reports",
        "schema", "sensitivity", "starter", "study", "sweeps", "validate", "work",
    ),
}  # fmt: skip

SATELLITES = {
    "calibration": {
        "batches", "constants", "ddp", "ddp.journal", "ddp.trips", "errors", "measurements",
        "names", "paths", "places", "profile", "quantity", "responses", "run", "trace",
        "workloads", "workloads.device", "workloads.job", "workloads.workload",
    },
    "traces": {
        "errors", "histories", "names", "noise", "paths", "pieces", "trace", "trace_rows",
    },
    "analysis": {
        "batches", "collectives", "comparison", "contention", "errors", "measurements", "metrics",
        "names", "policies", "profile", "quantities", "quantity", "responses", "run", "scenario",
        "slowdown", "timing", "trace",
    },
    "fidelity": {
        "batches", "ddp", "ddp.hints", "ddp.journal", "ddp.replay", "ddp.trainer",
        "ddp.trips", "ddp.ways",
        "engine", "errors", "measurements", "metrics", "names", "noise", "paths", "places",
        "policies", "policy", "profile", "quantity", "responses", "run", "scenario", "trace",
        "validation", "workloads", "workloads.device",
        "analysis.cells", "analysis.drawing", "analysis.formats", "analysis.page",
        "analysis.pictures", "analysis.sheets", "analysis.tables",
        "calibration.calibrate", "calibration.campaign", "calibration.cells", "calibration.crew",
        "calibration.device", "calibration.loads", "calibration.occupancy",
        "calibration.processes", "calibration.steps", "calibration.traffic",
    },
}  # fmt: skip
"""The modules of the core, and of other satellites, that each satellite needs.

Analysis draws contention, hence `timing`; fidelity holds real runs against simulated ones, and may
calibrate before."""

MAY_USE_SATELLITES = {
    "cli.calibrate", "cli.compare", "cli.ddp", "cli.profiles", "cli.run", "cli.trace",
    "cli.trace_import", "cli.trace_resample", "cli.validate", "comparison", "doctor", "profile",
    "reports",
}  # fmt: skip
"""They do so inside functions only: who does not ask for a report needs no drawing."""


class Import(NamedTuple):
    """One import. at_load: it is executed when the module is; not in a function, nor for types."""

    by: str
    what: str
    at_load: bool


def module_name(path: Path) -> str:
    """As it is imported, `simstrag.` left out."""
    relative = path.relative_to(ROOT)
    parts = relative.parts[1:] if relative.parts[0] == "simstrag" else relative.parts
    return ".".join(parts).removesuffix(".py").removesuffix(".__init__") or "__init__"


def imports(path: Path) -> Iterator[Import]:
    by = module_name(path)

    def visit(node: ast.AST, at_load: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(by, alias.name, at_load)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: relative import"
                assert child.module is not None
                for alias in child.names:  # `from simstrag import noise` names a module
                    whole = child.module == "simstrag" or child.module in PACKAGES
                    yield Import(
                        by, f"{child.module}.{alias.name}" if whole else child.module, at_load
                    )
            else:
                for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
                in_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
                yield from visit(child, at_load and not for_types and not in_function)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")), at_load=True)


FOLDERS = ("simstrag", *SATELLITES)
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
PACKAGES = {f"simstrag.{module_name(p)}" for p in FILES if p.name == "__init__.py"}
MODULES = {module_name(path): path for path in FILES}
IMPORTS = [found for path in FILES for found in imports(path)]


def own(what: str) -> str | None:
    """The module of this project that is meant, `simstrag.` left out; None for anybody else's."""
    if what == "simstrag":
        return "__init__"
    if not what.startswith("simstrag."):
        return None
    name = what.removeprefix("simstrag.")
    return name if name in MODULES else name.rpartition(".")[0] or name


def layer(module: str) -> str:
    """The layer of a module: its own, or its package's, or the world."""
    for name, members in LAYERS.items():
        if module in members:
            return name
    package = module.rpartition(".")[0]
    return layer(package) if package else "world"


def satellite(module: str) -> str | None:
    head = module.partition(".")[0]
    return head if head in SATELLITES else None


def of(*modules: str) -> list[Import]:
    """What these modules, or those in these packages, import."""
    found = [
        i for i in IMPORTS if any(i.by == name or i.by.startswith(f"{name}.") for name in modules)
    ]
    assert found or not any(name in MODULES for name in modules)
    return found


def foreign(found: list[Import]) -> set[str]:
    """The packages of others among them."""
    heads = {i.what.partition(".")[0] for i in found if own(i.what) is None}
    return heads - set(sys.stdlib_module_names) - {"__future__"}


def test_all_sources_were_found() -> None:
    assert {"policy", "policies.bsp", "traces.generate", "calibration.record"} < set(MODULES)
    assert Import("engine", "simpy", True) in IMPORTS
    assert Import("trace", "pandas", False) in IMPORTS
    assert Import("engine", "simstrag.policies", True) in IMPORTS


@pytest.mark.parametrize("heavy", ["torch", "simpy", "numba", "pandas", "pyarrow", "numpy"])
def test_the_package_itself_imports_nothing_heavy(heavy: str) -> None:
    program = f"import sys, simstrag; dir(simstrag); sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_decision_core_does_without_clock_engine_and_framework() -> None:
    program = (
        "import sys; from simstrag import policies as p; [p.load(name) for name in p.names()]; "
        "world = {'simpy', 'torch', 'pandas', 'simstrag.engine', 'simstrag.timing'}; "
        "print(*world & {*sys.modules})"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == []


def test_the_contract_needs_numpy_only() -> None:
    found = of("plan", "policy", "quorum", "view")
    assert foreign(found) == {"numpy"}
    assert {own(i.what) for i in found} - {None} == {"checks", "errors", "plan", "quorum", "view"}


THOUGHT = {"loops", "modes", "noise_tables", "predictors", "stragglers", "windows"}
"""Pure functions and data that policies decide with."""


def test_what_policies_think_with_needs_numpy_scipy_and_numba_only() -> None:
    found = of(*THOUGHT)
    assert foreign(found) <= {"numpy", "scipy", "numba"}
    assert {own(i.what) for i in found} - {None} <= {"errors", *THOUGHT}


def test_policies_know_the_contract_and_what_they_think_with_only() -> None:
    found = of("policies")
    assert foreign(found) <= {"numpy"}
    found = [i for i in found if not str(own(i.what)).startswith("policies")]
    allowed = {"errors", "names", "plan", "policy", "quorum", "view", *THOUGHT}
    assert {own(i.what) for i in found} - {None} <= allowed


@pytest.mark.parametrize(
    "package", ["random", "time", "datetime", "threading", "asyncio", "socket"]
)
def test_policies_own_no_clock_and_no_luck(package: str) -> None:
    thinkers = of("plan", "policy", "quorum", "view", "policies", *THOUGHT)
    assert package not in {i.what.partition(".")[0] for i in thinkers}


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("simpy", ["engine"]),
        ("numba", ["compiled", "loops"]),
        ("torch", ["workloads", "learning.real", "ddp", "calibration", "fidelity"]),
        ("matplotlib", ["analysis"]),
        ("bokeh", ["analysis"]),
        ("jinja2", ["analysis"]),
        ("typer", ["cli"]),
        ("joblib", ["processes", "validate", "work"]),
        ("distributed", ["backends"]),
        ("ray", ["backends"]),
    ],
)
def test_a_heavy_package_stays_where_it_is_needed(package: str, allowed: list[str]) -> None:
    users = {i.by for i in IMPORTS if i.what.partition(".")[0] == package}
    strangers = {u for u in users if not any(u == a or u.startswith(f"{a}.") for a in allowed)}
    assert strangers == set()


def test_every_layer_knows_only_itself_and_those_before_it() -> None:
    order = list(LAYERS)
    wrong = []
    for by, what, _ in IMPORTS:
        target = own(what)
        if target is None or by == "__init__" or satellite(by) or satellite(target):
            continue
        assert target != "__init__", f"{by} imports the package itself, which loads by need"
        if order.index(layer(target)) > order.index(layer(by)):
            wrong.append(f"{by} ({layer(by)}) imports {target} ({layer(target)})")
    assert wrong == []


def test_the_core_reaches_for_satellites_only_when_asked() -> None:
    wrong = []
    for by, what, at_load in IMPORTS:
        target = own(what)
        if target is None or satellite(by) or not satellite(target):
            continue
        if at_load or by not in MAY_USE_SATELLITES:
            wrong.append(f"{by} imports {target}")
    assert wrong == []


@pytest.mark.parametrize("name", SATELLITES)
def test_a_satellite_meets_the_core_only_where_it_must(name: str) -> None:
    used = {target for i in of(name) if (target := own(i.what)) and satellite(target) != name}
    assert used <= SATELLITES[name]


def test_nobody_imports_in_a_circle() -> None:
    graph: dict[str, set[str]] = {name: set() for name in MODULES}
    for by, what, at_load in IMPORTS:
        target = own(what)
        if target is not None and at_load and target != by:
            graph[by].add(target)
    graphlib.TopologicalSorter(graph).prepare()


def test_every_public_name_resolves() -> None:
    for name in simstrag.__all__:
        assert getattr(simstrag, name) is not None


def test_there_are_about_twenty_public_names_in_order() -> None:
    assert simstrag.__all__ == sorted(simstrag.__all__)
    assert 20 <= len(simstrag.__all__) <= 26


def test_a_name_that_is_not_public_says_so() -> None:
    with pytest.raises(AttributeError, match="module 'simstrag' has no attribute 'simulator'"):
        _ = simstrag.simulator  # type: ignore[attr-defined]
