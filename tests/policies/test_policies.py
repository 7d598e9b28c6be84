"""Finding, loading and naming policies, and what the small ones plan."""

from __future__ import annotations

import copy
import importlib
import math
import pickle
import re
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import simstrag
from simstrag.contract import (
    WINDOW,
    Damping,
    Hints,
    Late,
    Plan,
    Precision,
    Quorum,
    Review,
    Via,
    View,
    Weigh,
)
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError, PlanError
from simstrag.policies import describe, load, names, spec
from simstrag.policies._description import describe_plan
from simstrag.policies.dropcompute import DropCompute, best_deadline, effective_speedup
from simstrag.scenario.scenario import Scenario

GUIDE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Sleepy:
    """A stranger's policy.

    naps, deep: how long and
        how well it sleeps.
    """

    naps: float = 0.5
    deep: bool = False
    dreams: int | None = None

    def plan(self, view: View) -> Plan:
        return Plan()


@dataclass(frozen=True)
class Demanding:
    naps: int

    def plan(self, view: View) -> Plan:
        return Plan()


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> str:
    module = ModuleType("stranger")
    module.__dict__.update(Sleepy=Sleepy, Demanding=Demanding, number=3)
    monkeypatch.setitem(sys.modules, "stranger", module)
    for cls in (Sleepy, Demanding):
        monkeypatch.setattr(cls, "__module__", "stranger")
    return "stranger"


EACH = Quorum(count=1, via=Via.SERVER)
LOSERS_ABORT = Quorum(count=7, via=Via.SERVER, late=Late.ABORT)


def plan_of(text: str, world_size: int = 8) -> Plan:
    return load(text).plan(View(world_size)).resolved(world_size)


def test_a_policy_is_found_by_the_name_of_its_file() -> None:
    assert {"amp_all", "asgd", "backup", "bsp", "korel", "ssp"} <= set(names())


def test_every_load_is_a_fresh_instance() -> None:
    assert load("korel") is not load("korel")


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("bsp", Plan()),
        ("bsp:via=server", Plan((Quorum(via=Via.SERVER),))),
        ("asgd", Plan((Quorum(count=1, via=Via.SERVER),))),
        ("ssp", Plan((Quorum(count=1, via=Via.SERVER),), bound=3)),
        ("ssp:bound=5", Plan((Quorum(count=1, via=Via.SERVER),), bound=5)),
        ("backup", Plan((Quorum(count=7, via=Via.SERVER, late=Late.ABORT),))),
        ("backup:b=2,late=drop", Plan((Quorum(count=6, via=Via.SERVER, late=Late.DROP),))),
        ("backup:via=allreduce", Plan((Quorum(count=7, late=Late.ABORT),))),
        ("backup:weigh=members", Plan((LOSERS_ABORT,), weigh=Weigh.MEMBERS)),
        ("amp_all", Plan(precision=Precision.AMP)),
        ("p_reduce", Plan((Quorum(count=2),), average=True)),
        ("p_reduce:p=inf,window=0.001", Plan((Quorum(window=0.001),), average=True)),
        ("local_sgd", Plan((Quorum(steps=8),), average=True)),
        (
            "tree:fan=3",
            Plan((Quorum(via=Via.SERVER, parents=((1, 0), (2, 0), (4, 3), (5, 3), (7, 6))),)),
        ),
        ("lgc", Plan((Quorum(count=6, via=Via.SERVER, late=Late.JOIN),))),
        ("lgc:k=5,via=allreduce", Plan((Quorum(count=5, late=Late.JOIN),))),
        ("staleness_lr", Plan((EACH,), damping=Damping(power=1))),
        ("staleness_lr:power=0.5,shift=1", Plan((EACH,), damping=Damping(power=0.5, shift=1))),
        ("ringmaster", Plan((EACH,), damping=Damping(cutoff=16))),
        ("ringmaster:r=3", Plan((EACH,), damping=Damping(cutoff=3))),
        ("dropcompute:theta=0.5", Plan(deadline=0.5)),
        ("dropcompute", Plan()),
    ],
)
def test_a_plan_says_what_the_paper_says(text: str, plan: Plan) -> None:
    assert plan_of(text) == plan.resolved(8)


def test_an_infinite_bound_is_no_bound() -> None:
    assert plan_of("ssp:bound=inf") == plan_of("asgd")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hot_spare:spares=3", "hot_spare: 3 spares of 3 ranks leave none to train"),
        ("fewer:leave_out=3", "fewer: without 3 of 3 ranks there is none"),
        ("fewer:ranks=0+1+2", "fewer: without 3 of 3 ranks there is none"),
        ("fewer:ranks=3", "fewer: rank 3 is beyond a world of 3 ranks"),
        ("k_async:x=4", "k_async: x=4 is more gradients than 3 ranks have"),
        ("backup:b=3", "b=3 of 3 ranks leaves no gradient"),
        ("p_reduce:p=4", "p_reduce: p=4 is more than 3 ranks"),
        ("lgc:k=4", "lgc: k=4 is more than 3 ranks"),
    ],
)
def test_a_world_that_is_too_small_is_refused(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        load(text).plan(View(3))


@pytest.mark.parametrize(("n", "k"), [(1, None), (2, 1), (3, 1), (8, 6)])
def test_lgc_waits_for_all_but_two_and_for_at_least_one(n: int, k: int | None) -> None:
    assert plan_of("lgc", n).quorums[0].count == k


def test_a_policy_made_for_worlds_of_several_sizes_answers_each() -> None:
    for name in ("lgc", "ringmaster"):
        policy = load(name)
        plans = [policy.plan(View(n)) for n in (8, 16, 8)]
        assert plans[0] is plans[2] != plans[1]


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("ssp:bound=3", "ssp"),
        (" ssp : bound = 5 ", "ssp:bound=5"),
        ("ssp:bound=none", "ssp:bound=inf"),
        ("backup:via=server,late=drop,b=2", "backup:b=2,late=drop"),
        ("korel:rho=1.5,probes=off,delta_on=0.2", "korel:delta_on=0.2,probes=false,rho=1.5"),
        ("simstrag.policies.ssp:Ssp:bound=7", "ssp:bound=7"),
        ("lgc:k=auto", "lgc"),
        ("ringmaster:r=AUTO", "ringmaster"),
        ("dropcompute:theta=none", "dropcompute"),
        ("dropcompute:theta=inf", "dropcompute:theta=inf"),
        ("p_reduce:p=none", "p_reduce:p=inf"),
    ],
)
def test_a_policy_has_one_spelling(written: str, canonical: str) -> None:
    assert spec(load(written)) == canonical
    assert spec(load(canonical)) == canonical


def test_a_strangers_class_takes_parameters_too(outside: str) -> None:
    policy = load(f"{outside}:Sleepy:naps=2,deep=yes,dreams=inf")
    assert policy == Sleepy(naps=2.0, deep=True, dreams=None)
    assert spec(policy) == "stranger:Sleepy:naps=2.0,deep=true"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("asg", "no policy 'asg'; known: amp_all, asgd, .* Did you mean 'asgd'?"),
        ("ssp:bond=3", "'ssp' has no parameter 'bond'; known: bound. Did you mean 'bound'?"),
        ("korel:k=1", "no parameter 'k'; known: .* Did you mean 'k_on' or 'k_off'?"),
        ("asgd:b=3", "'asgd' has no parameter 'b'; known: none"),
        ("ssp:bound=few", "bound must be a whole number or inf, not 'few'"),
        ("ssp:bound=2.5", "bound must be a whole number or inf, not '2.5'"),
        ("ssp:bound=-1", "bound must be 0 or more, or inf, not -1"),
        ("backup:b=-1", "b must be 0 or more, not -1"),
        ("backup:late=queue", "late must be abort or drop, not queue"),
        ("backup:late=never", "late must be drop or abort, not 'never'"),
        ("backup:via=leader", "via must be server or allreduce, not leader"),
        ("backup:weigh=heavy", "weigh must be world or members, not 'heavy'"),
        ("p_reduce:p=0", "p must be 1 or more, or inf, not 0"),
        ("p_reduce:window=-1", "window must be 0 or more seconds, not -1"),
        ("local_sgd:h=0", "h must be 1 or more, not 0"),
        ("lgc:k=0", "k must be 1 or more, or auto, not 0"),
        ("lgc:k=all", "k must be a whole number or auto, not 'all'"),
        ("lgc:via=leader", "via must be server or allreduce, not leader"),
        ("staleness_lr:power=-1", "power must be 0 or more, not -1"),
        ("staleness_lr:shift=-1", "shift must be 0 or more, not -1"),
        ("ringmaster:r=0", "r must be 1 or more, or auto, not 0"),
        ("dropcompute:theta=0", "theta must be above 0 seconds, or auto, not 0"),
        ("dropcompute:warmup=-1", "warmup must be 0 or more, not -1"),
        ("dropcompute:measure=0", "measure must be 1 or more, not 0"),
        ("bsp:via=mail", "via must be allreduce or server, not 'mail'"),
        ("bsp:via=leader", "via must be allreduce or server, not leader"),
        ("korel:W=0", "W must be 1 or more, not 0"),
        ("korel:z_on=0", "z_on must be above 0, not 0.0"),
        ("korel:dwell=200", "dwell_cap must be 200 or more, not 160"),
        ("korel:rho=-1", "rho must be above 0 and finite, or none, not -1"),
        ("korel:rho=nan", "rho must be a number or none, not 'nan'"),
        ("korel:probes=maybe", "probes must be true or false, not 'maybe'"),
        ("k_async:x=0", "x must be 1 or more, or all, not 0"),
        ("star_dynamic:relative=0", "relative must be above 0, not 0"),
        ("star_dynamic:absolute=-1", "absolute must be above 0, not -1"),
        ("star_ring:x=0", "x must be 1 or more, or auto, not 0"),
        ("star_ring:ratio=0", "ratio must be above 0, not 0"),
        ("star_h:ratio=0", "ratio must be above 0, not 0"),
        ("star_h:staleness=-1", "staleness must be 0 or more and finite, not -1"),
        ("star_h:phi=inf", "phi must be 0 or more and finite, not inf"),
        ("star_h:interval=guess", "interval must be order or interp or simulated, not 'guess'"),
        ("star_h:predictor=lstm", "predictor lstm needs the file of its weights"),
        ("lb_bsp:window=17", "window must be 1 to 16 steps, not 17"),
        ("lb_bsp:deadband=-1", "deadband must be 0 or more, not -1.0"),
        ("lb_bsp:low=0", "1 must lie between low and high, not 0.0 and 4.0"),
        ("lb_bsp:high=0.5", "1 must lie between low and high, not 0.25 and 0.5"),
        ("sync_switch:share=1.5", "share must be 0 to 1, not 1.5"),
        ("sync_switch:ratio=1", "ratio must be above 1, not 1.0"),
        ("sync_switch:via=leader", "via must be allreduce or server, not leader"),
        ("sync_switch:samples=0", "samples must be 1 or more, or auto, not 0"),
        ("sync_switch:stragglers=wait", "stragglers must be none or greedy or elastic, not 'wait'"),
        ("cgp:ratio=0.9", "ratio must be 1 or more, not 0.9"),
        ("cgp:every=0", "every must be 1 or more, not 0"),
        ("cgp:max_group=0", "max_group must be 1 or more, not 0"),
        ("cgp:window=-1", "window must be 0 or more, not -1.0"),
        ("cgp:power=-1", "power must be 0 or more, not -1.0"),
        ("cgp:groups=some", "groups must be planned or window or rounds, not 'some'"),
        ("drain:window=17", "window must be 1 to 16 steps, not 17"),
        ("drain:window=2", "probe must be 1 to 2 steps, not 3"),
        ("drain:ratio=1", "ratio must be above 1, not 1.0"),
        ("drain:least=0", "least must be 1 or more, not 0"),
        ("hot_spare:spares=0", "spares must be 1 or more, not 0"),
        ("hot_spare:ratio=0.5", "ratio must be above 1, not 0.5"),
        ("hot_spare:pause=-1", "pause must be 0 or more seconds, not -1"),
        ("hot_spare:window=0", "window must be 1 to 16 steps, not 0"),
        ("fewer:leave_out=-1", "leave_out must be 0 or more, not -1"),
        ("fewer:measure=17", "measure must be 1 to 16 updates, not 17"),
        ("fewer:ranks=3-5", r"ranks must be numbers of ranks, such as 3\+5, not '3-5'"),
        ("dssp:low=-1", "low must be 0 or more, not -1"),
        ("dssp:extra=-1", "extra must be 0 or more, not -1"),
        ("ssp:5", "cannot read '5'; write ssp:parameter=value"),
        ("ssp:bound=1,bound=2", "parameter 'bound' is given twice"),
        ("", "cannot read the policy ''"),
        ("a:b:c:d", "cannot read the policy 'a:b:c:d'"),
        ("not_there.at_all:Policy", "cannot import 'not_there.at_all'"),
        ("stranger:Sleeply", "no policy class 'Sleeply'; .* Sleepy. Did you mean 'Sleepy'?"),
        ("stranger:number", "no policy class 'number'"),
        ("stranger:Demanding", "policy 'stranger:Demanding': .* 'naps'"),
    ],
)
def test_a_wrong_spec_gets_one_line_that_shows_the_way_out(
    outside: str, text: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load(text)
    assert "\n" not in str(caught.value)


# -- what is said of policies


def test_the_table_of_policies_says_what_each_decides_and_takes() -> None:
    table = {row.name: row for row in describe()}
    assert list(table) == list(names())
    assert table["backup"].architecture == "server"
    assert table["bsp"].architecture == "all-reduce"
    assert table["bsp"].sentence.startswith("Every update waits for one gradient of every rank")
    bound = table["ssp"].parameters[0]
    assert (bound.name, bound.default, bound.allowed) == ("bound", "3", "a whole number or inf")
    assert bound.meaning.startswith("s, steps that a rank")
    assert table["ssp"].paper == "Ho et al. 2013"
    assert table["dropcompute"].paper == "Giladi et al. 2023, arXiv:2306.10598"
    assert table["lgc"].source.endswith("INFOCOM 2021.")
    assert any("Ours: weights 1/N" in remark for remark in table["lgc"].remarks)


def test_every_policy_says_what_every_parameter_means() -> None:
    assert [(d.name, p.name) for d in describe() for p in d.parameters if not p.meaning] == []


def test_of_every_policy_there_is_a_paper_with_its_year() -> None:
    paper = re.compile(r"[A-Z][\w& ]+(\.| et al\.)? (19|20)\d\d(, arXiv:\S+)?")
    assert [d.name for d in describe() if not paper.fullmatch(d.paper)] == []


def test_a_description_is_of_the_plan_that_was_asked_for() -> None:
    assert describe("ssp:bound=5").plan[1][1].startswith("5 steps ahead")
    assert describe("asgd").plan == (
        ("quorum", "the first of all 8 ranks, each gradient a job of the server"),
    )


def test_a_stranger_is_described_by_its_class_where_its_file_says_nothing(outside: str) -> None:
    described = describe(f"{outside}:Sleepy:naps=2")
    assert described.sentence == "A stranger's policy."
    assert (described.source, described.paper, described.remarks) == ("", "", ())
    assert [p.meaning for p in described.parameters] == ["how long and how well it sleeps."] * 2 + [
        ""
    ]


def test_a_stranger_that_says_nothing_is_described_by_its_plan(outside: str) -> None:
    described = describe(f"{outside}:Demanding:naps=3")
    assert described.sentence == ""
    assert described.parameters[0].default == "required"


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (Plan(), "quorum: all 4 ranks, by all-reduce"),
        (
            Plan((Quorum((0, 2, 3), via=Via.LEADER, rounds=2), Quorum((1,), via=Via.LEADER))),
            """quorum: ranks 0, 2-3, by all-reduce, then one job of the server;
                 after 2 rounds among themselves
            quorum: rank 1, by all-reduce, then one job of the server""",
        ),
        (
            Plan((Quorum((0, 1, 2), count=2, window=0.5, late=Late.JOIN, riders=((3, 0),)),)),
            """quorum: the first 2 of ranks 0-2, by all-reduce; or those there 0.5 s after the
                 first of them; late ones join the next update without counting; riders: 3 with
                 0""",
        ),
        (
            Plan((Quorum(via=Via.SERVER, parents=((1, 0),)),)),
            """quorum: all 4 ranks, each gradient a job of the server;
                 gradients in one message: 1 with 0""",
        ),
        (
            Plan((Quorum(steps=3),), average=True, deadline=0.25),
            """quorum: all 4 ranks, by all-reduce; each after 3 private steps
            deadline: steps stop at the first micro-batch that ends after 0.25 s
            average: ranks keep models of their own; an update averages its contributors'""",
        ),
        (
            Plan(
                (EACH,),
                fuse=True,
                bound={0: 3, 2: 0},
                precision={1: Precision.AMP},
                batch=(0.5, 0.5, 1, 2),
                weigh=Weigh.MEMBERS,
                damping=Damping(0.5, 1, cutoff=9),
                suspects=frozenset({3, 1}),
                review=Review(updates=2, samples=10, seconds=1.5, on_block=True),
            ),
            """quorum: the first of all 4 ranks, each gradient a job of the server
            fuse: leaders' jobs that wait together become one update
            bound: by rank 3, inf, 0, inf steps ahead of the slowest rank at most
            precision: reduced on rank 1
            batch: by rank 0.5, 0.5, 1, 2 of the nominal batch
            weigh: an update is the mean of its gradients, however few
            damping: a gradient weighs max(1 + staleness, 1)**-0.5;
                 gradients of staleness 9 or more are dropped
            suspects: ranks 1, 3
            review: after 2 updates or after 10 samples or after 1.5 s or when a rank would
                 block""",
        ),
    ],
)
def test_a_plan_in_words_has_a_line_for_what_is_not_at_its_default(plan: Plan, said: str) -> None:
    lines = re.sub(r"\n {17}", " ", said).splitlines()
    assert [": ".join(each) for each in describe_plan(plan, 4)] == [line.strip() for line in lines]


def test_the_table_in_the_docs_is_what_the_policies_say_of_themselves() -> None:
    """Where it is not, the rows to paste are in the failure; the last column is the page's own."""
    rows = [f"| `{d.name}` | {d.sentence} | {d.architecture} | {d.paper} |" for d in describe()]
    assert re.findall(r"(?m)^(\| `.*\|) [^|]+ \|$", GUIDE.partition("## Your own")[0]) == rows


# -- dropcompute chooses its deadline


def measured(times: np.ndarray, steps: int, overhead: float = 0.0, m: int | None = 8) -> View:
    """What a driver shows once `steps` of the synchronous steps `times`, shape (N, S), are done."""
    window = np.full((len(times), WINDOW), np.nan)
    seen = times[:, max(steps - WINDOW, 0) : steps]
    window[:, WINDOW - seen.shape[1] :] = seen
    time = float(times[:, :steps].max(axis=0).sum() + overhead * steps) if steps else 0.0
    counts = np.full(len(times), steps)
    hints = Hints(microbatches=m)
    return View(len(times), steps, 0, time, counts, window, hints=hints)


UNEVEN = np.random.default_rng(7).lognormal(0, 0.4, size=(8, 60))


def test_dropcompute_measures_steps_6_to_50_and_then_asks_no_more() -> None:
    policy = load("dropcompute")
    plans = [policy.plan(measured(UNEVEN, steps, overhead=0.2)) for steps in range(60)]
    assert plans[0] == plans[49] == Plan(review=Review(updates=1))
    assert plans[50] is plans[59] == Plan(deadline=best_deadline(UNEVEN[:, 5:50], 8, 0.2))


@pytest.mark.parametrize("every", [2, 7, 16])
def test_dropcompute_misses_nothing_while_views_are_at_most_a_window_apart(every: int) -> None:
    policy = load("dropcompute")
    for steps in [*range(0, 60, every), 60]:
        plan = policy.plan(measured(UNEVEN, steps))
    assert plan.deadline is not None
    assert isinstance(policy, DropCompute)
    assert policy.state_.times is not None
    assert np.array_equal(policy.state_.times, UNEVEN[:, 5:50])


def test_dropcompute_that_never_sees_a_step_of_all_ranks_goes_on_measuring() -> None:
    policy = load("dropcompute:warmup=0,measure=4")
    assert policy.plan(measured(UNEVEN, 0)).review.updates == 1
    assert policy.plan(measured(UNEVEN, 60)).deadline is None


@pytest.mark.parametrize("m", [None, 1])
def test_dropcompute_leaves_alone_what_it_cannot_cut(m: int | None) -> None:
    assert load("dropcompute").plan(measured(UNEVEN, 3, m=m)) == Plan()


def test_the_deadline_chosen_is_the_best_of_all_candidates() -> None:
    theta = best_deadline(UNEVEN, 8, 0.3)
    best = effective_speedup(UNEVEN, 8, 0.3, theta)
    assert best > 1
    grid = np.linspace(UNEVEN.min() * 6 / 8, UNEVEN.max(), 200)
    assert best == pytest.approx(max(effective_speedup(UNEVEN, 8, 0.3, t) for t in grid), rel=1e-9)


def test_of_equal_steps_nothing_is_cut() -> None:
    assert best_deadline(np.ones((4, 10)), 8, 0.0) == 1.0


def test_the_dearer_communication_is_the_less_is_cut() -> None:
    deadlines = [best_deadline(UNEVEN, 16, overhead) for overhead in (0.0, 1.0, 10.0)]
    assert deadlines == sorted(deadlines)
    assert deadlines[0] < deadlines[-1]


# -- arrays


def test_an_array_says_the_same_as_a_tuple() -> None:
    full, amp = Precision.FULL, Precision.AMP
    by_array = Plan(precision=np.array([False, True]), batch=np.array([0.5, 1.5]))
    by_tuple = Plan(precision=(full, amp), batch=(0.5, 1.5))
    assert by_array == by_tuple
    assert hash(by_array) == hash(by_tuple)
    assert by_array.resolved(2) == by_tuple.resolved(2)
    assert by_array.samples(batch=3, world_size=2) == by_tuple.samples(batch=3, world_size=2)
    assert pickle.loads(pickle.dumps(by_array)) == by_tuple


@pytest.mark.parametrize(
    ("name", "value", "other"),
    [
        ("suspects", {0, 1}, {0}),
        ("suspects", [0, 1], [0]),
        ("bound", [1, 2], [2, 1]),
        ("bound", {0: 1}, {0: 2}),
        ("precision", [Precision.FULL, Precision.AMP], [Precision.AMP, Precision.FULL]),
        ("precision", np.array([False, True]), np.array([True, False])),
        ("batch", np.array([0.5, 1.5]), np.array([1.5, 0.5])),
        ("batch", {0: 0.5, 1: 1.5}, {0: 1.5, 1: 0.5}),
    ],
)
def test_a_standing_plan_is_the_same_object_also_for_what_has_no_hash(
    name: str, value: Any, other: Any
) -> None:
    quorum = Quorum(count=1, via=Via.SERVER)
    plan = Plan.standing(quorum, **{name: value})
    assert plan == Plan((quorum,), **{name: value})
    assert plan is Plan.standing(quorum, **{name: copy.copy(value)})
    assert plan is not Plan.standing(quorum, **{name: other})


def test_a_standing_plan_does_not_change_with_what_it_was_made_of() -> None:
    quorum = Quorum(count=1, via=Via.SERVER)
    bound, reduced = {0: 1}, np.array([False, True])
    plan = Plan.standing(quorum, bound=bound, precision=reduced)
    bound[0], reduced[:] = 5, True
    assert plan.resolved(2).bound == (1, None)
    assert plan.resolved(2).in_amp.tolist() == [False, True]
    assert Plan.standing(quorum, bound=bound, precision=reduced).resolved(2).bound == (5, None)


def test_a_field_that_a_standing_plan_does_not_have_is_a_mistake_as_ever() -> None:
    with pytest.raises(TypeError, match="bond"):
        Plan.standing(bond=3)
    with pytest.raises(PlanError, match="batch share"):
        Plan.standing(batch=np.ones((2, 2)))


@pytest.mark.parametrize(
    "precision",
    [np.array([False, True]), (Precision.FULL, Precision.AMP), {1: Precision.AMP}],
    ids=["array", "tuple", "dict"],
)
def test_a_resolved_plan_says_who_is_in_reduced_precision(precision: Any) -> None:
    assert Plan(precision=precision).resolved(2).in_amp.tolist() == [False, True]


def test_one_precision_is_that_of_all() -> None:
    assert Plan(precision=Precision.AMP).resolved(3).in_amp.all()
    assert not Plan().resolved(3).in_amp.any()


def test_a_plan_keeps_its_own_copy_of_an_array() -> None:
    reduced, shares = np.array([False, True]), np.array([0.5, 1.5])
    plan = Plan(precision=reduced, batch=shares)
    reduced[:], shares[:] = True, 1.0
    assert plan.resolved(2).in_amp.tolist() == [False, True]
    assert plan.resolved(2).samples(batch=2, world_size=2) == (1, 3)


def test_only_a_rank_in_no_quorum_may_have_no_share() -> None:
    shares = (1.5, 0.0, 1.5)
    plan = Plan((Quorum((0, 2)),), batch=shares).resolved(3)
    assert plan.samples(batch=3, world_size=3) == (5, 0, 4)
    for quorum in (Quorum(), Quorum((0, 1)), Quorum((0, 2), riders={1: 0})):
        with pytest.raises(PlanError, match="not 0, of a rank in a quorum"):
            Plan((quorum,), batch=shares)
    with pytest.raises(PlanError, match=r"rank 2 gets no sample of 0\.1 x 3"):
        Plan((Quorum((0, 2)),), batch=(2.9, 0.0, 0.1)).samples(batch=3, world_size=3)


def test_everybody_is_written_out_once() -> None:
    first, again = (Plan((Quorum(via=Via.SERVER),)).resolved(4) for _ in range(2))
    assert first.quorums[0] is again.quorums[0]


# -- what a stranger may do wrong

WRONG = [
    (lambda: Quorum(count=2.0), "a quorum's count must be a whole number, not 2.0"),
    (lambda: Quorum(via="server"), "a quorum's via must be one of Via.ALLREDUCE, "),
    (lambda: Quorum(late="drop"), "a quorum's late must be one of Late.QUEUE, Late.DROP, "),
    (lambda: Quorum(window="a"), "a quorum's window must be a number, not 'a'"),
    (lambda: Quorum(steps=2.5), "a quorum's steps must be a whole number, not 2.5"),
    (lambda: Quorum((0.5, 1)), "a rank must be a whole number, not 0.5"),
    (lambda: Quorum(3), "a quorum's ranks must be ALL or several ranks, not 3"),
    (lambda: Quorum(np.array(3)), "a quorum's ranks must be ALL or several ranks, not 3"),
    (lambda: Quorum((0,), riders=(1,)), "riders must be (child, parent) pairs, not (1,)"),
    (lambda: Plan(Quorum()), "a plan needs a tuple of one quorum or more, not Quorum("),
    (lambda: Plan(bound=2.5), "bound must be a whole number, not 2.5"),
    (lambda: Plan(precision="amp"), "precision must be one of Precision.FULL, Precision.AMP, not"),
    (lambda: Plan(precision=np.zeros(2)), "precision must be one of Precision.FULL, Precision.AMP"),
    (lambda: Plan(precision=np.array(True)), "precision must be one of Precision.FULL, Precision."),
    (lambda: Plan(precision=(0, 1)), "precision must be one of Precision.FULL, Precision.AMP, not"),
    (lambda: Plan(batch=np.array([1.0, math.nan])), "a batch share must be a number, not NaN"),
    (lambda: Plan(batch=np.array(math.nan)), "a batch share must be a number, not NaN"),
    (lambda: Plan(batch=np.array([2.0, 0.0])), "a batch share must be positive, not 0"),
    (lambda: Plan(bound=(1, -1)), "bound must be 0 or more, not -1"),
    (lambda: Plan(bound=(1, True)), "bound must be a whole number, not True"),
    (lambda: Plan(batch=("a", 1)), "a batch share must be a number, not 'a'"),
    (lambda: Plan(deadline="x"), "deadline must be a number, not 'x'"),
    (lambda: Plan(review=3), "review must be a Review, not 3"),
    (lambda: Plan(damping=0.5), "damping must be a Damping, not 0.5"),
    (lambda: Plan(weigh="members"), "weigh must be one of Weigh.WORLD, Weigh.MEMBERS, not"),
    (lambda: Plan(suspects={0.5}), "a suspect must be a whole number, not 0.5"),
    (lambda: Plan(suspects=1), "suspects must be several ranks, not 1"),
    (lambda: Plan(suspects=np.array(1)), "suspects must be several ranks, not array(1)"),
    (lambda: Review(updates=1.5), "review: updates must be a whole number, not 1.5"),
    (lambda: Review(seconds=math.nan), "review: seconds must be a number, not NaN"),
    (lambda: Damping(power="1"), "damping: power must be a number, not '1'"),
]


@pytest.mark.parametrize(("make", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_field_of_a_wrong_kind_is_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        make()
    assert str(caught.value).startswith(message)


@dataclass(frozen=True)
class Counting:
    """Counts what it is told to."""

    counted: Any = None

    def plan(self, view: View) -> Plan:
        return Plan()

    def summary(self) -> Any:
        return self.counted


@pytest.mark.parametrize(
    ("counted", "message"),
    [
        ({"makespan": 1}, "summary() uses 'makespan', which is a word of the run"),
        (3, "summary() must return a dict of numbers, not 3"),
        ({"found": np.zeros(2)}, "summary()['found'] must be a number"),
    ],
)
def test_a_policy_counts_numbers_under_words_of_its_own(counted: Any, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        simulate(Scenario(workers=2, updates=1, step={"compute": 1}), Counting(counted))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_count_of_numpy_is_a_number() -> None:
    counted = {"found": np.int64(3), "share": np.float64(0.5)}
    run = simulate(Scenario(workers=2, updates=1, step={"compute": 1}), Counting(counted))
    assert (run.summary["found"], run.summary["share"]) == (3, 0.5)


class Raises:
    """Breaks when it is asked."""

    def plan(self, view: View) -> Plan:
        return {}["nothing"]


class Leaves:
    """Ends the program when it is asked."""

    def plan(self, view: View) -> Plan:
        raise SystemExit("first line\nsecond line")


def test_a_policy_cannot_end_the_program_and_its_words_are_one_line(outside: str) -> None:
    sys.modules["stranger"].Leaves = Leaves  # type: ignore[attr-defined]
    with pytest.raises(PlanError, match=r"Leaves raised SystemExit: first line second line \("):
        describe("stranger:Leaves")


STATE = """
from dataclasses import dataclass, field
from simstrag import Plan

class Seen: ...

@dataclass(frozen=True)
class Keeps:
    seen: Seen = field(default_factory=Seen)
    def plan(self, view): return Plan()

@dataclass(frozen=True)
class Sets:
    last_: int = field(default=0, init=False)
    def plan(self, view): self.last_ = 1

class Blind:
    def plan(self): return Plan()
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Keeps", r"Keeps\.seen: a spec .* if it is state, name it seen_, with init=False"),
        ("Sets", r"field 'last_' \(keeper\.py, line 15\) .*; keep what changes in a plain object"),
        ("Blind", r"plan\(\) takes 1 positional argument but 2 were given \(keeper\.py\) at"),
    ],
)
def test_a_mistake_with_state_or_the_signature_says_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    (tmp_path / "keeper.py").write_text(STATE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "keeper", raising=False)
    with pytest.raises(InputError, match=message):
        describe(f"keeper:{name}")


def test_describing_a_policy_that_breaks_is_one_line(outside: str) -> None:
    sys.modules["stranger"].Raises = Raises  # type: ignore[attr-defined]
    with pytest.raises(PlanError, match=r"policy .*Raises raised KeyError: 'nothing' \("):
        describe("stranger:Raises")


EDITED = """
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from simstrag import Plan, Quorum

@dataclass(frozen=True)
class Edited:
    def plan(self, view):
        return Plan((Quorum(count=4),))
"""


@pytest.mark.parametrize(("jobs", "by"), [(1, "{}.py"), (1, "{}:Edited"), (2, "{}.py:Edited")])
def test_an_edited_file_is_read_anew(
    jobs: int, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"edited{jobs}{by.count('py')}{by.count(':')}.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    scenario = Scenario(workers=4, samples=2560, step={"compute": 0.1, "cv": 0.5}, seeds=2)
    found = []
    for count in (4, 1, 4):  # as many bytes, within a second
        file.write_text(EDITED.replace("4", str(count)))
        of = simstrag.compare(scenario, by.format(file.stem), jobs=jobs, keep=tmp_path / "kept")
        found.append(of.runs["makespan"].tolist())
        assert load(by.format(file.stem)).plan(View(4)).quorums[0].count == count
    assert found[0] == found[2] != found[1]
    file.write_text(EDITED.replace("Edited", "Renamed"))
    assert type(load(file.name)).__name__ == "Renamed"
    file.write_text("no python")
    for _ in range(2):
        with pytest.raises(InputError, match=f"cannot import '{file.stem}' for policy"):
            load(file.name)


def test_a_module_that_the_user_imported_before_an_edit_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "imported_first.py"
    file.write_text(EDITED)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    first = importlib.import_module(file.stem)
    assert type(load(f"{file}:Edited")) is first.Edited
    file.write_text(EDITED.replace("4", "1") + "# edited")
    assert load(f"{file}:Edited").plan(View(4)).quorums[0].count == 1


def test_threads_that_load_a_policy_at_once_wait_for_its_module(tmp_path: Path) -> None:
    file = tmp_path / "slow_to_import.py"
    file.write_text("import threading; threading.Event().wait(0.2)\n" + EDITED)
    with ThreadPoolExecutor(3) as threads:
        loaded = [*threads.map(load, [f"{file}:Edited"] * 3)]
    assert len({type(policy) for policy in loaded}) == 1


WARNING = """
import warnings
from simstrag import Plan, Review


class Warning:
    def plan(self, view):
        warnings.warn("odd")
        warnings.warn(f"version {view.version}")
        return Plan(review=Review(updates=1))
"""


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_warning_of_a_policy_is_shown_once_for_its_place(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"warns{jobs}"  # workers keep modules
    (tmp_path / f"{name}.py").write_text(WARNING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    scenario = Scenario(workers=2, samples=1280, step={"compute": 0.1}, seeds=3)
    for policies in ([f"{name}.py:Warning", "bsp"], f"{name}.py:Warning"):  # computed, then kept
        with warnings.catch_warnings(record=True) as caught:
            simstrag.compare(scenario, policies, jobs=jobs, keep=tmp_path / "kept")
        assert [str(warning.message) for warning in caught] == [
            f"{name}.py:Warning: odd ({name}.py, line 8)",
            f"{name}.py:Warning: version 0 ({name}.py, line 9)",
        ]
    del sys.modules[name]
