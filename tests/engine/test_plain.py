"""The plain engine is the native one in Python alone."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from simstrag.engine import bookkeeping, simulation
from simstrag.engine.native import memory
from simstrag.engine.recorder import Recorder
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.scenario.scenario import Scenario

POLICIES = ("bsp", "asgd", "ssp:bound=2", "backup", "korel", "local_sgd:h=3", "cgp", "dssp")


def case(updates: int) -> Scenario:
    return Scenario(
        workers=5, updates=updates, step={"compute": 0.1, "cv": 0.2, "amp_ratio": 1.5},
        server={"push": 0.01, "pull": 0.01, "service": 0.005},
    )  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_a_sample_of_updates_is_the_same_sample(policy: str) -> None:
    native, plain = (
        simulate(case(300), policy, 1, record_updates=False, engine=engine)
        for engine in ("native", "plain")
    )
    assert plain.updates == native.updates
    assert plain.warnings == native.warnings


def test_a_long_run_hands_its_updates_over_more_than_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bookkeeping, memory):
        monkeypatch.setattr(module, "LOGGED", 256)
    for keep in (True, False):
        native, plain = (
            simulate(case(1000), "asgd", 1, record_updates=keep, engine=engine)
            for engine in ("native", "plain")
        )
        assert plain.updates == native.updates
        assert plain.summary["makespan"] == native.summary["makespan"]


@pytest.mark.parametrize(("keep", "members"), [(True, 300), (False, 0)])
def test_a_sample_of_updates_keeps_no_members(
    keep: bool, members: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed = []

    def take(recorder: Recorder, logs: Mapping[str, Any]) -> None:
        handed.append(len(logs["members"]))

    monkeypatch.setattr(Recorder, "take", take)
    simulate(case(300), "asgd", record_updates=keep, engine="plain")
    assert sum(handed) == members


def test_a_run_directory_holds_the_same_tables(tmp_path: Path) -> None:
    runs = [
        simulate(case(60), "cgp", 1, record_steps=True, out=tmp_path / engine, engine=engine)
        for engine in ("native", "plain")
    ]
    for table in ("updates", "steps", "decisions"):
        assert getattr(runs[0], table) == getattr(runs[1], table)


def test_an_engine_that_does_not_exist_is_named() -> None:
    with pytest.raises(InputError, match="no engine 'fast'; known: native, plain"):
        simulate(case(3), engine="fast")


def test_without_the_native_library_the_plain_engine_runs_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = simulate(case(30), "korel")
    monkeypatch.setattr(simulation, "LIBRARY", Path("nowhere.so"))
    simulation._warn_of_plain.cache_clear()
    with caplog.at_level(logging.WARNING, logger="simstrag"):
        runs = [simulate(case(30), "korel") for _ in range(2)]
    assert [run.summary for run in runs] == [expected.summary] * 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
