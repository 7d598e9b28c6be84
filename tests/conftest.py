"""Settings of the whole suite."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.commands import SCENARIO, TRACE, Call

settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True,
    max_examples=40,
)  # fmt: skip
settings.register_profile("verify", parent=settings.get_profile("default"), max_examples=200)
settings.register_profile("long", parent=settings.get_profile("default"), max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

os.environ["OMP_NUM_THREADS"] = "1"  # workers share the cores: threads of torch would only wait
os.environ["LOKY_MAX_CPU_COUNT"] = "1"  # a worker takes seconds to start: tests ask for them
os.environ["COLUMNS"] = "100"  # of the terminal, also where there is none
os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"  # torch looks the loopback's name up in the DNS

sys.dont_write_bytecode = False  # hundreds of processes would compile this package, each for itself
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


HERE = Path(__file__).parent

STARTS_RANKS = (
    "test_ddp_heartbeat", "test_ddp_examples", "test_ddp_faults", "test_ddp_launch",
    "test_ddp_leaving", "test_injector",
    "test_validate",
)  # fmt: skip
"""Modules that start ranks or load of their own; others have the fixture `ranks`."""
REAL = ("test_ddp", "test_injector", "test_validate")
"""Verification by real runs: `make verify` takes them too, `make verify-simulated` does not."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups of tests that one process runs.

    Real ranks take turns: beside each other they would share cores that they count on. The tests
    of a module, and the doctests of a folder, share what it imports and what its fixtures make.
    Warm children share the process that they are forked from.
    """
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        apart = item.path.parent.name == "verification"
        if "ranks" in fixtures or (apart and item.path.stem.startswith(STARTS_RANKS)):
            item.add_marker(pytest.mark.xdist_group("ranks"))
        elif "warm_children" in fixtures:
            item.add_marker(pytest.mark.xdist_group("warm_children"))
        elif not apart:
            own = HERE in item.path.parents
            group = item.path.stem if own else item.path.parent.name
            item.add_marker(pytest.mark.xdist_group(group))
        if apart:
            item.add_marker(pytest.mark.verification)
            if item.path.stem.startswith(REAL):
                item.add_marker(pytest.mark.real)


@pytest.fixture(scope="module", autouse=True)
def _keep_from_collections() -> Iterator[None]:
    """Libraries' million objects are looked through once, not at every garbage collection."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(params=["by_reference", "by_plain", "by_engine"])
def engine(request: pytest.FixtureRequest) -> object:
    """Each of the three engines, as a function from scenario and policy to a story."""
    from tests.support import stories

    return getattr(stories, request.param)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a small scenario and its trace."""
    (tmp_path / "case.yaml").write_text(SCENARIO)
    (tmp_path / "slow.csv").write_text(TRACE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a comparison, to be copied; its page is empty."""
    from simstrag.experiments.compare import compare

    folder = tmp_path_factory.mktemp("finished")
    (folder / "case.yaml").write_text(SCENARIO)
    (folder / "slow.csv").write_text(TRACE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simstrag.analysis.pages.report.render", lambda *_: "<html></html>")
        return compare(folder / "case.yaml", jobs=1).write(folder / "c")


@pytest.fixture
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no report of simulations where nobody looks at it."""
    for page in ("report", "cluster_report", "sweep_report"):
        monkeypatch.setattr(f"simstrag.analysis.pages.{page}.render", lambda *_: "<html></html>")


@pytest.fixture(scope="session")
def command_line() -> Any:
    """The tree of commands, which takes a tenth of a second to build."""
    from simstrag.cli.commands import command

    return command()


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command_line: Any
) -> Call:
    """Call the command in this process."""
    from simstrag.cli import main

    monkeypatch.setattr("simstrag.cli.commands.command", lambda: command_line)

    def _call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["simstrag", *arguments])
        monkeypatch.setattr(sys, "path", [*sys.path])
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    return _call
