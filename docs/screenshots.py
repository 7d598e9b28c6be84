"""The pictures of these pages: parts of a real report, as Chromium shows them.

    python docs/screenshots.py                  # compares examples/demo.yaml first: some minutes
    python docs/screenshots.py reports/eleven   # what `simstrag compare --sensitivity` wrote

Writes `docs/pictures/*.png`. The page is made anew from the runs: its first screen on a wide screen
and on a phone, light and dark; its parts light and 1280 pixels wide. `cluster.png` shows parts of
the report of examples/cluster.yaml, which is run for it.  `watch_*.png` show the live view of a
drawn record of eight ranks.
"""

from __future__ import annotations

import base64
import io
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from rich.console import Console

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT))  # Chromium is driven as the tests drive it

from simstrag.analysis.monitor.advisor import Advisor  # noqa: E402
from simstrag.analysis.monitor.page import page as watch_page  # noqa: E402
from simstrag.analysis.monitor.snapshot import Snapshot  # noqa: E402
from simstrag.analysis.monitor.terminal import frame  # noqa: E402
from simstrag.analysis.monitor.watcher import Watcher  # noqa: E402
from simstrag.analysis.pages.report import render, report  # noqa: E402
from simstrag.cluster.runs import cluster  # noqa: E402
from simstrag.errors import InputError  # noqa: E402
from simstrag.experiments.compare import compare  # noqa: E402
from simstrag.experiments.comparison import Comparison  # noqa: E402
from tests.support.browser import BINARY, Browser  # noqa: E402
from tests.support.growing_records import drawn, write_record  # noqa: E402

__all__ = [
    "CLUSTER", "PICTURES", "SHOTS", "Box", "PagePart", "main", "save_cluster", "save_watch", "take",
]  # fmt: skip

PICTURES = Path(__file__).parent / "pictures"
WIDTH, HEIGHT, MARGIN = 1280, 1200, 10
COLOURS = 256
"""Of a picture."""
NO_BROWSER = (
    "no chromium, chromium-browser or google-chrome on the path; "
    "install one (apt install chromium), or put its folder on PATH"
)
WAY_OUT = "make it with simstrag compare examples/demo.yaml --sensitivity"
RUNS = ("korel", "star_h")
"""The policies in the pictures: one that suspects ranks, and one that also changes its plan."""


class PagePart(NamedTuple):
    """The part of a report between two elements, both included, by CSS selectors.

    A selector may name `{korel}`, the plot of that policy's run.
    zoom: turns of the wheel over the plot.
    point: the place of the pointer after that, in shares of width and height.
    """

    first: str
    last: str
    zoom: int = 0
    point: tuple[float, float] | None = None


def _run(policy: str) -> tuple[str, str]:
    """The heading and the figure of a policy's run."""
    plot = f"[data-plot={{{policy}}}]"
    return f"h3:has(+ figure {plot})", f"figure:has({plot})"


FIRST_SCREENS = {
    "first_wide": (1400, 900, False),
    "first_wide_dark": (1400, 900, True),
    "first_phone": (390, 844, False),
    "first_phone_dark": (390, 844, True),
}
"""What is seen before scrolling: width, height, and whether the screen is dark."""
WATCH = 1000, 960
"""Width and height of the page of the live view."""
SHOTS = {
    "answer": [PagePart("h1", ".lanes")],
    "ranking": [PagePart("#ranking", "#ranking + .scroll")],
    "timeline": [
        PagePart("#workers .legend", "#workers .legend"),
        PagePart(*_run(RUNS[0]), zoom=2, point=(0.55, 0.55)),
        PagePart(*_run(RUNS[1])),
    ],
    "progress": [PagePart("#progress", "#progress + figure")],
    "waiting": [
        PagePart("#waiting summary", "#waiting summary"),
        PagePart("#waiting .small figure", "#waiting .small figure:nth-child(4)"),
        PagePart("#spent summary", "#spent figure"),
    ],
    "turnover": [PagePart("#thresholds summary", "#thresholds figure")],
}
"""The parts of each picture, from top to bottom."""
CLUSTER = [
    PagePart("h1", ".answer + figure"),
    PagePart(
        "h2#nodes + p ~ div h3:nth-of-type(2)", "h2#nodes + p ~ div h3:nth-of-type(2) + figure"
    ),
]
"""The parts of the picture of a cluster study."""


class Box(NamedTuple):
    """A rectangle of the screen, in pixels from its top left corner."""

    left: int
    top: int
    right: int
    bottom: int


def main(folder: str | None = None) -> None:
    """Write all pictures and print their paths. Raises `InputError` without runs to show."""
    if not BINARY:
        raise InputError(NO_BROWSER)
    comparison = _demo() if folder is None else Comparison.read(folder)
    lacks = [name for name in RUNS if name not in comparison.examples]
    if lacks or comparison.thresholds is None:
        what = f"run of {lacks[0]}" if lacks else "thresholds"
        raise InputError(f"{folder}: has no {what}; {WAY_OUT}")
    names = {name: f"window{k}" for k, name in enumerate(comparison.examples)}
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place, Browser() as browser:
        page = Path(place) / "report.html"
        page.write_text(render(comparison), encoding="utf-8")
        for name, (width, height, dark) in FIRST_SCREENS.items():
            browser.screen(width, height, dark)
            browser.open(page)
            box = Box(0, 0, width, height)
            _wait_for_plots(browser, box)
            _save(name, _screen(browser, box))
        browser.screen(WIDTH, HEIGHT)
        browser.open(page)
        browser.read("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        for name, parts in SHOTS.items():
            _save(name, take(browser, [_named(part, names) for part in parts]))
        save_cluster(browser, Path(place))
        save_watch(browser, Path(place))


def save_cluster(browser: Browser, place: Path) -> None:
    """Run the example of a cluster study in a folder, and write its picture."""
    results = cluster(ROOT / "examples" / "cluster.yaml", place / "cluster")
    browser.screen(WIDTH, HEIGHT)
    browser.open(report(results.folder))
    _save("cluster", take(browser, CLUSTER))


def save_watch(browser: Browser, place: Path) -> None:
    """Write the pictures of the live view: the terminal and the page."""
    found = _watched(place / "runs" / "mine")
    terminal = Console(
        record=True, width=100, height=24, force_terminal=True, color_system="truecolor",
        file=io.StringIO(),
    )  # fmt: skip
    terminal.print(frame(found, 100, 24))
    drawing = place / "watch.html"
    svg = terminal.export_svg(title="simstrag watch runs/mine")
    drawing.write_text(f"<style>body {{ margin: 0 }}</style>{svg}", encoding="utf-8")
    height = round(1000 * float(svg.split('viewBox="0 0 ')[1].split('"')[0].split()[1])
                   / float(svg.split('viewBox="0 0 ')[1].split()[0]))  # fmt: skip
    browser.screen(1000, height)
    browser.open(drawing)
    _save("watch_terminal", _screen(browser, Box(0, 0, 1000, height)))
    drawing.write_text(watch_page(found, 5), encoding="utf-8")
    browser.screen(*WATCH)
    browser.open(drawing)
    _save("watch_page", _screen(browser, Box(0, 0, *WATCH)))


def _watched(folder: Path) -> Snapshot:
    """A snapshot of eight ranks, the third of which became slow, with advice."""
    watcher = Watcher([write_record(folder, drawn(ranks=8, steps=900))], gpu_price=2.0)
    found = watcher.catch_up()
    advisor, record = Advisor([folder], 2.0), watcher.latest
    assert record is not None
    advisor.begin(record, is_over=True)
    advisor.wait()
    return replace(found, advice=advisor.advice, source="runs/mine")


def _save(name: str, picture: Image.Image) -> None:
    path = PICTURES / f"{name}.png"
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"picture: {path} ({picture.width} x {picture.height})")


def _demo() -> Comparison:
    def show(done: int, total: int, what: str) -> None:
        print(f"\r{done} of {total} runs, {what:<40}", end="", file=sys.stderr)

    return compare(ROOT / "examples" / "demo.yaml", sensitivity=True, on_progress=show)


def _named(part: PagePart, names: dict[str, str]) -> PagePart:
    return part._replace(first=part.first.format(**names), last=part.last.format(**names))


def take(browser: Browser, parts: list[PagePart]) -> Image.Image:
    """One picture of parts of the page."""
    cut = [_crop(browser, part) for part in parts]
    whole = Image.new("RGB", (cut[0].width, sum(c.height for c in cut)), "white")
    top = 0
    for one in cut:
        whole.paste(one, (0, top))
        top += one.height
    return whole


def _screen(browser: Browser, box: Box) -> Image.Image:
    """A part of what the browser shows."""
    seen = browser.call("Page.captureScreenshot")
    return Image.open(io.BytesIO(base64.b64decode(seen["data"]))).convert("RGB").crop(box)


def _crop(browser: Browser, part: PagePart) -> Image.Image:
    """A part of the page after its plots are drawn; its width is that of the page's text."""
    script = """first => {
      scrollBy(0, document.querySelector(first).getBoundingClientRect().top - 50);
    }"""
    _call(browser, script, part.first)
    box = _box(browser, part)
    _wait_for_plots(browser, box)
    browser.mouse("mouseMoved", 0, 0)
    if part.point:
        _zoom(browser, part)
    return _screen(browser, box)


def _box(browser: Browser, part: PagePart) -> Box:
    """The box of a part, with a margin."""
    script = """(first, last) => {
      const place = what => document.querySelector(what).getBoundingClientRect();
      const [a, b] = [place(first), place(last)];
      const text = document.querySelector("h1").getBoundingClientRect();
      const top = Math.min(a.top, b.top), bottom = Math.max(a.bottom, b.bottom);
      return [text.left, top, text.right, bottom].map(Math.round);
    }"""
    left, top, right, bottom = _call(browser, script, part.first, part.last)
    assert 0 <= top < bottom < HEIGHT, f"{part} does not fit the screen"
    return Box(left - MARGIN, max(top - MARGIN, 0), right + MARGIN, bottom + MARGIN)


def _wait_for_plots(browser: Browser, box: Box) -> None:
    """Wait until every plot of a box is drawn."""
    script = """(top, bottom) => [...document.querySelectorAll("[data-plot]")].every(plot => {
      const place = plot.parentElement.getBoundingClientRect();
      const inside = place.top < bottom && place.bottom > top;
      return !inside || plot.dataset.drawn;
    })"""
    browser.wait(f"({script})({box.top}, {box.bottom})")


def _zoom(browser: Browser, part: PagePart) -> None:
    """Turn the wheel over a plot, and leave the pointer there."""
    script = """last => {
      const { left, top, width, height } = document.querySelector(last).getBoundingClientRect();
      return [left, top, width, height];
    }"""
    left, top, width, height = _call(browser, script, part.last)
    right, down = part.point or (0.5, 0.5)
    x, y = left + right * width, top + down * height
    browser.mouse("mouseMoved", x, y)
    for _ in range(part.zoom):
        browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-120, modifiers=2)
    time.sleep(2.0)  # Bokeh draws all bars again half a second after a zoom
    browser.mouse("mouseMoved", x + 1, y)
    browser.frames()
    browser.wait("document.getAnimations().length === 0")  # tools that fade


def _call(browser: Browser, script: str, *given: str) -> Any:
    return browser.read(f"({script})({', '.join(map(json.dumps, given))})")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
