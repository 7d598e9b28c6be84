"""Managers: who may leave its barrier, and whom that delays."""

from __future__ import annotations

import json
import re
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import pytest

from simstrag.cluster.barrier_gate import Gate, is_barrier
from simstrag.cluster.constants import Constants
from simstrag.cluster.managers import (
    MANAGERS,
    LeaveAnswer,
    LeaveRequest,
    ManagedJob,
    Need,
    load_manager,
)
from simstrag.cluster.measured_constants import largest, measure_all
from simstrag.cluster.runs import cluster
from simstrag.cluster.simulate import ClusterRun, simulate_cluster
from simstrag.cluster.study import ClusterStudy
from simstrag.contract import Plan, Quorum, Review, Via, View
from tests.support.commands import Call
from tests.support.refusals import message_of

NOTHING = Constants(0.0, 0.0, 0.0, 0.0, 1.0, 1.0)


def donor(number: int, *, seconds: tuple[float, ...] = (1.0, 1.0), **changes: Any) -> ManagedJob:
    """A job at its barrier with two workers on node 0, of which each frees 2 cores a second."""
    facts = {"at_barrier": True, "gradients": 0.0, "nodes": (0, 0)} | changes
    sensitivity = facts.pop("sensitivity", 1.0)
    constants = Constants(0.0, 0.0, 2.0, 1e6, sensitivity, 1.0)
    return ManagedJob(number, seconds=np.array(seconds), constants=constants, **facts)


def ask(
    others: list[ManagedJob], cores: float, saving: float = 0.2, bytes_: float = 0.0
) -> LeaveAnswer:
    """The answer of `star` where one core, and 10 MB/s in each direction, are left on node 0."""
    request = LeaveRequest(9, saving, (Need(0, cores, bytes_),))
    return load_manager("star").answer(request, np.array([[1.0, 1e7, 2e7]]), others)


# -- the rules of star ----------------------------------------------------------------------------


def test_where_there_is_room_a_job_leaves_and_nobody_is_delayed() -> None:
    assert ask([donor(0)], cores=1.0, saving=0.0) == LeaveAnswer(granted=True)


def test_what_fast_ranks_leave_idle_while_they_wait_is_taken_first() -> None:
    """One of two ranks waits for 0.25 s, in which it frees half a core: 1.5 are there."""
    slack = donor(0, seconds=(1.0, 0.75))
    assert ask([slack], cores=1.5, saving=0.0) == LeaveAnswer(granted=True, delays={0: 0.0})
    assert not ask([slack], cores=1.6, saving=0.0).granted


def test_what_is_missing_is_split_by_the_inverse_of_sensitivities() -> None:
    """Half a core is missing.  Job 0 is three times as sensitive: it gives a quarter of it.

    0.125 cores / (2 workers x 2 cores per second) = 0.03125 s; job 1 three times as much.
    """
    answer = ask([donor(0, sensitivity=3.0), donor(1)], cores=1.5)
    assert answer == LeaveAnswer(granted=True, delays={0: 0.03125, 1: 0.09375})


def test_a_job_leaves_only_if_it_saves_more_than_the_others_lose() -> None:
    """Half a core of one donor is 0.125 s."""
    assert ask([donor(0)], cores=1.5, saving=0.126).granted
    assert not ask([donor(0)], cores=1.5, saving=0.125).granted


def test_a_second_of_a_job_that_is_far_on_counts_for_more_and_is_not_longer() -> None:
    """After 10,000 gradients twice as much."""
    assert not ask([donor(0, gradients=10_000.0)], cores=1.5, saving=0.25).granted
    answer = ask([donor(0, gradients=10_000.0)], cores=1.5, saving=0.26)
    assert answer == LeaveAnswer(granted=True, delays={0: 0.125})


def test_of_processor_and_card_the_longer_delay_counts() -> None:
    """2 MB/s are missing of the smaller direction: 2e6 / (2 x 1e6) = 1 s; half a core: 0.125 s."""
    answer = ask([donor(0)], cores=1.5, bytes_=1.2e7, saving=1.1)
    assert answer == LeaveAnswer(granted=True, delays={0: 1.0})


@pytest.mark.parametrize(
    "others",
    [
        [], [donor(0, at_barrier=False)], [donor(0, nodes=(1, 1))],
        [ManagedJob(0, True, 0.0, np.ones(2), (0, 0), NOTHING)],
    ],
    ids=["nobody", "not at its barrier", "on another node", "frees nothing"],
)  # fmt: skip
def test_without_a_job_that_can_give_a_request_is_refused(others: list[ManagedJob]) -> None:
    assert not ask(others, cores=1.5, saving=9.0).granted


def test_a_job_that_gives_to_two_nodes_is_delayed_by_the_longer_time() -> None:
    request = LeaveRequest(9, 1.0, (Need(0, 1.5, 0.0), Need(1, 2.5, 0.0)))
    both = donor(0, nodes=(0, 1))
    answer = load_manager("star").answer(request, np.full((2, 3), 1.0), [both])
    assert answer == LeaveAnswer(granted=True, delays={0: 0.75})


# -- the gate ------------------------------------------------------------------------------------


def test_only_plans_by_which_some_rank_need_not_wait_leave_the_barrier() -> None:
    server = {"via": Via.SERVER}
    assert is_barrier(Plan((Quorum(parents=((1, 0),), **server),)))
    assert is_barrier(Plan((Quorum((0, 1)),)))
    for quorums in (
        (Quorum(count=2),), (Quorum(window=1.0),), (Quorum((0, 1), riders=((2, 0),)),),
        (Quorum((0,), **server), Quorum((1,), **server)),
    ):  # fmt: skip
        assert not is_barrier(Plan(quorums))


def test_a_permission_lasts_until_the_policy_returns() -> None:
    barrier, apart = (Plan((Quorum(count=c, via=Via.SERVER),)).resolved(2) for c in (2, 1))
    gate = Gate(2)
    assert gate(barrier) is barrier
    assert gate(apart) is barrier
    gate.answer(granted=True)
    assert [gate(plan) for plan in (apart, barrier, apart)] == [apart, barrier, barrier]
    assert (gate.asks, gate.permitted, gate.granted, gate.refused) == (True, False, 1, 0)


# -- runs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leaves:
    """Leaves its barrier from one time on, until another."""

    first: float = 0.0
    last: float = 1e9

    def plan(self, view: View) -> Plan:
        apart = self.first <= view.time < self.last
        return Plan((Quorum(count=1 if apart else None, via=Via.SERVER),), review=Review(updates=1))


LEAVES = f"{__name__}:Leaves"
STEP, GIVES = {"compute": 0.1}, {"compute": 0.1, "host_share": 1.0}
CASE: dict[str, Any] = {
    "nodes": [{"gpus": 2, "cores": 1.0, "count": 2}],
    "workloads": {
        "asks": {"scenario": {"step": STEP, "learner": {"batch": 8}}},
        "gives": {"scenario": {"step": GIVES, "learner": {"batch": 8}}, "host_cores": 0.8},
    },
    "jobs": [
        {"workload": "asks", "workers": 2, "samples": 1600, "policy": LEAVES},
        {"workload": "gives", "workers": 1, "samples": 1600, "policy": "bsp"},
    ],
    "trace": [{"time": 0, "node": 1, "resource": "gpu", "kind": "slowdown", "value": 3.0}],
    "placers": ["spread"],
}
"""`asks` has a worker on each node, of which the second one takes 0.3 s a step in place of 0.1 s.

`gives` keeps 0.8 cores of node 0 busy, where the server is, in steps of 0.1 s.
"""
CONSTANTS = {
    "asks": Constants(0.3, 0.0, 0.0, 0.0, 1.0, 1.0),
    "gives": Constants(0.0, 0.0, 2.0, 0.0, 1.0, 1.0),
}
"""0.1 cores are missing: 0.1 / 2 = 0.05 s per iteration, against 0.2 s that `asks` saves."""
SERVED = {"step": STEP | {"cv": 0.3}, "server": {"service": 0.01}, "learner": {"batch": 8}}
NOISY = CASE | {
    "nodes": [{"gpus": 2, "cores": 3, "count": 2}],
    "workloads": {
        "asks": {"scenario": SERVED, "server_cores": 12},
        "gives": CASE["workloads"]["gives"] | {"host_cores": 2},
    },
}
"""Much the same with noise and a server, whose constants are to be measured."""


def run(
    manager: str = "star", asks: str = LEAVES, gives: str = "bsp", **changes: Any
) -> ClusterRun:
    jobs = [job | {"policy": p} for job, p in zip(CASE["jobs"], (asks, gives), strict=True)]
    study = ClusterStudy.of(CASE | {"jobs": jobs} | changes)
    return simulate_cluster(study, manager=manager, constants=CONSTANTS)


def ends(of: ClusterRun) -> list[float]:
    return [job["end"] for job in of.jobs]


def test_a_grant_delays_the_donor_by_what_it_says_and_ends_with_the_job() -> None:
    """By hand: `asks` makes an update at 0.3, 0.6 and 0.9 s; at 1 s it is granted.

    At 1.2 s it leaves.  It has 200 gradients to make, 8 of them until then.  Then its ranks make
    10 and 10/3 gradients a second; the 192nd from there on is one at 15.6 s.
    `gives` begins its step 11 at 1 s, before the manager answers.  From 1.1 s on a step takes
    0.15 s: the 97th such step begins at 15.5 s.  So 11 + 97 steps of 200 are done at 15.65 s, and
    the 92 others take 0.1 s each.
    """
    done = run()
    (row,) = done.delays
    assert ends(done) == pytest.approx([15.6, 15.65 + 9.2])
    assert (row["job"], row["for"], row["iterations"]) == ("gives", "asks", 97)
    numbers = [row[name] for name in ("start", "end", "seconds", "lost")]
    assert numbers == pytest.approx([1.0, 15.6, 0.05, 97 * 0.05])


def test_a_job_says_what_it_gave_and_what_it_got() -> None:
    """As above.  Rank 1 of `asks` straggles: it makes 52 of its 200 gradients."""
    asks, gives = run().jobs
    assert (asks["granted"], asks["refused"]) == (1, 1)  # at 0 s there is no straggler yet
    assert gives["granted"] == gives["refused"] == 0
    assert (asks["beneficiary_seconds"], gives["donor_seconds"]) == pytest.approx((14.6, 14.6))
    assert (asks["lost"], gives["lost"]) == pytest.approx((0.0, 4.85))
    assert gives["lost_share"] == pytest.approx(4.85 / 24.85)
    assert (asks["stragglers"], gives["stragglers"]) == (1000 * 52 / 200, 0.0)
    assert np.isnan(asks["time_to_target"])


def test_no_donor_loses_more_than_its_grants_said() -> None:
    """0.05 s for each iteration and, where the last one has begun, once more."""
    done = run()
    (row,) = done.delays
    assert row["within_grant"]
    assert row["lost"] <= 0.05 * (row["iterations"] + 1) * (1 + 1e-9)
    found = {name: done.summary[name] for name in ("donors", "delays", "over_grant", "lost")}
    assert found == pytest.approx({"donors": 1, "delays": 1, "over_grant": 0, "lost": row["lost"]})
    assert ends(done)[1] - ends(run("none"))[1] == pytest.approx(row["lost"])


def test_what_a_job_had_done_at_the_horizon_is_counted() -> None:
    """At 5 s `gives` has begun 27 steps that are delayed, at 1.1 s and every 0.15 s."""
    asks, gives = run(horizon=5.0).jobs
    assert (asks["beneficiary_seconds"], gives["donor_seconds"]) == pytest.approx((4.0, 4.0))
    assert (gives["lost"], gives["lost_share"]) == pytest.approx((27 * 0.05, 27 * 0.05 / 5))


def test_a_job_with_a_target_says_when_it_reached_it() -> None:
    job = {"workload": "gives", "workers": 1, "target_progress": 5.0}
    (row,) = simulate_cluster(ClusterStudy.of(CASE | {"jobs": [job]})).jobs
    assert row["time_to_target"] == row["run_time"] == row["end"]


def test_no_donor_is_delayed_where_it_costs_more_than_is_saved() -> None:
    """The second rank takes 0.14 s a step: 0.04 s would be saved."""
    mild = [CASE["trace"][0] | {"value": 1.4}]
    done = run(trace=mild)
    assert done.delays == []
    assert ends(done) == pytest.approx([100 * 0.14, 20.0])


def test_refused_jobs_run_as_if_their_policy_were_a_barrier() -> None:
    assert ends(run("refuse")) == ends(run("none", asks="bsp:via=server"))
    assert ends(run("refuse", asks="asgd")) == ends(run("refuse"))


@pytest.mark.parametrize(("need", "granted"), [(7.1, 1), (7.5, 0)])
def test_what_jobs_use_of_a_node_that_is_not_full_is_no_room(need: float, granted: int) -> None:
    """`gives` uses 0.8 of 8 cores, and nobody can free any."""
    roomy = {key: value for key, value in CASE.items() if key != "trace"}
    roomy["nodes"] = [{"gpus": 2, "cores": 8.0, "count": 2}]
    constants = {"asks": replace(NOTHING, extra_cores=need), "gives": NOTHING}
    done = simulate_cluster(ClusterStudy.of(roomy), manager="star", constants=constants)
    assert done.jobs[0]["granted"] == granted


def test_a_delay_ends_when_the_job_returns_to_its_barrier() -> None:
    """It returns at the first update from 5 s on; the next renegotiation is at 6 s."""
    (row,) = run(asks=f"{LEAVES}:last=5").delays
    assert (row["start"], row["end"]) == (1.0, 6.0)


def test_a_delayed_job_may_not_leave_its_barrier_itself() -> None:
    """`gives` would from 3 s on, when it has been delayed since 1 s; once it is not, it may."""
    done = run(gives=f"{LEAVES}:first=3", asks=f"{LEAVES}:last=5")
    (row,) = done.delays
    assert (row["end"], row["job"]) == (6.0, "gives")
    assert ends(done) == ends(run(asks=f"{LEAVES}:last=5"))  # alone it has no one to wait for


def test_a_run_with_managers_is_the_same_in_any_process(tmp_path: Any) -> None:
    study = NOISY | {"managers": list(MANAGERS), "seeds": 2}
    for jobs, name in ((1, "one"), (2, "two")):
        cluster(ClusterStudy.of(study), tmp_path / name, jobs=jobs)
    for table in ("summary.csv", "jobs.csv", "delays.csv", "shares.csv", "nodes.csv"):
        assert (tmp_path / "one" / table).read_bytes() == (tmp_path / "two" / table).read_bytes()


# -- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"managers": ["stra"]}, "there is no manager 'stra'; known: none, refuse, star. Did you"),
        ({"constants": "star"}, "workloads.asks: constants is 'star', but STAR's table has no"),
        ({"constants": "stra"}, "constants"),
    ],
)
def test_a_wrong_manager_or_constant_is_answered_in_one_line(
    change: dict[str, Any], answer: str
) -> None:
    assert re.search(answer, message_of(lambda: ClusterStudy.of(CASE | change)))


# -- constants -----------------------------------------------------------------------------------

CERTAIN: dict[str, Any] = {
    "nodes": [{"gpus": 2, "cores": 64, "count": 2}],
    "workloads": {
        "even": {
            "scenario": {
                "step": {"compute": 0.5, "host_share": 0.4}, "learner": {"batch": 8},
                "server": {"push": 0.25, "pull": 0.25},
            },
            "host_cores": 3, "gradient_bytes": 1e6,
        }
    },
    "jobs": [{"workload": "even", "workers": 2, "samples": 1600}],
}  # fmt: skip
"""Steps of 0.2 s on 3 cores and 0.3 s on the device, push and pull of 0.25 s each, no noise."""
BY_HAND = Constants(0.0, 0.0, 0.5 * 0.2 * 3, 0.5e6, 1.2 * 1.6, 1.5 * 2.5)


def test_measured_constants_are_those_by_hand() -> None:
    """An iteration takes 1 s, under asgd too; 2 s with a delay of 1 s: half a gradient/s is freed.

    Processors at half and at a quarter of their speed: 1.2 and 1.6 s.  Cards: 1.5 and 2.5 s.
    """
    found = measure_all(ClusterStudy.of(CERTAIN))["even"]
    assert astuple(found) == pytest.approx(astuple(BY_HAND), rel=0.01)


def test_constants_do_not_depend_on_which_workloads_a_seed_draws(tmp_path: Any) -> None:
    """A finished run is kept whatever other seeds a study has: its constants must stay."""
    (tmp_path / "jobs.csv").write_text("submit,gpus,samples,workload\n0,4,8,\n1,2,8,asks\n2,1,8,\n")
    data = CASE | {"jobs": [], "arrivals": {"file": "jobs.csv"}}
    for seeds in ([0], [1], [2], [3]):
        study = ClusterStudy.of(data | {"seeds": seeds}, folder=tmp_path)
        assert largest(study) == {"asks": 4, "gives": 4}
    only = data["arrivals"] | {"workloads": ["gives"]}
    study = ClusterStudy.of(data | {"arrivals": only}, folder=tmp_path)
    assert largest(study) == {"asks": 2, "gives": 4}


def test_what_asgd_asks_for_more_is_that_of_its_gradients(tmp_path: Any) -> None:
    """With noise the barrier costs gradients; each has 0.01 s of 5 cores and 1 MB at the server."""
    scenario = CERTAIN["workloads"]["even"]["scenario"]
    noisy = {
        **scenario, "step": {**scenario["step"], "cv": 0.3}, "server": {"service": 0.01},
    }  # fmt: skip
    workload = {"scenario": noisy, "server_cores": 5, "gradient_bytes": 1e6}
    found = measure_all(ClusterStudy.of(CERTAIN | {"workloads": {"even": workload}}))["even"]
    assert found.extra_bytes > 0.2e6
    assert found.extra_cores == pytest.approx(found.extra_bytes / 1e6 * 0.01 * 5)


def test_the_constants_are_printed_beside_those_of_star(
    call: Call, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = dict.fromkeys(("even", "alexnet"), BY_HAND)
    monkeypatch.setattr("simstrag.cluster.measured_constants.measure_all", lambda _: measured)
    even = CERTAIN["workloads"]["even"]
    study = CERTAIN | {"workloads": {"even": even, "alexnet": even}, "constants": "measured"}
    (tmp_path / "s.yaml").write_text(json.dumps(study))
    refused = call("cluster", str(tmp_path / "s.yaml"), "--constants", "--seeds", "2")
    assert refused[::2] == (2, "error: --seeds 2: --constants runs no study; leave it out\n")
    code, out, _ = call("cluster", str(tmp_path / "s.yaml"), "--constants")
    rows = {line.split()[0]: line.split("  ") for line in out.splitlines()}
    assert code == 0
    assert "(2.18)" in " ".join(rows["alexnet"])  # 3.41 % of 64 cores
    assert "(" not in " ".join(rows["even"])
    assert "use `constants: measured`" in out
    shown = json.loads(call("cluster", str(tmp_path / "s.yaml"), "--constants", "--json")[1])
    assert shown["star"].keys() == {"alexnet"}
    assert shown["measured"]["even"]["freed_cores"] == pytest.approx(0.3, rel=0.01)


def test_the_command_shows_managers_side_by_side(call: Call, tmp_path: Any) -> None:
    (tmp_path / "s.yaml").write_text(json.dumps(NOISY | {"managers": ["none", "star"]}))
    asked = ("cluster", str(tmp_path / "s.yaml"), "--jobs", "1", "--out", str(tmp_path / "r"))
    rows = call(*asked, "--verbose")[1].splitlines()
    start = next(k for k, row in enumerate(rows) if row.startswith("policies"))
    head, none, star = (line.split() for line in rows[start : start + 3])
    assert (head[2], none[2], star[2]) == ("manager", "none", "star")
    assert none[-1] == "0.00%" < star[-1]
