"""Tables of the results, for the terminal and for docs/measured, and the aims."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.jobs import NOISES

__all__ = [
    "Table", "aims", "cost", "megas", "plain", "show", "speed", "study", "times",
]  # fmt: skip

Cells = tuple[str, ...]
RATES: dict[tuple[str, bool], dict[str, float]] = {
    ("bsp", False): {"8": 150, "64": 400, "512": 500, "4096": 450},
    ("bsp", True): {"8": 100, "64": 200, "512": 250, "4096": 250},
    ("asgd", False): {"8": 33, "64": 20, "512": 14, "4096": 9.5},
    ("asgd", True): {"8": 25, "64": 17, "512": 12, "4096": 8},
    ("korel", False): {"8": 0.4, "4096": 40},
    ("korel", True): {"8": 0.16, "4096": 20},
}
"""Aims in million steps per second, by policy and whether there is noise, and by workers."""
RATIOS = {"asgd": 50, "cgp": 50, "backup": 50}
"""Aims for the least ratio to (a) of all sizes."""
KOREL = {"noise": {"8": 25, "4096": 150}, "lasting noise": {"8": 15, "4096": 100}}
"""Aims of korel, whose plan is reviewed at every update, for the ratio to (a) by workers."""
REVIEWS = {"dssp": 50e3}
"""Aims in reviews per second with 8 workers."""


class Table(NamedTuple):
    """Title, header and rows; the first column is left-aligned, the numbers right-aligned."""

    title: str
    header: Cells
    rows: Sequence[Cells]


def megas(number: float) -> str:
    """A number with three digits and a letter for its magnitude.

    >>> megas(348_123_456), megas(84_300), megas(7.25), megas(999_600)
    ('348M', '84.3k', '7.25', '1M')
    """
    for letter, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= 0.9995 * size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def times(number: float) -> str:
    """A ratio; below 10 with one decimal."""
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}"


def speed(results: dict[str, Any]) -> Iterator[Table]:
    """Rates and ratios of the four engines, by noise."""
    header = (
        "policy", "N", "simstrag", "(a)", "(b)", "(c)", "/ (a)", "range", "/ (b)", "/ (c)",
    )  # fmt: skip
    for noise in NOISES:
        section = results[noise]
        rows = [
            _speed_row(policy, n, section)
            for policy, sizes in section["ratios"].items()
            for n in sorted(sizes, key=int)
        ]
        yield Table(f"Steps per second, {noise}", header, rows)


def _speed_row(policy: str, n: str, section: dict[str, Any]) -> Cells:
    rates, ratios, spread = (section[name][policy][n] for name in ("rates", "ratios", "spread"))
    low, high = spread["a"]
    return (
        policy,
        f"{int(n):,}",
        *(megas(rates[x]) for x in ("engine", "a", "b", "c")),
        times(ratios["a"]),
        f"{times(low)}-{times(high)}",
        times(ratios["b"]),
        times(ratios["c"]),
    )


def cost(section: dict[str, Any]) -> Iterator[Table]:
    """Time and memory by workers, updates, breakpoints, noise, logs and policies; start-up."""
    yield _growth("By workers: bsp with noise, 1,000 updates", "workers", section)
    yield _growth("By updates: bsp with noise, 64 workers", "updates", section)
    for noise, sizes in section["breakpoints"].items():
        counts = list(next(iter(sizes.values())))
        rows = [
            (n, *(f"{seconds[c]:.3f}" for c in counts), f"{seconds[counts[-1]] / seconds['0']:.2f}")
            for n, seconds in sizes.items()
        ]
        header = ("N", *(f"{int(c):,}" for c in counts), "last / first")
        yield Table(
            f"Seconds by breakpoints per worker; 10,000 updates; noise: {noise}", header, rows
        )
    rows = [(name, f"{ns:.1f}") for name, ns in section["noise"].items()]
    yield Table("By noise: 64 workers, bsp", ("noise", "ns per step"), rows)
    rows = [
        (policy, log, f"{r['nanoseconds']:.0f}", f"{r['peak_mb'] - r['before_mb']:.0f}")
        for policy, logs in section["logs"].items()
        for log, r in logs.items()
    ]
    yield Table("By log", ("policy", "log", "ns per gradient", "MB"), rows)
    sizes = list(next(iter(section["policies"].values())))
    rows = [(p, *(f"{r[n]:.2f}" for n in sizes)) for p, r in section["policies"].items()]
    header = ("policy", *(f"N = {n}" for n in sizes))
    yield Table("By policy: seconds per million gradients, the study's scenario", header, rows)
    sizes = list(next(iter(section["reviews"].values())))
    rows = [(p, *(f"{r[n]:.1f}" for n in sizes)) for p, r in section["reviews"].items()]
    header = ("policy", *(f"N = {n}" for n in sizes))
    yield Table("By policy: microseconds per review, steps between reviews included", header, rows)
    starts = [(k, f"{v['wall']:.2f}", f"{v['cpu']:.2f}") for k, v in section["startup"].items()]
    yield Table("Start-up", ("", "wall (s)", "processor (s)"), starts)


def _growth(title: str, name: str, section: dict[str, Any]) -> Table:
    rows = [
        (
            f"{int(k):,}",
            f"{r['setup']:.3f}",
            f"{r['seconds']:.3f}",
            f"{r['nanoseconds']:.1f}",
            f"{r['peak_mb']:.0f}",
            f"{r['peak_mb'] - r['before_mb']:.0f}",
        )
        for k, r in section[name].items()
    ]
    header = (name, "set-up (s)", "run (s)", "ns per step", "peak (MB)", "added by the run (MB)")
    return Table(title, header, rows)


def study(section: dict[str, Any]) -> Table:
    """Processor time of the study, by policy."""
    rows = [
        (policy, f"{seconds:.1f}", f"{section['seconds_per_million'][policy]:.3f}")
        for policy, seconds in section["seconds"].items()
    ]
    title = f"Study: {megas(section['gradients'])} gradients, {section['wall']:.0f} s of wall time"
    return Table(title, ("policy", "processor (s)", "s per million gradients"), rows)


def aims(results: dict[str, Any]) -> Table:
    """The project's aims beside the measured figures; a study of another scale is left out."""
    rows = list(_speed_aims(results["speed"])) if "speed" in results else []
    cost = results.get("cost", {})
    for noise, sizes in cost.get("breakpoints", {}).items():
        for n, seconds in sizes.items():
            ratio = seconds["1000"] / seconds["0"]
            figure = f"1,000 breakpoints per worker over 10,000 updates, N = {n}, noise: {noise}"
            rows.append(_aim(figure, "< 1.5 x none", f"{ratio:.2f} x", ratio < 1.5))
    study = results.get("study", {})
    if study.get("scale") == 1:
        figure = f"study of {megas(study['gradients'])} gradients on {study['jobs']} processes"
        rows.append(_aim(figure, "<= 60 s", f"{study['wall']:.0f} s", study["wall"] <= 60))
    if "startup" in cost:
        for name, figure, most in (
            ("help", "simstrag --help", 0.3), ("import", "import simstrag, beyond Python", 0.03),
        ):  # fmt: skip
            wall = cost["startup"][name]["wall"]
            if name == "import":
                wall -= cost["startup"]["python"]["wall"]
            rows.append(_aim(figure, f"<= {most:g} s", f"{wall:.3f} s", wall <= most))
        for policy, least in REVIEWS.items():
            rate = 1e6 / cost["reviews"][policy]["8"]
            figure = f"{policy}, reviews, N = 8"
            rows.append(_aim(figure, f">= {megas(least)}/s", f"{megas(rate)}/s", rate >= least))
    if "65536" in cost.get("workers", {}):
        peak = cost["workers"]["65536"]["peak_mb"]
        figure = "memory of 65,536 workers x 1,000 updates, bsp"
        rows.append(_aim(figure, "< 400 MB", f"{peak:.0f} MB", peak < 400))
    return Table("Aims", ("figure", "aim", "measured", ""), rows)


def _speed_aims(section: dict[str, Any]) -> Iterator[Cells]:
    for noise in NOISES:
        rates = section[noise]["rates"]
        for (policy, is_noisy), by_workers in RATES.items():
            if is_noisy == (noise == "no noise"):
                continue
            measured = rates[policy]
            for n, least in ((n, 1e6 * each) for n, each in by_workers.items() if n in measured):
                rate = measured[n]["engine"]
                figure = f"{policy}, N = {int(n):,}, {noise}"
                aim = f">= {megas(least)} steps/s"
                yield _aim(figure, aim, f"{megas(rate)}/s", rate >= least)
        for policy, least in RATIOS.items():
            ratio = min(r["a"] for r in section[noise]["ratios"][policy].values())
            figure = f"{policy}, least of all N, {noise}"
            yield _aim(figure, f">= {least} x (a)", f"{ratio:.0f} x", ratio >= least)
        of_korel = section[noise]["ratios"]["korel"]
        for n, times in KOREL.get(noise, {}).items():
            if n in rates["korel"]:
                ratio = of_korel[n]["a"]
                figure = f"korel, N = {int(n):,}, {noise}"
                yield _aim(figure, f">= {times} x (a)", f"{ratio:.0f} x", ratio >= times)
        worst = max(rate["engine"] / rates["ssp"][n]["engine"] for n, rate in rates["asgd"].items())
        yield _aim(f"ssp, worst N, {noise}", "< 2 x asgd's time", f"{worst:.2f} x", worst < 2)


def _aim(figure: str, aim: str, measured: str, met: bool) -> Cells:
    return (figure, aim, measured, "met" if met else "missed")


def show(tables: Iterable[Table]) -> None:
    """Print tables on the terminal."""
    console = Console()
    for table in tables:
        printed = RichTable(
            title=table.title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
        )
        for k, name in enumerate(table.header):
            printed.add_column(name, justify="right" if k else "left")
        for row in table.rows:
            printed.add_row(*row)
        console.print(printed)


def plain(table: Table) -> list[str]:
    """Lines of a table as text, with its title; columns of numbers end below each other.

    >>> print(*plain(Table("Gains", ("policy", "%"), [("asgd", "9.5"), ("bsp", "0")])), sep="\\n")
    Gains
    <BLANKLINE>
    policy    %
    ------  ---
    asgd    9.5
    bsp       0
    <BLANKLINE>
    """
    columns = [*zip(table.header, *table.rows, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    sides = [">" if all(map(_is_number, cells)) else "<" for _, *cells in columns]
    rules = tuple("-" * width for width in widths)
    aligned = (
        "  ".join(f"{c:{side}{width}}" for c, side, width in zip(line, sides, widths, strict=True))
        for line in (table.header, rules, *table.rows)
    )
    return [*([table.title, ""] if table.title else []), *(line.rstrip() for line in aligned), ""]


def _is_number(cell: str) -> bool:
    """Whether a cell is a number with what belongs to it, such as an interval, or is empty."""
    begins = re.match(r"[-+\N{MINUS SIGN}(]*\d|\W?$", cell) is not None
    return begins and len(cell) < 30
