"""The report in a real browser: tables sort, numbers save, and nobody is asked for anything."""

import csv
import io
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from simstrag.analysis.report import render
from simstrag.comparison import Comparison, compare
from simstrag.scenario import Scenario

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
pytestmark = pytest.mark.skipif(not BROWSER, reason="no chromium or chrome on this machine")

WATCH = """<script>
const seen = { problems: [], saved: {}, sorted: [] };
addEventListener("error", event => seen.problems.push(`${event.message}`));
addEventListener("securitypolicyviolation", event => {
  seen.problems.push(`asked for ${event.blockedURI}`);
});
const texts = [];
URL.createObjectURL = blob => { texts.push(blob.text()); return "#"; };
HTMLAnchorElement.prototype.click = function () { seen.saved[this.download] = texts.at(-1); };
</script>"""
"""Before the page's own script: what went wrong, and what would be saved under which name."""

ACT = """<script>
addEventListener("load", async () => {
  for (const [sheet, name] of COLUMNS) {
    const table = document.querySelector(`[data-sheet=${sheet}] table`);
    const heads = [...table.tHead.rows[0].cells];
    const head = heads.find(head => head.textContent === name);
    for (let click = 0; click < 2; click++) {
      head.querySelector("button").click();
      const sorted = heads.map(head => head.getAttribute("aria-sort")).filter(Boolean);
      const rows = [...table.tBodies[0].rows].map(row => row.cells[0].textContent);
      seen.sorted.push({ name, way: sorted.join(), rows, foot: table.tFoot.textContent.trim() });
    }
  }
  for (const button of document.querySelectorAll(".save")) button.click();
  for (const name in seen.saved) seen.saved[name] = await seen.saved[name];
  const asked = performance.getEntriesByType("resource").map(entry => entry.name);
  seen.requests = asked.filter(name => !name.startsWith("data:"));
  const found = document.createElement("pre");
  found.id = "seen";
  found.textContent = JSON.stringify(seen);
  document.body.append(found);
});
</script>"""
"""After it: clicks on headers and buttons, then leaves what was seen in the page."""

COLUMNS = [
    ("ranking", "makespan (s)"), ("ranking", "policy"),
    ("behind-the-ranking", "detection: recall (%)"),
]  # fmt: skip

Seen = dict[str, Any]


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    trace = [{"time": 0.5, "node": 3, "resource": "gpu", "kind": "slowdown", "value": 2.0}]
    scenario = Scenario.of({
        "workers": 4, "samples": 4 * 128 * 30, "seeds": 2, "trace": trace,
        "step": {"compute": 0.27, "amp_ratio": 1.6, "cv": 0.04}, "server": {"service": 0.01},
        "policies": ["bsp", "asgd", "amp_all", "korel", "backup"],
    })  # fmt: skip
    return compare(scenario, jobs=1)


@pytest.fixture(scope="module")
def seen(comparison: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What a browser found in the page when it clicked on headers and buttons."""
    page = render(comparison)
    page = page.replace("<title>", f"{WATCH}<title>", 1)
    page = page.replace("</body>", ACT.replace("COLUMNS", json.dumps(COLUMNS)) + "</body>")
    folder = tmp_path_factory.mktemp("browser")
    (folder / "page.html").write_text(page, encoding="utf-8")
    done = _browse(folder / "page.html", folder / "profile")
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr
    messages = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return {**json.loads(unescape(found.group(1))), "messages": messages}


def _browse(page: Path, profile: Path) -> "subprocess.CompletedProcess[str]":
    """The page after its scripts ran, on stdout; what they told the console, on stderr."""
    return subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
            "--enable-logging=stderr", "--virtual-time-budget=10000",
            "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}", page.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip


def sorted_by(seen: Seen, name: str) -> list[tuple[str, list[str]]]:
    return [(s["way"], s["rows"]) for s in seen["sorted"] if s["name"] == name]


def test_a_click_on_a_header_sorts_by_value_and_a_second_one_the_other_way(
    comparison: Comparison, seen: Seen
) -> None:
    times = dict(zip(comparison.ranking["policy"], comparison.ranking["makespan"], strict=True))
    by_time = sorted(times, key=lambda name: times[name])
    assert by_time != sorted(times, key=lambda name: str(times[name]))
    assert sorted_by(seen, "makespan (s)") == [
        ("ascending", by_time),
        ("descending", by_time[::-1]),
    ]


def test_words_are_sorted_by_letters(comparison: Comparison, seen: Seen) -> None:
    by_name = sorted(comparison.policies)
    assert sorted_by(seen, "policy") == [("ascending", by_name), ("descending", by_name[::-1])]


def test_dashes_are_last_either_way(seen: Seen) -> None:
    for _, rows in sorted_by(seen, "detection: recall (%)"):
        assert rows[0] == "korel"


def test_the_clean_control_stays_below(seen: Seen) -> None:
    assert all(s["foot"].startswith("bsp without contention") for s in seen["sorted"])


def test_a_saved_table_holds_the_numbers_to_the_last_digit(
    comparison: Comparison, seen: Seen
) -> None:
    rows = list(csv.DictReader(io.StringIO(seen["saved"]["simstrag-ranking.csv"])))
    ranking = comparison.ranking
    saved = {row["policy"]: float(row["makespan (s)"]) for row in rows}
    for policy, makespan in zip(ranking["policy"], ranking["makespan"], strict=True):
        assert saved[policy] == makespan


def test_every_chart_that_has_numbers_saves_them(seen: Seen) -> None:
    names = {name.removeprefix("simstrag-").removesuffix(".csv") for name in seen["saved"]}
    assert names == {
        "ranking", "paired-differences", "behind-the-ranking", "where-time-went", "staleness",
        "staleness-by-rank", "progress-over-time", "steps-of-the-close-look", "slowdown-of-ranks",
        "who-waited-for-whom", "measured-fitted-assumed",
    }  # fmt: skip


def test_nothing_goes_wrong_and_nobody_is_asked(seen: Seen) -> None:
    assert seen["problems"] == seen["messages"] == seen["requests"] == []
