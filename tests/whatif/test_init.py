"""A first scenario from a trace: it runs as it is written, and says what it assumes."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import simstrag
from simstrag import Scenario, Trace
from simstrag.traces.generate import generate
from simstrag.traces.provenance import Labelled
from simstrag.whatif.first_scenario import (
    JobDescription,
    describe_measured_allreduce,
    first_scenario,
    write_first_scenario,
)

TRACES: dict[str, list[tuple[Any, ...]]] = {
    "eight nodes": [(9.0 * n, n, "gpu", "slowdown", 1.5) for n in range(8)],
    "one node": [(2, 3, "gpu", "slowdown", 2.0), (6, 3, "gpu", "slowdown", 1.0)],
    "two nodes, far numbers": [(2, 70, "gpu", "slowdown", 2.0), (6, 99, "step", "slowdown", 3.0)],
    "host": [(2, 0, "host", "slowdown", 2.0), (60, 1, "host", "slowdown", 1.0)],
    "network": [(2, 0, "net", "slowdown", 2.0), (60, 1, "net", "slowdown", 1.0)],
    "constants": [(0, 0, "step", "slowdown", 2.0), (0, 1, "step", "slowdown", 1.0)],
    "faster": [(0, 0, "step", "slowdown", 0.9), (3, 1, "step", "slowdown", 1.0)],
    "durations": [(k / 9, n, "step", "duration", 0.1 + n) for k in range(30) for n in range(3)],
    "durations and network": [
        (1, 0, "step", "duration", 0.1), (1, 1, "step", "duration", 0.2),
        (1, 0, "net", "slowdown", 2.0),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", TRACES)
def test_a_first_scenario_can_be_compared_as_it_is(name: str, tmp_path: Path) -> None:
    Trace.from_rows(TRACES[name]).write(tmp_path / "slow.csv")
    path = write_first_scenario(tmp_path / "slow.csv", tmp_path / "scenario.yaml")
    comparison = simstrag.compare(path, seeds=1, sensitivity=False, jobs=1)
    assert comparison.has_target
    assert comparison.scenario.placeholders
    assert comparison.runs["time_to_target"].notna().all()


def test_there_is_a_worker_on_each_node_of_the_trace() -> None:
    def keys(name: str) -> tuple[Any, Any]:
        text = first_scenario(Trace.from_rows(TRACES[name]), "slow.csv")
        found = re.search(r"^nodes: (\[.*?\])", text, re.MULTILINE)
        workers = re.search(r"^workers: (\d+)", text, re.MULTILINE)
        return workers and int(workers[1]), found and found[1]

    assert keys("eight nodes") == (8, None)
    assert keys("two nodes, far numbers") == (2, "[70, 99]")
    assert keys("one node") == (4, "[3, 4, 5, 6]")


def test_no_step_and_no_noise_is_written_for_durations_which_take_none() -> None:
    text = first_scenario(Trace.from_rows(TRACES["durations"]), "slow.csv")
    assert not re.search(r"^ *(step|compute|cv):", text, re.MULTILINE)
    assert "# step: {compute: 1.1, amp_ratio: 1.5}" in text


def test_workers_without_durations_take_the_mean_of_those_recorded() -> None:
    rows = [(float(k), 3, "step", "duration", 0.1 + k / 5) for k in range(3)]
    text = first_scenario(Trace.from_rows(rows), "slow.csv")
    assert re.search(r"^  compute: 0\.3 .*the mean of those recorded$", text, re.MULTILINE)
    assert "step.compute" not in text


def scenario_for(name: str, recorded: Sequence[str] = (), **job: Any) -> tuple[Scenario, str]:
    """The first scenario for a trace, and its text."""
    trace = Trace.from_rows(TRACES[name])
    text = first_scenario(trace, "slow.csv", recorded, JobDescription(**job))
    data = YAML(typ="safe", pure=True).load(text)
    return Scenario.of(data | {"trace": trace}), text


def marked(text: str) -> list[str]:
    """The keys of the lines that are marked."""
    return re.findall(r"^ +(\w+): .*# PLACEHOLDER: ", text, re.MULTILINE)


@pytest.mark.parametrize("name", TRACES)
def test_every_number_that_nobody_gave_is_listed_and_marked(name: str) -> None:
    scenario, text = scenario_for(name)
    stated = [each for each in scenario.placeholders if each != "workers"]
    assert marked(text) == [each.partition(".")[2] for each in stated]
    assert ("workers" in scenario.placeholders) == (name == "one node")
    assert {"learner.batch", "learner.noise_scale", "learner.c_tau"} <= {*stated}
    assert ("step.host_share" in stated) == (name == "host")


@pytest.mark.parametrize("name", TRACES)
def test_neither_an_all_reduce_nor_a_server_is_free(name: str) -> None:
    inputs = scenario_for(name)[0].inputs
    assert inputs.allreduce.seconds([1, 1]) > 0
    assert min(inputs.server.service, inputs.server.push, inputs.server.pull) > 0


JOB: dict[str, Any] = {"step": 0.35, "parameters": 100e6, "link": 3.125e9, "batch": 64}


def test_a_job_gives_the_step_the_all_reduce_and_the_server() -> None:
    """400 MB at 3.125 GB/s take 128 ms on a link."""
    scenario, _ = scenario_for("eight nodes", latency=1e-4, **JOB)
    assert scenario.placeholders == ("step.cv", "learner.noise_scale", "learner.c_tau")
    a, s = scenario.inputs.allreduce, scenario.inputs.server
    assert (a.alpha, a.bandwidth, a.bytes) == (1e-4, 3.125e9, 4e8)
    assert (s.service, s.push, s.pull) == pytest.approx((0.128, 1e-4, 0.1281))
    assert (scenario.step.compute, scenario.learner.batch) == (0.35, 64)


def test_what_follows_from_a_placeholder_is_no_number_of_its_own() -> None:
    """A user who replaces the link of the all-reduce replaces that of the server, too."""
    scenario, _ = scenario_for("eight nodes", parameters=100e6)
    assert "allreduce.bandwidth" in scenario.placeholders
    assert not [name for name in scenario.placeholders if name.startswith("server")]
    known = scenario.replaced(allreduce={"bandwidth": 3.125e9, "bytes": 4e8}, placeholders=[])
    assert (scenario.inputs.server.service, known.inputs.server.service) == (0.32, 0.128)


def test_a_server_beside_an_all_reduce_without_time_has_typical_numbers() -> None:
    """A lone worker's all-reduce says nothing of a link."""
    scenario, text = scenario_for("one node", ("allreduce: {alpha: 0.02, bytes: 0}",), workers=1)
    assert scenario.inputs.server.service == pytest.approx(0.08)
    assert {"server.service", "server.push", "server.pull"} <= {*scenario.placeholders}
    assert marked(text).count("service") == 1


def test_gradients_in_half_precision_have_half_the_bytes() -> None:
    scenario, _ = scenario_for("eight nodes", precision="bf16", **JOB)
    assert scenario.inputs.allreduce.bytes == 2e8


def test_a_push_over_a_link_that_the_trace_slows_takes_its_time_there() -> None:
    server = scenario_for("network", **JOB)[0].inputs.server
    assert server.push == server.pull == pytest.approx(0.128 + 5e-5)


def test_more_workers_than_nodes_are_on_nodes_that_are_never_slowed() -> None:
    assert scenario_for("two nodes, far numbers", workers=4)[0].nodes == (70, 71, 72, 99)
    scenario, _ = scenario_for("one node", workers=2)
    assert (scenario.nodes, "workers" in scenario.placeholders) == ((3, 4), False)
    with pytest.raises(simstrag.InputError, match="--workers 7: the trace has rows of 8 nodes"):
        scenario_for("eight nodes", workers=7)


RECORDED = (
    "workers: 8", "trace: slow.csv", "step:", "  compute: 0.2  # the median", "  cv: 0.03",
    "noise: {lag1: 0.4}", "allreduce: {alpha: 0.02, bytes: 0}  # a ring of 8: 0.28 s in all",
    "server_load: {host: 1.2}", "samples: 12800", "learner: {batch: 128}  # ASSUMED",
)  # fmt: skip


def test_every_section_that_an_importer_derived_is_taken() -> None:
    """A ring of 8 sends 14/8 of a gradient in 14 hops of 20 ms: a gradient takes 160 ms."""
    scenario, text = scenario_for("eight nodes", RECORDED)
    assert scenario.placeholders == ("learner.batch", "learner.noise_scale", "learner.c_tau")
    assert (scenario.step.compute, scenario.step.cv, scenario.noise.lag1) == (0.2, 0.03, 0.4)
    assert scenario.inputs.allreduce.seconds([1] * 8) == pytest.approx(0.28)
    assert scenario.inputs.server.service == pytest.approx(0.16)
    assert "the time of its all-reduce implies how long a gradient takes" in text
    assert (scenario.server_load.host, scenario.learner.batch) == (1.2, 32)
    assert "as the trace's importer derived it" in text


def test_what_a_flag_gives_replaces_what_an_importer_derived() -> None:
    scenario, _ = scenario_for("eight nodes", RECORDED, **JOB)
    assert scenario.placeholders == ("allreduce.alpha", "learner.noise_scale", "learner.c_tau")
    assert (scenario.step.compute, scenario.step.cv) == (0.35, 0.03)
    assert scenario.inputs.allreduce.bytes == 4e8


def test_given_keys_replace_derived_ones_and_leave_the_measured_bytes() -> None:
    recorded = ("allreduce: {alpha: 0.02, bandwidth: 1.0e+9, bytes: 5.0e+7}",)
    for latency in (0.0, 1e-5):
        scenario, _ = scenario_for("eight nodes", recorded, latency=latency)
        a = scenario.inputs.allreduce
        assert (a.alpha, a.bandwidth, a.bytes) == (latency, 1e9, 5e7)
        assert not [key for key in scenario.placeholders if key.startswith("allreduce")]


@pytest.mark.parametrize("job", [{"latency": 5e-5}, {"link": 3e9}, {"parameters": 1e8}])
def test_a_measured_all_reduce_is_replaced_by_a_link_and_parameters_alone(
    job: dict[str, Any], tmp_path: Path
) -> None:
    """A latency of a hop is in the measured time; alone it made 0.28 s a placeholder of 80 ms."""
    scenario, _ = scenario_for("eight nodes", RECORDED, **job)
    assert scenario.inputs.allreduce.seconds([1] * 8) == pytest.approx(0.28)
    assert not [key for key in scenario.placeholders if key.startswith("allreduce")]
    found = Labelled(Trace.from_rows(TRACES["eight nodes"]), "mine", scenario=RECORDED[6:7])
    found.write(tmp_path / "slow.csv")
    said = describe_measured_allreduce(tmp_path / "slow.csv", JobDescription(**job))
    (flag,) = job
    assert said.startswith(f"the all-reduce stays as the log measured it, without --{flag}")
    whole = JobDescription(link=3e9, parameters=1e8)
    assert "not as the log measured it" in describe_measured_allreduce(tmp_path / "slow.csv", whole)
    assert not describe_measured_allreduce(tmp_path / "slow.csv", JobDescription())


def test_64_workers_do_not_get_a_server_for_nothing(tmp_path: Path) -> None:
    """A free server made asgd lead; at 80 ms a gradient, 64 workers wait for it."""
    generate(64, 900.0, seed=0).write(tmp_path / "slow.csv")
    path = write_first_scenario(tmp_path / "slow.csv", tmp_path / "s.yaml")
    found = simstrag.compare(path, ["bsp", "lb_bsp", "asgd"], seeds=1, sensitivity=False, jobs=1)
    assert found.ranking["policy"].tolist() == ["lb_bsp", "bsp", "asgd"]


def test_a_trace_is_found_from_the_folder_of_the_scenario(tmp_path: Path) -> None:
    for folder in ("traces", "mine"):
        (tmp_path / folder).mkdir()
    Trace.from_rows(TRACES["host"]).write(tmp_path / "traces" / 'a "strange" one.csv')
    path = write_first_scenario(
        tmp_path / "traces" / 'a "strange" one.csv', tmp_path / "mine" / "s.yaml"
    )
    assert Scenario.read(path).trace == '../traces/a "strange" one.csv'


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """A scenario is never overwritten, and a trace that cannot be simulated gets none."""
    used = [(0, 0, "gpu", "utilisation", 0.5)]
    (tmp_path / "mine.yaml").write_text("mine")
    for rows, name, message in (
        (TRACES["host"], "mine.yaml", "is there already"),
        (TRACES["host"], "nodir/s.yaml", r"s\.yaml: there is no folder '.*nodir'"),
        (used, "s.yaml", "utilisation"),
    ):
        Trace.from_rows(rows).write(tmp_path / "slow.csv")
        with pytest.raises(simstrag.InputError, match=message):
            write_first_scenario(tmp_path / "slow.csv", tmp_path / name)
    assert (tmp_path / "mine.yaml").read_text() == "mine"
    assert not (tmp_path / "s.yaml").exists()


def test_a_trace_is_found_from_a_folder_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "away")
    Trace.from_rows(TRACES["host"]).write(tmp_path / "slow.csv")
    path = write_first_scenario(tmp_path / "slow.csv", tmp_path / "link" / "s.yaml")
    found = Scenario.read(path).inputs.trace
    assert found.rows == Trace.read(tmp_path / "slow.csv").rows


LOADED = [
    (30.0 * k, node, "gpu", "slowdown", 1 + (7 * k + node) % 5 / 10)
    for k in range(121)
    for node in (0, 1)
]
"""Samples of an hour, which end on slowed nodes."""


def test_a_trace_that_ends_in_the_middle_of_a_slowdown_is_seen_from_any_moment() -> None:
    """Held, the last sample would last for ever, and runs would see the first tenth alone."""
    text = first_scenario(Trace.from_rows(LOADED), "load.csv", (), JobDescription(step=0.7))
    assert re.search("^trace_end: loop", text, re.MULTILINE)
    assert re.search("^trace_per_seed: shift", text, re.MULTILINE)
    assert "# 33 seeds, of 350 s of computing each, see 96% or more." in text
    assert "forgotten" not in text


def test_what_begins_in_the_last_row_is_named() -> None:
    rows = [*LOADED, (3600.0, 7, "gpu", "slowdown", 2.0)]
    text = first_scenario(Trace.from_rows(rows), "load.csv")
    assert "# What begins in the very last row is forgotten: of node 7 (gpu)." in text


def test_a_slowdown_that_never_ends_is_held() -> None:
    """Begun anew, a trace forgets its last value in the very instant."""
    text = first_scenario(Trace.from_rows([(10, 3, "gpu", "slowdown", 2.0)]), "slow.csv")
    assert re.search("^trace_end: hold", text, re.MULTILINE)
    assert "leave node 3 (gpu) slowed" in text
    assert "trace_per_seed: shift" not in text
