"""Hardware as a cause: which card is slow, since when, and why; and none on a healthy log."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simstrag.records.log_file import LogFile
from simstrag.records.nvidia_smi import read as read_smi
from simstrag.records.prometheus import read as read_prometheus
from simstrag.records.record import LANES, PCIE, POWER_LIMIT, REASONS, SM_CLOCK, NodeSeries, Record
from simstrag.scenario.scenario import Scenario
from simstrag.traces.of_loads import trace_of_series
from simstrag.traces.provenance import scenario_of
from simstrag.whatif.hardware import BITS, hardware, healthy_facts, rank_of
from tests.support.drawn_gpus import draw

DATA = Path("tests/data/records")
CASES = DATA / "prometheus"


def smi(name: str) -> Record:
    return read_smi([LogFile.open(DATA / name)])


def record(quantity: str, *cards: list[float]) -> Record:
    """Cards with one quantity, a sample each second."""
    node = np.repeat(np.arange(len(cards)), [*map(len, cards)])
    time = np.concatenate([np.arange(len(values), dtype=float) for values in cards])
    series = NodeSeries(quantity, node, time, np.concatenate(cards).astype(float))
    nodes = tuple(f"GPU {k}" for k in range(len(cards)))
    return Record.without_steps("log", "nvidia-smi", nodes=nodes, series=(series,))


def joined(*records: Record) -> Record:
    first, *others = records
    series = (*first.series, *(each for other in others for each in other.series))
    return Record.without_steps("log", "nvidia-smi", nodes=first.nodes, series=series)


# -- the samples and their truths


def test_a_card_that_is_throttled_is_named_with_its_reason_and_its_time() -> None:
    (cause,) = hardware(smi("nvidia-smi.csv"))
    assert (cause.node, cause.kind) == ("GPU 2", "software thermal slowdown")
    assert (cause.start, cause.end) == pytest.approx((200, 400), abs=5)
    assert cause.slowdown == pytest.approx(1.65)
    assert not cause.is_constant
    facts = cause.facts
    assert (facts["clock"], facts["usual clock"], facts["temperature"]) == (1200, 1980, 88)
    assert facts["power"] == pytest.approx(410, abs=1)


def test_a_healthy_log_names_nothing_and_says_what_it_shows() -> None:
    found = smi("nvidia-smi-other-jobs.csv")
    assert hardware(found) == ()
    assert healthy_facts(found) == (
        "SM clock 1980 MHz at load on all 4 GPUs", "98 % busy",
        "utilisation alone would not have shown a slow one",
    )  # fmt: skip


def test_a_card_that_is_capped_all_along_is_seen_beside_its_peers() -> None:
    (cause,) = hardware(smi("one-card-capped-always.csv"))
    assert (cause.node, cause.kind, cause.is_constant) == ("GPU 1", "power cap", True)
    assert cause.slowdown == pytest.approx(1.61, abs=0.01)
    assert (cause.facts["power limit"], cause.facts["usual power limit"]) == (150, 300)


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("a-pod-restarted", "gpu03"), ("c-nan", "gpu03"), ("d-eight-cards", "gpu01/5"),
        ("e-instance-only", "10.0.0.3"), ("h-avg-by-node", "ip-10-0-0-3"),
    ],
)  # fmt: skip
def test_a_neighbour_in_a_range_query_is_a_load_and_no_hardware(name: str, host: str) -> None:
    found = read_prometheus([LogFile.open(CASES / f"{name}.json")])
    assert hardware(found) == ()
    trace = trace_of_series(found, response="fair-share").trace
    (node,) = (k for k, called in trace.names.items() if called == host)
    loaded = [row for row in trace.rows if row.value > 0.2]
    assert {row.node for row in loaded} == {node}
    assert [f(row.time for row in loaded) for f in (min, max)] == [600, 1185]
    assert np.median([row.value for row in loaded]) == pytest.approx(0.3, abs=0.03)


# -- rules


@pytest.mark.parametrize("bit", BITS)
def test_each_reason_has_its_name(bit: int) -> None:
    low = [1980.0] * 40 + [1200.0] * 20 + [1980.0] * 40
    masks = [0.0] * 40 + [float(bit)] * 20 + [0.0] * 40
    (cause,) = hardware(joined(record(SM_CLOCK, low), record(REASONS, masks)))
    assert (cause.kind, cause.start, cause.end) == (BITS[bit], 40, 60)
    assert cause.slowdown == pytest.approx(1.65)


def test_without_reasons_the_clock_itself_is_the_cause() -> None:
    found = draw(3, 1.5).record
    clocks = tuple(each for each in found.series if each.quantity != REASONS)
    (cause,) = hardware(replace(found, series=clocks))
    assert cause.kind == "clock below usual"
    assert cause.slowdown == pytest.approx(1.5, rel=0.03)


def test_half_of_the_cards_slow_are_measured_by_the_fast_half() -> None:
    masks = record(REASONS, *([0.0] * 50 for _ in range(4)))
    found = hardware(joined(record(SM_CLOCK, *([c] * 50 for c in (1980, 1320, 1980, 1320))), masks))
    assert {cause.node for cause in found} == {"GPU 1", "GPU 3"}
    assert {cause.slowdown for cause in found} == {1.5}


def test_cards_of_two_models_are_no_peers() -> None:
    clocks = joined(
        record(SM_CLOCK, [1980.0] * 50, [1410.0] * 50),
        record(REASONS, [0.0] * 50, [0.0] * 50),
        record("SM clock, highest", [1980.0] * 50, [1410.0] * 50),
    )
    assert hardware(clocks) == ()


def test_a_fault_that_flaps_is_one_cause_of_what_it_costs_in_the_mean() -> None:
    clocks = record(SM_CLOCK, [1980.0, 990.0] * 40, [1980.0] * 80)
    masks = record(REASONS, [0.0, 64.0] * 40, [0.0] * 80)
    (cause,) = hardware(joined(clocks, masks))
    assert (cause.node, cause.kind) == ("GPU 0", "hardware thermal slowdown")
    assert cause.slowdown == pytest.approx(4 / 3)


def test_a_card_is_the_rank_of_its_number_on_its_host() -> None:
    hosts = {0: "a", 1: "a", 2: "b", 3: "b"}
    steps = Record.of_ranks(
        np.arange(2), np.arange(4), {"compute": np.ones((2, 4))}, "log", "steps", hosts=hosts
    )
    assert [rank_of(steps, node) for node in ("b/1", "a/0", "b/2", "c/0", "a")] == [
        3, 0, None, None, None,
    ]  # fmt: skip
    named = replace(steps, nodes=tuple(f"GPU {k}" for k in range(4)))
    assert (rank_of(named, "GPU 2"), rank_of(steps, "GPU 2")) == (2, None)


def test_an_idle_card_with_a_low_clock_is_not_slow() -> None:
    drawn = draw(5)
    for each, value in ((drawn.busy, 0), (drawn.clock, 345), (drawn.masks, 1)):
        each[:, 1] = value
    assert hardware(drawn.record) == ()


def test_a_fault_without_a_clock_is_named_and_a_cap_of_all_is_not() -> None:
    faults = [[0.0] * 30, [0.0] * 10 + [0x48] * 10 + [0.0] * 10]
    (cause,) = hardware(record(REASONS, *map(list, faults)))  # type: ignore[arg-type]
    assert (cause.node, cause.kind) == ("GPU 1", "hardware thermal slowdown")
    assert (cause.start, cause.end) == (10, 20)
    assert math.isnan(cause.slowdown)
    assert hardware(record(REASONS, *([4.0] * 30 for _ in range(4)))) == ()
    (cause,) = hardware(record(REASONS, [4.0] * 30, *([0.0] * 30 for _ in range(3))))
    assert (cause.node, cause.kind) == ("GPU 0", "power cap")


@pytest.mark.parametrize(
    ("quantity", "own", "peers", "kind"),
    [
        (POWER_LIMIT, 150, 300, "power limit below its peers"),
        (PCIE, 1, 4, "PCIe link below its peers"),
        (LANES, 8, 16, "PCIe link below its peers"),
    ],
)
def test_what_a_card_has_less_of_than_its_peers_is_named(
    quantity: str, own: float, peers: float, kind: str
) -> None:
    (cause,) = hardware(record(quantity, [own] * 9, [peers] * 9, [peers] * 9))
    assert (cause.node, cause.kind) == ("GPU 0", kind)
    assert (cause.facts[quantity], cause.facts[f"usual {quantity}"]) == (own, peers)


def test_an_idle_link_is_judged_by_the_best_that_it_shows() -> None:
    assert hardware(record(PCIE, [1.0] * 20 + [4.0] * 20, [4.0] * 40)) == ()


# -- rates


def test_a_drawn_log_is_the_record_of_its_text() -> None:
    drawn = draw(7, 1.2)
    read, made = read_smi([LogFile(Path("smi.csv"), drawn.text.encode())]), drawn.record
    assert read.nodes == made.nodes
    for one, other in zip(read.series, made.series, strict=True):
        assert one.quantity == other.quantity
        for name in ("node", "time", "value"):
            assert getattr(one, name) == pytest.approx(getattr(other, name))


def test_a_slowdown_of_a_fifth_is_found_on_the_right_card_with_the_right_reason() -> None:
    right = 0
    for drawn in (draw(seed, 1.2) for seed in range(100)):
        found = hardware(drawn.record)
        right += (
            len(found) == 1
            and (found[0].node, found[0].kind) == (f"GPU {drawn.card}", drawn.reason)
            and np.allclose((found[0].start, found[0].end), drawn.span, rtol=0, atol=30)
            and abs(found[0].slowdown - 1.2) < 0.05
        )
    assert right >= 95


def test_clean_logs_name_no_card() -> None:
    assert sum(hardware(draw(seed).record) != () for seed in range(1000, 1300)) <= 3


# -- the trace


def test_clocks_make_a_trace_that_a_scenario_runs_and_varies(tmp_path: Path) -> None:
    found = trace_of_series(smi("nvidia-smi.csv"))
    assert found.trace.names == {0: "GPU 0", 1: "GPU 1", 2: "GPU 2", 3: "GPU 3"}
    (first, low, *high) = found.trace.series(2, "gpu", "slowdown")
    assert (first[1], low[1]) == (1.0, pytest.approx(1.65))
    assert [moment for moment, _ in high] == pytest.approx([400, 595], abs=5)
    assert {factor for _, factor in high} == {1.0}
    assert found.trace.series(1, "gpu", "slowdown")[0][1] == 1.0
    assert any("upper bound" in caution for caution in found.cautions)
    found.write(tmp_path / "smi-trace.csv")
    (tmp_path / "s.yaml").write_text("\n".join(scenario_of(tmp_path / "smi-trace.csv")))
    from simstrag.scenario.varied_constants import assumed

    assert "contention.severity" in assumed(Scenario.read(tmp_path / "s.yaml"))


def test_a_healthy_log_slows_nothing_and_says_so() -> None:
    found = trace_of_series(smi("nvidia-smi-other-jobs.csv"))
    assert {row.value for row in found.trace.rows} == {1.0}
    assert found.cautions[0] == "No GPU's clock falls: the trace slows nothing."
