"""Choosing by a quantile of the time of one run, instead of the mean."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from scipy.stats.mstats import hdquantiles

from benchmarks.advice_alike import Drawn
from simstrag.advice.advise import advise
from simstrag.advice.halving import CandidateResult
from simstrag.analysis.text.advice_text import brief, candidates_table
from simstrag.errors import InputError
from simstrag.experiments import paired_statistics
from simstrag.experiments.criterion import MEAN, Criterion
from simstrag.experiments.decision import OWN
from tests.advice.test_advice import job
from tests.analysis.test_cluster_report import CERTAIN
from tests.support.commands import SCENARIO, TRACE, Call

STEADY, WILD = 80 + np.linspace(-2, 2, 20), np.array([60.0] * 17 + [127.0] * 3)
TIMES = {"bsp": 100 + np.linspace(-2, 2, 20), "steady": STEADY, "wild": WILD}
"""Seconds under 20 seeds: wild has the best mean, and three runs longer than any of bsp."""


def recommended(by: Criterion, seeds: int = 20) -> Drawn:
    times = {name: of[:seeds] for name, of in TIMES.items()}
    trials = tuple(CandidateResult(name, seeds, by.of(of), 0.0) for name, of in times.items())
    return Drawn(
        samples={OWN: times}, lane_of=dict.fromkeys(times, "A"), trials=trials, excluded={}, by=by
    )


def test_the_quantile_prefers_the_policy_without_a_tail_where_the_mean_chooses_another() -> None:
    assert recommended(MEAN).choice == "wild"
    assert recommended(Criterion(0.9)).choice == "steady"
    assert recommended(Criterion(0.5)).choice == "wild"


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("n", [2, 5, 40])
def test_a_quantile_is_that_of_harrell_and_davis(share: float, n: int) -> None:
    times = np.random.default_rng(n).lognormal(size=n)
    assert Criterion(share).of(times) == pytest.approx(float(hdquantiles(times, [share])[0]))


def test_the_interval_of_a_difference_is_that_of_the_bootstrap_widened() -> None:
    rng, by = np.random.default_rng(0), Criterion(0.75)
    own, others = rng.normal(10, 1, 12), rng.normal(11, 1, 12)
    drawn = rng.integers(12, size=(20_000, 12))
    gaps = [float(np.diff(hdquantiles(np.stack([others[k], own[k]]), [0.75], axis=1).T)[0, 0])
            for k in drawn[:2000]]  # fmt: skip
    ends = np.quantile(gaps, (0.025, 0.975))
    value, low, high = by.difference(own, others)
    wider = stats.t(11).ppf(0.975) / stats.norm.ppf(0.975) * math.sqrt(12 / 11)
    assert (low, high) == pytest.approx(value + wider * (ends - value), abs=0.1)


def test_a_surer_interval_is_wider_and_equal_times_differ_by_nothing() -> None:
    by, own, others = Criterion(0.9), WILD, TIMES["bsp"]
    sure, surer = (by.difference(own, others, outside) for outside in (0.05, 0.001))
    assert surer.low < sure.low < sure.value < sure.high < surer.high
    assert by.difference(own, own) == (0, 0, 0)
    assert by.ratio(own, own) == (1, 1, 1)


def test_the_mean_is_compared_as_before() -> None:
    own, others = STEADY, TIMES["bsp"]
    assert MEAN.of(own) == own.mean()
    assert MEAN.difference(own, others) == paired_statistics.difference(own, others)
    assert MEAN.ratio(own, others) == paired_statistics.ratio(own, others)


def test_a_run_that_missed_its_target_has_no_quantile_below_infinity() -> None:
    assert Criterion(0.5).of(np.array([1.0, 2.0, math.inf])) == math.inf


@pytest.mark.parametrize(("share", "seeds"), [(0.5, 4), (0.9, 20), (0.99, 200)])
def test_two_runs_beyond_it_carry_a_quantile(share: float, seeds: int) -> None:
    assert Criterion(share).seeds == seeds


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0, -1.0, math.nan])
def test_a_quantile_is_a_share(share: float) -> None:
    with pytest.raises(InputError, match=r"give one from 0\.5 to below 1"):
        advise(job(), ["lb_bsp"], quantile=share)


def test_figures_of_too_few_seeds_are_marked() -> None:
    few = candidates_table(recommended(Criterion(0.9), seeds=19))
    assert few.headers[2] == "90 % quantile of seconds"
    assert all(row[2].endswith("*") for row in few.rows)
    assert few.notes == ("* Fewer than 20 seeds, too few for a 90 % quantile.",)
    assert "*" not in str(candidates_table(recommended(Criterion(0.9))))
    assert "*" not in str(candidates_table(recommended(MEAN, seeds=2)))


def test_the_advice_says_one_interval_of_its_quantile_and_not_that_of_nine_of_ten() -> None:
    found = advise(job(seeds=5), ["lb_bsp", "asgd"], quantile=0.9, jobs=1)
    text = str(brief(found))
    assert "90 % of runs end within" in text
    assert "(roughly: 5 seeds, and it takes 20)" in text
    assert "nine of ten" not in text
    assert not any("nine of ten" in sentence for sentence in found.sentences)
    assert "One run of this job" in str(brief(advise(job(seeds=5), ["lb_bsp"], jobs=1)))
    by = found.to_dict()["by"]
    assert by["quantile"] == 0.9
    assert by["seconds"]["bsp"] == Criterion(0.9).of(found.times["bsp"])


def test_the_command_chooses_by_a_quantile(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("case.yaml").write_text(SCENARIO)
    Path("slow.csv").write_text(TRACE)
    code, out, _ = call(
        "advise", "case.yaml", "-p", "lb_bsp", "--quantile", "0.5", "--jobs", "1", "--json"
    )
    assert code == 0
    assert json.loads(out)["by"]["quantile"] == 0.5


def test_a_cluster_study_is_not_chosen_for_by_a_quantile(call: Call, tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(json.dumps(CERTAIN))
    code, _, err = call("advise", str(study), "--quantile", "0.9")
    assert code != 0
    assert "is a study of jobs on a cluster, compared by mean completion times" in " ".join(
        err.split()
    )
