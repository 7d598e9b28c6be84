"""Logs of each kind: from a file to a decision, and what becomes of a damaged file."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

import simstrag
from simstrag.errors import InputError
from simstrag.records.columns import format_of
from simstrag.scenario.scenario import Scenario
from simstrag.trace.trace import Trace
from simstrag.traces.importers import FORMATS, import_trace, recognise
from simstrag.traces.provenance import Labelled, scenario_of
from simstrag.whatif.first_scenario import JobDescription, write_first_scenario
from tests.support.commands import Call
from tests.support.damage import damaged, outcome
from tools.make_example_logs import CLEAN, FOLDER, HOSTS, SLOW, TRANSFER, logs

KINDS = {
    "steps.csv": "steps", "episodes.csv": "episodes", "utilisation.csv": "utilisation",
    "prometheus.json": "prometheus", "gpu-utilization-data.csv": "prometheus",
    "wandb-chart.csv": "wandb", "wandb-history.jsonl": "wandb",
    "run-gpu01-tag-step_time.csv": "tensorboard", "run-gpu01-tag-step_time.json": "tensorboard",
    "profile-rank0.json": "kineto",
}  # fmt: skip
"""The format of each log in examples/logs; of files per rank, that of the first rank."""
MUTATIONS = 1000
KEPT = 4000
"""Letters of a log that is mutated."""


def test_the_logs_are_those_of_their_script() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    written.pop("README.md")
    assert written == logs()


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize("name", KINDS)
def test_two_commands_lead_from_a_log_to_a_decision(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """`describe` names the import, the import names the comparison, and each runs as printed."""
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    code, described, err = call("trace", "describe", name)
    assert (code, err) == (0, "")
    assert described.startswith(f"{name}: a log in format {KINDS[name]}, and no trace yet.\n")
    code, imported, err = call(*next_command(described))
    assert (code, err) == (0, "")
    compare = next_command(imported)
    assert compare[0] == "compare"
    code, ranking, _ = call(*compare, "--seeds", "1", "-p", "bsp", "-p", "lb_bsp")
    assert code == 0
    assert "lb_bsp" in ranking
    path = re.search(r"^trace: (.*)$", imported, re.MULTILINE)[1]  # type: ignore[index]
    trace, case = Trace.read(path), Scenario.read(compare[1])
    stated = YAML(typ="safe").load("\n".join(scenario_of(path)))
    assert case.learner.batch == stated["learner"]["batch"]
    assert case.step is None or case.step.compute == stated["step"]["compute"]
    if KINDS[name] == "kineto":
        assert trace.nodes == (0, 1, 2, 3)
        return
    assert {*HOSTS} >= {*trace.names.values()} >= {"gpu01", "gpu03"}
    (slowest,) = (node for node, host in trace.names.items() if host == "gpu03")
    factor = SLOW[2][2]
    worst = max(row.value for row in trace.rows)
    assert worst == max(row.value for row in trace.rows if row.node == slowest)
    is_load = "util" in name or "prom" in name
    assert worst == pytest.approx((factor - 1) / 2 if is_load else factor, rel=0.08)


def next_command(printed: str) -> list[str]:
    """The words of the command after `next:`, without the program."""
    program, *words = shlex.split(printed.splitlines()[-1].removeprefix("next: "))
    assert program == "simstrag"
    return words


@pytest.mark.parametrize("name", KINDS)
def test_a_log_is_recognised(name: str) -> None:
    found = recognise(FOLDER / name)
    assert found is not None
    assert found[0] == KINDS[name]


def test_every_format_has_a_log_but_those_with_files_elsewhere() -> None:
    elsewhere = {"alibaba-pai-minibatch", "bytedance-straggler", "sacct"}
    assert elsewhere <= FORMATS.keys() - KINDS.values()


def test_steps_measure_what_the_formula_has(tmp_path: Path) -> None:
    found = import_trace("steps", [FOLDER / "steps.csv"])
    found.write(tmp_path / "t.csv")
    lines = dict(line.split(": ", 1) for line in scenario_of(tmp_path / "t.csv"))
    step, allreduce = lines["step"], lines["allreduce"]
    compute, cv = re.findall(r"[\d.]+", step)[:2]
    assert float(compute) == pytest.approx(CLEAN, rel=0.005)
    assert float(cv) == pytest.approx(((0.03**2 + 0.02**2) / 2) ** 0.5, rel=0.1)
    assert float(allreduce.split()[-4]) == pytest.approx(TRANSFER, abs=0.0002)


# -- step times


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def step_log(header: str, cells: Callable[[int, int], str], ranks: int = 3, steps: int = 60) -> str:
    return "\n".join([header, *(cells(r, k) for k in range(steps) for r in range(ranks))]) + "\n"


def slowed(rank: int, k: int) -> float:
    """Seconds of a step without noise: rank 2 takes twice as long from step 20 to 39."""
    return 0.2 if rank == 2 and 20 <= k < 40 else 0.1


def note(found: Labelled, words: str) -> str:
    return next((text for text in found.notes if words in text), "")


@pytest.mark.parametrize(
    ("header", "start", "scale"),
    [
        ("rank,begin,seconds", lambda k: f"{k}", 1.0),
        ("node,timestamp,duration_ms", lambda k: f"{1769853600 + k}000", 1e3),
        ("worker;time;step time [us]", lambda k: f"2026-01-31 10:00:{k:02d}+01:00", 1e6),
        ("Global rank,_timestamp,elapsed", lambda k: f"{1769853600 + k}.0", 1.0),
        ("host,date,batch_time", lambda k: f"2026/01/31 10:00:{k:02d}.000", 1.0),
    ],
)
def test_columns_units_and_times_are_recognised(
    header: str, start: Callable[[int], str], scale: float, tmp_path: Path
) -> None:
    mark = ";" if ";" in header else ","
    text = step_log(header, lambda r, k: mark.join([str(r), start(k), f"{scale * slowed(r, k):g}"]))
    trace = import_trace("steps", [written(tmp_path, "log.csv", text)]).trace
    assert trace.series(2, "step", "slowdown") == [(20.0, 2.0), (40.0, 1.0), (59.1, 1.0)]


def test_a_rank_that_is_always_slow_is_slow_in_the_trace(tmp_path: Path) -> None:
    text = step_log("rank,step,seconds", lambda r, k: f"{r},{k},{0.13 if r == 1 else 0.1}")
    found = import_trace("steps", [written(tmp_path, "log.csv", text)])
    assert found.trace.series(1, "step", "slowdown")[0] == (0.0, 1.3)
    assert found.scenario[0] == "step: {compute: 0.1}  # measured"


@pytest.mark.parametrize(
    ("seconds", "communication", "how"),
    [
        (
            lambda r, k: slowed(2, k) + 0.03,
            lambda r, k: slowed(2, k) + 0.03 - slowed(r, k),
            "it is sub",
        ),
        (slowed, lambda r, k: slowed(2, k) + 0.03 - slowed(r, k), "it is beside"),
    ],
)
def test_communication_is_told_from_the_step(
    seconds: Callable[[int, int], float], communication: Callable[[int, int], float], how: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    text = step_log(
        "rank,step,seconds,comm",
        lambda r, k: f"{r},{k},{seconds(r, k):.4f},{communication(r, k):.4f}",
    )
    found = import_trace("steps", [written(tmp_path, "log.csv", text)])
    assert how in note(found, "Derived: communication costs 0.03 s")
    assert [value for _, value in found.trace.series(2, "step", "slowdown")] == [2.0, 1.0, 1.0]
    assert "0.03 s in all" in found.scenario[1]


def test_whole_synchronous_steps_are_called_doubtful(tmp_path: Path) -> None:
    text = step_log("rank,step,seconds", lambda r, k: f"{r},{k},{slowed(2, k)}")
    found = import_trace("steps", [written(tmp_path, "log.csv", text)])
    assert note(found, "Doubtful: in each step all ranks take equally long")


@pytest.mark.parametrize(("factor", "slowdown"), [(1.015, 1.0), (1.03, 1.03)])
def test_a_slowdown_below_the_least_one_is_none_and_the_limit_is_said(
    factor: float, slowdown: float, tmp_path: Path
) -> None:
    text = step_log("rank,step,seconds", lambda r, k: f"{r},{k},{factor / 10 if r == 2 else 0.1}")
    found = import_trace("steps", [written(tmp_path, "log.csv", text)])
    assert max(row.value for row in found.trace.rows) == slowdown
    assert note(found, "What is slower by less than 2%")
    assert note(found, "Assumed: the limits of these rules")


def test_files_without_a_rank_are_a_rank_each(tmp_path: Path) -> None:
    files = [
        written(
            tmp_path,
            f"gpu0{r}.csv",
            step_log("step,seconds", lambda _, k, r=r: f"{k},{slowed(r, k)}", 1),
        )
        for r in (1, 2)
    ]
    trace = import_trace("steps", files).trace
    assert trace.names == {0: "gpu01", 1: "gpu02"}
    assert trace.series(1, "step", "slowdown")[0][1] == 2.0


def test_files_of_other_columns_are_refused(tmp_path: Path) -> None:
    files = [
        written(tmp_path, f"{name}.csv", step_log(f"step,{name}", lambda _, k: f"{k},0.1", 1))
        for name in ("compute", "step_time")
    ]
    with pytest.raises(InputError, match=r"step_time\.csv: has .*compute\.csv has .*'compute'"):
        import_trace("steps", files)


def test_a_mistake_is_named_with_its_file(tmp_path: Path) -> None:
    texts = {
        name: step_log(
            "step,seconds,comm",
            lambda _, k, high=high: f"{k},0.1,{high if k == 7 else 0.01 * (k % 2)}",
            1,
        )
        for name, high in (("a.csv", 0.05), ("b.csv", 0.5))
    }
    with pytest.raises(InputError, match=r"b\.csv, row 9: comm '0\.5' leaves no time"):
        import_trace("steps", [written(tmp_path, *each) for each in texts.items()])


def test_a_log_whose_ranks_cannot_be_told_apart_is_refused(tmp_path: Path) -> None:
    text = step_log("who,step,seconds", lambda r, k: f"{r},{k},0.1")
    with pytest.raises(InputError, match=r"row 3: step '0' is a second row .* --column rank=NAME"):
        import_trace("steps", [written(tmp_path, "log.csv", text)])
    found = import_trace("steps", [tmp_path / "log.csv"], columns={"rank": "who"})
    assert found.trace.nodes == (0, 1, 2)


# -- loads


def matrix(*series: tuple[dict[str, str], list[tuple[float, str]]]) -> str:
    result = [{"metric": labels, "values": points} for labels, points in series]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def test_a_card_of_a_host_with_several_is_a_node(tmp_path: Path) -> None:
    name = {"__name__": "DCGM_FI_DEV_GPU_UTIL"}
    text = matrix(
        (name | {"instance": "gpu01:9400", "gpu": "0"}, [(1.7e9, "50")]),
        (name | {"instance": "gpu01:9400", "gpu": "1"}, [(1.7e9, "70")]),
        (name | {"instance": "gpu02:9400", "gpu": "0"}, [(1.7e9 + 30, "90")]),
    )
    trace = import_trace("prometheus", [written(tmp_path, "range.json", text)]).trace
    assert trace.names == {0: "gpu01/0", 1: "gpu01/1", 2: "gpu02"}
    assert trace.series(2, "gpu", "utilisation") == [(30.0, 0.9)]


def test_a_query_without_a_host_says_how_to_keep_it(tmp_path: Path) -> None:
    text = matrix(({"__name__": "DCGM_FI_DEV_GPU_UTIL"}, [(1.7e9, "50")]))
    with pytest.raises(InputError, match=r"series 1: no label names the node; keep one of Host"):
        import_trace("prometheus", [written(tmp_path, "range.json", text)])


def test_a_failed_query_says_what_it_says(tmp_path: Path) -> None:
    text = '{"status": "error", "error": "query timed out"}'
    with pytest.raises(InputError, match="the query failed with 'query timed out'"):
        import_trace("prometheus", [written(tmp_path, "range.json", text)])


def test_series_of_grafana_may_be_rows_with_labels(tmp_path: Path) -> None:
    series = 'DCGM_FI_DEV_GPU_UTIL{Hostname=""gpu03"", gpu=""0""}'
    text = f'"Series";"Time";"Value"\n"{series}";"2026-01-31T10:00:00+01:00";45\n'
    path = written(tmp_path, "panel.csv", text)
    assert recognise(path) == ("prometheus", ("--response", "fair-share"))
    trace = import_trace("prometheus", [path]).trace
    assert (trace.names, trace.rows[0].value) == ({0: "gpu03"}, 0.45)


LOADS = "time,host,gpu\n0,a,60\n0,b,60\n9,a,100\n9,b,60\n"


@pytest.mark.parametrize(("response", "factor"), [("fair-share", 1.4), ("reciprocal", 1.667)])
def test_an_assumed_response_makes_slowdowns_of_loads(
    response: str, factor: float, tmp_path: Path
) -> None:
    path = written(tmp_path, "load.csv", LOADS)
    found = import_trace("utilisation", [path], response=response)
    found.write(tmp_path / "t.csv")
    case = Scenario.read(write_first_scenario(tmp_path / "t.csv", tmp_path / "t.yaml"))
    assert case.inputs.contention is not None
    series = case.inputs.contention.series(0, "gpu", "slowdown")
    assert series == [(0.0, 1.0), (9.0, pytest.approx(factor, abs=1e-3))]
    assert "contention.response" in case.placeholders
    assert note(found, f"Assumed: a load u slows a step by {'1 + u' if factor < 1.5 else '1 / '}")
    assert "(gpu 0.6, the median of all cells)" in note(found, "constant share")
    with pytest.raises(InputError, match="Did you mean 'fair-share'"):
        import_trace("utilisation", [path], response="fair_share")


@pytest.mark.parametrize(("law", "other"), [(1, 2.0), (2, 1.0)])
def test_both_laws_of_loads_are_settings_of_the_choice(law: int, other: float) -> None:
    """Also where no number is a placeholder, as both are for the cost of staleness."""
    rows = [(0, 0, "gpu", "utilisation", 0.6), (9, 0, "gpu", "utilisation", 0.0)]
    case = Scenario(
        workers=2, samples=2 * 128 * 50, step={"compute": 0.1}, policies=["bsp", "lb_bsp"],
        trace=Trace.from_rows(rows), contention={"response": law},
    )  # fmt: skip
    found = simstrag.compare(case, seeds=2, jobs=1).answer
    assert ("contention.response", other) in found.decision.states
    assert f"as is assumed: a load u by {'1 + u' if law == 1 else '1 / (1 - u)'}" in found.bill


def test_what_slows_all_hosts_at_once_is_said_to_be_unseen(tmp_path: Path) -> None:
    """Both hosts are full for 6 of 10 samples, and no load of others is left."""
    rows = [f"{k},{host},{100 if k < 6 else 50}" for k in range(10) for host in "ab"]
    path = written(tmp_path, "load.csv", "time,host,gpu_util\n" + "\n".join(rows) + "\n")
    found = import_trace("utilisation", [path], response="fair-share")
    assert {row.value for row in found.trace.rows} == {0.0}
    words = "Not seen: what loads all hosts at once for half of the log or more."
    assert note(found, words)
    assert found.cautions[0].startswith(words)
    own = import_trace("utilisation", [path], response="fair-share", own={"gpu": 0.5})
    assert {row.value for row in own.trace.rows} == {0.0, 0.5}
    assert not own.cautions


def test_steps_that_are_slow_on_all_ranks_are_said_to_be_unseen(tmp_path: Path) -> None:
    text = step_log("rank,step,seconds", lambda r, k: f"{r},{k},{0.1 if k < 2 else 0.3}")
    found = import_trace("steps", [written(tmp_path, "log.csv", text)])
    assert {row.value for row in found.trace.rows} == {1.0}
    assert found.cautions[0].startswith("Not seen: what slows most ranks at once")
    assert note(found, "Not seen: what slows most ranks at once")


def jittery_log(folder: Path, percent: Callable[[int, int], float]) -> Path:
    """Four hosts, 300 samples, with a jitter of 2.1 points, rounded as DCGM does."""
    luck = np.random.default_rng(1)
    rows = [
        f"{30 * k},gpu0{host},{percent(host, k) + luck.normal(0, 2.1):.0f}"
        for k in range(300)
        for host in range(4)
    ]
    return written(folder, "load.csv", "\n".join(["time,host,gpu_util", *rows]) + "\n")


def test_one_episode_in_jitter_is_one_episode(tmp_path: Path) -> None:
    """Without levels there are 268 of them, most of 1 to 3 percent."""
    path = jittery_log(tmp_path, lambda host, k: 87 if host == 2 and 100 <= k < 160 else 62)
    found = import_trace("utilisation", [path], response="fair-share")
    loads = np.array([row.value for row in found.trace.rows if row.node == 2])
    assert np.flatnonzero(loads).tolist() == [*range(100, 160)]
    assert len({*loads[100:160]}) == 1
    assert loads[100] == pytest.approx(0.25, abs=0.01)
    assert {row.value for row in found.trace.rows if row.node != 2} == {0.0}
    assert "jitter of 2.1 points of gpu is noise; 1," in note(found, "jitter")
    assert "seen from 4 points on if it lasts 10 samples, from 1.3 if 100" in note(found, "jitter")


def test_loads_without_jitter_are_as_in_the_log(tmp_path: Path) -> None:
    rows = [
        f"{k},{host},{80 if 9 < k < 15 and host == 'b' else 55.5}"
        for k in range(40)
        for host in "ab"
    ]
    path = written(tmp_path, "load.csv", "time,host,gpu_util\n" + "\n".join(rows) + "\n")
    found = import_trace("utilisation", [path])
    assert {row.value for row in found.trace.rows} == {55.5 / 100, 80 / 100}
    assert not note(found, "jitter")


def test_a_gpu_that_waits_is_a_caution(tmp_path: Path) -> None:
    """gpu03 feeds its GPU too slowly, and at the barrier the others wait for it."""
    path = jittery_log(
        tmp_path, lambda host, k: 62 - (k // 100 == 1) * (40 if host == 3 else 20 * (host > 0))
    )
    found = import_trace("utilisation", [path], response="fair-share")
    assert {row.value for row in found.trace.rows} == {0.0}
    (said,) = (text for text in found.cautions if "waits for" in text)
    times = "(from 3000 s to 6000 s)"
    assert said in found.notes
    assert f"waits for on gpu01 {times}, gpu02 {times}, gpu03 {times}. It is less busy" in said
    assert "no contention of the GPU but a wait" in said
    own = import_trace("utilisation", [path], own={"gpu": 0.1})
    assert not any("waits for" in text for text in own.cautions)


@pytest.mark.parametrize(
    ("name", "rows", "second"),
    [
        ("utilisation", "time,host,gpu_util\n0,a,60\n0,b,60\n1,a,61\n1,a,{}\n1,b,60\n", "gpu_util"),
        ("steps", "host,step,seconds\na,0,61\nb,0,61\na,1,61\na,1,{}\nb,1,61\n", "step"),
    ],
)
def test_a_sample_given_twice_is_counted_or_refused_with_both_rows(
    name: str, rows: str, second: str, tmp_path: Path
) -> None:
    found = import_trace(name, [written(tmp_path, "log.csv", rows.format(61))])
    assert note(found, "Dropped: 1 ")
    with pytest.raises(InputError, match=rf"row 5: {second} .* row 4[ ;]"):
        import_trace(name, [written(tmp_path, "log.csv", rows.format(62))])


# -- gaps


def test_a_host_that_is_absent_is_in_the_scenario_and_in_the_cautions(tmp_path: Path) -> None:
    """gpu03 has no sample for 6 minutes; b begins late; both are held silently otherwise."""
    lines = [
        f"{30 * k},{host},{(40 if k % 2 else 90)}"
        for k in range(60)
        for host in ("a", "b", "gpu03")
        if not (host == "gpu03" and 20 <= k < 31) and not (host == "b" and k < 5)
    ]
    path = written(tmp_path, "load.csv", "time,host,gpu_util\n" + "\n".join(lines) + "\n")
    found = import_trace("utilisation", [path], response="fair-share")
    gaps = (
        "2 gaps without a sample, longer than 90 s, of gpu03 (longest 360 s), b (longest 150 s): "
        "through them the load before them is held; before its first sample a host counts as "
        "unloaded"
    )
    assert note(found, gaps) == f"Missing: {gaps}."
    found.write(tmp_path / "t.csv")
    case = Scenario.read(write_first_scenario(tmp_path / "t.csv", tmp_path / "t.yaml"))
    assert f"The log of loads has {gaps}." in case.cautions
    comparison = simstrag.compare(case, ["bsp", "lb_bsp"], seeds=1, sensitivity=False, jobs=1)
    assert f"The log of loads has {gaps}." in comparison.answer.inputs


@pytest.mark.parametrize("timed", [True, False])
def test_gaps_between_steps_are_no_slow_steps(timed: bool, tmp_path: Path) -> None:
    """Steps 20 to 39 take ten times as long; rank 1 has no steps from 50 to 57."""
    seconds = [1.0 if 20 <= k < 40 else 0.1 for k in range(80)]
    header = "rank,step,start,seconds" if timed else "rank,step,seconds"
    rows = [
        f"{r},{k}," + f"{sum(seconds[:k]):g}," * timed + f"{seconds[k] if r == 2 else 0.1}"
        for k in range(80)
        for r in range(3)
        if not (r == 1 and 50 <= k < 58)
    ]
    path = written(tmp_path, "log.csv", "\n".join([header, *rows]) + "\n")
    found = import_trace("steps", [path])
    assert "1 gap without a sample, longer than 0.3 s, of rank 1 (longest 0.9 s)" in note(
        found, "Missing: "
    )


@pytest.mark.parametrize(("column", "is_doubted"), [("seconds", True), ("step_time_ms", False)])
def test_steps_in_milliseconds_without_their_unit_are_doubted(
    column: str, is_doubted: bool, tmp_path: Path
) -> None:
    text = step_log(f"rank,step,{column}", lambda r, k: f"{r},{k},{350 + r % 2}")
    found = import_trace("steps", [written(tmp_path, "log.csv", text)])
    said = note(found, "Doubtful: step.compute is 350")
    assert said.endswith("milliseconds? Then end the name of its column in _ms.") == is_doubted


# -- episodes


def test_overlapping_and_lasting_episodes(tmp_path: Path) -> None:
    text = "from,until,node,slowdown\n0,10,a,2\n5,20,a,3\n8,12,a,1.5\n30,,b,2\n40,50,a,x2\n"
    found = import_trace("episodes", [written(tmp_path, "e.csv", text)], hosts=4, resource="gpu")
    assert found.trace.series(0, "gpu", "slowdown") == [
        (0, 2), (5, 3), (8, 3), (10, 3), (12, 3), (20, 1), (40, 2), (50, 1),
    ]  # fmt: skip
    assert found.trace.series(1, "gpu", "slowdown") == [(30, 2), (50, 1)]
    assert found.trace.nodes == (0, 1, 2, 3)
    assert "1 episodes without an end" in note(found, "Assumed: 1 episodes")


@pytest.mark.parametrize(
    ("hosts", "workers", "is_placeholder"), [(None, 2, True), ("4", 4, False), ("c,a,b", 3, False)]
)
def test_hosts_that_were_never_slow_are_workers_or_a_placeholder(
    hosts: str | None, workers: int, is_placeholder: bool, tmp_path: Path
) -> None:
    path = written(tmp_path, "e.csv", "start,end,host,factor\n0,9,a,2\n20,30,b,2\n")
    found = import_trace("episodes", [path], hosts=hosts)
    found.write(tmp_path / "t.csv")
    case = Scenario.read(write_first_scenario(tmp_path / "t.csv", tmp_path / "t.yaml"))
    assert (case.workers, "workers" in case.placeholders) == (workers, is_placeholder)
    assert found.notes[0].startswith("Missing: hosts that were never slow") == is_placeholder
    assert ("c" in found.trace.names.values()) == (hosts == "c,a,b")
    given = JobDescription(workers=6)
    case = Scenario.read(write_first_scenario(tmp_path / "t.csv", tmp_path / "u.yaml", given))
    assert (case.workers, "workers" in case.placeholders) == (6, False)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ("0,9,a,2x", {"hosts": "b,c"}, "--hosts b,c: "),
        ("0,9,a,busy", {}, "row 2: note 'busy' states no factor; write one such as 2x"),
        ("0,9,a,0.5x", {}, "row 2: note '0.5x' is no slowdown"),
        ("9,0,a,2x", {}, "row 2: end '0' is not after the start"),
        ("0,9,a,2x", {"hosts": 0}, "--hosts 0: "),
    ],
)
def test_a_wrong_episode_is_named(
    rows: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = written(tmp_path, "e.csv", f"start,end,host,note\n{rows}\n")
    with pytest.raises(InputError, match=re.escape(message)):
        import_trace("episodes", [path], **options)


def test_episodes_with_a_kind_are_no_trace(tmp_path: Path) -> None:
    path = written(tmp_path, "e.csv", "start,end,host,kind\n0,9,0,thermal\n")
    assert recognise(path) == ("episodes", ())
    path = written(tmp_path, "t.csv", "node,resource,kind,value\n0,gpu,slowdown,2\n")
    assert recognise(path) is None


# -- where a trace is expected


@pytest.mark.parametrize("command", [("compare",), ("init",), ("trace", "resample", "-o", "r.csv")])
def test_a_log_in_place_of_a_trace_is_recognised(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(FOLDER / "prometheus.json", "range.json")
    code, out, err = call(*command, "range.json")
    assert (code, out) == (2, "")
    assert err == (
        "error: range.json: is a log in format prometheus and no trace; make one: simstrag trace "
        "import prometheus range.json --response fair-share --out range-trace.csv --scenario "
        "range.yaml\n"
    )


@pytest.mark.usefixtures("no_page")
def test_what_follows_a_load_without_a_response_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "load.csv", LOADS)
    _, first, _ = call("trace", "import", "utilisation", "load.csv", "-o", "t.csv")
    code, second, err = call(*next_command(first))
    assert (code, err) == (0, "")
    assert next_command(second) == ["compare", "t.yaml"]
    code, _, err = call(
        "trace", "import", "utilisation", "load.csv", "-o", "u.csv", "--scenario", "u.yaml"
    )
    assert (code, Path("u.csv").exists()) == (2, False)
    assert "assume a response (--response fair-share)" in err


# -- damaged files


@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_log_is_imported_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    text = (FOLDER / name).read_bytes()
    is_whole = name.startswith(("prom", "profile", "run"))
    head = text if is_whole else text[: text.rfind(b"\n", 0, KEPT)]
    path = tmp_path / name
    refused = 0
    for number in range(MUTATIONS // len(KINDS)):
        path.write_bytes(damaged(head, f"{name} {number}"))
        for read in (lambda: import_trace(KINDS[name], [path]).page("t"), lambda: recognise(path)):
            message = outcome(read)
            assert "\n" not in message, number
            assert not message or str(path) in message, number
            assert len(message) < 500 + len(str(path)), number
            refused += bool(message)
    assert refused > MUTATIONS // len(KINDS) // 4


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ('start,end,host,note\n0,5,a,2x\n0,5,b,"2x\n7,9,c,3x\n7,9,d,3x\n', 3),
        ('start,end,host,note\n0,5,"a,2x\n0,5,b,2x\n7,9,c,"3x"\n7,9,d,3x\n', 2),
    ],
)
def test_a_quote_that_is_not_closed_is_refused_where_it_opens(
    text: str, row: int, tmp_path: Path
) -> None:
    """Else all rows after it are part of the cell."""
    path = written(tmp_path, "e.csv", text)
    with pytest.raises(InputError, match=rf"e\.csv, row {row}: not CSV: a quote that opens here"):
        import_trace("episodes", [path])
    header = "time,node,resource,kind,value,host\n"
    path = written(tmp_path, "t.csv", header + '0,0,gpu,slowdown,2,"a\n9,0,gpu,slowdown,1,a\n')
    with pytest.raises(InputError, match=r"t\.csv, row 2: not CSV: a quote that opens here"):
        Trace.read(path)


def test_a_time_without_a_zone_among_others_is_refused(tmp_path: Path) -> None:
    """Taken as UTC it would move by the zone of the others."""
    log = tmp_path / "load.csv"
    log.write_text(
        "timestamp,host,gpu_util\n2026-01-31T10:00:00+02:00,a,10\n2026-01-31T10:00:15,a,20\n"
    )
    with pytest.raises(InputError, match=r"2026-01-31T10:00:15.* has no zone, unlike others"):
        import_trace("utilisation", [log], response="fair-share")


# -- from spreadsheets


@pytest.mark.parametrize(
    "header", ["time;host;gpu_util", "Zeit;Host;GPU-Auslastung", "time\thost\tgpu_util"]
)
def test_semicolons_and_decimal_commas_are_read_and_said(header: str, tmp_path: Path) -> None:
    rows = "\n0,5;a;12,5\n0,5;b;50,0 %\n10,5;a;12\n1.010,5;b;90,25\n"
    mark = "\t" if "\t" in header else ";"
    path = written(tmp_path, "load.csv", header + rows.replace(";", mark))
    assert recognise(path) == ("utilisation", ("--response", "fair-share"))
    found = import_trace("utilisation", [path])
    assert [row.time for row in found.trace.rows] == [0, 0, 10, 1010]
    assert sorted({row.value for row in found.trace.rows}) == [0.12, 0.125, 0.5, 0.9025]
    assert "(decimal commas), in percent" in note(found, "Measured: utilisation")


def test_the_ranks_of_a_log_stay_ranks(tmp_path: Path) -> None:
    """The bill once said "node 10" of rank 10; several files keep the numbers of their ranks."""
    rows = ["rank,step,seconds", *(f"{{rank}},{step},0.{step % 3 + 4}" for step in range(40))]
    parts = [
        written(tmp_path, f"part{rank}.csv", "\n".join(rows).format(rank=rank)) for rank in (10, 2)
    ]
    whole = written(
        tmp_path, "whole.csv",
        "\n".join([rows[0], *(row.format(rank=r) for r in (10, 2) for row in rows[1:])]),
    )  # fmt: skip
    for files in (parts, [whole]):
        assert import_trace("steps", files).trace.names == {2: "rank 2", 10: "rank 10"}


def test_a_column_with_decimal_commas_and_points_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "load.csv", "time;host;gpu_util\n0;a;12,5\n1;a;50.5\n")
    with pytest.raises(InputError, match=r"row 3: gpu_util '50.5' has a point, where other rows"):
        import_trace("utilisation", [path])


def test_a_date_with_points_is_day_month_year(tmp_path: Path) -> None:
    rows = "\n02.01.2026 10:00;a;12\n02.01.2026 10:01;a;50\n03.01.2026 10:00:30;a;50\n"
    found = import_trace("utilisation", [written(tmp_path, "l.csv", "time;host;gpu_util" + rows)])
    assert [row.time for row in found.trace.rows] == [0, 60, 86430]
    assert found.trace.began == "2026-01-02T10:00:00"


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("Zeit;Host;Auslastung", "X --format utilisation --column gpu=Auslastung"),
        ("time;hst;gpu_util", "X --format utilisation --column node=hst"),
        ("rank;stepp;dauer", "X --format steps --column step=stepp"),
        ("when;machine;load", "X --format utilisation --column gpu=load"),
        ("a;b;c", "X: is CSV with columns a, b, c, which no reader knows; give logs of steps"),
    ],
)
def test_an_unknown_header_gets_the_nearest_names_and_their_option(
    header: str, message: str, tmp_path: Path
) -> None:
    path = written(tmp_path, "log.csv", f"{header}\n0;a;12\n")
    with pytest.raises(InputError, match=re.escape(message.replace("X", str(path)))):
        recognise(path)


@pytest.mark.parametrize(
    "column", ["cpu_utilisation", "CPU utilization (%)", "gpu_load", "net_utilisation"]
)
def test_a_utilisation_is_known_in_both_spellings(column: str) -> None:
    assert format_of(["timestamp", "host", column]) == "utilisation"
