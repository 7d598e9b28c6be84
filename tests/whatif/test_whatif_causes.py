"""Why a job was slow, and what a fix gives: drawn jobs with one cause each, seeds fixed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import simstrag
from simstrag.analysis.text.whatif_text import explained_text
from simstrag.arrays import Reals
from simstrag.errors import InputError
from simstrag.records.record import Record
from simstrag.whatif.analysis import WhatIf, analyse
from tests.support.job_records import drawn_pipeline, pipeline, write_parquet
from tests.support.step_logs import record_of_seconds, write_rows

STEPS, REPLICAS, MICRO = 10, 4, 8
FORWARD, BACKWARD = 0.1, 0.2


def drawn(seed: int = 0) -> tuple[Reals, Reals]:
    """Forward and backward of jobs that spread by 2 %."""
    draw = np.random.default_rng(seed)
    noise = np.exp(0.02 * draw.standard_normal((2, STEPS, REPLICAS, 2, MICRO)))
    return FORWARD * noise[0], BACKWARD * noise[1]


def analysed(record: Record, tmp_path: Path, price: float | None = None) -> WhatIf:
    return analyse(write_parquet(record, tmp_path / "trace.parquet"), price)


def fix(found: WhatIf, begin: str) -> float:
    """Seconds that the fix of this name gives in a mean step."""
    (seconds,) = (each.seconds for each in found.fixes if each.name.startswith(begin))
    return seconds


def test_a_drawn_job_without_a_cause_has_none(tmp_path: Path) -> None:
    found = analysed(drawn_pipeline(*drawn()), tmp_path)
    assert found.metrics.replay_error == pytest.approx(1, abs=1e-9)
    assert (found.causes, found.culprits) == ((), ())
    assert [each.kind for each in found.fixes] == ["all"]  # no other shortens the step


def test_a_stage_that_computes_longer_is_a_cause(tmp_path: Path) -> None:
    forward, backward = drawn()
    forward[:, :, 1] *= 1.5
    backward[:, :, 1] *= 1.5
    found = analysed(drawn_pipeline(forward, backward), tmp_path)
    (cause,) = found.causes
    assert (cause.name, cause.subject) == ("stages", "stage 1")
    assert cause.facts["ratio"] == pytest.approx(1.5 / 1.25, rel=0.01)
    assert found.culprits == ()
    # 8 micro-batches of 0.3 s, of which stage 1 takes 1.5 as long: at 1.25, 8 x 0.3 x 0.25 less.
    assert fix(found, "stage 1 as long") == pytest.approx(0.6, rel=0.05)


def test_micro_batches_of_unequal_length_are_a_cause(tmp_path: Path) -> None:
    forward, backward = drawn()
    shape = STEPS, REPLICAS, 1, MICRO
    length = np.exp(0.4 * np.random.default_rng(1).standard_normal(shape))
    found = analysed(drawn_pipeline(forward * length, backward * length), tmp_path)
    (cause,) = found.causes
    assert cause.name == "lengths"
    assert cause.facts["correlation"] > 0.99
    assert found.culprits == ()


def test_a_late_first_operation_is_a_cause(tmp_path: Path) -> None:
    found = analysed(drawn_pipeline(*drawn(), late=0.5), tmp_path)
    (cause,) = found.causes
    assert cause.name == "input"
    assert cause.facts["seconds"] == pytest.approx(0.5, abs=0.001)
    assert fix(found, "no delay before") == pytest.approx(0.5, abs=0.001)


def test_garbage_collection_is_a_cause(tmp_path: Path) -> None:
    found = analysed(drawn_pipeline(*drawn(), gc=0.3), tmp_path)
    assert [cause.name for cause in found.causes] == ["gc"]
    assert fix(found, "no garbage collection") == pytest.approx(0.3, abs=0.001)


def test_a_slow_link_is_a_cause(tmp_path: Path) -> None:
    transfer = np.array([0.01, 0.01, 0.2, 0.01])
    found = analysed(drawn_pipeline(*drawn(), transfer=transfer), tmp_path)
    (cause,) = found.causes
    assert cause.name == "link"
    assert cause.subject.endswith("of replica 2")
    assert cause.facts["ratio"] == pytest.approx(20)


def test_fixes_together_give_less_than_their_sum(tmp_path: Path) -> None:
    """Two workers are equally slow in two replicas: either alone gives nothing."""
    forward, backward = drawn()
    for replica in (0, 2):
        forward[:, replica, 0] *= 2
        backward[:, replica, 0] *= 2
    found = analysed(drawn_pipeline(forward, backward), tmp_path)
    assert {each.rank for each in found.culprits} == {0, 4}
    alone = [each.seconds for each in found.fixes if each.kind == "worker"]
    both = fix(found, "both slow workers")
    assert max(alone) < 0.1 * both


def test_a_fix_is_priced_for_a_thousand_steps_of_all_gpus(tmp_path: Path) -> None:
    """Rank 0 like its peer: replica 0 ends its backward at 7 s, as replica 1, not 13; 4 GPUs."""
    seconds = pipeline(steps=6)
    found = analysed(seconds, tmp_path, price=2.0)
    (row,) = (each for each in found.fixes if each.kind == "worker")
    assert row.seconds == pytest.approx(6.0)
    assert row.gpu_hours == pytest.approx(6.0 * 4 * 1000 / 3600)
    assert row.cost == pytest.approx(2 * row.gpu_hours)


def test_the_last_replica_is_charged_with_the_waiting_of_the_others(tmp_path: Path) -> None:
    """Replica 0 ends its backward at 13 s, replica 1 at 7: six steps of 6 s."""
    found = analysed(pipeline(steps=6), tmp_path)
    assert found.late.last == (6, 0)
    assert found.late.waited == pytest.approx((36, 0))


def test_tokens_that_go_with_seconds_are_a_cause(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(1000, 9000, (20, 4))
    rows = [(rank, step, 0.05 + 1e-5 * n, n) for (step, rank), n in np.ndenumerate(tokens)]
    found = analyse(write_rows(tmp_path / "mine.csv", "rank,step,seconds,tokens", rows))
    assert [(each.name, each.subject) for each in found.causes] == [("lengths", "tokens")]
    means = found.metrics.replayed.mean() - fix(found, "tokens of equal length")
    assert means == pytest.approx(0.1, abs=0.01)  # 0.05 + 1e-5 x 5000


def test_a_replay_that_is_off_by_a_tenth_warns_before_anything_else(tmp_path: Path) -> None:
    found = analysed(pipeline(late=1.45, steps=6), tmp_path)
    assert found.warnings[0].startswith("the replay takes 0.909 of the recorded time; beyond 5 %")


def test_the_document_has_the_names_of_the_public_analysis(tmp_path: Path) -> None:
    document = analysed(pipeline(steps=6), tmp_path).document
    assert document["blocking_slowdown"] == pytest.approx(14.5 / 11.5)
    assert list(document["blocking_decompose_by_dp_rank"]) == ["0", "1"]
    assert document["blocking_decompose_by_stage_per_step"]["3"]["0"] == pytest.approx(16 / 11.5)
    assert document["Mw"]["rem"] == document["Mw"]["Mw"] == pytest.approx(1.5)
    assert document["launch_decompose_by_optype"] is None


def test_it_is_a_function_of_the_package(tmp_path: Path) -> None:
    path = write_parquet(pipeline(), tmp_path / "trace.parquet")
    assert simstrag.whatif.analyse(path).metrics.slowdown == pytest.approx(14.5 / 11.5)
    with pytest.raises(AttributeError, match="no attribute 'analyze'"):
        _ = simstrag.whatif.analyze


def test_a_price_below_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gpu_price is -1; give the price of a GPU-hour"):
        analysed(pipeline(), tmp_path, price=-1)


@pytest.mark.parametrize(("slowdown", "slow_steps"), [(1.5, 60), (2.0, 60), (2.0, 20)])
def test_a_fix_gives_what_the_slow_rank_cost(slowdown: float, slow_steps: int) -> None:
    """At a spread of 15 %, where a step without rank 1 would be 3 % shorter than one of four."""
    errors = []
    for seed in range(10):
        clean = 0.1 * np.exp(0.15 * np.random.default_rng(seed).standard_normal((60, 4)))
        loaded = clean.copy()
        loaded[:slow_steps, 1] *= slowdown
        found = analyse(record_of_seconds(loaded))
        left = found.metrics.replayed.mean() - fix(found, "rank 1 like the others")
        errors.append(left / clean.max(axis=1).mean() - 1)
    assert abs(np.mean(errors)) <= 0.01


def with_longer_batches(folder: Path, slowdown: float = 1.0) -> WhatIf:
    """Rank 2 has 1.7 times the tokens from step 15 on, and takes `slowdown` times as long, too."""
    tokens = np.random.default_rng(0).normal(100, 10, (40, 4))
    tokens[15:, 2] *= 1.7
    seconds = 0.003 * tokens
    seconds[15:, 2] *= slowdown
    rows = [(r, k, seconds[k, r], round(n)) for (k, r), n in np.ndenumerate(tokens)]
    return analyse(write_rows(folder / "mine.csv", "rank,step,seconds,tokens", rows))


def test_a_worker_that_its_tokens_made_slow_has_no_fix_of_its_own(tmp_path: Path) -> None:
    found = with_longer_batches(tmp_path)
    assert [each.rank for each in found.culprits] == [2]
    (cause,) = found.causes
    assert cause.explains[2] > 0.95
    (text,) = explained_text(found, found.culprits[0])
    assert "of what rank 2 computes longer goes with its tokens: it is no slow rank" in text
    assert [each.name for each in found.fixes if each.kind != "all"] == ["tokens of equal length"]


def test_all_fixes_together_give_no_less_than_one_of_them(tmp_path: Path) -> None:
    """Equal tokens lengthen the other ranks."""
    found = with_longer_batches(tmp_path, 1.3)
    assert found.causes[0].explains == {}
    own = [each.seconds for each in found.fixes if each.kind in ("worker", "cause")]
    assert len(own) == 2
    assert fix(found, "all of these together") >= max(own)


def test_a_worker_that_is_slow_beside_its_tokens_has_a_fix_of_that_alone(tmp_path: Path) -> None:
    """It takes 1.7 x 1.3 times the seconds; its own fix leaves 1.7, which equal tokens take."""
    found = with_longer_batches(tmp_path, 1.3)
    share_of_late = (40 - 15) / 40
    own, tokens = fix(found, "rank 2 like the others"), fix(found, "tokens of equal length")
    assert own == pytest.approx(share_of_late * 0.3 * 1.7 * 0.3, rel=0.05)
    assert fix(found, "all of these together") == pytest.approx(own + tokens, rel=0.02)
