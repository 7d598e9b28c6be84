"""A replay in words, in tables and on the page of a diagnosis."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from simstrag.analysis.charts.whatif_charts import MOST_LANES, worst_step
from simstrag.analysis.pages.diagnosis_report import render
from simstrag.analysis.pages.templates import prose
from simstrag.analysis.tables.whatif_tables import fixes_table, kinds_table, workers_table
from simstrag.analysis.text.diagnosis_lines import headline, lines
from simstrag.analysis.text.whatif_text import cause_text, part_text, sentences
from simstrag.whatif import diagnosis
from simstrag.whatif.analysis import WhatIf, analyse
from simstrag.whatif.diagnosis import Diagnosis, diagnose
from tests.support.commands import Call
from tests.support.job_records import drawn_pipeline, pipeline, write_parquet
from tests.support.step_logs import write_rows, write_steps


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Six steps of the pipeline of `test_whatif_metrics`: rank 0 takes three times as long."""
    return write_parquet(pipeline(steps=6), tmp_path / "trace.parquet")


@pytest.fixture
def found(trace: Path) -> WhatIf:
    return analyse(trace, gpu_price=2.0)


@pytest.fixture
def told(trace: Path) -> Diagnosis:
    return diagnose(trace, gpu_price=2.0, compare=[])


def test_the_replay_comes_first_then_the_loss_and_why_a_fix_saves_more(found: WhatIf) -> None:
    replay, lost, more = sentences(found)
    assert replay == (
        "The replay is as long as the recorded step: 14.5 s against 14.5 s, means of 6 steps."
    )
    assert "a step would take 11.5 s: the slowdown S is 1.261, and 20.7 % of the time" in lost
    assert more == (
        "Rank 0 (replica 0, stage 0) like the others saves more, 41.4 %: the average counts the "
        "slow worker in, the fix takes the median of the others."
    )


def test_a_test_that_was_not_made_is_not_told(tmp_path: Path) -> None:
    path = write_steps(tmp_path / "mine.csv", [[1.0, 1.0, 2.0]] * 3)
    assert "No rank is slower" not in str(lines(diagnose(path, compare=[])))
    told = "to tell takes 5 steps; recorded: 3"
    assert any(told in line for line in analyse(path).warnings)


def test_every_cause_has_a_sentence(tmp_path: Path) -> None:
    ones = np.full((6, 2, 2, 6), 0.1)
    uneven = ones * np.array([1.0, 1.6])[:, None]
    spread = np.exp(0.4 * np.random.default_rng(0).standard_normal((6, 2, 1, 6)))
    told = {
        "Stage 1 computes 1.23 times": drawn_pipeline(uneven, 2 * uneven),
        "are long together (correlation 1.00)": drawn_pipeline(ones * spread, ones * spread),
        "Before its first operation a step waits; that costs 0.300 s": drawn_pipeline(
            ones, ones, late=0.3
        ),
        "Garbage collection takes 0.200 s": drawn_pipeline(ones, ones, gc=0.2),
        "The link from stage": drawn_pipeline(ones, ones, transfer=np.array([0.01, 0.3])),
    }
    for begin, record in told.items():
        path = write_parquet(record, tmp_path / "trace.parquet")
        assert begin in " ".join(map(cause_text, analyse(path).causes))


@pytest.mark.parametrize(
    ("longer", "told"),
    [
        ({"input": 0, "forward": 0.5}, "computes longer is in forward: 100 % of it."),
        ({"input": 0, "compute-1": 0.2, "compute-2": 0.21, "compute-3": 0.2},
         "is in compute: 100 % of it, over 3 such parts, compute-2 the most with 34.4 %."),
        ({"input": 0.22, "forward": 0.2, "backward": 0.2}, "no single part: input has the most"),
    ],
)  # fmt: skip
def test_the_part_that_was_slow_is_named(
    longer: dict[str, float], told: str, tmp_path: Path
) -> None:
    """Rank 2 takes these seconds more than half a second in each part."""
    each = product(range(8), range(3), {**longer, "all-reduce-1": 0}.items())
    rows = [(k, s, name, 0.5 + (k == 2) * more) for s, k, (name, more) in each]
    found = analyse(write_rows(tmp_path / "mine.csv", "rank,step,stage,seconds", rows))
    (slow,) = found.culprits
    assert told in part_text(found, slow)


def test_one_rank_is_not_given_a_clean_bill(tmp_path: Path, call: Call) -> None:
    path = write_steps(tmp_path / "one.csv", np.ones((9, 1)))
    found = analyse(path)
    assert found.fixes == ()
    assert len(sentences(found)) == 1
    assert "saves (s)" not in render(diagnose(path))
    _, out, _ = call("whatif", found.record.source)
    assert "This record does not show which rank was slow" in out
    assert "No rank is slower" not in out
    assert "fix" not in out


def test_tables_have_units_and_a_cost_only_with_a_price(found: WhatIf, trace: Path) -> None:
    assert fixes_table(found).headers[-2:] == ("GPU-hours of 1,000 steps", "cost")
    assert fixes_table(analyse(trace)).headers[-1] == "GPU-hours of 1,000 steps"
    (slow, *others) = workers_table(found).rows
    assert slow[:5] == ("0", "0", "0", "chronic", "3.00")
    assert [row[3] for row in others] == ["–"] * 3  # noqa: RUF001
    assert kinds_table(found).rows[0][0] == "backward-compute"


def test_delays_have_a_column_where_the_replay_is_off(tmp_path: Path) -> None:
    path = write_parquet(pipeline(late=1.45, steps=6), tmp_path / "trace.parquet")
    table = kinds_table(analyse(path))
    assert table.headers[-1] == "by their delays"
    assert ("first-op", "–", "1.1000") in table.rows  # noqa: RUF001


def test_the_page_has_the_answer_the_pictures_and_the_fixes(told: Diagnosis) -> None:
    page = render(told, "simstrag diagnose trace.parquet")
    assert "Diagnosis: trace.parquet" in page
    assert page.count('<svg class="picture"') == 2
    assert "rank 0 (replica 0, stage 0) like the others" in page
    assert "simstrag diagnose trace.parquet" in page
    assert "https://" not in page


def test_the_page_says_its_first_sentence_once(told: Diagnosis) -> None:
    first = headline(told)
    assert first in [line.text for line in lines(told)]
    assert render(told).count(str(prose(first))) == 1


def test_a_step_in_which_none_computed_is_drawn(tmp_path: Path) -> None:
    path = write_steps(tmp_path / "mine.csv", [[0, 0], [1, 1], [2, 2]])
    assert "<svg" in render(diagnose(path, compare=[]))


def test_a_caution_stands_before_what_was_lost(tmp_path: Path) -> None:
    path = write_parquet(pipeline(late=1.45, steps=6), tmp_path / "trace.parquet")
    page = render(diagnose(path, compare=[]))
    assert page.index("The replay takes 0.909") < page.index("stragglers")


def test_of_many_ranks_the_timeline_shows_some(tmp_path: Path) -> None:
    ones = np.full((2, 40, 2, 2), 0.1)
    path = write_parquet(drawn_pipeline(ones, ones), tmp_path / "trace.parquet")
    _, picture = worst_step(analyse(path))
    assert picture.count(">rank ") == MOST_LANES


def test_the_command_prints_cautions_first_and_json_alone(tmp_path: Path, call: Call) -> None:
    path = write_parquet(pipeline(late=1.45, steps=6), tmp_path / "trace.parquet")
    code, out, err = call("whatif", str(path))
    assert (code, err) == (0, "")
    assert "The replay takes 0.909 of the recorded time; beyond 5 %" in out
    code, out, err = call("whatif", str(path), "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert list(document)[:2] == ["record", "warnings"]
    assert document["launch_slowdown"] == pytest.approx(1.1)


def test_a_folder_gets_the_page_and_the_numbers_and_may_be_written_again(
    trace: Path, tmp_path: Path, call: Call
) -> None:
    folder = tmp_path / "out"
    for _ in range(2):
        code, out, _ = call("whatif", str(trace), "--out", str(folder), "--quiet")
        assert (code, out.strip()) == (0, str(folder / "report.html"))
    numbers = json.loads((folder / "diagnosis.json").read_text())
    assert numbers["blocking_slowdown"] == pytest.approx(14.5 / 11.5)


def test_a_notebook_shows_the_sentences_the_fixes_and_the_heat_map(found: WhatIf) -> None:
    shown = found._repr_html_()
    assert "rank 0 (replica 0, stage 0) like the others" in shown
    assert "GPU-hours of 1,000 steps" in shown
    assert shown.count("<svg") == 1


def test_a_folder_of_something_else_is_kept(trace: Path, tmp_path: Path, call: Call) -> None:
    code, _, err = call("whatif", str(trace), "--out", str(trace.parent))
    assert code == 2
    assert "holds other files; choose a folder that does not exist yet" in err
    (tmp_path / "out").touch()  # this is told before a record is looked for
    code, out, err = call("whatif", "missing.csv", "--out", str(tmp_path / "out"))
    assert (code, out) == (2, "")
    assert err == f"error: {tmp_path / 'out'}: is a file; choose a folder that does not exist yet\n"


def test_an_interrupt_leaves_no_part_of_the_folder(
    told: Diagnosis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(diagnosis, "html_page", interrupt)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        told.write(tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before
