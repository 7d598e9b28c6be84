"""Results in words and numbers: the same tables on the terminal and in the docs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Drawn

__all__ = ["Table", "cost", "markdown", "megas", "show", "speed", "study", "times"]

Cells = tuple[str, ...]


class Table(NamedTuple):
    """Numbers stand right, the first column left."""

    title: str
    header: Cells
    rows: Sequence[Cells]


def megas(number: float) -> str:
    """Three digits and a letter.

    >>> megas(348_123_456), megas(84_300), megas(7.25)
    ('348M', '84.3k', '7.25')
    """
    for letter, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def times(number: float) -> str:
    """A ratio, with a digit after the point where there is one before it."""
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}"


def speed(results: dict[str, Any]) -> Iterator[Table]:
    """Rates and ratios, without and with noise."""
    header = (
        "policy", "N", "simstrag", "(a)", "(b)", "(c)", "/ (a)", "range", "/ (b)", "/ (c)",
    )  # fmt: skip
    for title, found in (("without noise", results), ("with noise", results["noisy"])):
        rows = [
            _beside(policy, n, found)
            for policy, sizes in found.get("ratios", {}).items()
            for n in sorted(sizes, key=int)
        ]
        if rows:
            yield Table(f"Steps per second, {title}", header, rows)


def _beside(policy: str, n: str, found: dict[str, Any]) -> Cells:
    rates, ratios, spread = (found[name][policy][n] for name in ("rates", "ratios", "spread"))
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


def cost(found: dict[str, Any]) -> Iterator[Table]:
    """What grows with what."""
    yield _grown("By workers: bsp with noise, 1,000 updates", "workers", found)
    yield _grown("By updates: bsp with noise, 64 workers", "updates", found)
    for noise, sizes in found["breakpoints"].items():
        counts = list(next(iter(sizes.values())))
        rows = [
            (n, *(f"{seconds[c]:.3f}" for c in counts), f"{seconds[counts[-1]] / seconds['0']:.2f}")
            for n, seconds in sizes.items()
        ]
        header = ("N", *(f"{int(c):,}" for c in counts), "last / first")
        yield Table(
            f"Seconds by breakpoints per worker; 10,000 updates; noise: {noise}", header, rows
        )
    rows = [(name, f"{ns:.1f}") for name, ns in found["noise"].items()]
    yield Table("By noise: 64 workers, bsp", ("noise", "ns per step"), rows)
    rows = [
        (policy, log, f"{r['nanoseconds']:.0f}", f"{r['peak_mb'] - r['before_mb']:.0f}")
        for policy, logs in found["logs"].items()
        for log, r in logs.items()
    ]
    yield Table("By what is kept", ("policy", "log", "ns per gradient", "MB"), rows)
    sizes = list(next(iter(found["policies"].values())))
    rows = [(p, *(f"{r[n]:.2f}" for n in sizes)) for p, r in found["policies"].items()]
    header = ("policy", *(f"N = {n}" for n in sizes))
    yield Table("By policy: seconds per million gradients, the study's scenario", header, rows)
    starts = [(k, f"{v['wall']:.2f}", f"{v['cpu']:.2f}") for k, v in found["startup"].items()]
    yield Table("Start-up", ("", "wall (s)", "processor (s)"), starts)
    if "compiling" in found:
        rows = [(k, f"{v:.1f}") for k, v in found["compiling"].items()]
        yield Table("Compiling the engine", ("", "seconds"), rows)


def _grown(title: str, name: str, found: dict[str, Any]) -> Table:
    rows = [
        (
            f"{int(k):,}",
            f"{r['setup']:.3f}",
            f"{r['seconds']:.3f}",
            f"{r['nanoseconds']:.1f}",
            f"{r['peak_mb']:.0f}",
            f"{r['peak_mb'] - r['before_mb']:.0f}",
        )
        for k, r in found[name].items()
    ]
    header = (name, "set-up (s)", "run (s)", "ns per step", "peak (MB)", "of these its own (MB)")
    return Table(title, header, rows)


def study(found: dict[str, Any]) -> Table:
    """Where its time went."""
    rows = [
        (policy, f"{seconds:.1f}", f"{found['seconds_per_million'][policy]:.3f}")
        for policy, seconds in found["seconds"].items()
    ]
    title = f"Study: {found['gradients']:.3g} gradients, {found['wall']:.0f} s on the wall"
    return Table(title, ("policy", "processor (s)", "s per million gradients"), rows)


def show(tables: Iterable[Table]) -> None:
    """On the terminal."""
    console = Console()
    for table in tables:
        drawn = Drawn(
            title=table.title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
        )
        for k, name in enumerate(table.header):
            drawn.add_column(name, justify="right" if k else "left")
        for row in table.rows:
            drawn.add_row(*row)
        console.print(drawn)


def markdown(table: Table) -> list[str]:
    """In a page: its title, and the table."""
    marks = ("---", *("---:" for _ in table.header[1:]))
    lines = [f"| {' | '.join(row)} |" for row in (table.header, marks, *table.rows)]
    return [f"**{table.title}**", "", *lines, ""]
