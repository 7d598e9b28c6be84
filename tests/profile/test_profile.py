"""Profiles: what is read, and one clear line for what cannot have been measured."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simstrag.analysis.tables.origins import origins
from simstrag.analysis.text.assumptions import assumptions
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.profile.profile import Profile
from simstrag.scenario.scenario import Scenario
from simstrag.scenario.varied_constants import kind_of
from simstrag.timing import noise
from simstrag.timing.constants import AllReduce, ServerCost
from tests.support.full_profile import full_profile
from tests.support.refusals import message_of, refusals


def quantity(value: float, kind: str = "measured", **more: Any) -> dict[str, Any]:
    return {"value": value, "kind": kind, **more}


Make = Callable[..., Scenario]
GOOD: dict[str, Any] = {
    "format": "simstrag-profile/1",
    "name": "a-machine",
    "date": "2026-11-21",
    "command": "simstrag calibrate",
    "device": {"name": "a device"},
    "software": {"torch": "2.9"},
    "workload": {
        "name": "encoder", "parameters": 1_000_000, "batch": 128,
        "full": "fp32", "amp": "bf16 autocast", "stand_in": False,
    },
    "step": {
        "compute": quantity(0.02, low=0.019, high=0.021, n=5000, note="mean of clean steps"),
        "host_share": quantity(0.25, "assumed"),
        "amp_ratio": quantity(1.5),
        "amp_switch": quantity(0.001),
        "noise": {"kind": "measured", "quantiles": [0.9, 1.0, 1.1], "n": 5000},
    },
    "allreduce": {
        "alpha": quantity(1e-4, "fitted"), "bandwidth": quantity(1e9, "fitted"),
        "bytes": quantity(4e6), "overlap": quantity(0.0, "assumed"),
    },
    "server": {"service": quantity(0.003), "push": quantity(0.001), "pull": quantity(0.002)},
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "profile.json"


PARTS = {"batches", "cells", "responses", "collectives", "held_out"}
"""What `GOOD` has none of."""


def changed(path: str, value: Any, whole: dict[str, Any] = GOOD) -> dict[str, Any]:
    """A profile with one entry replaced, or taken out where the value is None."""
    place = data = copy.deepcopy(whole)
    *parents, last = path.split(".")
    for name in parents:
        place = place[int(name) if name.isdigit() else name]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return data


def refused(file: Path) -> str:
    message = message_of(lambda: Profile.read(file))
    assert message.startswith(f"{file}: ")
    return message.removeprefix(f"{file}: ")


def test_a_profile_is_read_with_the_hash_of_its_file(file: Path) -> None:
    file.write_text(json.dumps(GOOD))
    profile = Profile.read(file)
    assert profile.step.compute.value == 0.02
    assert profile.step.compute.kind == "measured"
    assert profile.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture
def of_good(file: Path) -> Make:
    """A scenario with the profile in its folder, which is `GOOD` where there is none."""

    def make(**keys: Any) -> Scenario:
        if not file.exists():
            file.write_text(json.dumps(GOOD))
        declared = {"workers": 4, "samples": 9, "profile": file.name} | keys
        return Scenario.of(declared, folder=file.parent)

    return make


def test_a_scenario_takes_its_constants_from_its_profile(of_good: Make) -> None:
    inputs = of_good().inputs
    assert (inputs.step.host, inputs.step.gpu) == pytest.approx((0.005, 0.015), rel=1e-15)
    assert (inputs.step.amp_ratio, inputs.step.amp_switch) == (1.5, 0.001)
    assert (inputs.allreduce.alpha, inputs.allreduce.bandwidth) == (1e-4, 1e9)
    assert (inputs.allreduce.bytes, inputs.allreduce.overlap) == (4e6, 0.0)
    assert (inputs.server.service, inputs.server.push, inputs.server.pull) == (0.003, 0.001, 0.002)
    drawn = inputs.step.noise.factors(noise.keys(0, [0])[0], 0, 10_000)
    assert (drawn.min(), drawn.max()) == pytest.approx((0.9, 1.1), abs=1e-3)


def test_a_profile_in_memory_stands_in_the_place_of_the_file(
    file: Path, of_good: Make, tmp_path: Path
) -> None:
    by_file, known = of_good(), Profile.read(file)
    file.unlink()
    with pytest.raises(InputError, match="no such file"):
        by_file.inputs  # noqa: B018
    in_memory = Scenario.of(by_file.declared, folder=file.parent, profile=known)
    assert in_memory.inputs.profile == known
    assert in_memory.replaced(seeds=2).inputs.allreduce.alpha == 1e-4
    slowed = [{"time": 1, "node": 0, "resource": "gpu", "kind": "slowdown", "value": 2.0}]
    assert in_memory.replaced(trace=slowed).inputs.profile == known
    in_memory.write(tmp_path)
    assert Scenario.read(tmp_path / "scenario.yaml").inputs.profile.text == known.text


def test_a_section_of_the_scenario_stands_in_the_place_of_the_profiles(of_good: Make) -> None:
    inputs = of_good(step={"compute": 0.5}, server={"service": 0.1}).inputs
    assert (inputs.step.gpu, inputs.step.amp_ratio, inputs.step.noise) == (0.5, None, None)
    assert (inputs.server.service, inputs.server.push) == (0.1, 0.001)  # key by key
    assert inputs.allreduce.alpha == 1e-4


def test_a_server_on_a_link_is_not_the_profiles(of_good: Make) -> None:
    linked = of_good(server={"link": "cut_through"})
    a, server = linked.inputs.allreduce, linked.inputs.server
    assert (server.service, server.push) == (a.bytes / a.bandwidth, a.alpha)
    kinds = {origin.kind for origin in origins(linked) if "server" in origin.what}
    assert kinds == {"derived from the all-reduce's link"}


def test_an_option_that_no_profile_has_leaves_its_constants_in_force(of_good: Make) -> None:
    inputs = of_good(allreduce={"algorithm": "tree"}, server={"shards": 2}).inputs
    assert (inputs.allreduce.algorithm, inputs.allreduce.bytes) == ("tree", 4e6)
    assert (inputs.server.job, inputs.server.push) == (0.0015, 0.001)


def test_a_batch_that_was_not_timed_is_refused(of_good: Make) -> None:
    assert message_of(lambda: of_good(learner={"batch": 64}).inputs) == (
        "scenario: learner.batch is 64, but the profile timed steps of 128 samples; "
        "say learner: {batch: 128}"
    )


def test_a_folder_is_read_by_the_profile_that_a_calibration_wrote_into_it(file: Path) -> None:
    file.write_text(json.dumps(GOOD))
    assert Profile.read(file.parent) == Profile.read(file)


def test_a_folder_without_a_profile_and_no_file_at_all_are_refused(file: Path) -> None:
    assert refused(file) == "no such file or folder"
    file.mkdir()
    assert refused(file) == (
        f"has no profile.json; give a profile, or let simstrag calibrate --out {file} finish it"
    )


def test_the_name_of_a_shipped_profile_says_where_that_is(file: Path) -> None:
    with pytest.raises(InputError, match=r"the shipped profile is .*gpt2\.json"):
        Profile.read(file.with_name("nvidia-h200-gpt2"))


@pytest.mark.parametrize("text", [b"", b"{", b"\x00\x01", b"\xff\xfe", b"workers: 4", b"[]"])
def test_what_is_no_json_of_a_mapping_is_refused(file: Path, text: bytes) -> None:
    file.write_bytes(text)
    message = "the file is []: " if text == b"[]" else "not a profile (JSON): "
    assert refused(file).startswith(message)


@refusals("""
[nam, x] | unknown key 'nam'. Did you mean 'name'?; known: format, name,
[step.amp_rat, {value: 1, kind: measured}] | unknown key 'step.amp_rat'. Did you mean 'amp_ratio'?; known
[step.compute.vale, 1] | unknown key 'step.compute.vale'. Did you mean 'value'?; known:
[server.pull, null] | server.pull is missing
[step.compute.kind, null] | step.compute.kind is missing
[step.compute.kind, guessed] | step.compute.kind is 'guessed': must be 'measured'
[format, simstrag-profile/9] | format is 'simstrag-profile/9': must be 'simstrag
[step.compute.value, fast] | step.compute.value is 'fast': must be a number
[step.compute.value, .nan] | step.compute.value is nan: must be a finite number
[step.compute.value, 0.0] | step.compute: value 0 must be greater than 0
[step.amp_ratio.value, -1.0] | step.amp_ratio: value -1 must be greater than 0
[step.amp_switch.value, -0.1] | step.amp_switch: value -0.1 must be 0 or more
[step.host_share.value, 1.5] | step.host_share: value 1.5 must lie between 0 and 1
[allreduce.alpha.value, -1e-4] | allreduce.alpha: value -0.0001 must be 0 or more
[allreduce.bandwidth.value, 0.0] | allreduce.bandwidth: value 0 must be greater than 0
[allreduce.overlap.value, -0.5] | allreduce.overlap: value -0.5 must lie between 0 and 1
[server.service.value, -1.0] | server.service: value -1 must be 0 or more
[step.compute.low, 0.5] | step.compute: low 0.5 is above high 0.021
[step.noise.quantiles, [1.0]] | step.noise.quantiles is
[step.noise.quantiles, [0.0, 2.0]] | step.noise.quantiles.0 is 0.0: must be
[step.noise.quantiles, [1.1, 0.9]] | step.noise: quantiles must not decrease: 0.9 follows 1.1
[step.noise.quantiles, [0.9, 1.0, 1.5]] | step.noise: quantiles have mean 1.1; divide them by it, noise has mean 1
[step.noise.lag1_autocorrelation, -1.5] | step.noise.lag1_autocorrelation is -1.5: must be -1 or more
[workload, null] | step needs workload, which names the timed model
[origin, derived] | a derived profile needs source: the measurements that it is from
[batches.0.knee, {value: 4, kind: fitted}] | batches.0: knee belongs to law knee, which needs it
[batches.0.law, cubic] | batches.0.law is 'cubic': must be 'proportional',
[cells.0.batch, 0] | cells.0.batch is 0: must be 1 or more
[responses.0.constants, {}] | responses.0: law linear has the constants slope, not none
[responses.0.resource, cpu] | responses.0.resource is 'cpu': must be 'gpu',
[collectives.0.byts, 1] | unknown key 'collectives.0.byts'
[held_out.0.median, -0.1] | held_out.0.median is -0.1: must be 0 or more
""")  # noqa: E501 - a row of the table is a line
def test_what_cannot_be_is_named_with_its_field_and_value(
    file: Path, given: tuple[str, Any], message: str
) -> None:
    path, value = given
    whole = json.loads(full_profile().text)
    data = changed(path, value, whole if path.partition(".")[0] in PARTS else GOOD)
    file.write_text(json.dumps(data))
    assert refused(file).startswith(message)


def test_the_mean_of_the_noise_is_that_of_its_draws(file: Path) -> None:
    """Uneven quantiles: their plain mean is not 1, that of draws between them is."""
    table = np.array([0.5, 0.9, 1.0, 1.2, 2.0])
    table /= (table[1:] + table[:-1]).mean() / 2
    assert table.mean() != pytest.approx(1, abs=0.01)
    file.write_text(json.dumps(changed("step.noise.quantiles", table.tolist())))
    step = Profile.read(file).step
    key = noise.keys(0, [0])[0]
    drawn = noise.quantiles(step.noise.quantiles).factors(key, 0, 200_000)
    assert drawn.mean() == pytest.approx(1, abs=0.004)


def test_a_profile_need_not_have_every_part(file: Path, of_good: Make) -> None:
    file.write_text(json.dumps(changed("allreduce", None) | {"server": None}))
    scenario = of_good()
    assert scenario.inputs.allreduce == AllReduce()
    assert scenario.inputs.server == ServerCost()
    assert kind_of(scenario, "allreduce.alpha") == "assumed (nothing given)"
    assert kind_of(scenario, "step.compute") == "measured"


def test_without_step_times_the_scenario_must_state_them(file: Path, of_good: Make) -> None:
    file.write_text(json.dumps(changed("step", None)))
    assert message_of(lambda: of_good().inputs) == (
        "scenario: the profile a-machine has no step times; state step: {compute: ...}"
    )
    inputs = of_good(step={"compute": 0.5}).inputs
    assert (inputs.step.gpu, inputs.allreduce.alpha) == (0.5, 1e-4)


def test_steps_without_noise_are_all_alike_and_without_a_gain_no_policy_reduces(
    file: Path, of_good: Make
) -> None:
    data = changed("step.noise", None)
    del data["step"]["amp_ratio"]
    file.write_text(json.dumps(data))
    scenario = of_good(samples=512)
    assert (scenario.inputs.step.noise, scenario.inputs.step.amp_ratio) == (None, None)
    assert simulate(scenario, "bsp").summary["makespan"] == pytest.approx(0.02, rel=0.5)
    with pytest.raises(InputError, match="its gain is unknown"):
        simulate(scenario, "amp_all")


def test_links_inside_a_node_come_from_the_profile_too(file: Path, of_good: Make) -> None:
    data = copy.deepcopy(GOOD)
    data["allreduce"] |= {
        "algorithm": "hierarchical", "intra_alpha": quantity(1e-6, "fitted"),
        "intra_bandwidth": quantity(1e11, "fitted"),
    }  # fmt: skip
    file.write_text(json.dumps(data))
    placed, spread = of_good(ranks_per_node=2), of_good()
    a = placed.inputs.allreduce
    assert (a.algorithm, a.inside) == ("hierarchical", (1e-6, 1e11))
    named = {o.what: o.kind for o in origins(placed)}
    assert named["all-reduce inside a node, per hop"] == "fitted"
    said = " ".join(assumptions(spread, [simulate(spread, "bsp")]))
    assert "nothing says which ranks share a node (ranks_per_node): each rank is assumed" in said


def test_what_a_file_holds_is_read_back(file: Path) -> None:
    whole = full_profile()
    file.write_text(whole.text)
    assert Profile.read(file).model_dump() == whole.model_dump()
    assert Profile.read(file).text == whole.text
