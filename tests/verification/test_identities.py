"""What must be the same is the same: between policies, between runs, between processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simstrag.engine.simulate import simulate
from simstrag.experiments.compare import compare
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario
from tests.support.trace_rows import slowed

N, BATCH = 8, 128


def scenario(rounds: int, trace: list[dict[str, Any]] | None = None, **sections: Any) -> Scenario:
    """`rounds` gradients of each rank; a clean step lasts one second."""
    step = {"compute": 1.0, "amp_ratio": 1.66} | sections.pop("step", {})
    work = {"workers": N, "samples": rounds * N * BATCH, "step": step, "trace": trace}
    return Scenario.of(work | {"learner": {"batch": BATCH}} | sections)


FREE = scenario(40, [slowed(0, 3.0, 5.0), slowed(0, 1.0, 20.0)], step={"cv": 0.3})
"""Without any cost of communication."""


# -- policies that are special cases of each other


def starts(run: Run) -> dict[tuple[int, int], float]:
    assert run.steps is not None
    keys = zip(run.steps["rank"], run.steps["step"], strict=True)
    return dict(zip(keys, run.steps["start"], strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_ssp_0_without_cost_of_communication_starts_every_step_when_bsp_does(seed: int) -> None:
    ssp, bsp = (simulate(FREE, p, seed, record_steps=True) for p in ("ssp:bound=0", "bsp"))
    assert len(starts(bsp)) == 40 * N
    assert starts(ssp) == starts(bsp)
    for name in ("samples", "progress", "makespan"):
        assert ssp.summary[name] == bsp.summary[name], name
    assert ssp.summary["updates"] == N * bsp.summary["updates"]
    assert ssp.summary["mean_staleness"] == (N - 1) / 2
    assert ssp.summary["effective_staleness"] == 0
    for name in ("progress", "time"):
        assert ssp.updates[name][N - 1 :: N] == bsp.updates[name], name


# -- korel


@pytest.mark.parametrize("cv", [0.03, 0.05])
@pytest.mark.parametrize("seeds", [range(10), range(10, 20)])
def test_korel_without_contention_never_switches_and_is_bsp_log_for_log(
    cv: float, seeds: range
) -> None:
    world = scenario(2000, step={"cv": cv})
    for seed in seeds:
        korel, bsp = simulate(world, "korel", seed), simulate(world, "bsp", seed)
        assert korel.summary["switches"] == 0
        assert korel.updates == bsp.updates


def mitigation(world: Scenario, seed: int = 0) -> float:
    """The share of the straggler delay that korel removes, under common random numbers."""
    bsp, own = (simulate(world, p, seed).summary["makespan"] for p in ("bsp", "korel"))
    clean = simulate(world.replaced(trace=None), "bsp", seed).summary["makespan"]
    return float((bsp - own) / (bsp - clean))


LATENCY = 7
"""Slow steps until AMP at cv 0."""
BEFORE = 20
"""Clean steps before the window, so that every rank's ring is full."""
GPU_CASES = [(1.25, 1.36), (1.5, 1.66), (2.0, 1.66), (3.0, 2.26), (4.0, 1.36)]


@pytest.mark.parametrize("steps", [400, 1000])
@pytest.mark.parametrize(("c", "rho"), GPU_CASES)
def test_with_free_switches_a_probe_costs_one_step_and_the_formula_is_exact(
    c: float, rho: float, steps: int
) -> None:
    world = scenario(BEFORE + steps, [slowed(0, c, BEFORE)], step={"amp_ratio": rho})
    instant = (c - max(1, c / rho)) / (c - 1)
    lost = LATENCY + steps // 201
    assert mitigation(world) == pytest.approx(instant * (1 - lost / steps), abs=1e-9)


def within(factor: float, start: float, end: float, resource: str = "gpu") -> list[dict[str, Any]]:
    """Rank 0 is slowed from `start` to `end` seconds."""
    return [slowed(0, factor, start, resource), slowed(0, 1.0, end, resource)]


@pytest.mark.parametrize("seed", range(4))
def test_with_noise_korel_may_do_better_than_the_formula_by_order_statistics(seed: int) -> None:
    world = scenario(3000, within(2.0, 100.0, 2100.0), step={"cv": 0.03})
    assert -0.02 <= mitigation(world, seed) - 0.66 <= 0.08


def test_of_host_contention_korel_removes_only_what_amp_shaves_off_the_device() -> None:
    part = {"host_share": 0.3}
    by_steps = scenario(BEFORE + 1000, [slowed(0, 3.0, BEFORE, "host")], step=part)
    by_seconds = scenario(3000, within(3.0, 100.0, 2100.0, "host"), step=part)
    assert mitigation(by_steps) == pytest.approx(0.655, abs=0.01)
    assert mitigation(by_seconds) == pytest.approx(0.55, abs=0.01)


def test_korel_gives_up_where_amp_cannot_help() -> None:
    part = {"host_share": 0.9, "amp_ratio": 1.05}
    world = scenario(3000, within(2.0, 100.0, 1100.0, "host"), step=part)
    assert mitigation(world) < 0.02
    assert simulate(world, "korel").summary["efficacy_stops"] >= 1


@pytest.mark.parametrize("cv", [0.0, 0.05])
def test_korel_with_rho_1_and_free_switches_mitigates_exactly_nothing(cv: float) -> None:
    world = scenario(500, [slowed(0, 2.0, 20.0)], step={"amp_ratio": 1.0, "cv": cv})
    korel = simulate(world, "korel")
    assert korel.summary["activations"] >= 1
    assert korel.updates == simulate(world, "bsp").updates


# -- the same bytes

DECLARED = {
    "workers": 4,
    "samples": 4 * 128 * 30,
    "step": {"compute": 0.1, "cv": 0.2, "amp_ratio": 1.5},
    "server": {"service": 0.005, "push": 0.002, "pull": 0.002},
    "trace": [
        *(slowed(0, 2.5, 0.5), slowed(0, 1.0, 2.0)),
        *(slowed(0, 3.0, 1.0, "net"), slowed(0, 1.0, 3.0, "net")),
    ],
    "trace_per_seed": "shift",
    "seeds": [4, 9],
}
MIXED = ("bsp", "asgd", "ssp:bound=2", "backup:b=1,late=drop", "korel", "amp_all")


def written(run: Run, folder: Path) -> bytes:
    return (run.write(folder) / "updates.parquet").read_bytes()


def test_another_process_writes_the_same_bytes(tmp_path: Path) -> None:
    program = (
        "import sys; from simstrag import Scenario, simulate\n"
        f"world = Scenario.of({DECLARED!r})\n"
        f"for k, policy in enumerate({MIXED!r}):\n"
        "    simulate(world, policy, 4).write(f'{sys.argv[1]}/{k}')\n"
    )
    environment = {"PYTHONHASHSEED": "12345"}
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, env=environment)
    world = Scenario.of(DECLARED)
    for k, policy in enumerate(MIXED):
        here = written(simulate(world, policy, 4), tmp_path / f"here-{k}")
        assert (tmp_path / str(k) / "updates.parquet").read_bytes() == here, policy


def test_running_one_policy_after_the_other_changes_nothing() -> None:
    world = Scenario.of(DECLARED)
    forth = {p: simulate(world, p, 4).updates for p in MIXED}
    back = {p: simulate(world, p, 4).updates for p in reversed(MIXED)}
    assert forth == back


@pytest.mark.parametrize(
    ("asked", "jobs"), [(MIXED, 1), (MIXED[::-1], 2), (("korel", "asgd"), 1), (("asgd",), 1)]
)
def test_order_and_set_of_the_policies_compared_change_no_byte(
    asked: tuple[str, ...], jobs: int, tmp_path: Path
) -> None:
    world = Scenario.of(DECLARED)
    comparison = compare(world, asked, jobs=jobs)
    for name in {*asked, "bsp"}:
        alone = written(simulate(world, name, 4), tmp_path / "alone")
        assert written(comparison.examples[name], tmp_path / "compared") == alone, name
    for name, makespans in comparison.runs.groupby("policy")["makespan"]:
        alone = [simulate(world, str(name), seed).summary["makespan"] for seed in (4, 9)]
        assert makespans.tolist() == alone


def test_seeds_differ_in_noise_and_in_where_the_trace_begins() -> None:
    world = Scenario.of(DECLARED)
    assert simulate(world, "bsp", 4).updates != simulate(world, "bsp", 9).updates
    quiet = world.replaced(step={"compute": 0.1})
    assert simulate(quiet, "bsp", 4).updates != simulate(quiet, "bsp", 9).updates
