"""Calibration goes round all cells, keeps each visit, stops when it knows enough, and resumes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from simstrag.calibration import measurement_rounds, samples
from simstrag.calibration.benches.bench import Skipped
from simstrag.calibration.benches.machine_state import measure_paces, usual_paces
from simstrag.calibration.cells import MeasurementCell, Visit
from simstrag.calibration.measurement_rounds import FEWEST, MOST, CampaignLimits
from simstrag.calibration.samples import Samples, VisitJournal
from simstrag.errors import InputError
from simstrag.processes.affinity import cores

STEADY, WILD, BIG = (MeasurementCell("step", precision="fp32", batch=n) for n in (8, 16, 32))


class Fake:
    """Steps that last what they are told to; a batch of 32 does not fit."""

    def __init__(self, cells: Sequence[MeasurementCell], breaks_at: int = -1) -> None:
        self.cells = cells
        self.visited: list[MeasurementCell] = []
        self.open = False
        self.breaks_at = breaks_at

    def seconds(self, cell: MeasurementCell) -> float:
        return 1.0

    def later(self, cell: MeasurementCell) -> float:
        return self.seconds(cell)

    def visit(
        self, cell: MeasurementCell
    ) -> tuple[dict[str, tuple[float, ...]], dict[str, object]]:
        assert self.open
        if len(self.visited) == self.breaks_at:
            raise KeyboardInterrupt
        self.visited.append(cell)
        if cell == BIG:
            raise Skipped("no memory for a batch of 32")
        drift = 1 + (0.5 if cell == WILD else 0.0) * (self.visited.count(cell) % 2)
        return {"seconds": (0.1 * drift, 0.1001 * drift, 0.1002 * drift)}, {"peak_bytes": 7}

    def __enter__(self) -> Fake:
        self.open = True
        return self

    def __exit__(self, *failure: object) -> None:
        self.open = False


@pytest.fixture(autouse=True)
def _nobody_else_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests run beside these."""
    calm = contextlib.nullcontext(SimpleNamespace(foreign=0.0, stolen=0.0))
    monkeypatch.setattr(measurement_rounds, "Occupancy", lambda: calm)
    monkeypatch.setattr(measurement_rounds, "measure_paces", lambda: {0: 1.1e-3})


@pytest.fixture
def journal(tmp_path: Path) -> VisitJournal:
    found = VisitJournal(tmp_path / "out")
    found.start({"name": "a-machine"})
    return found


def counts(bench: Fake) -> dict[MeasurementCell, int]:
    return {cell: bench.visited.count(cell) for cell in bench.cells}


def test_a_cell_whose_visits_agree_is_left_alone_and_one_whose_visits_differ_is_not(
    journal: VisitJournal,
) -> None:
    bench = Fake((STEADY, WILD))
    measurement_rounds.run([bench], journal, CampaignLimits(seconds=60))
    assert counts(bench) == {STEADY: FEWEST, WILD: MOST}
    assert not bench.open


def test_no_cell_is_visited_twice_before_all_are_visited_once(journal: VisitJournal) -> None:
    cells = [MeasurementCell("step", precision="fp32", batch=n) for n in range(1, 9)]
    bench = Fake(cells)
    measurement_rounds.run([bench], journal, CampaignLimits(seconds=60))
    rounds = [bench.visited[k : k + 8] for k in range(0, 8 * FEWEST, 8)]
    assert [set(each) for each in rounds] == [set(cells)] * FEWEST
    assert len({tuple(each) for each in rounds}) == FEWEST, "their order is drawn anew"


def test_a_cell_that_cannot_be_measured_is_skipped_with_its_reason(journal: VisitJournal) -> None:
    bench = Fake((STEADY, BIG))
    found = measurement_rounds.run([bench], journal, CampaignLimits(seconds=60))
    assert counts(bench) == {STEADY: FEWEST, BIG: 1}
    assert [v.skipped for v in found.visits if v.cell == BIG] == ["no memory for a batch of 32"]
    assert BIG not in found.cells


def taking(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a visit take so many seconds, as far as the campaign can tell."""
    now = iter(np.arange(0.0, 1e6, seconds))
    clock = SimpleNamespace(monotonic=lambda: next(now), time=lambda: 0.0)
    monkeypatch.setattr(measurement_rounds, "time", clock)


def test_time_that_is_up_ends_it(journal: VisitJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    taking(10.0, monkeypatch)
    bench = Fake((STEADY, WILD))
    measurement_rounds.run([bench], journal, CampaignLimits(seconds=35.0))
    assert len(bench.visited) == 4


def test_time_that_is_up_before_every_cell_was_visited_is_a_mistake_that_loses_nothing(
    journal: VisitJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking(10.0, monkeypatch)
    monkeypatch.setattr(measurement_rounds, "EARLY", 1.0)
    with pytest.raises(InputError, match="1 of 2 cells were not visited once, such as step fp32"):
        measurement_rounds.run([Fake((STEADY, WILD))], journal, CampaignLimits(seconds=5.0))
    assert len(journal.read().visits) == 1


def test_the_first_round_is_finished_where_the_whole_time_suffices(
    journal: VisitJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking(10.0, monkeypatch)
    monkeypatch.setattr(Fake, "seconds", lambda self, cell: 10.0)
    bench = Fake((STEADY, WILD))
    measurement_rounds.run([bench], journal, CampaignLimits(seconds=5.0, first_round=20.0))
    assert counts(bench) == {STEADY: 1, WILD: 1}


def test_a_round_that_cannot_fit_is_said_when_an_eighth_of_it_is_done(
    journal: VisitJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 cells at 10 s a visit take 160 s; they were planned as 16 s a round."""
    taking(10.0, monkeypatch)
    cells = [MeasurementCell("step", precision="fp32", batch=n) for n in range(1, 17)]
    with pytest.raises(InputError, match=r"the first 2 of 16 cells took 10\.0 times as long") as it:
        measurement_rounds.run([Fake(cells)], journal, CampaignLimits(seconds=120.0))
    assert "one round takes about 2.7 minutes and 5 rounds 14; " in str(it.value)
    assert len(journal.read().visits) == 2


def test_cells_without_a_visit_are_left_out_where_visits_take_longer_than_planned(
    journal: VisitJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 10 s a visit three visits to 16 cells take 480 s; 300 s suffice for the 8 of one group.

    It shows after two visits; a cell that had one of them is left out no more.
    """
    taking(10.0, monkeypatch)
    cells = [MeasurementCell("step", precision="fp32", batch=n) for n in range(1, 17)]
    bench, said = Fake(cells), list[str]()
    found = measurement_rounds.run(
        [bench], journal, CampaignLimits(seconds=300.0, fewest=3),
        on_plan=said.append, expendable=[cells[8:], cells[:8]],
    )  # fmt: skip
    assert {*found.cells} == {*cells[:8], *bench.visited[:2]}
    assert {bench.visited.count(cell) for cell in found.cells} == {3}
    assert [text.partition(":")[0] for text in said] == ["left out for want of minutes"]


def test_what_was_left_out_stays_so_where_an_interrupted_calibration_goes_on(
    journal: VisitJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking(10.0, monkeypatch)
    cells = [MeasurementCell("step", precision="fp32", batch=n) for n in range(1, 17)]
    groups, limits = [cells[8:], cells[:8]], CampaignLimits(seconds=300.0, fewest=3)
    first = Fake(cells, breaks_at=12)
    with pytest.raises(KeyboardInterrupt):
        measurement_rounds.run([first], journal, limits, expendable=groups)
    kept = {*first.visited}
    second = Fake(cells)
    found = measurement_rounds.run([second], journal, limits, expendable=groups)
    assert {*second.visited} <= kept == {*found.cells}


def test_one_visit_that_started_a_process_does_not_make_all_others_look_slow(
    journal: VisitJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 16 visits at a second each the first takes 20, so that the round takes 35 s."""
    now = iter([0.0, 20.0, *(t for k in range(20, 200) for t in (float(k), k + 1.0))])
    clock = SimpleNamespace(monotonic=lambda: next(now), time=lambda: 0.0)
    monkeypatch.setattr(measurement_rounds, "time", clock)
    cells = [MeasurementCell("step", precision="fp32", batch=n) for n in range(1, 17)]
    bench = Fake(cells)
    limits = CampaignLimits(seconds=70.0, fewest=3)
    found = measurement_rounds.run([bench], journal, limits, expendable=[cells[8:]])
    assert {*found.cells} == {*cells}
    assert min(counts(bench).values()) == 3


@pytest.mark.parametrize(
    ("minutes", "sentence"),
    [
        (9.0, "9 minutes of calibration: a round of 16 cells took 2.7 minutes here, 5.0 times as "
         "long as planned, so that 3 of 5 rounds fit and intervals will be wide; all take about 14 "
         "minutes. "),
        (14.0, ""),
    ],
)  # fmt: skip
def test_rounds_that_cannot_fit_are_said_after_the_first(
    minutes: float, sentence: str, journal: VisitJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 cells at 10 s a visit take 160 s a round, and five rounds 800 s; 32 s were planned.

    The first half of the minutes is due before the real runs of a validation.
    """
    taking(10.0, monkeypatch)
    monkeypatch.setattr(Fake, "seconds", lambda self, cell: 2.0)
    bench = Fake([MeasurementCell("step", precision="fp32", batch=n) for n in range(1, 17)])
    said: list[tuple[int, str]] = []
    measurement_rounds.run(
        [bench], journal, CampaignLimits(30 * minutes, first_round=60 * minutes),
        on_plan=lambda text: said.append((len(bench.visited), text)),
    )  # fmt: skip
    assert [text.startswith(sentence) for _, text in said] == [True] * bool(sentence)
    assert [visits for visits, _ in said] == [16] * bool(sentence)


def test_two_calibrations_do_not_write_into_one_folder(journal: VisitJournal) -> None:
    with (
        journal.lock(),
        pytest.raises(InputError, match="another calibration is writing there"),
        VisitJournal(journal.path.parent).lock(),
    ):
        pass


def test_what_was_interrupted_goes_on_where_it_stopped(journal: VisitJournal) -> None:
    first = Fake((STEADY, WILD), breaks_at=5)
    with pytest.raises(KeyboardInterrupt):
        measurement_rounds.run([first], journal, CampaignLimits(seconds=60))
    assert not first.open
    assert len(journal.read().visits) == 5
    second = Fake((STEADY, WILD))
    found = measurement_rounds.run([second], journal, CampaignLimits(seconds=60))
    assert len(found.of(STEADY)) == FEWEST
    assert [v.number for v in found.visits if v.cell == WILD] == list(range(MOST))
    assert len(second.visited) == FEWEST + MOST - 5


def test_a_line_that_a_kill_cut_off_costs_that_visit_alone(journal: VisitJournal) -> None:
    measurement_rounds.run([Fake((STEADY,))], journal, CampaignLimits(seconds=60))
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole[:-9])
    assert len(journal.read().visits) == FEWEST - 1
    assert journal.path.read_bytes() == whole[:-9], "who only reads writes nothing"
    with journal.lock():
        pass
    journal.add(Visit(STEADY, 3, 0.0, {"seconds": (0.1,)}))
    assert len(journal.read().visits) == FEWEST


def test_minutes_for_less_than_the_fewest_rounds_are_refused_with_what_is_needed() -> None:
    with pytest.raises(
        InputError, match=r"1 minutes of calibration: 5 rounds of 30 cells .* 2.5 minutes"
    ):
        CampaignLimits(seconds=60).check(needed=150, cells=30)


def some() -> Samples:
    rng = np.random.default_rng(0)
    visits = [
        Visit(
            cell,
            k,
            1e9 + k,
            {"seconds": tuple(rng.lognormal(size=5 + k)), "host": tuple(rng.random(3))},
            {"peak_bytes": 12, "state": {"clock": 1.5}},
        )
        for k in range(3)
        for cell in (STEADY, MeasurementCell("contention", "bf16", 8, "cpu", 2.0))
    ]
    visits.append(Visit(BIG, 0, 2e9, skipped="no memory"))
    return Samples({"format": samples.FORMAT, "name": "a-machine"}, tuple(visits))


def test_the_file_of_samples_keeps_every_sample(tmp_path: Path) -> None:
    path = samples.write(some(), tmp_path)
    assert samples.read(path) == samples.read(tmp_path) == some()


def test_the_same_samples_are_the_same_bytes(tmp_path: Path) -> None:
    first, second = (samples.write(some(), tmp_path / name) for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_visits_beside_somebody_else_do_not_count_unless_most_are(tmp_path: Path) -> None:
    def visit(number: int, disturbed: bool) -> Visit:
        return Visit(STEADY, number, 0.0, {"seconds": (0.1,)}, {"disturbed": disturbed})

    few = [visit(k, disturbed=k == 1) for k in range(4)]
    many = [visit(k, disturbed=k > 0) for k in range(4)]
    assert [v.number for v in samples.calm_visits(few, {})] == [0, 2, 3]
    assert [v.number for v in samples.calm_visits(many, {})] == [0, 1, 2, 3]


QUIET, SLOWED = 1.0e-3, 1.7e-3


def paced(number: int, *cores: tuple[float, float]) -> Visit:
    """A visit; of each core its pace before and after."""
    facts = {"pace": [[core, *both] for core, both in enumerate(cores)]}
    return Visit(STEADY, number, 0.0, {"seconds": (0.1,)}, facts)


@pytest.mark.parametrize(("mostly", "seldom"), [(QUIET, SLOWED), (SLOWED, QUIET)])
def test_visits_around_which_a_core_was_not_as_usual_do_not_count_where_enough_were(
    mostly: float, seldom: float
) -> None:
    calm, odd = (mostly, 1.1 * mostly), (mostly, seldom)
    cores = [(odd, calm), (calm, calm), (calm, calm), (calm, odd), (calm, calm), (calm, calm)]
    visits = [paced(k, *each) for k, each in enumerate(cores)]
    known = usual_paces(visits)
    assert known == pytest.approx({0: mostly, 1: mostly}, rel=0.1)
    assert [v.number for v in samples.calm_visits(visits, known)] == [1, 2, 4, 5]
    assert [v.number for v in samples.calm_visits(visits[:4], known)] == [1, 2]
    assert samples.calm_visits(visits[:3:2] + visits[3:4], known) == tuple(
        visits[:3:2] + visits[3:4]
    )
    unpaced = [replace(visit, facts={}) for visit in visits]
    assert samples.calm_visits(unpaced, usual_paces(unpaced)) == tuple(unpaced)


def test_every_visit_has_the_pace_of_the_cores_before_and_after_it(journal: VisitJournal) -> None:
    found = measurement_rounds.run([Fake((STEADY,))], journal, CampaignLimits(seconds=60))
    assert {str(v.facts["pace"]) for v in found.visits} == {"[[0, 0.0011, 0.0011]]"}


def test_timing_the_cores_leaves_the_thread_where_it_was() -> None:
    before = cores()
    assert list(measure_paces()) == before[:4]
    assert cores() == before


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("samples.parquet", b"time,node\n", "is no file of samples"),
        ("visits.jsonl", b'{"epoch": 1}\n', "is no journal of a calibration"),
        ("visits.jsonl", b"hello\n", "is no journal of a calibration"),
    ],
)
def test_a_file_of_something_else_is_told_from_samples(
    name: str, content: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=said):
        samples.read(tmp_path)


def test_a_folder_without_samples_says_how_to_get_some(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="simstrag calibrate"):
        samples.read(tmp_path)


def test_a_journal_is_one_json_document_per_line(journal: VisitJournal) -> None:
    measurement_rounds.run([Fake((STEADY,))], journal, CampaignLimits(seconds=60))
    header, *lines = map(json.loads, journal.path.read_text().splitlines())
    assert header["name"] == "a-machine"
    assert [line["cell"] for line in lines] == [STEADY.document] * FEWEST
