"""Scenarios: what is read, what follows from it, and one clear line for what cannot be."""

from __future__ import annotations

import functools
import json
import math
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import simstrag
from simstrag.cluster.study import ClusterStudy
from simstrag.errors import InputError
from simstrag.profile.profile import Profile
from simstrag.runs.run import plain
from simstrag.scenario.scenario import Scenario
from simstrag.scenario.sections import StepSection
from simstrag.timing.constants import ServerCost, ServerLoad
from simstrag.trace.trace import Trace
from tests.support.refusals import message_of, refusals

FULL = """
workers: 4
samples: 1_024_000
step: {compute: 0.1, host_share: 0.25, amp_ratio: 1.5, cv: 0.05, noise: shifted_exponential}
allreduce: {alpha: 1e-3, bandwidth: 1e9, bytes: 20e6, overlap: 0.5}
server: {service: 0.01, push: 0.002, pull: 0.003}
learner:
  batch: 64
  noise_scale: 500
  curve: [[0, 0.1], [10, 0.6], [20, 0.6], [40, 0.9]]
trace:
  - {time: 0, node: 3, resource: gpu, kind: slowdown, value: 2.0}
trace_end: loop
policies: [bsp, "ssp:bound=5"]
seeds: [3, 5]
"""
BASE = {"workers": 4, "samples": 1000, "step": {"compute": 0.1}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "scenario.yaml"


def refused(path: Path) -> str:
    """The message after the file's name, which it must begin with."""
    message = message_of(lambda: Scenario.read(path))
    assert message.startswith(str(path))
    return message.removeprefix(str(path))


# -- reading


def test_a_yaml_file_becomes_a_scenario(file: Path) -> None:
    file.write_text(FULL)
    scenario = Scenario.read(file)
    assert (scenario.workers, scenario.samples, scenario.seed_list) == (4, 1_024_000, (3, 5))
    assert scenario.policies == ("bsp", "ssp:bound=5")
    assert scenario.trace_end == "loop"
    inputs = scenario.inputs
    assert (inputs.step.host, inputs.step.amp_ratio) == (0.025, 1.5)
    assert inputs.step.host + inputs.step.gpu == pytest.approx(0.1, rel=1e-15)
    assert (inputs.allreduce.bandwidth, inputs.allreduce.bytes) == (1e9, 20e6)
    assert (inputs.server.service, inputs.server.push, inputs.server.pull) == (0.01, 0.002, 0.003)
    assert inputs.trace.rows[0].value == 2.0


def test_keys_that_are_left_out_have_their_defaults() -> None:
    scenario = Scenario.of(BASE)
    assert (scenario.seed_list, scenario.policies, scenario.trace_end) == ((0,), ("bsp",), "hold")
    inputs = scenario.inputs
    assert inputs.allreduce.bandwidth == math.inf
    assert (inputs.trace, inputs.profile, inputs.step.noise) == (None, None, None)


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("samples", {"1_024_000": 1_024_000, "1024000": 1_024_000, "1e6": 1_000_000}),
        ("bandwidth", {"1e9": 1e9, "1.0e+9": 1e9, ".inf": math.inf, "1_000": 1000.0}),
    ],
)
def test_numbers_may_have_underscores_or_an_exponent(
    file: Path, key: str, written: dict[str, float]
) -> None:
    for text, number in written.items():
        texts = {"samples": "9", "bandwidth": "1"} | {key: text}
        file.write_text(
            "{{workers: 4, samples: {samples}, step: {{compute: 0.1}}, "
            "allreduce: {{bandwidth: {bandwidth}}}}}".format(**texts)
        )
        scenario = Scenario.read(file)
        found = {"samples": scenario.samples, "bandwidth": scenario.inputs.allreduce.bandwidth}
        assert found[key] == number, text


def declared(scenario: Scenario) -> Any:
    """What a scenario states, as run.json holds it."""
    return json.loads(json.dumps(plain(scenario.model_dump(mode="json", exclude_unset=True))))


def test_a_scenario_survives_json_with_everything_that_was_declared(file: Path) -> None:
    """Law 6: run.json holds the scenario that makes the run again."""
    file.write_text(FULL.replace("bandwidth: 1e9", "bandwidth: .inf"))
    scenario = Scenario.read(file)
    again = Scenario.of(declared(scenario))
    assert again.model_dump() == scenario.model_dump()
    assert again.inputs.allreduce.bandwidth == math.inf


OPTIONS: dict[str, Any] = {
    "workers": 5,
    "samples": 1000,
    "step": {"compute": 0.1},
    "microbatches": 4,
    "allreduce": {
        "alpha": 0.01, "algorithm": "hierarchical", "intra_alpha": 0.001, "intra_bandwidth": "inf",
    },
    "server": {"service": 0.02, "shards": [0.25, 0.75], "fused_allreduce": True},
    "server_load": {"node": 1, "host": 1.5, "net": 2.0},
    "ranks_per_node": 2,
}  # fmt: skip


def test_every_option_of_communication_survives_json_yaml_and_a_replaced_key(
    tmp_path: Path,
) -> None:
    scenario = Scenario.of(OPTIONS)
    assert Scenario.of(declared(scenario)).model_dump() == scenario.model_dump()
    scenario.write(tmp_path)
    assert Scenario.read(tmp_path / "scenario.yaml").model_dump() == scenario.model_dump()
    again = scenario.replaced(seeds=3)
    assert again.inputs == scenario.inputs
    assert again.timing(0).load == scenario.timing(0).load


def test_options_of_communication_reach_the_timing() -> None:
    timing = Scenario.of(OPTIONS).timing(0)
    assert timing.step.microbatches == 4
    assert timing.nodes == (0, 0, 1, 1, 2)
    assert timing.load == ServerLoad(frozenset({2, 3}), host=1.5, net=2.0)
    assert timing.server == ServerCost(0.02, shards=(0.25, 0.75), fused_allreduce=True)
    assert timing.allreduce.algorithm == "hierarchical"
    assert timing.allreduce.inside == (0.001, math.inf)
    plain_one = Scenario.of(BASE).timing(0)
    assert (plain_one.nodes, plain_one.load) == (None, ServerLoad(frozenset()))
    assert (plain_one.server.shards, plain_one.step.microbatches) == ((1.0,), 1)


@pytest.mark.parametrize(("link", "push"), [("cut_through", 0.001), ("store_and_forward", 0.011)])
def test_a_server_may_be_on_a_link_like_those_of_the_all_reduce(link: str, push: float) -> None:
    """10 MB take 10 ms at 1 GB/s; a stated time replaces the derived one."""
    allreduce = {"alpha": 0.001, "bandwidth": 1e9, "bytes": 1e7, "overlap": 0.5}
    case = BASE | {"allreduce": allreduce, "server": {"link": link, "shards": 2}}
    server = Scenario.of(case).inputs.server
    assert (server.job, server.push, server.pull) == pytest.approx((0.005, push, 0.011))
    stated = Scenario.of(case | {"server": {"link": link, "service": 0.5}}).inputs.server
    assert (stated.service, stated.push) == pytest.approx((0.5, push))


def test_shards_as_a_number_are_as_many_equal_shares() -> None:
    assert Scenario.of(BASE | {"server": {"shards": 4}}).inputs.server.shards == (0.25,) * 4
    thirds = [1 / 3, 1 / 3, 1 / 3]
    assert Scenario.of(BASE | {"server": {"shards": thirds}}).inputs.server.shards == (*thirds,)


def test_micro_batches_may_be_replaced_after_the_files_were_read() -> None:
    scenario = Scenario.of(BASE)
    assert scenario.timing(0).step.microbatches == 1
    assert scenario.replaced(microbatches=8).timing(0).step.microbatches == 8


def test_options_of_the_scenario_stand_beside_a_profile() -> None:
    folder = Path(__file__).parents[2] / "simstrag" / "calibration" / "profiles"
    declared = {
        "workers": 4, "samples": 9, "profile": "intel-xeon-2-core-amx.json",
        "learner": {"batch": 8}, "microbatches": 4, "ranks_per_node": 2,
        "server_load": {"node": 1, "net": 2},
    }  # fmt: skip
    timing = Scenario.of(declared, folder=folder).timing(0)
    assert (timing.step.microbatches, timing.nodes) == (4, (0, 0, 1, 1))
    assert timing.load == ServerLoad(frozenset({2, 3}), net=2.0)


def test_the_load_of_the_server_is_on_the_ranks_of_its_node() -> None:
    def loaded(**changes: Any) -> set[int]:
        made = Scenario.of(BASE | changes | {"server_load": {"node": 1, "host": 2}})
        return {*made.timing(0).load.ranks}

    assert loaded() == {1}
    assert loaded(ranks_per_node=2) == {2, 3}
    assert loaded(nodes=[1, 0, 1, 7]) == {0, 2}


def test_with_ranks_per_node_a_node_of_the_trace_is_a_node_of_so_many_ranks() -> None:
    row = {"time": 0, "node": 1, "resource": "step", "kind": "slowdown", "value": 3}
    timing = Scenario.of(BASE | {"trace": [row], "ranks_per_node": 3}).timing(0)
    ends = [timing.compute(rank, 0, 0.0, amp=False) for rank in range(4)]
    assert ends == pytest.approx([0.1, 0.1, 0.1, 0.3])
    crowded = Scenario.of(BASE | {"trace": [row], "ranks_per_node": 4})
    assert message_of(lambda: crowded.timing(0)) == (
        "scenario: trace: node 1 is beyond 4 workers, 4 per node; raise `workers`, "
        "or choose nodes with `nodes: [...]`"
    )


@pytest.mark.parametrize("kind", ["slowdown", "duration"])
def test_a_trace_for_more_workers_is_quoted_as_in_its_file_wherever_a_seed_begins(
    kind: str,
) -> None:
    rows = [
        {"time": time, "node": node, "resource": "step", "kind": kind, "value": 2}
        for time in (0, 100)
        for node in range(5)
    ]
    shifted = {"trace": rows, "trace_per_seed": "shift"}
    for options, reason in (
        ({}, "the trace names node 4, but 4 workers are on nodes 0 to 3; "),
        ({"ranks_per_node": 1}, "node 4 is beyond 4 workers, 1 per node; "),
        ({"nodes": [7, 8, 9, 10]}, "no rank is on any of its nodes (0, 1, 2, 3, 4), "),
    ):
        case = Scenario.of(BASE | shifted | options)
        said = message_of(functools.partial(case.timing, seed=3))
        assert said.startswith(f"scenario: trace: {reason}")


def test_the_json_schema_names_every_option() -> None:
    schema = Scenario.model_json_schema()
    assert set(OPTIONS) <= set(schema["properties"])
    for section, name in (
        ("allreduce", "AllReduceSection"),
        ("server", "ServerSection"),
        ("server_load", "ServerLoadSection"),
    ):
        assert set(OPTIONS[section]) <= set(schema["$defs"][name]["properties"])
    json.dumps(schema)


def test_a_replaced_key_is_validated_and_the_rest_kept() -> None:
    scenario = Scenario.of(BASE | {"seeds": 3}, "demo.yaml")
    assert scenario.replaced(workers=8).workers == 8
    assert scenario.replaced(workers=8).seed_list == (0, 1, 2)
    with pytest.raises(InputError, match=r"^demo\.yaml: workers is 0: must be"):
        scenario.replaced(workers=0)


# -- what follows from it


def test_seeds_as_a_number_count_from_zero_and_as_a_list_are_taken_as_they_are() -> None:
    assert Scenario.of(BASE | {"seeds": 3}).seed_list == (0, 1, 2)
    assert Scenario.of(BASE | {"seeds": [7, 3]}).seed_list == (7, 3)


@pytest.mark.parametrize(("samples", "target"), [(1, 512), (512, 512), (513, 1024), (1024, 1024)])
def test_samples_are_rounded_up_to_whole_rounds_of_all_workers(samples: int, target: int) -> None:
    assert Scenario.of(BASE | {"samples": samples}).sample_target == target


@pytest.mark.parametrize(
    ("accuracy", "progress"), [(0.1, 0.0), (0.35, 5.0), (0.6, 10.0), (0.75, 30.0), (0.9, 40.0)]
)
def test_a_target_accuracy_is_the_least_progress_that_reaches_it(
    accuracy: float, progress: float
) -> None:
    curve = [[0, 0.1], [10, 0.6], [20, 0.6], [40, 0.9]]
    scenario = Scenario.of(
        BASE | {"samples": None, "target_accuracy": accuracy, "learner": {"curve": curve}}
    )
    assert scenario.progress_target == pytest.approx(progress, rel=1e-12)


def test_files_are_looked_for_in_the_folder_of_the_scenario(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    (folder / "traces").mkdir(parents=True)
    (folder / "traces" / "day.csv").write_text(
        "time,node,resource,kind,value\n0,1,gpu,slowdown,2\n"
    )
    (folder / "s.yaml").write_text(
        "workers: 2\nsamples: 9\nstep: {compute: 0.1}\ntrace: traces/day.csv\n"
    )
    trace = Scenario.read(folder / "s.yaml").inputs.trace
    assert trace.nodes == (1,)


@pytest.mark.parametrize("line", ["trace: day.csv", "profile: gpu.json"])
def test_a_missing_file_is_named_with_the_folder_of_the_scenario(file: Path, line: str) -> None:
    file.write_text(f"workers: 2\nsamples: 9\nstep: {{compute: 0.1}}\n{line}\n")
    with pytest.raises(InputError) as caught:
        _ = Scenario.read(file).inputs
    missing = file.parent / line.partition(": ")[2]
    assert str(caught.value) == f"{missing}: no such file or folder"


@pytest.mark.parametrize(
    ("value", "message"),
    [("9" * 400, f"value {'9' * 60}"), ("-2", "slowdown -2 must be 1 or more")],
)
def test_a_bad_inline_row_names_the_scenario_and_the_row(
    file: Path, value: str, message: str
) -> None:
    file.write_text(FULL.replace("value: 2.0", f"value: {value}"))
    assert message_of(lambda: Scenario.read(file).inputs).startswith(
        f"{file}: trace, row 1: {message}"
    )


def test_a_shifted_trace_begins_elsewhere_with_every_seed_and_the_same_with_the_same() -> None:
    rows = [
        {"time": t, "node": 0, "resource": "gpu", "kind": "slowdown", "value": v}
        for t, v in ((0, 1), (50, 2), (60, 1), (100, 1))
    ]
    scenario = Scenario.of(BASE | {"trace": rows, "trace_per_seed": "shift"})

    def slowdown(seed: int) -> Any:
        return scenario.timing(seed).contention.of_rank(0, "gpu")

    assert slowdown(0) != slowdown(1)
    assert slowdown(1) == slowdown(1)
    same = scenario.replaced(trace_per_seed="same")
    assert same.timing(0).contention.slowdowns == same.timing(1).contention.slowdowns


# -- what cannot be


@pytest.mark.parametrize(
    "read",
    [
        Scenario.read, Profile.read, Trace.read, ClusterStudy.read, simstrag.compare,
        lambda path: simstrag.sweep(path, path.parent / "out"),
    ],
)  # fmt: skip
def test_a_misspelt_file_is_named_with_the_nearest_one(
    read: Callable[[Path], object], tmp_path: Path
) -> None:
    (tmp_path / "nolink.yaml").touch()
    with pytest.raises(InputError) as caught:
        read(tmp_path / "nolnk.yaml")
    said = "nolnk.yaml: no such file or folder. Did you mean 'nolink.yaml'?"
    assert str(caught.value) == f"{tmp_path / said}"


def test_a_link_to_nowhere_is_named_with_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").symlink_to("gone.yaml")
    said = f": the link '{tmp_path / 's.yaml'}' leads to 'gone.yaml', not there"
    assert refused(tmp_path / "s.yaml") == said


def test_a_folder_or_a_file_that_is_not_there_is_no_scenario(tmp_path: Path) -> None:
    assert refused(tmp_path / "no.yaml") == ": no such file or folder"
    assert refused(tmp_path) == ": cannot read the scenario: Is a directory"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, ": a scenario is a mapping of keys, such as `workers: 8`")
          for text in (b"", b"# nothing yet\n", b"- bsp\n- asgd\n", b"hello\n", b"3\n")),
        (b"\xff\xfe\x00", ": not a text file; a scenario is YAML"),
        (b"\x89PNG\r\n\x1a\n", ": not a text file; a scenario is YAML"),
        (b"\x00\x01\x02", ": not valid YAML: unacceptable character #x0000"),
        (b"workers: 4\nworkers: 5\n", ', line 2: not valid YAML: found duplicate key "workers"'),
        (b"workers: [4\n", ", line 2: not valid YAML: expected ',' or ']', but got"),
        (b"workers:\t4\n\tx: 3\n", ", line 1: not valid YAML: found character '\\t' that cannot"),
        (b"workers: *nobody\n", ", line 1: not valid YAML: found undefined alias 'nobody'"),
        (b"workers: !!python/name:os.system\n", ", line 1: not valid YAML: could not determine a"),
        (b"trace: 2026-13-45\n", ": not valid YAML: month must be in 1..12"),
        (b"workers: 4\n---\nworkers: 5\n", ", line 2: not valid YAML: but found another document"),
    ],
)  # fmt: skip
def test_what_is_no_mapping_in_yaml_is_refused_with_its_line(
    file: Path, text: bytes, message: str
) -> None:
    file.write_bytes(text)
    assert refused(file).startswith(message)


def test_any_garbage_is_refused_in_one_line(file: Path) -> None:
    for seed in range(50):
        file.write_bytes(random.Random(seed).randbytes(seed + 1))
        assert refused(file)


@refusals("""
# a key that is not known, and the nearest one that is
{sampels: 3} | unknown key 'sampels'. Did you mean 'samples'?; known: workers, samples,
{step: {compte: 1}} | unknown key 'step.compte'. Did you mean 'compute'?; known: comp
{learner: {c_taw: 1}} | unknown key 'learner.c_taw'. Did you mean 'c_tau'?; known:
{allreduce: {alfa: 1}} | unknown key 'allreduce.alfa'. Did you mean 'alpha'?; known:
{server: {serve: 1}} | unknown key 'server.serve'. Did you mean 'service'?; known:
{server_load: {nod: 1}} | unknown key 'server_load.nod'. Did you mean 'node'?; known
{"se[]rver": {service: 1}} | unknown key 'se[]rver'. Did you mean 'server'?; known:
{int: 1} | unknown key 'int'; known: workers,
{server: {list: 1}} | unknown key 'server.list'; known: service,
# a value of the wrong type
{workers: many} | workers is 'many': must be a whole number
{workers: 2.5} | workers is 2.5: must be a whole number
{workers: true} | workers is True: must not be true or false
{workers: []} | workers is []: must be a whole number
{samples: all} | samples is 'all': must be a whole number
{noise: {lag1: true}} | noise.lag1 is True: must not be true or false
{step: 0.1} | step is 0.1: must be a mapping of keys
{step: {compute: fast}} | step.compute is 'fast': must be a number
{step: {compute: true}} | step.compute is True: must not be true or false
{step: {noise: lognorml}} | step.noise is 'lognorml': must be 'lognormal' or
{trace: 3} | trace is 3: give the name of a file, or a list of rows
{trace: [{time: 1}]} | trace, row 1:
{trace: [3]} | trace, row 1: 3 is not a mapping of time, node, resource, kind, value
{trace_end: holdd} | trace_end is 'holdd': must be 'hold', 'loop' or 'error'
{policies: bsp} | policies is 'bsp': must be a list
{allow_speedup: maybe} | allow_speedup is 'maybe': must be true or false
{microbatches: true} | microbatches is True: must not be true or false
{server: {fused_allreduce: maybe}} | server.fused_allreduce is 'maybe': must be true or false
{server: {shards: []}} | server.shards is []: must be a whole number, or a li
{server: {shards: true}} | server.shards is True: must not be true or false
{allreduce: {algorithm: rings}} | allreduce.algorithm is 'rings': must be 'ring', 'tree', 'halving_doubling' or
{learner: {curve: 5}} | learner.curve is 5: must be a list
{learner: {curve: [[0, 0.1, 3], [5, 0.5]]}} | learner.curve.0 is [0, 0.1, 3]: list should have at most 2 items
# a value out of range
{workers: 0} | workers is 0: must be 1 or more
{workers: -4} | workers is -4: must be 1 or more
{workers: 10000000} | workers is 10000000: must be 1000000 or less
{workers: null} | workers is missing
{workers: 0, samples: -3} | workers is 0: must be 1 or more (and 1 more)$
{noise: {}} | noise: give lag1, pace or both
{noise: {lag1: 2}} | noise.lag1 is 2: must be less than 1
{samples: 0} | samples is 0: must be 1 or more
{step: {compute: -0.1}} | step.compute is -0.1: must be more than 0
{step: {compute: 0}} | step.compute is 0: must be more than 0
{step: {compute: 1e-320}} | step.compute is 1e-320: must be 1e-30 or more
{step: {compute: .nan}} | step.compute is nan: must be a finite number
{step: {compute: .inf}} | step.compute is inf: must be a finite number
{step: {host_share: 2}} | step.host_share is 2: must be 1 or less
{step: {cv: -1}} | step.cv is -1: must be 0 or more
{step: {compute: 1, cv: 2, noise: shifted_exponential}} | step: cv of shifted_exponential noise must be at most 1, not 2
{learner: {kind: real, task: digits, evaluate_every: 1e-320}} | learner.evaluate_every is 1e-320: must be 1e-30 or more
{allreduce: {bandwidth: 0}} | allreduce.bandwidth is 0: must be more than 0
{allreduce: {bandwidth: 5e-324}} | allreduce.bandwidth is 5e-324: must be 1e-30
{allreduce: {bandwidth: .nan}} | allreduce.bandwidth is nan: must be
{allreduce: {overlap: 1.5}} | allreduce.overlap is 1.5: must be 1 or less
{server: {service: -1}} | server.service is -1: must be 0 or more
{server: {shards: 0}} | server.shards is 0: must be 1 or more, or a list
{server: {shards: 10000000}} | server.shards is 10000000: must be 1000000 or less
{server: {shards: [0.5, 0.4]}} | server: shards must sum to 1, not 0.9
{server: {shards: [1.5, -0.5]}} | server.shards.1 is -0.5: must be
{server_load: {host: 0.5}} | server_load.host is 0.5: must be 1 or more
{microbatches: 0} | microbatches is 0: must be 1 or more
{ranks_per_node: 0} | ranks_per_node is 0: must be 1 or more
{straggler_ratio: 1} | straggler_ratio is 1: must be more than 1
{target_accuracy: 1.5} | target_accuracy is 1.5: must be 1 or less
{nodes: [0, 1, 2, -1]} | nodes.3 is -1: must be 0 or more
{learner: {curve: [[0, 0.1]]}} | learner: curve needs at least two [progress, accuracy] points
{learner: {curve: [[0, 0.1], [0, 0.2]]}} | learner: curve must increase: [0, 0.2] follows [0, 0.1]
{learner: {curve: [[0, 0.1], [5, 0.05]]}} | learner: curve must increase: [5, 0.05] follows [0, 0.1]
{learner: {curve: [[-1, 0.1], [5, 0.5]]}} | learner.curve.0.0 is -1: must be 0 or more
{learner: {curve: [[0, 0.1], [5, 50]]}} | learner.curve.1.1 is 50: must be 1 or less
# seeds
{seeds: 0} | seeds is 0: must be a number of seeds from 1 to 1000000, or a list such as [0, 1]
{seeds: -1} | seeds is -1: must be a number of seeds from 1 to 1000000, or a list such as [0, 1]
{seeds: 1000000000000000000} | seeds is 1000000000000000000: must be a number of seeds from 1 to 1000000, or
{seeds: many} | seeds is 'many': must be a number of seeds from 1 to 1000000, or a list such as [0, 1]
{seeds: []} | seeds is []: must be a number of seeds from 1 to 1000000, or a list such as [0, 1]
{seeds: [1, 2, 1]} | seeds names a seed twice
{seeds: [-1]} | seeds.0 is -1: must be 0 or more
{seeds: [18446744073709551616]} | seeds.0 is 18446744073709551616: must be less than 18446744073709551616
{seeds: [1, two]} | seeds.1 is 'two': must be a whole number
# keys that do not go together
{samples: null} | nothing ends the run: give samples, target_progress, target_accuracy or updates$
{updates: 10} | updates cannot stand beside samples or a target$
{target_accuracy: 0.5, learner: {curve: [[0, 0], [9, 0.9]], staleness_loss: 0.01}} | target_accuracy cannot stand beside learner.staleness_loss, which is of the final accuracy alone; give target_progress$
{samples: null, updates: 10, target_progress: 3} | updates cannot stand beside samples or a target$
{target_progress: 3, target_accuracy: 0.5} | give target_progress or target_accuracy, not both$
{target_accuracy: 0.5} | target_accuracy needs learner.curve: [[progress, accuracy], ...]$
{target_accuracy: 0.05, learner: {curve: [[0, 0.1], [10, 0.6]]}} | target_accuracy 0.05 lies outside learner.curve, which spans 0.1 to 0.6$
{target_accuracy: 0.95, learner: {curve: [[0, 0.1], [10, 0.6]]}} | target_accuracy 0.95 lies outside learner.curve, which spans 0.1 to 0.6$
{step: null} | nothing says how long a step is: give step: {compute: ...}, a profile, or a trace with durations of every rank's node$
{nodes: [0, 1]} | nodes has 2 entries for 4 workers$
{nodes: [0, 0, 1, 1], ranks_per_node: 2} | give nodes or ranks_per_node, not both$
{microbatches: 129} | microbatches is 129, but a step has learner.batch 128 samples; a micro-batch needs at least one$
{allreduce: {algorithm: hierarchical}} | allreduce.algorithm is hierarchical, but nothing says which ranks share a node; give ranks_per_node or nodes$
{allreduce: {intra_alpha: 0.001}} | allreduce.intra_alpha is 0.001, but nothing says which ranks share a node; give ranks_per_node or nodes$
{server_load: {node: 4}} | server_load.node is 4, but no rank is on it; the ranks are on 0, 1, 2, 3$
{server_load: {node: 12}, workers: 10} | server_load.node is 12, but no rank is on it; the ranks are on 0, 1, 2, 3, 4, 5, 6, 7, ...$
{server_load: {node: 2}, ranks_per_node: 2} | server_load.node is 2, but no rank is on it; the ranks are on 0, 1$
""")  # noqa: E501 - a row of the table is a line
def test_what_cannot_be_is_named_with_what_can(given: dict[str, Any], message: str) -> None:
    """By the constructor as of a file; `$` ends a message that is quoted whole."""
    data = {key: value for key, value in (BASE | given).items() if value is not None}
    for make, name in ((lambda: Scenario.of(data, "demo.yaml"), "demo.yaml"),
                       (lambda: Scenario(**data), "scenario")):  # fmt: skip
        said = f"{message_of(make)}$"
        assert "pydantic" not in said
        assert said.startswith(f"{name}: {message}")


def test_an_autocorrelation_without_noise_is_refused_unless_the_spread_is_stated_as_0() -> None:
    case = Scenario.of(BASE | {"noise": {"lag1": 0.5}}, "demo.yaml")
    message = (
        "demo.yaml: noise.lag1 is 0.5, but steps have no noise: give step.cv, a profile with "
        "noise, or no `noise`"
    )
    assert message_of(lambda: case.inputs) == message
    assert case.replaced(step={"compute": 0.1, "cv": 0}).inputs.step.noise is None


def test_an_autocorrelation_that_the_noise_cannot_have_is_named_with_its_key(file: Path) -> None:
    changes = {"step": {"compute": 0.1, "cv": 1}, "noise": {"lag1": -0.9}}
    assert message_of(lambda: Scenario.of(BASE | changes, "demo.yaml").inputs) == (
        "demo.yaml: noise.lag1: noise of this shape cannot have lag1 -0.9; give one between "
        "-0.49 and 0.98"
    )
    folder = Path(__file__).parents[2] / "simstrag" / "calibration" / "profiles"
    profile = json.loads((folder / "intel-xeon-2-core-amx.json").read_text())
    profile["step"]["noise"]["lag1_autocorrelation"] = 0.995
    file.with_name("p.json").write_text(json.dumps(profile))
    file.write_text("{workers: 4, samples: 1000, profile: p.json, learner: {batch: 8}}")
    assert message_of(lambda: Scenario.read(file).inputs).startswith(
        f"{file}: lag1_autocorrelation of the profile p.json: noise of this shape cannot have lag1"
    )


def test_the_largest_seed_draws_noise() -> None:
    scenario = Scenario.of(BASE | {"seeds": [2**64 - 1], "step": {"compute": 0.1, "cv": 0.1}})
    assert scenario.timing(2**64 - 1).compute(0, 0, 0.0, amp=False) > 0


def test_a_trace_may_be_given_as_an_object() -> None:
    rows = [{"time": 1.0, "node": 0, "resource": "gpu", "kind": "slowdown", "value": 2.0}]
    given = Scenario(workers=1, updates=1, step={"compute": 0.1}, trace=Trace.from_rows(rows))
    assert given == Scenario(workers=1, updates=1, step={"compute": 0.1}, trace=rows)


@pytest.mark.parametrize("uneven", [False, True])
def test_a_scenario_with_rows_is_the_same_in_another_process(uneven: bool) -> None:
    rows: list[dict[str, Any]] = [
        {"time": t, "node": 0, "resource": "gpu", "kind": "slowdown", "value": 2.0}
        for t in (0, 1.5)
    ]
    if uneven:
        rows[1] = dict(reversed(rows[1].items()))
    scenario = Scenario.of(BASE | {"trace": rows}, "mine.yaml")
    sent = pickle.loads(pickle.dumps(scenario))
    assert sent == scenario
    assert repr(sent.declared) == repr(scenario.declared)
    assert sent.inputs.trace == scenario.inputs.trace


def test_a_frame_is_a_trace() -> None:
    rows = [(60.0, 3, "gpu", "slowdown", 2.0), (90.0, 3, "gpu", "slowdown", 1.0)]
    trace = Trace.from_rows(rows)
    frame = trace.to_frame()
    given: dict[str, Any] = {"workers": 4, "updates": 1, "step": {"compute": 0.1}}
    expected = Scenario(**given, trace=trace)
    reordered = frame[frame.columns[::-1]].assign(origin="mine")
    for table in (frame, reordered, frame.to_dict("list"), pa.Table.from_pandas(frame)):
        assert Scenario(**given, trace=table) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.rename(columns={"node": "nodes"}), "no column 'node'.*Did you mean 'nodes'"),
        (lambda f: f.assign(value=-1.0), "row 1: slowdown -1 must be"),
        (lambda f: f.assign(time=pd.Timestamp("2026-01-31")), "time is of type datetime64"),
        (lambda f: {**f.to_dict("list"), "time": [1.0]}, "different lengths: time 1, node 2"),
        (lambda f: f.iloc[:0], "the trace is empty"),
        (lambda f: 3, "no column 'time'"),
    ],
)
def test_a_frame_that_is_no_trace_is_refused(change: Any, message: str) -> None:
    rows = [(60.0, 3, "gpu", "slowdown", 2.0), (90.0, 3, "gpu", "slowdown", 1.0)]
    with pytest.raises(InputError, match=message):
        Trace.from_frame(change(Trace.from_rows(rows).to_frame()))


def test_a_section_names_itself() -> None:
    with pytest.raises(InputError, match=r"^step: compute is -1: must be more than 0$"):
        StepSection(compute=-1)


@pytest.mark.parametrize("learner", [{"batch": 64}, {"kind": "real", "task": "tabular"}])
def test_a_dump_of_the_learner_with_all_its_keys_is_read(learner: dict[str, Any]) -> None:
    case = Scenario(workers=2, samples=1280, step={"compute": 0.1}, learner=learner)
    again = case.replaced(learner=case.learner.model_dump())
    assert again.learner == case.learner
