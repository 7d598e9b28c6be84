"""`simstrag diagnose` on files as people have them, whose truths are known."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simstrag
from simstrag.analysis.text.diagnosis_lines import MOST, lines
from simstrag.errors import InputError
from simstrag.records.record import Record
from simstrag.whatif.diagnosis import Diagnosis, PolicyGain, diagnose
from simstrag.whatif.losses import COMMON, DRIFT, SCATTERED, STRAGGLERS
from tests.support.commands import Call
from tests.support.refusals import message_of
from tests.support.step_logs import record_of_seconds, write_rows, write_steps

RECORDS = Path(__file__).parents[1] / "data" / "records"


@functools.cache
def read(*names: str, compare: tuple[str, ...] = ()) -> Diagnosis:
    return diagnose(*(RECORDS / name for name in names), compare=compare, jobs=1)


def said(found: Diagnosis, label: str) -> str:
    return " ".join(line.text for line in lines(found) if line.label == label)


def share(found: Diagnosis, kind: str) -> float:
    return found.losses.of(kind).share


@pytest.mark.parametrize(
    ("name", "label", "words"),
    [
        ("nvidia-smi.csv", "who", "GPU 2 is slow from 10:03:20 to 10:06:40: up to 1.65 times as"),
        ("nvidia-smi.csv", "why", "software thermal slowdown (clock 1200 MHz, usual clock 1980 MH"),
        ("nvidia-smi-other-jobs.csv", "who", "No GPU is slowed"),
        ("nvidia-smi-other-jobs.csv", "who", "utilisation alone would not have shown a slow one"),
        ("one-card-capped-always.csv", "who", "GPU 1 is slow all along: up to 1.61 times as long"),
        ("one-card-capped-always.csv", "why", "power limit 150 W, usual power limit 300 W"),
        ("backward-hides.csv", "who", "^This record does not show a rank whose own backward"),
        ("backward-hides.csv", "lost", "^Nothing of 0.347 s a step, as far as this record shows.$"),
        ("megatron-minmax.log", "lost", "forward-compute takes 4.00 to 5.90 s over the ranks: 1."),
        ("megatron-minmax.log", "to see", "--timing-log-option all"),
        ("megatron-straggler.log", "who", "Rank 21 is the slowest in 30 of 30 reports: 1.29 times"),
        ("megatron-straggler.log", "why", "SM clock: 1290 MHz on rank 21"),
        ("megatron-straggler.log", "why", "Power: 402 W on rank 21"),
        ("cases/13-restarted-job/steps.csv", "caution", "20 steps (of 80 to 99) were done again"),
        ("names.csv", "who", "takes 2.00 times as long as its peers all along"),
        ("sacct.txt", "who", "Job 1236 (preprocess, cpu=48) was on gpu02 from 11:10:00 to 11:2"),
        ("sacct.txt", "unseen", "what the jobs on the same nodes cost"),
        ("cases/11-kineto", "who", "^Rank 1 takes 1.50 times as long as its peers all along"),
    ],
)  # fmt: skip
def test_the_truth_of_a_file_is_said(name: str, label: str, words: str) -> None:
    """`^` is the beginning, and `$` the end, of all that is said under a label."""
    assert words in f"^{said(read(name), label)}$"


def test_what_hides_ranks_says_so_and_a_healthy_log_has_no_cause() -> None:
    assert read("megatron-minmax.log").hides_ranks
    assert read("nvidia-smi-other-jobs.csv").hardware == ()


def test_equal_walls_give_no_all_clear() -> None:
    found = read("steps-equal-walls.csv")
    assert found.hides_ranks
    assert said(found, "who").startswith("This record does not show which rank was slow: the step")
    assert said(found, "lost").startswith("16.7 % of 0.421 s a step: slow drift of all ranks")
    assert "as far as this record shows" in said(found, "lost")
    assert "No rank is slower" not in " ".join(line.text for line in lines(found))
    assert share(found, DRIFT) == pytest.approx(0.17, abs=0.01)
    assert "from step 60 to 109" in said(found, "lost")
    assert found.commands() == ()


def test_policies_are_not_compared_where_ranks_are_hidden() -> None:
    with pytest.raises(InputError, match="policies cannot be compared, because it does not show"):
        read("steps-equal-walls.csv", compare=("lb_bsp",))


def test_scattered_pauses_cost_what_they_cost() -> None:
    found = read("scattered-pauses.csv")
    assert share(found, SCATTERED) == pytest.approx(0.29, abs=0.01)
    assert share(found, STRAGGLERS) == 0
    assert "all ranks pause at the same steps" in said(found, "fix")


def test_pausing_together_saves_what_the_truth_says() -> None:
    found = read("cases/02-staggered-gc/steps.csv")
    assert found.losses.step == pytest.approx(1.8051, rel=1e-4)
    assert found.losses.of(SCATTERED).facts["together"] == pytest.approx(0.0486, abs=5e-4)


def test_common_pauses_have_a_period_and_are_no_straggler() -> None:
    found = read("common-pauses.csv")
    assert share(found, COMMON) == pytest.approx(0.23, abs=0.01)
    assert "All ranks pause 5.99 s every 50 steps" in said(found, "lost")
    assert "No rank is slower than its peers" in said(found, "who")
    assert said(found, "fix").startswith("no pause common to all ranks")


@pytest.mark.parametrize(
    ("name", "who", "slowdown", "since", "until"),
    [
        ("throughput.csv", "Rank 1 on gpu01", 1.82, 40, 79),
        ("steps-with-hosts.csv", "Rank 2 on node-1", 1.8, 40, 79),
        ("cases/13-restarted-job/steps.csv", "Rank 2", 1.5, 80, 179),
    ],
)
def test_a_slow_rank_is_named_with_since_when(
    name: str, who: str, slowdown: float, since: int, until: int
) -> None:
    found = read(name)
    (slow,) = found.steps.culprits
    assert said(found, "who").startswith(who)
    assert slow.slowdown == pytest.approx(slowdown, abs=0.03)
    assert abs(slow.since - since) <= 1
    assert abs(slow.until - until) <= 1


def test_compiling_at_the_start_is_no_straggler() -> None:
    found = read("cases/14-first-steps-compile/steps.csv")
    assert found.losses.start_up[0] == 2
    assert found.losses.start_up[1] == pytest.approx(80, rel=0.2)
    assert share(found, STRAGGLERS) == 0


def test_a_node_is_named_when_all_its_ranks_are_slow() -> None:
    found = read("cases/16-whole-node-slow/steps.csv")
    (group,) = found.steps.groups
    assert (group.kind, group.name, len(group.members)) == ("node", "gpu02", 8)
    best = max(found.steps.fixes, key=lambda fix: fix.seconds)
    assert (best.name, round(best.share, 3)) == ("gpu02 like the other nodes", 0.217)


def test_a_slow_rank_is_seen_behind_waiting_buckets() -> None:
    """The truth is 1.55 and .444 s; a dump leaves open how much of a step was slowed."""
    found = read("cases/10-flight-recorder")
    (slow,) = found.steps.culprits
    assert slow.rank == 2
    left = found.losses.step * (1 - share(found, STRAGGLERS))
    assert left == pytest.approx(0.444, rel=0.05)
    assert any("1.35 times" in each.what for each in found.unseen)


# -- joined, shown, written


def smi(folder: Path, clock: Any, seconds: int = 600, every: int = 5, **columns: Any) -> Path:
    """A log of four cards from ten o'clock on; clock and columns: of a card and a second."""
    names = {"clocks": "clocks.current.sm [MHz]", "busy": "utilization.gpu [%]",
             "reasons": "clocks_event_reasons.active"}  # fmt: skip
    given = {"clocks": lambda *at: f"{clock(*at)} MHz", **columns}
    rows = [
        (f"2026/11/20 10:{k // 60:02d}:{k % 60:02d}", card, *(of(card, k) for of in given.values()))
        for k in range(0, seconds, every) for card in range(4) if clock(card, k)
    ]  # fmt: skip
    header = ",".join(["timestamp", "index", *(names[name] for name in given)])
    return write_rows(folder / "smi.csv", header, rows)


def throttled(folder: Path) -> Path:
    """Card 2 is throttled from 16 to 32 s after ten o'clock."""

    def is_slow(card: int, second: int) -> bool:
        return card == 2 and 16 <= second < 32

    return smi(
        folder, lambda *at: 1100 if is_slow(*at) else 1980, 48, 1, busy=lambda *_: "97 %",
        reasons=lambda *at: f"0x{0x20 * is_slow(*at):016x}",
    )  # fmt: skip


def timed_steps(folder: Path, seconds: Any) -> Path:
    """Steps that begin every 0.4 s from ten o'clock on; seconds: shape (steps, ranks)."""
    begin = 1795168800  # 2026-11-20T10:00:00
    rows = [(begin + 0.4 * k, r, k, own) for (k, r), own in np.ndenumerate(np.asarray(seconds))]
    return write_rows(folder / "steps.csv", "time,rank,step,seconds", rows)


def test_a_cause_of_hardware_stands_beside_the_slow_rank(tmp_path: Path) -> None:
    own = 0.4 + 0.001 * (np.arange(120)[:, None] % 3 + np.arange(4))
    own[40:80, 2] = 0.72
    found = diagnose(timed_steps(tmp_path, own), throttled(tmp_path), compare=[])
    assert said(found, "who").startswith("Rank 2 takes")
    assert "software thermal slowdown" in said(found, "why")
    assert "beside rank 2" in said(found, "why")


def test_cumulative_seconds_are_no_steps(tmp_path: Path) -> None:
    own = np.random.default_rng(0).normal(0.4, 0.01, (4, 60))
    own[2] *= 1.5
    rows = [(r, k, f"{total:.4f}") for (r, k), total in np.ndenumerate(own.cumsum(axis=1))]
    path = write_rows(tmp_path / "mine.csv", "rank,step,elapsed", rows)
    found = diagnose(path, compare=[])
    assert found.losses.step == pytest.approx(0.6, abs=0.02)
    assert said(found, "who").startswith("Rank 2 takes 1.5")


def test_clocks_alone_tell_a_slow_card(tmp_path: Path) -> None:
    path = smi(tmp_path, lambda card, k: 1320 if card == 3 and 100 <= k < 300 else 1980)
    found = said(diagnose(path, compare=[]), "who")
    assert "GPU 3 is slow from 10:01:40 to 10:05:00: up to 1.50 times" in found


def test_a_card_that_falls_silent_is_said(tmp_path: Path) -> None:
    path = smi(tmp_path, lambda card, k: 1980 * (card != 1 or k < 300), busy=lambda *_: "97 %")
    assert "GPU 1 has no values after 10:04:55" in said(diagnose(path, compare=[]), "caution")


def test_hardware_is_said_where_the_steps_hide_the_rank(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    walls = 0.4 * rng.lognormal(0, 0.01, (120, 1)) * rng.lognormal(0, 0.002, (120, 4))
    found = diagnose(timed_steps(tmp_path, walls), throttled(tmp_path), compare=[])
    assert found.hides_ranks
    assert "GPU 2: software thermal slowdown" in said(found, "why")


def test_two_files_of_the_same_ranks_are_two_jobs(tmp_path: Path) -> None:
    files = [write_steps(tmp_path / name, np.full((20, 2), 0.4)) for name in ("a.csv", "b.csv")]
    with pytest.raises(InputError, match="has steps of rank 0, like"):
        diagnose(*files)


def test_a_folder_with_a_file_that_says_nothing_is_read(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_bytes((RECORDS / "throughput.csv").read_bytes())
    (tmp_path / "trainer_state.json").write_text(
        '{"global_step": 10, "log_history": [{"loss": 1.0, "step": 5}], "max_steps": 10}'
    )
    found = diagnose(tmp_path, compare=[])
    assert said(found, "who").startswith("Rank 1 on gpu01")
    assert any("trainer_state.json has losses" in each for each in found.record.missing)


def test_a_log_of_which_no_trace_may_come_is_sent_to_diagnose(call: Call) -> None:
    _, out, _ = call("trace", "describe", str(RECORDS / "megatron-minmax.log"))
    assert "next: simstrag diagnose" in out


def test_a_diagnosis_prints_its_lines() -> None:
    found = read("throughput.csv")
    assert str(found).splitlines()[0].startswith("who     Rank 1 on gpu01 takes 1.82 times")
    assert len(repr(found)) < 200


def test_two_step_logs_are_not_joined(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has steps of ranks, like"):
        read("throughput.csv", "megatron-minmax.log")


def test_half_of_the_ranks_slow_are_a_group() -> None:
    """Two kinds of card: .267 and .400 s; the best split of work is .320 s, 20 % less."""
    noise = np.random.default_rng(0).lognormal(0, 0.01, (200, 4))
    record = record_of_seconds(np.array([0.267, 0.267, 0.400, 0.400]) * noise)
    found = diagnose(record, compare=["lb_bsp"], jobs=1)
    (group,) = found.steps.groups
    assert (group.kind, group.name) == ("group", "2 to 3")
    assert group.slowdown == pytest.approx(1.5, abs=0.02)
    (gain,) = found.gains
    assert gain.share == pytest.approx(1 - 0.320 / 0.400, abs=0.02)


def test_a_hang_is_the_first_thing_said() -> None:
    record = Record.without_steps("dumps", "flight recorder", hang="Rank 3 never entered it")
    assert lines(diagnose(record))[0] == ("hang", "Rank 3 never entered it.")


@pytest.mark.parametrize("path", sorted(RECORDS.glob("*.*")), ids=lambda path: path.name)
def test_a_diagnosis_fits_twenty_five_lines(path: Path) -> None:
    assert 1 < len(lines(diagnose(path, compare=[]))) <= MOST


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize(
    "name", ["throughput.csv", "nvidia-smi.csv", "megatron-straggler.log", "sacct.txt"]
)
def test_the_commands_that_are_printed_lead_to_a_comparison(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes((RECORDS / name).read_bytes())
    first, second = simstrag.diagnose(name, compare=[]).commands()
    code, out, err = call(*shlex.split(first)[1:], "--compare", "none", "--quiet")
    assert (code, err) == (0, "")
    page = Path(out.strip()).read_text(encoding="utf-8")
    assert "Diagnosis: " in page
    assert "https://" not in page
    code, out, _ = call(*shlex.split(second)[1:], "--seeds", "1", "--jobs", "1", "--quiet")
    assert code == 0
    numbers = json.loads((Path(first.split()[-1]) / "diagnosis.json").read_text())
    assert numbers["next"] == [second]


def test_a_notebook_shows_the_lines_and_a_picture() -> None:
    shown = read("nvidia-smi.csv")._repr_html_()
    assert "GPU 2 is slow" in shown
    assert shown.count("<svg") == 1


def test_a_file_that_no_reader_knows_gets_a_line(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    for data, told in (
        (b"%PDF-1.4", "is a PDF"),
        (b"SQLite format 3\0", "nsys stats --report nvtx_sum"),
        (b"hello\nworld\n", "is text that begins 'hello'"),
        (b'{"a": 1}', "is JSON of a"),
        (b"a,b\n1,2\n", "is CSV with columns a, b"),
        (b"rank,step,seconds\n", "has no rows below its header rank,step,seconds"),
        (b"GPU-01234567-89, 1410 MHz\nGPU-01234567-89, 1410 MHz\n", "looks like nvidia-smi's CSV"),
    ):
        path.write_bytes(data)
        assert re.search(f"mine: .*{re.escape(told)}", message_of(lambda: diagnose(path)))


def test_a_scenario_that_was_edited_is_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "slow"
    found = read("throughput.csv", compare=("lb_bsp",))
    found.write(folder)
    found.write(folder)  # the same again
    scenario = folder / "scenario.yaml"
    edited = scenario.read_text(encoding="utf-8") + "# mine\n"
    scenario.write_text(edited, encoding="utf-8")
    with pytest.raises(InputError, match="was edited, or is of another diagnosis"):
        found.write(folder)
    assert scenario.read_text(encoding="utf-8") == edited


def test_a_comparison_names_the_rank_and_host_of_the_diagnosis(tmp_path: Path) -> None:
    read("throughput.csv", compare=("lb_bsp",)).write(tmp_path / "slow")
    answer = simstrag.compare(tmp_path / "slow" / "scenario.yaml", seeds=1, jobs=1).answer
    assert "for rank 1 on gpu01" in answer.bill


def test_a_card_that_no_file_links_to_a_rank_is_not_called_its_cause(tmp_path: Path) -> None:
    steps = write_steps(tmp_path / "steps.csv", [[0.1, 0.1, 0.1, 0.2, 0.1, 0.1]] * 60)
    found = diagnose(steps, RECORDS / "nvidia-smi.csv", compare=[], jobs=1)
    assert "No file says which rank that is." in said(found, "why")


def test_a_bad_row_of_a_csv_file_is_named(tmp_path: Path) -> None:
    steps = tmp_path / "steps.csv"
    steps.write_text("rank,step,seconds\n0,0,0.1\n1,0\n0,1,0.1\n1,1,0.2\n")
    with pytest.raises(InputError, match=r"steps.csv: row 3: "):
        diagnose(steps)


@pytest.mark.parametrize("gain", [0.04, 0.05])
def test_a_gain_below_the_known_error_of_the_simulation_is_said_to_be(gain: float) -> None:
    found = dataclasses.replace(read("names.csv"), gains=(PolicyGain("lb_bsp", "A", gain),))
    is_said = "(below the simulation's known error of 4.6 %); it changes" in said(found, "policy")
    assert is_said == (gain < 0.046)
