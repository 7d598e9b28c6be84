"""What this project aims at, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.tables import Table, megas

__all__ = ["Aim", "aims", "table"]


class Aim(NamedTuple):
    """One figure: what it should be, what it is, and whether it is met."""

    what: str
    goal: str
    measured: str
    met: bool


def table(results: dict[str, Any]) -> Table:
    """All of those that were measured."""
    rows = [(a.what, a.goal, a.measured, "met" if a.met else "missed") for a in aims(results)]
    return Table("Aims", ("figure", "aim", "measured", ""), rows)


def aims(results: dict[str, Any]) -> Iterator[Aim]:
    """Of speed, of cost, of the study; one that was scaled down says nothing of it."""
    if "ratios" in results:
        yield from _speed(results, "no noise")
    if results.get("noisy", {}).get("ratios"):
        yield from _speed(results["noisy"], "noise")
    cost = results.get("cost", {})
    for noise, sizes in cost.get("breakpoints", {}).items():
        for n, seconds in sizes.items():
            ratio = seconds["1000"] / seconds["0"]
            what = f"1,000 breakpoints per worker over 10,000 updates, N = {n}, noise: {noise}"
            yield Aim(what, "< 1.5 x none", f"{ratio:.2f} x", ratio < 1.5)
    if results.get("study", {}).get("scale") == 1:
        study = results["study"]
        what = f"study of {study['gradients']:.3g} gradients on {study['jobs']} processes"
        yield Aim(what, "< 300 s", f"{study['wall']:.0f} s", study["wall"] < 300)
    for name, what in (("help", "simstrag --help"), ("import", "import simstrag")):
        if "startup" in cost:
            wall = cost["startup"][name]["wall"]
            yield Aim(what, "< 0.3 s", f"{wall:.2f} s", wall < 0.3)
    peak = cost.get("workers", {}).get("65536", {}).get("peak_mb")
    if peak is not None:
        yield Aim(
            "memory of 65,536 workers x 1,000 updates, bsp",
            "< 400 MB",
            f"{peak:.0f} MB",
            peak < 400,
        )


def _speed(results: dict[str, Any], noise: str) -> Iterator[Aim]:
    ratios, rates = results["ratios"], results["rates"]
    for n, least in (("8", 200), ("4096", 500)):
        if n in ratios["bsp"]:
            yield _times(f"bsp, N = {n}, {noise}", ratios["bsp"][n]["a"], least)
    for policy in ("asgd", "cgp", "backup"):
        n, worst = min(((n, r["a"]) for n, r in ratios[policy].items()), key=lambda pair: pair[1])
        yield _times(f"{policy}, least at N = {n}, {noise}", worst, 50)
    own = {policy: {n: r["engine"] for n, r in sizes.items()} for policy, sizes in rates.items()}
    if "8" in own["korel"]:
        reviews = own["korel"]["8"] / 8
        yield Aim(
            f"korel, N = 8, {noise}", ">= 20k updates/s", megas(reviews) + "/s", reviews >= 20e3
        )
    if "4096" in own["korel"]:
        rate = own["korel"]["4096"]
        yield Aim(f"korel, N = 4096, {noise}", ">= 20M steps/s", megas(rate) + "/s", rate >= 20e6)
    n, worst = max(
        ((n, rate / own["ssp"][n]) for n, rate in own["asgd"].items()), key=lambda pair: pair[1]
    )
    yield Aim(f"ssp, worst at N = {n}, {noise}", "< 2 x asgd's time", f"{worst:.2f} x", worst < 2)


def _times(what: str, ratio: float, least: float) -> Aim:
    return Aim(what, f">= {least:g} x (a)", f"{ratio:.0f} x", ratio >= least)
