"""Public constructors and readers refuse what is wrong in one line of this project's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import simstrag
from simstrag import InputError
from simstrag.cluster.runs import cluster
from simstrag.experiments.sensitivity import sensitivity
from simstrag.experiments.study import Study
from simstrag.policies.bsp import Bsp
from simstrag.policies.ssp import Ssp
from simstrag.profile.quantity import Quantity
from simstrag.whatif.first_scenario import write_first_scenario

CASE = {"step": {"compute": 0.1}}
ROOMY = {
    "nodes": [{"gpus": 4, "cores": 8}], "workloads": {"small": {"scenario": CASE}},
    "jobs": [{"workload": "small", "workers": 4, "samples": 256}],
}  # fmt: skip
JOB = simstrag.Scenario(workers=4, samples=25_600, seeds=2, **CASE)
Make = Callable[[], Any]
MISTAKES: list[tuple[Make, str]] = [
    (Study, "study: scenario is missing"),
    (lambda: Study(scenario=CASE, gird={}), "study: unknown key 'gird'. Did you mean 'grid'?"),
    (lambda: Study(CASE), "study: {'step': {'compute': 0.1}} has no key; give it one, such as sce"),
    (
        lambda: Study(scenario=CASE, seeds="x"),
        "study: seeds is 'x': must be a whole number, or a list",
    ),
    (lambda: simstrag.Scenario(4), "scenario: 4 has no key; give it one, such as workers=..."),
    (lambda: simstrag.Scenario(workers="x"), "scenario: workers is 'x': must be a whole number"),
    (lambda: simstrag.Scenario(workers=0), "scenario: workers is 0: must be 1 or more"),
    (simstrag.Profile, "profile: name is missing (and 4 more)"),
    (lambda: simstrag.Profile(name=3), "profile: name is 3: must be text (and 4 more)"),
    (lambda: Quantity(value="x", kind="measured"), "quantity: value is 'x': must be a number"),
    (lambda: simstrag.Trace([1, 2]), "a trace is made by Trace.from_rows, Trace.from_frame or Tra"),
    (
        lambda: simstrag.Scenario(trace={"timestamp": [0], "hostname": ["a"], "gpu_util": [60]}),
        "scenario: trace: no column 'time'; a trace has time, node, resource, kind, value; "
        "simstrag.diagnose reads logs"
    ),
    (lambda: simstrag.Plan(3), "a plan needs a tuple of one quorum or more, not 3"),
    (lambda: simstrag.compare(3), "3 is no path; give that of a scenario, or a Scenario"),
    (lambda: simstrag.sweep(3, "out"), "3 is no path; give that of a study, or a Study"),
    (lambda: simstrag.report(3), "3 is no path; give that of a comparison, a sweep,"),
    (lambda: simstrag.Profile.read(3), "3 is no path; give that of a profile"),
    (lambda: simstrag.Trace.read(3), "3 is no path; give that of a trace"),
    (lambda: simstrag.Sweep.read(3), "3 is no path; give that of a sweep"),
    (lambda: simstrag.compare(JOB, Bsp), f"{Bsp} is no spec of a policy; give 'bsp'"),
    (lambda: simstrag.compare(JOB, Ssp(bound=5)), "Ssp(bound=5) is no spec of a policy; give 'ssp"),
    (lambda: simstrag.compare(JOB, [Ssp()]), "Ssp(bound=3) is no spec of a policy; give 'ssp'"),
    (lambda: simstrag.compare(JOB, Path("a.py")), f"{Path('a.py')!r} is no spec of a policy"),
    (lambda: simstrag.compare(JOB, 3), "3 is no spec of a policy; give one, such as 'korel'"),
    (lambda: simstrag.advise(JOB, 3), "3 is no spec of a policy"),
    (lambda: simstrag.advise(JOB, Bsp()), f"{Bsp()} is no spec of a policy; give 'bsp'"),
    (lambda: simstrag.advise(JOB, "bps"), "there is no policy 'bps'"),
    (lambda: simstrag.diagnose("a.csv", compare=3), "3 is no spec of a policy"),
    (lambda: simstrag.diagnose("a.csv", compare="bps"), "there is no policy 'bps'"),
    (lambda: simstrag.diagnose("a.csv", gpu_price="2"), "gpu_price is not a number"),
    (lambda: simstrag.advise(JOB, change=3), "change 3: give one of A, B, C"),
    (lambda: simstrag.advise(JOB, change="AB"), "change AB: give one of A, B, C"),
    (lambda: simstrag.compare(JOB, jobs=0), "jobs 0 must be a whole number, 1 or more"),
    (lambda: simstrag.compare(JOB, jobs=-1), "jobs -1 must be a whole number, 1 or more"),
    (lambda: simstrag.advise(JOB, jobs=1.5), "jobs 1.5 must be a whole number, 1 or more"),
    (lambda: simstrag.sweep({"scenario": CASE}, "/no", jobs="2"), "jobs '2' must be a whole numb"),
    (lambda: cluster(ROOMY, "/no", jobs=True), "jobs True must be a whole number, 1 or m"),
    (lambda: simstrag.simulate(JOB, seed=1.5), "seed 1.5 must be a whole number, 0 or more"),
    (lambda: simstrag.simulate(JOB, seed=True), "seed True must be a whole number, 0 or more"),
    (lambda: simstrag.simulate(JOB, Bsp), f"{Bsp} is no policy; give Bsp(), a spec, such as 'ko"),
    (lambda: simstrag.simulate(JOB, Path("a.py")), f"{Path('a.py')!r} is no spec of a policy; giv"),
    (lambda: simstrag.compare(CASE), "a dict is no scenario; give Scenario(**keys), or Scenario.o"),
    (lambda: simstrag.diagnose(None), "None is no path; give that of the record of a job"),
    (lambda: simstrag.diagnose(pd.DataFrame([[0] * 9] * 9)), "a DataFrame is no path; give that o"),
    (lambda: simstrag.sweep(JOB, "/no"), "a Scenario is no path; give that of a study, or a Study"),
    (lambda: simstrag.simulate(JOB, excerpt=3), "excerpt 3 is no list of ranks; give one, such as"),
    (lambda: simstrag.simulate(JOB, excerpt="ab"), "excerpt 'ab' is no list of ranks"),
    (lambda: simstrag.simulate(JOB, excerpt=[0.5]), "excerpt: rank 0.5 must be a whole number, 0 "),
    (lambda: simstrag.simulate(JOB, excerpt=[9]), "excerpt: there is no rank 9; ranks are 0 to 3"),
    (lambda: simstrag.simulate(JOB, hints={}), "hints {} are none; give simstrag.Hints(...)"),
    (lambda: simstrag.simulate(JOB, out=3), "3 is no path; give that of a folder to write"),
    (lambda: simstrag.compare(JOB, keep=3), "3 is no path; give that of a folder for finished run"),
    (lambda: simstrag.sweep({"scenario": CASE}, None), "None is no path; give that of the folder "),
    (lambda: simstrag.sweep({"scenario": CASE}, "/no", shard="1/2"), "shard '1/2': give (i, k), s"),
    (lambda: write_first_scenario(None, "a.yaml"), "None is no path; give that of a trace"),
    (lambda: write_first_scenario("a.csv", None), "None is no path; give that of a scenario to wr"),
    (lambda: write_first_scenario("a.csv", "a.yaml", {}), "job {} is none; give JobDescription(.."),
    (lambda: simstrag.diagnose("a.csv", columns=["x"]), "columns ['x']: give names by meaning, su"),
    (lambda: simstrag.diagnose("a.csv", columns={"rank": 3}), "columns {'rank': 3}: give names by"),
    (lambda: simstrag.diagnose(__file__, form=3), "there is no format '3'; known: operations of a"),
    (lambda: simstrag.diagnose(__file__, form=["steps"]), "there is no format '['steps']'; known:"),
    (lambda: simstrag.advise(JOB, quantile="x"), "quantile x: give one from 0.5 to below 1, such "),
    (lambda: simstrag.sweep({"scenario": CASE}, "/no", backend=3), "there is no backend '3'; know"),
    (
        lambda: simstrag.sweep({"scenario": CASE}, "/no", backend="dask", address=3),
        "backend dask needs the address of a cluster, such as tcp://10.0.0.1:8786, not 3",
    ),
    (lambda: sensitivity(JOB, quantities=3), "'3' cannot be varied; known: learner.c_tau, learner"),
    (lambda: sensitivity(JOB, quantities="step.cv2"), "'step.cv2' cannot be varied; known: learne"),
    (lambda: simstrag.watch(3), "3 is no path; give that of the folder of a run"),
    (lambda: simstrag.Run.read(3), "3 is no path; give that of a run directory"),
    (lambda: simstrag.Comparison.read(3), "3 is no path; give that of a comparison"),
    (lambda: simstrag.calibrate(3), "there is no workload '3'; known: resnet18, transformer, "),
    (lambda: simstrag.calibrate("mlp", minutes="x"), "minutes 'x': give a number, such as 10"),
    (lambda: simstrag.calibrate("mlp", batches="ab"), "batches ['a', 'b'] of 'mlp': want at least"),
    (lambda: simstrag.simulate(JOB, seed=2**64), f"seed {2**64} must be below 2**64"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), MISTAKES, ids=[m[:40] for _, m in MISTAKES])
def test_a_wrong_argument_is_one_line_of_our_own(make: Make, message: str) -> None:
    with pytest.raises(InputError) as found:
        make()
    text = str(found.value)
    assert text.startswith(message)
    assert "\n" not in text
    assert "pydantic" not in text.lower()


def test_a_whole_number_of_numpy_is_a_seed() -> None:
    seeded, same = (simstrag.simulate(JOB, seed=seed).summary for seed in (np.int64(2), 2))
    assert seeded == same


def test_the_public_names_are_those_that_dir_shows() -> None:
    assert dir(simstrag) == sorted(simstrag.__all__)
