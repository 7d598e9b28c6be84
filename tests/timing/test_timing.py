"""From constants, contention and noise to the instants at which things end."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from simstrag.errors import InputError
from simstrag.timing.collectives import halving_doubling, hierarchical, ring, tree
from simstrag.timing.constants import AllReduce, ServerCost, ServerLoad, Step, amp_gain
from simstrag.timing.contention import Contention
from simstrag.timing.noise import Noise, lognormal
from simstrag.timing.timing import Timing
from simstrag.trace.trace import Trace
from tests.support.trace_rows import slowed

STEP = Step(host=0.3, gpu=0.7, amp_ratio=1.66)


def slowdowns(*rows: tuple[float, int, str, float]) -> Trace:
    return Trace.from_rows([(time, node, part, "slowdown", v) for time, node, part, v in rows])


def durations(*values: float, node: int = 0) -> Trace:
    return Trace.from_rows([(k, node, "step", "duration", v) for k, v in enumerate(values)])


def timing(
    trace: Trace | None = None,
    step: Step = STEP,
    allreduce: AllReduce | None = None,
    server: ServerCost | None = None,
    noise: Noise | None = None,
    workers: int = 4,
    nodes: tuple[int, ...] | None = None,
    load: ServerLoad | None = None,
    **options: Any,
) -> Timing:
    contention = Contention.of(trace, workers, nodes, **options)
    constants = step, allreduce or AllReduce(), server or ServerCost()
    return Timing(*constants, contention, noise or Noise(0, None), nodes, load)


# -- precision


@pytest.mark.parametrize(
    ("step", "gain"),
    [
        (Step(0.0, 1.0, 1.66), 1.66),  # all of it is the device's: r = rho
        (Step(0.3, 0.7, 1.66), 0.7 / (1 / 1.66 - 0.3)),
        (Step(0.5, 0.5, 1.0), 1.0),
        (Step(1.0, 0.0, 1.66), 1.0),  # nothing to shorten
        (Step(0.0, 1.0, 0.8), 0.8),  # reduced precision may be slower
    ],
)
def test_the_gain_of_the_devices_part_is_g_over_the_amp_step_less_h(
    step: Step, gain: float
) -> None:
    assert amp_gain(step) == pytest.approx(gain, rel=1e-14)


@pytest.mark.parametrize("ratio", [2.0, 2.5])
def test_a_ratio_that_would_need_the_host_to_be_faster_is_refused(ratio: float) -> None:
    with pytest.raises(InputError) as caught:
        amp_gain(Step(0.5, 0.5, ratio))
    assert str(caught.value) == (
        f"step.amp_ratio {ratio:g} is impossible with host_share 0.5: reduced precision shortens "
        "the device's part only, so it must be below 2"
    )


def test_amp_without_a_known_ratio_is_refused_when_it_is_first_used() -> None:
    unknown = timing(step=Step(0.3, 0.7))
    assert unknown.compute(0, 0, 0.0, amp=False) == 1.0
    with pytest.raises(InputError, match=r"its gain is unknown: give step\.amp_ratio"):
        unknown.compute(0, 0, 0.0, amp=True)


# -- resources


def test_contention_of_all_resources_multiplies() -> None:
    everything = slowdowns((0.0, 0, "gpu", 2.0), (0.0, 0, "host", 3.0), (0.0, 0, "step", 1.5))
    seconds = timing(everything).compute(0, 0, 0.0, amp=False)
    assert seconds == pytest.approx(1.5 * (3 * 0.3 + 2 * 0.7), rel=1e-15)


def test_noise_multiplies_the_work_and_not_the_time() -> None:
    """A factor of 2 in a slowdown that ends after the first second: 1 s of 3-fold, then clean."""
    trace, noise = slowdowns((0.0, 0, "step", 3.0), (1.0, 0, "step", 1.0)), Noise(0, lognormal(0.5))
    factor = noise.factor(0, 7)
    assert timing(trace, noise=noise).compute(0, 7, 0.0, amp=False) == pytest.approx(
        1 + factor - 1 / 3, rel=1e-14
    )


def test_a_steps_noise_is_the_same_in_either_precision() -> None:
    noisy = timing(noise=Noise(0, lognormal(0.5)))
    full, amp = (noisy.compute(2, 5, 0.0, amp) for amp in (False, True))
    assert full / amp == pytest.approx(1.66, rel=1e-14)


def test_nodes_say_which_node_of_the_trace_a_rank_lives_on() -> None:
    trace = slowdowns((0.0, 7, "step", 3.0))
    mapped = timing(trace, workers=2, nodes=(5, 7))
    assert [mapped.compute(rank, 0, 0.0, amp=False) for rank in (0, 1)] == [1.0, 3.0]


# -- shares of the batch, micro-batches, deadlines


SLOW_AND_NOISY = slowdowns(
    (0.0, 0, "gpu", 2.0), (0.4, 0, "host", 5.0), (0.9, 0, "gpu", 1.0), (2.0, 0, "step", 1.5)
)


def test_a_share_of_the_batch_is_the_same_share_of_the_work() -> None:
    noisy = timing(SLOW_AND_NOISY, noise=Noise(0, lognormal(0.5)))
    thrice = timing(SLOW_AND_NOISY, step=Step(0.9, 2.1), noise=Noise(0, lognormal(0.5)))
    assert noisy.compute(0, 3, 0.1, False, share=3.0) == pytest.approx(
        thrice.compute(0, 3, 0.1, False), rel=1e-14
    )


def test_a_recorded_duration_scales_with_the_share() -> None:
    recorded = timing(durations(0.5, 0.8))
    assert recorded.compute(0, 1, 2.0, False, share=0.25) == 2.2


def brute_force(t: Timing, start: float, share: float, deadline: float) -> tuple[float, int]:
    """Micro-batch after micro-batch, each as a step of its part of the work."""
    parts = t.step.microbatches
    for m in range(1, parts + 1):
        end = t.compute(0, 3, start, False, share * (m / parts))
        if end - start > deadline:
            break
    return end, m


@pytest.mark.parametrize("share", [1.0, 0.5, 1.75])
@pytest.mark.parametrize("parts", [1, 2, 7, 64])
@pytest.mark.parametrize("trace", [None, SLOW_AND_NOISY, durations(0.5, 2.0)])
def test_a_deadline_stops_a_step_with_the_first_micro_batch_that_ends_after_it(
    trace: Trace | None, parts: int, share: float
) -> None:
    cut = timing(trace, step=Step(0.3, 0.7, microbatches=parts), noise=Noise(0, lognormal(0.5)))
    whole = cut.compute(0, 3, 0.1, False, share) - 0.1
    done = set()
    for deadline in [whole * (k + 0.1) / 40 for k in range(44)]:  # no tie, which rounding decides
        end, m = cut.cut(0, 3, 0.1, False, share, deadline)
        expected, micro_batches = brute_force(cut, 0.1, share, deadline)
        assert (end, m) == (pytest.approx(expected, rel=1e-14), micro_batches)
        done.add(m)
    assert len(done) >= min(parts, 20)
    assert {1, parts} <= done


def test_a_micro_batch_that_ends_at_the_deadline_does_not_stop_the_step() -> None:
    cut = timing(step=Step(0.0, 1.0, microbatches=4))
    assert cut.cut(0, 0, 2.0, False, 1.0, 0.5) == (2.75, 3)
    assert cut.cut(0, 0, 2.0, False, 1.0, 0.4999) == (2.5, 2)


@pytest.mark.parametrize("deadline", [1e-9, 0.3, 1e9])
def test_a_step_of_one_micro_batch_is_never_cut(deadline: float) -> None:
    whole = timing(SLOW_AND_NOISY, noise=Noise(0, lognormal(0.5)))
    assert whole.cut(0, 3, 0.1, False, 1.0, deadline) == (whole.compute(0, 3, 0.1, False), 1)


@pytest.mark.parametrize("parts", [3, 10, 49])
def test_a_step_that_keeps_its_deadline_ends_when_it_would_without_one(parts: int) -> None:
    """To the last bit: orders hang on ties."""
    cut = timing(
        SLOW_AND_NOISY,
        step=Step(0.3, 0.7, 1.66, microbatches=parts),
        noise=Noise(0, lognormal(0.5)),
    )
    for share in (1.0, 0.3, 1.7):
        for amp in (False, True):
            whole = cut.compute(0, 5, 0.1, amp, share)
            assert cut.cut(0, 5, 0.1, amp, share, 1e9) == (whole, parts)


# -- communication


def test_an_all_reduce_lasts_as_the_ring_formula_says_less_what_backward_hides() -> None:
    constants = AllReduce(alpha=0.001, bandwidth=1e9, bytes=20e6, overlap=0.25)
    idle = timing(allreduce=constants)
    assert idle.reduce((0, 1, 2, 3), 5.0) - 5 == pytest.approx(0.75 * 0.036, rel=1e-12)
    assert idle.reduce((0, 3), 5.0) - 5 == pytest.approx(0.75 * 0.022, rel=1e-12)
    assert idle.reduce((2,), 5.0) == 5.0


def test_net_contention_that_ends_within_an_all_reduce_counts_as_long_as_it_lasts() -> None:
    trace = slowdowns((0.0, 1, "net", 2.0), (1.0, 1, "net", 1.0))
    assert timing(trace, allreduce=AllReduce(alpha=0.5)).reduce((0, 1), 0.0) == 1.5


def test_a_slowdown_below_one_does_not_carry_those_who_have_none() -> None:
    trace = slowdowns((0.0, 0, "net", 0.5), (0.0, 1, "net", 0.25))
    fast = timing(trace, allreduce=AllReduce(alpha=0.5), allow_speedup=True)
    assert fast.reduce((0, 1), 0.0) == 0.5
    assert fast.reduce((0, 1, 2), 0.0) == 2.0


@pytest.mark.parametrize(
    ("algorithm", "formula"),
    [("ring", ring), ("tree", tree), ("halving_doubling", halving_doubling)],
)
def test_a_flat_algorithm_takes_the_links_inside_where_all_members_share_a_node(
    algorithm: str, formula: Callable[..., float]
) -> None:
    a = AllReduce(0.01, 1e9, 20e6, 0.25, algorithm, intra_alpha=0.001, intra_bandwidth=1e10)
    placed = timing(allreduce=a, nodes=(4, 4, 4, 4, 9, 9), workers=6)
    inside, between = (0.001, 20e6, 1e10), (0.01, 20e6, 1e9)
    ends = {m: placed.reduce(m, 0.0) for m in ((0, 1, 2, 3), (4, 5), (0, 4), (0, 1, 4, 5))}
    assert ends == {
        (0, 1, 2, 3): pytest.approx(0.75 * formula(4, *inside)),
        (4, 5): pytest.approx(0.75 * formula(2, *inside)),
        (0, 4): pytest.approx(0.75 * formula(2, *between)),
        (0, 1, 4, 5): pytest.approx(0.75 * formula(4, *between)),
    }
    assert timing(allreduce=a, workers=6).reduce((0, 1), 0.0) == ends[0, 4]


def test_a_link_inside_that_is_half_declared_is_otherwise_like_those_between() -> None:
    a = AllReduce(0.01, 1e9, 20e6, intra_alpha=0.001)
    placed = timing(allreduce=a, nodes=(0, 0, 1, 1))
    assert placed.reduce((0, 1), 0.0) == pytest.approx(ring(2, 0.001, 20e6, 1e9))
    b = AllReduce(0.01, 1e9, 20e6, intra_bandwidth=1e10)
    placed = timing(allreduce=b, nodes=(0, 0, 1, 1))
    assert placed.reduce((0, 1), 0.0) == pytest.approx(ring(2, 0.01, 20e6, 1e10))


def test_a_hierarchical_all_reduce_counts_its_members_by_node() -> None:
    a = AllReduce(0.01, 1e9, 20e6, 0.25, "hierarchical", 0.001, 1e10)
    placed = timing(allreduce=a, nodes=(0, 0, 0, 1, 1, 2), workers=6)
    for members, counts in (
        ((0, 1, 2, 3, 4, 5), (3, 2, 1)),
        ((1, 2, 4), (2, 1)),
        ((0, 1, 2), (3,)),
        ((0, 3, 5), (1, 1, 1)),
        ((4,), (1,)),
    ):
        expected = 0.75 * hierarchical(counts, 0.01, 20e6, 1e9, 0.001, 1e10)
        assert placed.reduce(members, 1.0) == pytest.approx(1 + expected, rel=1e-12)


# -- the server


def test_a_job_takes_the_share_of_the_largest_shard() -> None:
    assert timing(server=ServerCost(service=0.5)).serve(1.0) == 1.5
    assert timing(server=ServerCost(service=0.5, shards=(0.25, 0.5, 0.25))).serve(1.0) == 1.25


def test_a_fused_job_all_reduces_first_among_all_its_contributors_if_it_is_told_to() -> None:
    hops, fused = AllReduce(alpha=0.25), ServerCost(service=1.0, fused_allreduce=True)
    assert timing(allreduce=hops, server=fused).serve(2.0, union=(0, 1, 3)) == 4.0
    assert timing(allreduce=hops, server=fused).serve(2.0) == 3.0
    assert timing(allreduce=hops, server=ServerCost(service=1.0)).serve(2.0, union=(0, 1, 3)) == 3.0


BESIDE = ServerLoad(frozenset({0, 1}), host=3.0, net=2.0)


def test_a_load_that_is_on_when_a_step_begins_holds_for_all_of_it() -> None:
    """Also beyond a change of the trace, also where the step is cut."""
    step = Step(0.5, 0.5, microbatches=2)
    loaded = timing(slowdowns((0.0, 0, "step", 2.0), (1.0, 0, "step", 1.0)), step, load=BESIDE)
    assert loaded.compute(0, 0, 0.0, False, loaded=True) == 1.0 + 2.0 - 0.5
    assert loaded.cut(0, 0, 0.0, False, 1.0, 1.0, loaded=True) == (1.0 + 1.0 - 0.5, 1)
    assert loaded.cut(0, 0, 0.0, False, 1.0, 1.0) == (1.0 + 1.0 - 0.5, 2)


def test_a_server_in_use_stretches_pushes_and_pulls_of_the_ranks_beside_it() -> None:
    trace = slowdowns((0.0, 1, "net", 5.0), (1.0, 1, "net", 1.0))
    loaded = timing(trace, server=ServerCost(push=0.5, pull=0.25), load=BESIDE)
    assert [loaded.push(rank, 2.0, loaded=True) for rank in (0, 1, 2)] == [3.0, 3.0, 2.5]
    assert [loaded.pull(rank, 0.0, loaded=True) for rank in (0, 1, 2)] == [0.5, 1.3, 0.25]
    assert [loaded.push(rank, 2.0) for rank in (0, 1, 2)] == [2.5] * 3


def test_the_all_reduce_of_a_fused_job_is_under_the_load_too() -> None:
    fused = ServerCost(service=1.0, fused_allreduce=True)
    loaded = timing(allreduce=AllReduce(alpha=0.25), server=fused, load=BESIDE)
    assert loaded.serve(0.0, union=(0, 3), loaded=True) == 2.0
    assert loaded.serve(0.0, union=(0, 3)) == 1.5


def test_where_nothing_is_declared_a_load_changes_no_bit() -> None:
    trace = slowdowns((0.0, 0, "net", 1.7), (0.3, 1, "host", 1.3), (0.4, 0, "net", 1.1))
    bare = timing(trace, server=ServerCost(push=0.7), allreduce=AllReduce(alpha=0.1))
    for on in (False, True):
        assert bare.compute(1, 0, 0.1, False, loaded=on) == bare.compute(1, 0, 0.1, False)
        assert bare.push(0, 0.1, loaded=on) == bare.push(0, 0.1)
        assert bare.reduce((0, 1, 2), 0.1, loaded=on) == bare.reduce((0, 1, 2), 0.1)


def test_truth_knows_nothing_of_the_load() -> None:
    assert timing(load=BESIDE).noise_free(0, 0, 0.0) == 1.0


def test_the_slowest_networks_of_ever_new_members_are_not_kept_for_ever() -> None:
    trace = slowdowns(*((0.0, rank, "net", 1.0 + rank) for rank in range(12)))
    many = timing(trace, workers=12, allreduce=AllReduce(alpha=0.5))
    for members in itertools.combinations(range(12), 6):
        assert many.reduce(members, 0.0) == 5.0 * (1 + members[-1])
    assert many._slowest.cache_info().currsize <= 256


# -- recorded durations


def test_recorded_durations_are_consumed_one_per_step_whatever_the_clock_says() -> None:
    recorded = timing(durations(0.5, 0.7, 0.6), noise=Noise(0, lognormal(0.5)))
    assert [recorded.compute(0, k, 100.0, amp=False) - 100 for k in (0, 1, 2)] == pytest.approx(
        [0.5, 0.7, 0.6]
    )


def test_a_recorded_step_in_amp_is_divided_by_the_ratio_of_the_whole_step() -> None:
    assert timing(durations(0.83)).compute(0, 0, 0.0, amp=True) == pytest.approx(0.5)


def test_a_recorded_step_in_amp_needs_a_possible_ratio() -> None:
    with pytest.raises(InputError, match="its gain is unknown"):
        timing(durations(0.83), step=Step(0.3, 0.7)).compute(0, 0, 0.0, amp=True)


@pytest.mark.parametrize(
    ("trace_end", "consumed"),
    [("hold", [0.5, 0.7, 0.7, 0.7, 0.7]), ("loop", [0.5, 0.7] * 2 + [0.5])],
)
def test_after_the_last_duration_it_is_held_or_they_begin_anew(
    trace_end: str, consumed: Sequence[float]
) -> None:
    recorded = timing(durations(0.5, 0.7), trace_end=trace_end)
    assert [recorded.compute(0, k, 0.0, amp=False) for k in range(5)] == consumed


def test_the_host_work_in_a_recorded_duration_cannot_be_stretched() -> None:
    with pytest.raises(InputError) as caught:
        timing(durations(0.5, node=1), load=BESIDE)
    assert str(caught.value) == (
        "server_load.host cannot stretch the recorded durations of rank 1: "
        "their share of host work is unknown; leave host out"
    )
    net_only = ServerLoad(frozenset({1}), net=2.0)
    assert timing(durations(0.5, node=1), load=net_only).compute(1, 0, 0, False, loaded=True) == 0.5
    assert timing(durations(0.5, node=2), load=BESIDE).compute(2, 0, 0, False, loaded=True) == 0.5


def test_running_out_of_durations_can_be_an_error() -> None:
    recorded = timing(durations(0.5, 0.7), trace_end="error")
    assert recorded.compute(0, 1, 0.0, amp=False) == 0.7
    with pytest.raises(InputError) as caught:
        recorded.compute(0, 2, 0.0, amp=False)
    assert str(caught.value) == (
        "rank 0 starts step 2, but the trace records 2 durations; "
        "record more, or say `trace_end: hold` or `loop`"
    )


# -- the end of the trace


def test_a_looped_trace_begins_anew_at_its_last_row() -> None:
    """Also for a rank whose own last row comes earlier."""
    rows = (0.0, 0, "step", 1.0), (2.0, 0, "step", 2.0), (4.0, 1, "step", 1.0)
    looped = timing(slowdowns(*rows), trace_end="loop")
    assert looped.compute(0, 0, 2.0, amp=False) == 4.0
    assert looped.compute(0, 0, 4.0, amp=False) == 5.0
    assert looped.compute(0, 0, 5.0, amp=False) == 6.0
    assert looped.compute(0, 0, 41.5, amp=False) == 43.0


@pytest.mark.parametrize(
    ("start", "end", "beyond"), [(1.0, 4.0, 0.0), (4.0, 7.0, 2.0), (5.0, 6.0, 1.0), (8.0, 9.5, 1.5)]
)
def test_what_lies_beyond_the_last_row_is_counted(start: float, end: float, beyond: float) -> None:
    trace = slowdowns((0.0, 0, "gpu", 2.0), (5.0, 0, "gpu", 1.0))
    assert timing(trace).beyond(0, 0, start, end) == beyond
    assert timing(trace, trace_end="loop").beyond(0, 0, start, end) == 0
    assert timing().beyond(0, 0, start, end) == 0


def test_a_step_without_a_duration_of_its_own_lies_beyond_as_a_whole() -> None:
    recorded = timing(durations(0.5, 0.7))
    assert [recorded.beyond(0, k, 3.0, 3.7) for k in (0, 1)] == [0.0, 0.0]
    assert recorded.beyond(0, 2, 3.0, 3.7) == pytest.approx(0.7)
    assert recorded.beyond(0, 2, 3.0, 2.9) == 0.0, "cancelled before it computed anything"
    assert timing(durations(0.5, 0.7), trace_end="loop").beyond(0, 2, 3.0, 3.7) == 0


# -- truth


def test_the_noise_free_step_is_the_contended_full_precision_step_without_its_noise() -> None:
    trace = slowdowns((0.0, 0, "step", 3.0), (1.0, 0, "step", 1.0))
    noisy = timing(trace, noise=Noise(0, lognormal(0.5)))
    assert noisy.noise_free(0, 3, 0.0) == pytest.approx(1 + 2 / 3)
    assert timing(durations(0.5, 0.7)).noise_free(0, 1, 9.0) == 0.7


# -- refusals


def message(trace: Trace, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        timing(trace, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_node_beyond_the_world_is_refused() -> None:
    assert message(slowdowns((0.0, 4, "gpu", 2.0))) == (
        "inline trace: the trace names node 4, but 4 workers are on nodes 0 to 3; "
        "raise `workers`, or choose nodes with `nodes: [...]`"
    )


def test_a_slowdown_below_one_is_refused_unless_the_scenario_allows_it() -> None:
    trace = slowdowns((3.0, 1, "gpu", 0.5))
    assert message(trace) == (
        "inline trace, row 1: slowdown 0.5 of node 1 at 3 s is below 1; "
        "correct it, or say `allow_speedup: true` in the scenario"
    )
    assert timing(trace, step=Step(0.0, 1.0), allow_speedup=True).compute(1, 0, 3.0, False) == 3.5


def test_utilisation_is_refused_until_a_profile_can_translate_it() -> None:
    trace = Trace.from_rows([(2.0, 1, "gpu", "utilisation", 0.5)])
    assert message(trace).startswith("inline trace, row 1: utilisation 0.5 of node 1 at 2 s cannot")
    assert message(trace).endswith("or step times as kind duration")


@pytest.mark.parametrize("resource", ["gpu", "host", "step"])
def test_durations_and_slowdowns_of_one_nodes_steps_are_refused(resource: str) -> None:
    rows = [(0.0, 1, "step", "duration", 0.5), (0.0, 1, resource, "slowdown", 2.0)]
    assert message(Trace.from_rows(rows)) == (
        "inline trace: node 1 has durations and slowdowns of its steps; "
        "durations contain the slowdown already, keep one of the two"
    )


def test_durations_go_together_with_net_slowdowns_and_with_slowdowns_of_other_nodes() -> None:
    rows = [
        (0.0, 1, "step", "duration", 0.5),
        (0.0, 1, "net", "slowdown", 2.0),
        (0.0, 2, "gpu", "slowdown", 2.0),
    ]
    mixed = timing(Trace.from_rows(rows), step=Step(0.0, 1.0), server=ServerCost(push=0.25))
    assert mixed.compute(1, 0, 0.0, amp=False) == 0.5
    assert mixed.push(1, 0.0) == 0.5
    assert mixed.compute(2, 0, 0.0, amp=False) == 2.0


def test_without_slowdowns_nothing_ends_by_the_clock() -> None:
    assert Contention.of(None, 4).end == math.inf
    recorded = timing(durations(0.5, 0.5, 0.5))
    assert recorded.contention.end == math.inf
    assert recorded.beyond(1, 0, 0.0, 100.0) == 0.0


def test_nodes_that_no_row_of_the_trace_is_about_are_refused() -> None:
    rows = [slowed(1, 2.0)]
    message = r"no rank is on any of its nodes \(1\), they are on 0, 5"
    with pytest.raises(InputError, match=message):
        Contention.of(Trace.from_rows(rows), workers=4, nodes=[0, 0, 5, 5])
    assert Contention.of(Trace.from_rows(rows), workers=2, nodes=[1, 5]).slowdowns
