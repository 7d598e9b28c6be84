"""The numbers of docs/measured/cluster-laws.txt: laws of shared devices on public data.

Gavel (stanford-futuredata/gavel @c4fa400): speeds of pairs on one GPU.  Synergy
(msr-fiddle/synergy @1bb2bed): throughput by processors.  Errors are mean absolute ones of relative
speeds.  `benchmarks/cluster_laws.py` says which rows a fit does not see.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import cluster_laws
from benchmarks.cluster_laws import GPUS, TRANSFERS
from simstrag.cluster.colocation import LAWS, colocated_slowdowns

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
DIGITS = 0.0015
"""A law is refitted by an iteration, whose last digits depend on the machine."""

pytestmark = pytest.mark.skipif(
    not (TRACES / "gavel-colocation").exists() or not (TRACES / "synergy-host-share").exists(),
    reason="shared/traces is not beside this checkout",
)


@pytest.fixture(scope="module")
def pairs() -> dict[str, cluster_laws.Pairs]:
    return cluster_laws.read_pairs(TRACES)


@pytest.fixture(scope="module")
def curves() -> dict[str, cluster_laws.Curve]:
    return cluster_laws.read_curves(TRACES)


def in_order(values: dict[str, float]) -> list[float]:
    return list(values.values())


@pytest.mark.parametrize("gpu", GPUS)
def test_a_shipped_law_is_the_fit_by_model_to_the_digits_it_is_written_with(
    gpu: str, pairs: dict[str, cluster_laws.Pairs]
) -> None:
    fitted, shipped = cluster_laws.fitted_law(pairs[gpu], cluster_laws.model), LAWS[gpu.upper()]
    assert fitted.workloads.keys() == shipped.workloads.keys()
    for name in (*shipped.workloads, None):
        ours, theirs = shipped.response(name), fitted.response(name)
        assert ours.sensitivity == pytest.approx(theirs.sensitivity, abs=0.006)
        assert ours.pressure == pytest.approx(theirs.pressure, abs=0.006)


def test_the_slowdown_of_a_pair_is_what_the_errors_are_made_of(
    pairs: dict[str, cluster_laws.Pairs],
) -> None:
    law, both = LAWS["P100"], np.ones(2)
    names = [(cluster_laws.model(a), cluster_laws.model(b)) for a, b in pairs["p100"]]
    predicted = np.array([1 / colocated_slowdowns(both, law, pair)[0] for pair in names])
    errors = np.abs(predicted - [*pairs["p100"].values()])
    assert errors == pytest.approx(cluster_laws.law_error(law, pairs["p100"], cluster_laws.model))


# constant, copied from the other GPU, law by model, law by workload
TRANSFERRED = {
    ("k80", "p100"): [0.168, 0.098, 0.103, 0.104],
    ("k80", "v100"): [0.281, 0.222, 0.226, 0.222],
    ("p100", "v100"): [0.272, 0.191, 0.188, 0.189],
}


@pytest.mark.parametrize(("source", "target"), TRANSFERS)
def test_on_another_gpu_no_law_is_better_than_a_copy(
    source: str, target: str, pairs: dict[str, cluster_laws.Pairs]
) -> None:
    errors = in_order(cluster_laws.transfer(pairs[source], pairs[target]))
    assert errors == pytest.approx(TRANSFERRED[source, target], abs=DIGITS)
    constant, copied, *laws = errors
    assert min(laws) < constant
    assert min(laws) > 0.97 * copied


# In the order of that table; the last four are held out.
OWN = {
    "k80": [0.101, 0.104, 0.104, 0.100, 0.162, 0.061, 0.028, 0.070, 0.054, 0.037, 0.034],
    "p100": [0.160, 0.160, 0.155, 0.145, 0.183, 0.056, 0.034, 0.062, 0.070, 0.046, 0.039],
    "v100": [0.266, 0.272, 0.226, 0.203, 0.248, 0.106, 0.073, 0.116, 0.144, 0.107, 0.090],
}


@pytest.mark.parametrize("gpu", GPUS)
def test_a_fifth_of_the_pairs_predicts_the_others_better_than_any_busy_share(
    gpu: str, pairs: dict[str, cluster_laws.Pairs]
) -> None:
    errors = cluster_laws.own_device(pairs[gpu])
    assert in_order(errors) == pytest.approx(OWN[gpu], abs=DIGITS)
    *_, unseen_batch, _, fifth_seen, _ = in_order(errors)
    assert fifth_seen < 0.6 * min(errors[name] for name in cluster_laws.ONE_SHARE)
    assert unseen_batch == pytest.approx(LAWS[gpu.upper()].held_out_error, abs=DIGITS)


def test_two_busy_workloads_run_at_half_speed_in_the_mean_on_each_gpu(
    pairs: dict[str, cluster_laws.Pairs],
) -> None:
    means = [np.mean([*pairs[gpu].values()]) for gpu in GPUS]
    assert means == pytest.approx([0.468, 0.498, 0.538], abs=0.0005)
    for gpu, mean in zip(GPUS, means, strict=True):
        slowed = colocated_slowdowns(np.ones(2), LAWS[gpu.upper()])
        assert 1 / slowed == pytest.approx([mean, mean], abs=0.003)


def test_one_of_two_can_pay_for_both(pairs: dict[str, cluster_laws.Pairs]) -> None:
    pair = ("Recommendation (batch size 512)", "LM (batch size 5)")
    both = pairs["p100"][pair], pairs["p100"][pair[::-1]]
    assert both == pytest.approx((0.19, 0.72), abs=0.005)


def test_v100_has_a_limit_at_1_and_recommenders_that_nearly_stop(
    pairs: dict[str, cluster_laws.Pairs],
) -> None:
    of_v100 = pairs["v100"]
    assert np.mean([speed == 1 for speed in of_v100.values()]) == pytest.approx(0.08, abs=0.005)
    slowed = [speed for pair, speed in of_v100.items() if pair[0].startswith("Recommendation")]
    assert [min(slowed), max(slowed)] == pytest.approx([0.01, 0.11], abs=0.005)


# sum and max from 1 and 3 processors, from 1 and 24, from 3 and 24, from all; min(cap, c/3)
CURVES = {
    "alexnet, 62.5 GB": [1.221, 1.207, 0.402, 0.041, 0.227, 0.073, 0.136, 0.028, 0.073],
    "alexnet, 125 GB": [0.953, 0.938, 0.324, 0.141, 0.153, 0.207, 0.118, 0.110, 0.207],
    "deepspeech, 62.5 GB": [1.868, 1.854, 0.241, 0.023, 0.149, 0.006, 0.092, 0.004, 0.006],
    "mobilenet, 62.5 GB": [0.659, 1.724, 0.302, 0.053, 0.195, 0.026, 0.127, 0.020, 0.026],
    "res18, 62.5 GB": [0.292, 1.326, 0.304, 0.157, 0.229, 0.073, 0.132, 0.046, 0.073],
    "shufflenet, 125 GB": [0.967, 0.952, 0.327, 0.141, 0.152, 0.200, 0.116, 0.110, 0.200],
    "mean": [0.993, 1.333, 0.317, 0.093, 0.184, 0.097, 0.120, 0.053, 0.097],
}


def test_steps_are_the_longer_part_and_not_the_sum_of_host_and_device(
    curves: dict[str, cluster_laws.Curve],
) -> None:
    table = cluster_laws.curve_table(curves)
    found = {name: [column[name] for column in table.values()] for name in CURVES}
    assert found.keys() == {*curves, "mean"}
    for name, errors in CURVES.items():
        assert found[name] == pytest.approx(errors, abs=DIGITS)
        assert found[name][3] < found[name][2]  # max and sum from 1 and 24
        assert found[name][7] < found[name][6]


def test_below_a_fair_share_throughput_is_in_proportion_to_processors(
    curves: dict[str, cluster_laws.Curve],
) -> None:
    errors = [abs(curve[few] - few / 3) for curve in curves.values() for few in (1, 2)]
    assert np.mean(errors) == pytest.approx(0.028, abs=0.0005)
    assert max(errors) < 0.055


def test_rule_2_with_the_whole_work_of_a_loader_is_up_to_twice_too_slow(
    curves: dict[str, cluster_laws.Curve],
) -> None:
    shares = np.array([cluster_laws.unhidden(curve) for curve in curves.values()])
    assert shares.min() == pytest.approx(0.47, abs=0.005)
    assert shares.mean() == pytest.approx(0.69, abs=0.005)
