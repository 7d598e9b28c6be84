"""Policies on the scenario of a record: bsp agrees with the replay, others are ranked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from simstrag import InputError, Scenario
from simstrag.analysis.pages.diagnosis_report import render
from simstrag.analysis.text.whatif_text import policy_sentences
from simstrag.engine.simulate import simulate
from simstrag.records.read import read_record
from simstrag.records.record import Record
from simstrag.whatif.analysis import WhatIf
from simstrag.whatif.diagnosis import diagnose
from simstrag.whatif.job_scenario import JobScenario, host_shares, job_scenario, read_job_scenario
from simstrag.whatif.metrics import metrics
from simstrag.whatif.operation_array import Layout
from simstrag.whatif.replay import JobReplay
from tests.support.commands import Call
from tests.support.job_records import drawn_pipeline, pipeline
from tests.support.step_logs import write_rows


def scenario_of(record: Record, *names: str) -> JobScenario:
    return job_scenario(record, JobReplay.of(Layout.of(record)), names or ("bsp",), gpus=8)


def steps_of(path: Path, **options: Any) -> WhatIf:
    found = diagnose(path, jobs=1, **options).steps
    assert found is not None
    return found


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve steps of ranks that compute a second, the last of which takes 2 s from step 6 on."""
    rows: list[tuple[Any, ...]] = []
    for step in range(12):
        own = 1.0, 1.0, 2.0 if step >= 6 else 1.0
        for rank, seconds in enumerate(own):
            waits = max(own) - seconds + 0.1 + step / 100
            rows += [(rank, step, "compute", seconds), (rank, step, "all-reduce", waits)]
    path = tmp_path_factory.mktemp("record") / "mine.csv"
    return write_rows(path, "rank,step,stage,seconds", rows)


@pytest.fixture(scope="module")
def found(record: Path) -> WhatIf:
    return steps_of(record, compare=["amp_all", "lb_bsp", "asgd"], amp_ratio=2.0)


def test_a_rank_takes_its_own_seconds_and_the_all_reduce_the_rest(record: Path) -> None:
    """Transfers of .1 to .21 s, the same of all ranks: .155 in the mean, over 4 hops of a ring."""
    job = scenario_of(read_record(record))
    assert job.durations[:, 0].tolist() == [1, 1, 1]
    assert job.durations[:, 6].tolist() == [1, 1, 2]
    assert job.communication == pytest.approx(0.155)
    (scenario,) = job.readings
    assert scenario.allreduce.alpha == pytest.approx(0.155 / 4)
    assert scenario.inputs.allreduce.seconds([1, 1, 1]) == pytest.approx(0.155)


def test_a_replica_of_a_pipeline_takes_what_it_would_take_alone() -> None:
    """Alone: 3 + .5 + 1 + 2 + .5 + 6 + 1 s and 1 + .5 + 1 + 2 + .5 + 2 + 1 s; clipping takes .5."""
    job = scenario_of(pipeline(steps=3))
    assert job.durations.T.tolist() == [[14, 8]] * 3
    assert job.communication == 0.5


@pytest.mark.parametrize("kind", ["seconds", "pipeline", "drawn"])
def test_bsp_on_the_scenario_has_the_slowdown_of_the_replay(kind: str, record: Path) -> None:
    """S: seconds of a mean step over those of the mean ideal step, of the same steps."""
    rng = np.random.default_rng(1)
    if kind == "seconds":
        source = read_record(record)
    elif kind == "pipeline":
        source = pipeline(steps=4)
    else:
        source = drawn_pipeline(*rng.lognormal(-2, 0.5, (2, 5, 3, 2, 4)))
    (scenario,) = scenario_of(source).readings
    found = metrics(JobReplay.of(Layout.of(source)))
    step = simulate(scenario, "bsp").summary["makespan"] / len(found.step)
    assert step / found.ideal.mean() == pytest.approx(found.slowdown, rel=1e-9)


def test_policies_are_ranked_by_the_slower_reading_beside_bsp(found: WhatIf) -> None:
    """Steps of .5, then of 1 s (the device was slowed) or 1.5 s (the host); and .155 s."""
    outlooks = {each.policy: each for each in found.policies.outlooks}
    assert [*outlooks][-1] == "bsp"
    assert outlooks["bsp"].won_back == (0, 0)
    assert outlooks["bsp"].slowdowns == pytest.approx([found.metrics.slowdown] * 2, rel=1e-9)
    assert outlooks["amp_all"].seconds == pytest.approx((0.75 + 0.155, 1 + 0.155))
    assert outlooks["amp_all"].amp_share == (1, 1)
    assert outlooks["lb_bsp"].seconds[0] == outlooks["lb_bsp"].seconds[1]
    assert found.policies.bsp_error < 1e-9


def test_without_reduced_precision_there_is_one_reading(record: Path) -> None:
    found = steps_of(record, compare=["lb_bsp"]).policies
    assert found.host_shares == (0.0,)
    assert found.job.readings[0].placeholders == ("learner.batch",)


def test_what_the_record_does_not_tell_is_a_caution_of_both_scenarios(found: WhatIf) -> None:
    for scenario in found.policies.job.readings:
        assert "whether the device or the host was slowed" in scenario.cautions[-1]
        assert all(each.endswith(".") for each in scenario.cautions)


def test_a_warning_of_one_reading_says_of_which(found: WhatIf) -> None:
    device = SimpleNamespace(warnings=["2 of 7 numbers a", "alike"])
    host = SimpleNamespace(warnings=["2 of 8 numbers b", "alike"])
    both = replace(found.policies, comparisons=(device, host))  # type: ignore[arg-type]
    assert both.warnings == (
        "if the device was slowed, 2 of 7 numbers a", "alike",
        "if the host was slowed, 2 of 8 numbers b",
    )  # fmt: skip


def test_an_unknown_gain_is_a_placeholder_and_a_warning(record: Path) -> None:
    found = steps_of(record, compare=["korel"]).policies
    assert "step.amp_ratio" in found.job.readings[0].placeholders
    assert any("are placeholders" in line for line in found.warnings)


@pytest.mark.parametrize(
    ("parts", "shares"),
    [
        ({"compute": 1.0}, (0.0, 1.0)),
        ({"input": 1.0}, (1.0,)),
        ({"gpu": 1.0}, (0.0,)),
        ({"input": 0.25, "forward": 0.25, "gpu": 0.5}, (0.25, 0.5)),
    ],
)
def test_named_parts_tell_whose_the_contention_was(
    parts: dict[str, float], shares: tuple[float, ...], tmp_path: Path
) -> None:
    """Three ranks compute 1 s in each part; of what the last has more, each part has a share."""
    rows = [
        (rank, step, part, 1 + extra * (rank == 2))
        for step in range(3) for rank in range(3) for part, extra in parts.items()
    ]  # fmt: skip
    record = read_record(write_rows(tmp_path / "mine.csv", "rank,step,stage,seconds", rows))
    assert host_shares(record, Layout.of(record)) == pytest.approx(shares)


def test_the_scenario_of_a_pipeline_counts_in_micro_batches_and_keeps_its_bubble() -> None:
    """Two stages of one chunk, four micro-batches: 1 of 5 micro-batch times is the bubble."""
    (scenario,) = scenario_of(drawn_pipeline(*np.full((2, 5, 3, 2, 4), 0.1))).readings
    assert (scenario.learner.batch, scenario.microbatches) == (4, 4)
    assert scenario.step.fixed_share == pytest.approx(1 / 5)
    assert scenario.cost.gpus == 2
    assert scenario.placeholders == ()


def test_the_folder_runs_again_to_the_last_bit(found: WhatIf, tmp_path: Path) -> None:
    outlook = found.policies
    outlook.job.write(tmp_path)
    for k, name in enumerate(("scenario.yaml", "scenario-host.yaml")):
        again = Scenario.read(tmp_path / name)
        for each in outlook.outlooks:
            makespan = simulate(again, each.policy).summary["makespan"]
            assert makespan / 12 == each.seconds[k]


def test_the_page_the_notebook_and_the_json_have_the_ranking(found: WhatIf, record: Path) -> None:
    told = diagnose(record, compare=["amp_all", "lb_bsp", "asgd"], amp_ratio=1.6, jobs=1)
    for page in (render(told), found._repr_html_()):
        assert "lb_bsp" in page
        assert "wins back (%), host" in page
    ranking = found.document["policies"]["ranking"]
    assert {each["policy"] for each in ranking} == {"bsp", "amp_all", "lb_bsp", "asgd"}


def test_the_sentences_check_bsp(found: WhatIf) -> None:
    check, *_ = policy_sentences(found.policies)
    assert check.startswith("In a scenario of this record, bsp takes 1.66 s a step, as the replay")


def test_mistakes_get_a_line_each(record: Path, tmp_path: Path) -> None:
    one = tmp_path / "one.csv"
    one.write_text("rank,step,seconds\n0,0,1\n0,1,1\n")
    idle = tmp_path / "idle.csv"
    idle.write_text("rank,step,seconds\n0,0,1\n1,0,1\n0,1,1\n1,1,0\n")
    for path, more, text in (
        (record, {"compare": ["korell"]}, "Did you mean 'korel'?"),
        (one, {"compare": ["bsp"]}, "policies cannot be compared, because it does no"),
        (idle, {"compare": ["bsp"]}, "replica 1 computed for no time in step 1"),
        (record, {"compare": [], "amp_ratio": 2.0}, "amp_ratio is 2.0; give policies to compare"),
        (record, {"compare": ["korel"], "amp_ratio": np.nan}, "amp_ratio is not a number"),
        (record, {"gpu_price": np.nan}, "gpu_price is not a number"),
        (record, {"compare": ["korel"], "amp_ratio": 0.0}, "amp_ratio is 0.0; give the gain"),
    ):
        with pytest.raises(InputError) as caught:
            diagnose(path, jobs=1, **more)
        assert text in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="has one replica; policies differ in how replicas wait"):
        read_job_scenario(one)


def test_the_command_prints_the_ranking(record: Path, tmp_path: Path, call: Call) -> None:
    asked = ("whatif", str(record), "--compare", "lb_bsp,backup:b=1", "--jobs", "1")
    code, out, _ = call(*asked, "--out", str(tmp_path / "out"))
    assert code == 0
    assert "lb_bsp: " in out
    assert (tmp_path / "out" / "trace.csv").exists()
    code, out, _ = call(*asked, "--json")
    ranking = json.loads(out)["policies"]["ranking"]
    assert {each["policy"] for each in ranking} == {"bsp", "lb_bsp", "backup:b=1"}
