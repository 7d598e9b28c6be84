"""The report in a real browser: tables sort, numbers save, charts zoom, and nobody is asked."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from simstrag.analysis.pages.cluster_report import render as render_cluster
from simstrag.analysis.pages.report import render, render_run
from simstrag.cluster.runs import cluster
from simstrag.experiments.compare import compare
from simstrag.experiments.comparison import Comparison
from simstrag.scenario.scenario import Scenario
from tests.analysis.test_cluster_report import CERTAIN as SHARED
from tests.support.browser import BINARY, Browser

pytestmark = pytest.mark.skipif(not BINARY, reason="no chromium or chrome on this machine")

WATCH = """
window.saved = {};
const texts = [];
URL.createObjectURL = blob => { texts.push(blob.text()); return "#"; };
HTMLAnchorElement.prototype.click = function () { saved[this.download] = texts.at(-1); };
"""
"""Before the page's own scripts: what would be saved under which name."""

SORT = """(([sheet, name]) => {
  const table = document.querySelector(`[data-sheet=${sheet}] table`);
  const heads = [...table.tHead.rows[0].cells];
  heads.find(head => head.textContent === name).querySelector("button").click();
  const way = heads.map(head => head.getAttribute("aria-sort")).filter(Boolean).join();
  const rows = [...table.tBodies[0].rows].map(row => row.cells[0].textContent);
  return { way, rows, foot: table.tFoot ? table.tFoot.textContent.trim() : "" };
})"""

INSIDE = """function* inside(root) {
  for (const element of root.querySelectorAll("*")) {
    yield element;
    if (element.shadowRoot) yield* inside(element.shadowRoot);
  }
}"""
"""All elements, those in shadow roots too."""

ROOT = "Bokeh.index.roots.find(v => document.querySelector('[data-plot=%s]').contains(v.el)).model"
"""What is drawn in a place."""


UNFOLD = "document.querySelectorAll('details').forEach(section => { section.open = true; })"


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    trace = [{"time": 0.5, "node": 3, "resource": "gpu", "kind": "slowdown", "value": 2.0}]
    scenario = Scenario.of({
        "workers": 4, "samples": 4 * 128 * 120, "seeds": 2, "trace": trace, "target_progress": 5.0,
        "step": {"compute": 0.067, "amp_ratio": 1.6, "cv": 0.04}, "server": {"service": 2e-3},
        "policies": ["bsp", "asgd", "amp_all", "korel", "backup"],
        "cautions": [f"{'What loads all hosts at once ' * 3}is not seen; --own states it. " * 9],
    })  # fmt: skip
    return compare(scenario, jobs=1)


@pytest.fixture(scope="module")
def page(comparison: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("browser") / "report.html"
    path.write_text(render(comparison), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        browser.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        yield browser


def opened(browser: Browser, page: Path) -> Browser:
    """The page of a comparison, just opened on a large light screen, all sections unfolded."""
    browser.screen(1280, 900)
    browser.open(page)
    browser.read(UNFOLD)
    return browser


@pytest.fixture
def report(browser: Browser, page: Path) -> Browser:
    return opened(browser, page)


def sorted_twice(report: Browser, sheet: str, name: str) -> list[tuple[str, list[str]]]:
    """The order of the rows after one click on a header, and after a second one."""
    clicks = [report.read(f"{SORT}({[sheet, name]})") for _ in range(2)]
    return [(c["way"], c["rows"]) for c in clicks]


def saved(report: Browser) -> dict[str, str]:
    """What every button saves, by the name of the file."""
    found: dict[str, str] = report.read(
        "(async () => { for (const b of document.querySelectorAll('.save')) b.click();"
        "for (const name in saved) saved[name] = await saved[name]; return saved; })()"
    )
    return found


def looked_at(report: Browser, name: str) -> tuple[float, float, float, float]:
    """Scroll to a chart; left, top, width and height of what is drawn in its place."""
    place = f"document.querySelector('[data-plot={name}]')"
    report.read(f"{place}.parentElement.scrollIntoView({{ block: 'center' }})")
    report.wait(f"{place}.dataset.drawn")
    report.frames()
    x, y, width, height = report.read(
        f"(({{ x, y, width, height }}) => [x, y, width, height])({place}.getBoundingClientRect())"
    )
    return x, y, width, height


def told(report: Browser) -> str:
    """What the tooltips say."""
    words: list[str] = report.read(
        f"(() => {{ {INSIDE} return [...inside(document)]"
        ".filter(e => e.className === 'bk-tooltip-content').map(e => e.textContent); })()"
    )
    return " ".join(" ".join(words).split())


def time_of(report: Browser, name: str) -> tuple[float, float]:
    """What an axis of time shows, in seconds."""
    model = f"{ROOT % name}.document.get_model_by_name('time')"
    start, end = report.read(f"[{model}.start, {model}.end]")
    return start, end


def until_time(report: Browser, name: str, moved: bool, start: float) -> None:
    """Wait until an axis of time begins elsewhere, or there again."""
    model = f"{ROOT % name}.document.get_model_by_name('time')"
    report.wait(f"(Math.abs({model}.start - {start}) > 1e-6) === {str(moved).lower()}")


def click_on(report: Browser, name: str, part: str) -> None:
    """Click in the middle of a part of a chart, whose class has this in its name."""
    x, y = report.read(
        f"(() => {{ {INSIDE} const box = [...inside(document.querySelector('[data-plot={name}]'))]"
        f".find(e => e.className.includes('{part}')).getBoundingClientRect();"
        "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    report.mouse("mouseMoved", x, y)
    report.mouse("mousePressed", x, y, button="left", clickCount=1)
    report.mouse("mouseReleased", x, y, button="left", clickCount=1)


class TestTables:
    @pytest.fixture(scope="class")
    @classmethod
    def report(cls, browser: Browser, page: Path) -> Browser:
        """The same page for all of them: sorting a table changes nothing else."""
        return opened(browser, page)

    def test_a_click_on_a_header_sorts_by_value_and_a_second_one_the_other_way(
        self, comparison: Comparison, report: Browser
    ) -> None:
        times = dict(zip(comparison.ranking["policy"], comparison.ranking["makespan"], strict=True))
        by_time = sorted(times, key=lambda name: times[name])
        assert by_time != sorted(times, key=lambda name: str(times[name]))
        found = sorted_twice(report, "behind-the-ranking", "makespan (s)")
        assert found == [("ascending", by_time), ("descending", by_time[::-1])]

    def test_words_are_sorted_by_letters(self, comparison: Comparison, report: Browser) -> None:
        names = sorted(comparison.policies)
        found = sorted_twice(report, "ranking", "policy")
        assert found == [("ascending", names), ("descending", names[::-1])]

    def test_dashes_are_last_either_way(self, report: Browser) -> None:
        for _, rows in sorted_twice(report, "behind-the-ranking", "detection: recall (%)"):
            assert rows[0] == "korel"

    def test_the_clean_control_stays_below(self, report: Browser) -> None:
        found = report.read(f"{SORT}(['ranking', 'policy'])")
        assert found["foot"].startswith("bsp without contention")

    def test_a_saved_table_holds_the_numbers_to_the_last_digit(
        self, comparison: Comparison, report: Browser
    ) -> None:
        rows = list(csv.DictReader(io.StringIO(saved(report)["simstrag-ranking.csv"])))
        ranking = comparison.ranking
        found = {row["policy"]: float(row["time to target (s)"]) for row in rows}
        for policy, seconds in zip(ranking["policy"], ranking["time_to_target"], strict=True):
            assert found[policy] == seconds

    def test_every_chart_that_has_numbers_saves_them(self, report: Browser) -> None:
        names = {name.removeprefix("simstrag-").removesuffix(".csv") for name in saved(report)}
        assert names >= {
            "ranking", "paired-differences", "behind-the-ranking", "where-time-went", "staleness",
            "staleness-by-rank", "progress-over-time", "steps-of-the-close-look", "trade-off",
            "slowdown-of-ranks", "waiting-between-ranks", "measured-fitted-assumed",
        }  # fmt: skip


class TestCharts:
    def test_a_page_is_there_before_its_charts_are(self, report: Browser) -> None:
        assert not report.read("'Bokeh' in window")
        ready = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
        assert report.read(ready) < 4000, "1000 ms where nothing else runs"

    def test_a_chart_takes_the_place_of_its_picture_and_nothing_moves(
        self, report: Browser
    ) -> None:
        high = "document.documentElement.scrollHeight"
        before = report.read(high)
        for name in ("progress", "contention", "window0", "tradeoff"):
            looked_at(report, name)
        assert report.read(high) == pytest.approx(before, abs=12)
        assert report.read("document.querySelector('.drawn > svg').clientHeight") <= 1
        assert report.read("document.querySelector('.drawn > svg').getAttribute('aria-label')")

    def test_pointing_at_a_step_tells_what_it_is(self, report: Browser) -> None:
        x, y, width, height = looked_at(report, "window0")
        for k in range(30):
            report.mouse("mouseMoved", x + width * 0.4 + 3 * k, y + height * 0.45)
            if "computes step" in told(report):
                break
        assert "applied in update" in told(report)

    def test_pointing_at_a_shade_tells_the_slowdown(self, report: Browser) -> None:
        x, y, width, height = looked_at(report, "window0")
        for k in range(40):
            report.mouse("mouseMoved", x + width * 0.8, y + height * (0.2 + 0.01 * k))
            if "takes 2 times as long" in told(report):
                break
        assert "rank 3 takes 2 times as long over a step" in told(report)

    def test_the_wheel_scrolls_the_page(self, report: Browser) -> None:
        x, y, width, height = looked_at(report, "window0")
        before, scrolled = time_of(report, "window0"), report.read("scrollY")
        report.mouse("mouseWheel", x + width / 2, y + height / 3, deltaX=0, deltaY=200)
        report.wait(f"scrollY > {scrolled}")
        assert time_of(report, "window0") == before

    def test_with_ctrl_the_wheel_zooms_all_timelines(self, report: Browser) -> None:
        looked_at(report, "window1")
        x, y, width, height = looked_at(report, "window0")
        at, before = (x + width / 2, y + height / 3), time_of(report, "window0")
        report.mouse("mouseMoved", *at)
        report.mouse("mouseWheel", *at, deltaX=0, deltaY=-200, modifiers=2)
        until_time(report, "window0", True, before[0])
        start, end = time_of(report, "window0")
        assert end - start < before[1] - before[0]
        looked_at(report, "window1")
        assert time_of(report, "window1") == (start, end)
        looked_at(report, "window4")
        assert time_of(report, "window4") == (start, end)

    def test_dragging_moves_the_time_and_reset_brings_it_back(self, report: Browser) -> None:
        x, y, width, height = looked_at(report, "window0")
        before = time_of(report, "window0")
        report.drag((x + width * 0.6, y + height * 0.4), (x + width * 0.4, y + height * 0.4))
        until_time(report, "window0", True, before[0])
        start, end = time_of(report, "window0")
        assert end - start == pytest.approx(before[1] - before[0])
        click_on(report, "window0", "bk-tool-icon-reset")
        until_time(report, "window0", False, before[0])

    def test_a_box_zooms_to_it(self, report: Browser) -> None:
        x, y, width, height = looked_at(report, "window0")
        before = time_of(report, "window0")
        report.mouse("mouseMoved", x + width / 2, y + height / 3)
        click_on(report, "window0", "bk-tool-icon-x-box-zoom")
        report.drag((x + width * 0.4, y + height * 0.3), (x + width * 0.6, y + height * 0.4))
        until_time(report, "window0", True, before[0])
        start, end = time_of(report, "window0")
        assert 0.1 < (end - start) / (before[1] - before[0]) < 0.3

    def test_the_box_on_the_whole_run_chooses_what_is_shown(self, report: Browser) -> None:
        x, y, width, height = looked_at(report, "window0")
        before, low = time_of(report, "window0"), y + height - 50
        report.drag((x + width * 0.7, low), (x + width * 0.9, low))
        until_time(report, "window0", True, before[0])

    def test_a_click_on_a_name_hides_its_curve(self, report: Browser) -> None:
        looked_at(report, "progress")
        hidden = f"[...{ROOT % 'progress'}.references()].filter(m => m.visible === false)"
        lines = f"{hidden}.filter(m => m.glyph && m.glyph.type === 'Line').length"
        at_first = report.read(lines)  # those of neither the best policy, the safe one, nor bsp
        assert at_first >= 2
        click_on(report, "progress", "bk-item")
        report.wait(f"{lines} === {at_first + 1}")

    def test_charts_turn_dark_with_the_page(self, report: Browser) -> None:
        looked_at(report, "window0")
        axis = f"[...{ROOT % 'window0'}.references()].find(m => m.type === 'LinearAxis')"
        assert report.read(f"{axis}.major_label_text_color") == "#1a1c1e"
        report.screen(1280, 900, dark=True)
        redrawn = "Bokeh.index.roots.some(v => document.querySelector('[data-plot=window0]')"
        report.wait(f"{redrawn}.contains(v.el)) && {axis}.major_label_text_color === '#e6e8ea'")

    def test_on_paper_the_pictures_are_back(self, report: Browser) -> None:
        looked_at(report, "window0")
        report.call("Emulation.setEmulatedMedia", media="print")
        assert report.read("document.querySelector('.drawn > svg').clientHeight") > 50
        assert report.read("document.querySelector('.drawn > .live').clientHeight") == 0

    def test_on_paper_the_first_page_is_a_summary_and_the_second_has_the_ranking(
        self, browser: Browser, page: Path
    ) -> None:
        """A4 between Chromium's margins has 717 by 1046 pixels; a phone's layout is not for it."""
        browser.screen(717, 1046)
        browser.open(page)
        browser.call("Emulation.setEmulatedMedia", media="print")
        long = "[...document.querySelectorAll('p')].find(p => p.textContent.includes('--own'))"
        browser.read(f"{long}.remove()")  # no log has a caution of nine lines
        ranking = "document.querySelector('#ranking')"
        parts = f"[...{ranking}.parentElement.children]"
        summary = f"{parts}.slice(0, {parts}.indexOf({ranking}))"
        ends = f"{summary}.map(part => part.getBoundingClientRect().bottom)"
        assert 500 < browser.read(f"Math.max(...{ends})") < 1046
        assert browser.read(f"getComputedStyle({ranking}).breakBefore") == "page"
        assert browser.read("getComputedStyle(document.querySelector('thead')).display") == (
            "table-header-group"
        )
        browser.call("Emulation.setEmulatedMedia", media="")


@pytest.mark.parametrize("width", [1400, 390])
def test_no_line_ends_within_an_option_a_percentage_or_a_gain(
    browser: Browser, page: Path, width: int
) -> None:
    browser.screen(width, 900)
    browser.open(page)
    lines = browser.read(
        "[...document.querySelectorAll('p code, .whole, .gains .track + span')]"
        ".filter(e => e.checkVisibility()).map(e => [e.textContent, e.getClientRects().length, "
        "e.scrollWidth > e.clientWidth && e.clientWidth > 0])"
    )
    texts = [text for text, _, _ in lines]
    assert texts.count("--own") == 9
    assert any("%)" in text for text in texts)
    assert {(rows, cut) for _, rows, cut in lines} == {(1, False)}


class TestPhone:
    @pytest.fixture
    def phone(self, browser: Browser, page: Path) -> Browser:
        browser.screen(360, 740, touch=True)
        browser.open(page)
        browser.read(UNFOLD)
        return browser

    def test_no_chart_is_wider_than_the_screen(self, phone: Browser) -> None:
        for name in ("progress", "contention", "window0", "tradeoff"):
            x, _, width, _ = looked_at(phone, name)
            assert x >= 0
            assert x + width <= 360
        assert phone.read("document.documentElement.scrollWidth") == 360

    def test_the_accuracy_of_a_real_learner_needs_no_scrolling_sideways(
        self, browser: Browser, tmp_path: Path
    ) -> None:
        pytest.importorskip("torch")
        learner = {"kind": "real", "task": "tabular", "batch": 4}
        case = {
            "workers": 2, "samples": 64, "step": {"compute": 0.1}, "seeds": 2, "learner": learner,
        }  # fmt: skip
        comparison = compare(Scenario.of(case), ["bsp", "staleness_lr:power=0.5"], jobs=1)
        page = tmp_path / "report.html"
        page.write_text(render(comparison), encoding="utf-8")
        browser.screen(390, 844, touch=True)
        browser.open(page)
        widths = browser.read("""(() => {
          const place = document.querySelector("[data-sheet=accuracy]");
          return [place.scrollWidth, place.clientWidth];
        })()""")
        assert widths[0] <= widths[1] < 390

    def test_a_finger_that_moves_up_scrolls_the_page(self, phone: Browser) -> None:
        x, y, width, height = looked_at(phone, "window0")
        before, shown = phone.read("scrollY"), time_of(phone, "window0")
        phone.swipe((x + width / 2, y + height / 2), (x + width / 2, y + height / 2 - 200))
        phone.wait(f"scrollY > {before + 50}")
        assert time_of(phone, "window0") == pytest.approx(shown)

    def test_a_tap_tells_what_is_there(self, phone: Browser) -> None:
        x, y, width, height = looked_at(phone, "window0")
        at = (x + width * 0.9, y + height * 0.45)
        phone.swipe(at, at)
        phone.wait(
            f"(() => {{ {INSIDE} return [...inside(document)]"
            ".some(e => e.className === 'bk-tooltip-content'); })()"
        )
        assert told(phone).startswith("rank ")

    def test_a_finger_that_moves_sideways_moves_the_time(self, phone: Browser) -> None:
        x, y, width, height = looked_at(phone, "window0")
        before = time_of(phone, "window0")
        phone.swipe((x + width * 0.8, y + height * 0.4), (x + width * 0.4, y + height * 0.4))
        until_time(phone, "window0", True, before[0])


def test_a_page_of_one_run_sorts_saves_and_zooms_too(
    comparison: Comparison, browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "run.html"
    path.write_text(render_run(comparison.examples["asgd"]), encoding="utf-8")
    browser.screen(1280, 900)
    browser.open(path)
    (_, up), (_, down) = sorted_twice(browser, "where-time-went", "computing (s)")
    assert up == down[::-1]
    assert "simstrag-steps-of-the-close-look.csv" in saved(browser)
    looked_at(browser, "window0")
    assert browser.complaints == browser.requests == []


def test_nothing_goes_wrong_and_nobody_is_asked(report: Browser) -> None:
    for name in report.read(
        "[...document.querySelectorAll('[data-plot]')].map(e => e.dataset.plot)"
    ):
        looked_at(report, name)
    saved(report)
    assert report.complaints == report.requests == []


def test_a_browser_would_notice_what_goes_wrong(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "wrong.html"
    path.write_text("<img src='http://example.invalid/'><script>missing()</script>")
    browser.open(path)
    browser.wait("true")
    assert any("missing is not defined" in text for text in browser.complaints)
    assert browser.requests == ["http://example.invalid/"]


def test_a_click_on_a_job_of_a_cluster_shows_its_page(browser: Browser, tmp_path: Path) -> None:
    found = cluster(SHARED, tmp_path / "shared", jobs=1)
    page = tmp_path / "page.html"
    page.write_text(render_cluster(found), encoding="utf-8")
    browser.open(page)
    shown = "document.querySelector('#run0-job0').checkVisibility()"
    assert not browser.read(shown)
    browser.read("document.querySelector('#every').open = true")
    assert not browser.read(shown)
    link = "document.querySelector('a[href=\"#run0-job0\"]')"
    browser.read(f"{link}.dispatchEvent(new MouseEvent('click'))")  # `click` is watched
    browser.wait(shown)
    assert browser.read("document.querySelector('#run0-job0').open")
    assert "beside" in browser.read("document.querySelector('#run0-job0').innerText")
