"""No sentence of an answer contradicts another, nor its numbers: over random small comparisons."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import simstrag
from simstrag.analysis.derived.ranking import faster
from simstrag.analysis.text.gain_text import percent_of
from simstrag.analysis.text.number_format import percent
from simstrag.contract.policy import LANES
from simstrag.experiments.comparison import BASELINE, Comparison
from simstrag.experiments.decision import MODEL_ERROR, OWN
from simstrag.experiments.paired_statistics import NEGLIGIBLE, Estimate

POLICIES = ("asgd", "lb_bsp", "korel", "backup", "ssp", "cgp", "drain", "dropcompute", "local_sgd")
NUMBERS = ("step.cv", "server.service", "learner.c_tau", "allreduce.alpha")


@st.composite
def comparisons(draw: st.DrawFn) -> Comparison:
    workers = draw(st.integers(2, 5))
    work = draw(st.sampled_from(({"samples": 64 * 60}, {"target_progress": 4})))
    kinds = st.sampled_from(("gpu", "step", "net"))
    factors = st.sampled_from((1.0, 1.03, 1.06, 1.1, 1.5, 2.0, 4.0))
    rows = [
        {"time": time, "node": node, "resource": draw(kinds), "kind": "slowdown",
         "value": draw(factors)}
        for node in range(draw(st.integers(0, workers))) for time in (0, 1)
    ]  # fmt: skip
    case: dict[str, Any] = {
        "workers": workers, **work,
        "step": {
            "compute": 0.1, "amp_ratio": draw(st.sampled_from((1.0, 1.5))),
            "cv": draw(st.sampled_from((0.0, 0.05, 0.3))),
        },
        "server": {"service": draw(st.sampled_from((0.0, 0.001, 0.03)))},
        "allreduce": {"alpha": draw(st.sampled_from((0.0, 0.004)))},
        "learner": {"batch": 64, "c_tau": draw(st.sampled_from((0.0, 1.0, 3.0)))},
        "placeholders": draw(st.lists(st.sampled_from(NUMBERS), unique=True)),
        "trace": rows or None, "microbatches": 4,
    }  # fmt: skip
    possible = POLICIES if "samples" in work else POLICIES[:-1]
    policies = draw(st.lists(st.sampled_from(possible), min_size=1, max_size=4, unique=True))
    return simstrag.compare(
        simstrag.Scenario.of(case), draw(st.permutations([*policies, BASELINE])),
        seeds=draw(st.integers(1, 4)), jobs=1,
        sensitivity=draw(st.sampled_from((True, None, False))),
    )  # fmt: skip


@settings(deadline=None, max_examples=settings().max_examples // 2)
@given(comparisons())
def test_no_sentence_contradicts_another_or_its_numbers(comparison: Comparison) -> None:
    answer = comparison.answer
    d, words = answer.decision, " ".join(answer.sentences)
    found = json.loads(json.dumps(answer.to_dict()))
    _check_choice(d, answer.choice, found)
    _check_lanes(d, answer.lanes, answer.choice)
    _check_successors(comparison, answer.conditions)
    for name, worst in found["worst_regret"].items():
        each = [setting["seconds"] for setting in found["settings"]]
        assert worst == max(t[name] / min(t.values()) - 1 for t in each if name in t)
    for text, worst in _regrets_said(d, answer.safety, answer.lanes):
        assert text == (percent(worst, 2) if worst >= NEGLIGIBLE else None)
    for count in re.findall(r"over (\d+) settings", words):
        assert int(count) == len(found["settings"]) > 1
    for first in re.findall(r"([\w:=]+), the fastest here", words):
        assert first == comparison.ranking["policy"][0]
    if range_ := re.search(r"gains (\S+) to (\S+) % over bsp", answer.conditions):
        times = [setting["seconds"] for setting in found["settings"]]
        gains = [1 - t[d.safe] / t[BASELINE] for t in times]
        assert range_.groups() == (percent(min(gains), 2), percent(max(gains), 2))


def _regrets_said(d: Any, safety: str, lanes: dict[str, str]) -> Iterator[tuple[str | None, float]]:
    """The worst regrets in the words, None for almost none, and their values."""
    said = r"(?: is at most (\S+) % behind| is never more than 0.5 % behind)"
    of_best = {lane: d.best(lane) for lane in LANES}
    texts = [(safety, "it", d.safe), (safety, BASELINE, BASELINE)]
    texts += [(safety, f"{name}(?:, the fastest here,)?", name) for name in d.regrets]
    texts += [(lanes[lane], "settings it", best.policy) for lane, best in of_best.items() if best]
    for text, subject, name in texts:
        if name in d.regrets and (match := re.search(rf"(?<![\w:=]){subject}{said}", text)):
            yield match[1], d.regrets[name].worst


def _check_choice(d: Any, choice: str, found: Any) -> None:
    """The choice is a candidate of the least regret, and its words are its numbers."""
    s = d.s
    assert found["choice"] == d.safe in {*s.comparison.policies, BASELINE}
    alike = d.safest.alike
    assert {d.safe, d.safest.best} <= {*alike} <= {*d.candidates}
    least = min(d.regrets[name].worst for name in d.candidates)
    assert d.regrets[d.safest.best].worst == least
    assert not [
        name for name in d.candidates
        if name not in alike and d.regrets[name].worst <= least + MODEL_ERROR
        and d.states[OWN][name] <= (1 + MODEL_ERROR) * d.states[OWN][d.safest.best]
    ]  # fmt: skip
    changes = {name: "" if name == BASELINE else found["lane_of"][name] for name in alike}
    assert changes[d.safe] == min(changes.values())
    is_open = bool(d.placeholders.stated) and d.placeholders.decisive != ()
    is_conditional = is_open or "the job is never slowed" in choice
    assert {*(d.placeholders.decisive or ())} <= {*d.placeholders.stated}
    if d.safe == BASELINE:
        if re.match("No difference can be shown |Nothing was compared", choice):
            return
        assert re.match("If .*, change nothing: " if is_conditional else "Change nothing: ", choice)
        return
    own = next(p for p in s.policies if p.policy == d.safe)
    assert faster(own.difference[s.decides])
    gain = Estimate(**found["saves"])
    assert gain.value >= MODEL_ERROR
    assert re.match("If the .*, run " if is_conditional else "Run ", choice)
    assert f"{d.safe}" in choice.partition(": ")[0]
    assert f": {percent_of(gain)} sooner than synchronous training" in choice
    assert gain.low > 0 or gain.low != gain.low


def _check_lanes(d: Any, lanes: dict[str, str], choice: str) -> None:
    """The lanes part the policies, and no policy is both slower and sooner than bsp."""
    named = [p.policy for lane in LANES for p in d.lanes[lane]]
    assert sorted([*named, BASELINE]) == sorted({*d.s.comparison.policies, BASELINE})
    for lane, text in lanes.items():
        best = d.best(lane)
        assert ("sooner than bsp" in text) == (best is not None)
        assert best is None or best.policy not in d.candidates or "That is less than" not in text
    sooner = [lane for lane in LANES if d.best(lane)]
    if "no policy is shown to be faster" in choice or "takes longer" in choice:
        assert not sooner
    if d.safe != BASELINE:
        assert d.effects[d.safe].lane in sooner


def _check_successors(comparison: Comparison, conditions: str) -> None:
    """A successor is one that paired differences show."""
    table, shown = comparison.thresholds, set()
    if table is not None and len(table):
        shown = {*table.loc[table["shown"], "rival"]}
    for rival in re.findall(r"\((?:above|below) that (\S+) is faster\)", conditions):
        assert rival in shown or comparison.has_target
        assert rival in comparison.policies
