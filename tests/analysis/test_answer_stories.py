"""Stories: a job on 64 nodes, one choice on every surface, and logs that end in a decision."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path

import pytest

import simstrag
from simstrag.analysis.derived.ranking import standings
from simstrag.analysis.pages.report import render
from simstrag.analysis.text.sensitivity_text import thresholds
from tests.support.commands import Call

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "advice.md").read_text(encoding="utf-8")


@pytest.mark.thorough
def test_a_job_on_64_nodes_is_told_to_keep_its_mathematics(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The times of the server follow from the link; were it free, asgd would be chosen."""
    monkeypatch.chdir(tmp_path)
    call("trace", "generate", "--nodes", "64", "--seconds", "3600", "--out", "slow.csv")
    facts = ["--step", "0.35s", "--parameters", "25e6", "--link", "25Gbit", "--batch", "32"]
    call("init", "slow.csv", *facts, "--out", "mine.yaml")
    code, out, _ = call("compare", "mine.yaml", "--seeds", "3", "--out", "c")
    assert code == 0
    first = "If the 4 placeholders hold, run load-balanced BSP (lb_bsp): "
    assert out.startswith(first)
    assert "4 of 9 numbers are placeholders, not yours; learner.c_tau decides" in out


@pytest.mark.thorough
def test_every_surface_names_the_same_choice_and_successor_on_the_demo() -> None:
    """The box once named another successor of asgd than the table below it, and the notebook."""
    demo = simstrag.Scenario.read(ROOT / "examples" / "demo.yaml")
    comparison = simstrag.compare(
        demo, ["bsp", "asgd", "lb_bsp", "amp_all", "cgp"], seeds=3, sensitivity=True, jobs=1
    )
    answer = comparison.answer
    safe = answer.decision.safe
    assert answer.to_dict()["choice"] == safe
    first = answer.choice.partition(": ")[0]
    assert first.endswith(f"({safe})")
    assert first in re.sub("<.*?>", "", html.unescape(render(comparison)))
    assert answer._repr_markdown_().startswith(f"**{first}")
    (said,) = re.findall(
        r"\(c_tau\) stays below .*? \(above that (\w+) is faster\)", answer.conditions
    )
    table = thresholds(standings(comparison)).table
    leaders = {row[2] for row in table.rows if row[0] == "the cost of staleness (c_tau)"}
    assert leaders == {"none", said}


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize("log", ["steps", pytest.param("utilisation", marks=pytest.mark.thorough)])
def test_a_log_ends_in_the_decision_that_the_page_shows(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    shutil.copy(ROOT / "examples" / "logs" / f"{log}.csv", tmp_path)
    monkeypatch.chdir(tmp_path)
    response = ["--response", "fair-share"] if log == "utilisation" else []
    files = ["--out", "trace.csv", "--scenario", "mine.yaml"]
    assert call("trace", "import", log, f"{log}.csv", *response, *files)[0] == 0
    code, out, _ = call("compare", "mine.yaml", "--seeds", "3", "--json", "--jobs", "1")
    assert code == 0
    found = json.loads(out)
    choice, *others = found["answer"]["sentences"]
    (bill,) = (text for text in others if text.startswith("Contention cost "))
    assert found["answer"]["choice"] == "lb_bsp"
    (shown,) = re.findall(rf'`{log}\.csv`.*?"(If .*?)"', PAGE)
    assert choice.startswith(shown)
    assert bill.partition(". The trace")[0].endswith("of all waiting is for gpu03")
    assert found["placeholders"]["decisive"]
