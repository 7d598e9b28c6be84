"""Which package may import which, read from the source; imports inside functions count."""

from __future__ import annotations

import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import simstrag
from tools.architecture import BOXES, PICTURE, arrows, draw
from tools.imports import DOORSTEP, MODULES, ROOT, imports, room

ROOMS: dict[str, set[str]] = {
    "documents": set(),
    "processes": set(),
    "statistics": set(),
    "policies": {"documents"},
    "runs": {"documents"},
    "trace": {"documents"},
    "timing": {"trace"},
    "profile": {"documents", "timing", "trace"},
    "scenario": {"documents", "profile", "timing", "trace"},
    "workloads": {"documents"},
    "learning": {"documents", "runs", "timing", "workloads"},
    "engine": {"documents", "learning", "policies", "runs", "scenario", "timing", "trace"},
    "experiments": {
        "documents", "engine", "learning", "policies", "processes", "runs", "scenario",
    },
    "cluster": {
        "documents", "engine", "experiments", "learning", "policies", "runs", "scenario", "timing",
    },
    "claims": {
        "cluster", "documents", "engine", "experiments", "learning", "policies", "runs",
        "scenario",
    },
    "records": {"documents", "runs"},
    "traces": {"documents", "profile", "records", "statistics", "timing", "trace"},
    "whatif": {
        "documents", "engine", "experiments", "policies", "profile", "records", "runs", "scenario",
        "statistics", "timing", "trace", "traces",
    },
    "ddp": {
        "documents", "engine", "learning", "policies", "processes", "profile", "runs", "scenario",
        "statistics", "trace", "workloads",
    },
    "calibration": {
        "ddp", "documents", "learning", "processes", "profile", "runs", "timing", "workloads",
    },
    "advice": {
        "cluster", "ddp", "engine", "experiments", "policies", "processes", "profile",
        "records", "scenario", "statistics", "trace",
    },
    "analysis": {
        "advice", "claims", "cluster", "ddp", "documents", "experiments", "policies", "processes",
        "profile", "records", "runs", "scenario", "statistics", "timing", "trace", "traces",
        "whatif",
    },
    "validation": {
        "analysis", "calibration", "ddp", "documents", "engine", "experiments", "policies",
        "processes", "profile", "runs", "scenario", "timing", "trace", "workloads",
    },
}  # fmt: skip
"""Every room, lowest first, and the rooms that it may import.

The two roots, `simstrag` itself and `cli`, may import every room."""

HEAVY = {
    "simpy": {"cluster", "engine"},
    "torch": {
        "calibration",
        "ddp",
        "learning",
        "validation",
        "workloads",
    },
    "lightning": {"ddp.frameworks.lightning"},
    "pytorch_lightning": {"ddp.frameworks.lightning"},
    "transformers": {"ddp.frameworks.transformers", "workloads"},
    "accelerate": {"ddp.frameworks.accelerate"},
    "msgspec": {"ddp"},
    "matplotlib": {"analysis"},
    "bokeh": {"analysis"},
    "jinja2": {"analysis", "whatif"},
    "typer": {"cli"},
    "joblib": {"experiments", "processes"},
    "prometheus_client": {"analysis.monitor"},
    "distributed": {"experiments.cluster_backends"},
    "ray": {"experiments.cluster_backends"},
}
"""Packages of others that are slow to import or optional, and who may import them."""


def is_within(module: str, packages: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in packages)


def test_no_part_of_the_package_is_reached_by_a_link() -> None:
    """A checkout without symbolic links, as on Windows, has the whole package."""
    assert [path for path in Path(simstrag.__file__).parent.rglob("*") if path.is_symlink()] == []
    links = "analysis|calibration|traces|validation"
    through = re.compile(rf'(ROOT|HERE|parent|parents\[\d\]) / "({links})\b')
    sources = [path for room in ("benchmarks", "docs", "tests", "tools")
               for path in (ROOT / room).rglob("*.py")]  # fmt: skip
    assert [path for path in sources if through.search(path.read_text(encoding="utf-8"))] == []


def test_every_name_in_this_file_is_a_module() -> None:
    named = {*ROOMS, *DOORSTEP, *(name for allowed in HEAVY.values() for name in allowed)}
    assert named <= set(MODULES)


def test_every_module_stands_in_a_room() -> None:
    assert {room(name) for name in MODULES} == {*ROOMS, *DOORSTEP, "", "__main__", "cli"}


def test_the_page_names_every_module_of_the_contract() -> None:
    page = Path("docs/architecture.md").read_text(encoding="utf-8")
    before, _, rest = page.partition("- **contract**")
    (beside,) = re.findall(r"Every room may import [^.]*\.", before)
    entry = rest.partition("\n- **")[0]
    assert {*re.findall("`([a-z]+)`", beside + entry)} == {
        name.rpartition(".")[2] for name in MODULES if room(name) in DOORSTEP - {"contract"}
        or name.startswith("contract.")
    }  # fmt: skip


def test_rooms_are_listed_lowest_first() -> None:
    order = list(ROOMS)
    for name, allowed in ROOMS.items():
        assert allowed <= set(order[: order.index(name)]), name


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_imports_only_the_rooms_it_may(name: str) -> None:
    used = {room(i.target) for i in imports() if i.ours and room(i.by) == name}
    assert used - {name} <= ROOMS[name] | DOORSTEP


@pytest.mark.parametrize("name", ROOMS)
def test_no_arrow_is_allowed_that_no_import_needs(name: str) -> None:
    used = {room(i.target) for i in imports() if i.ours and room(i.by) == name}
    assert ROOMS[name] <= used


def test_no_module_imports_in_a_circle() -> None:
    graph: dict[str, set[str]] = {name: set() for name in MODULES}
    for by, target, ours in imports():
        if ours and target not in {by, ""}:
            graph[by].add(target)
    graphlib.TopologicalSorter(graph).prepare()


def test_no_module_imports_the_package_itself() -> None:
    assert [i.by for i in imports() if i.ours and not i.target] == []


def test_the_contract_imports_numpy_and_itself() -> None:
    found = [i for i in imports() if room(i.by) == "contract"]
    others = {i.target.partition(".")[0] for i in found if not i.ours}
    assert others - set(sys.stdlib_module_names) == {"numpy"}
    assert {room(i.target) for i in found if i.ours} == {"arrays", "contract", "errors"}


def test_the_checks_of_a_plan_are_the_contracts_own() -> None:
    own = {"contract.checks", "contract.ranks"}
    assert {room(i.by) for i in imports() if i.ours and i.target in own} == {"contract"}


def test_the_modules_beside_the_contract_import_no_room() -> None:
    assert [i for i in imports() if room(i.by) in DOORSTEP - {"contract"} and i.ours] == []


@pytest.mark.parametrize(
    "package", ["random", "time", "datetime", "threading", "asyncio", "socket"]
)
def test_policies_own_no_clock_and_no_luck(package: str) -> None:
    deciding = {"policies", *DOORSTEP}
    used = {
        i.target.partition(".")[0] for i in imports() if is_within(i.by, deciding) and not i.ours
    }
    assert package not in used


@pytest.mark.parametrize("package", HEAVY)
def test_a_heavy_package_is_imported_only_where_it_is_needed(package: str) -> None:
    users = {i.by for i in imports() if not i.ours and i.target.partition(".")[0] == package}
    assert [user for user in sorted(users) if not is_within(user, HEAVY[package])] == []


@pytest.mark.parametrize(
    ("program", "unloaded"),
    [
        ("import simstrag.cli.commands; dir(simstrag)", {"numpy", "pydantic"}),
        ("from simstrag import policies as p; [p.load(name) for name in p.names()]",
         {"simstrag.engine", "simstrag.timing"}),
    ],
    ids=["commands", "policies"],
)  # fmt: skip
def test_what_starts_often_loads_nothing_heavy(program: str, unloaded: set[str]) -> None:
    unloaded = unloaded | {"torch", "simpy", "pandas", "pyarrow"}
    program += f"; import sys; print(*{unloaded} & {{*sys.modules}})"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == []


def test_every_public_name_resolves() -> None:
    for name in simstrag.__all__:
        assert getattr(simstrag, name) is not None


def test_there_are_about_twenty_public_names_in_order() -> None:
    assert simstrag.__all__ == sorted(simstrag.__all__)
    assert 20 <= len(simstrag.__all__) <= 32


def test_a_name_that_is_not_public_says_so() -> None:
    with pytest.raises(AttributeError, match="module 'simstrag' has no attribute 'simulator'"):
        _ = simstrag.simulator  # type: ignore[attr-defined]


def test_every_room_is_a_box_of_the_drawing_and_every_arrow_points_down() -> None:
    assert BOXES.keys() == {*ROOMS, "contract", "cli"}
    assert len(BOXES) <= 25
    upward = [
        (name, target)
        for name, targets in arrows().items()
        for target in targets
        if BOXES[target].row <= BOXES[name].row
    ]
    assert upward == []


def test_the_drawing_is_that_of_the_imports() -> None:
    assert PICTURE.read_text(encoding="utf-8") == draw(), "run python -m tools.architecture"


def test_no_chart_imports_the_words_of_the_answer() -> None:
    answer = "analysis.text.answer"
    assert [i.by for i in imports() if i.target == answer and ".charts." in i.by] == []
    assert [i.by for i in imports() if i.target == answer and ".pages." in i.by]
