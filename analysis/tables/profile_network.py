"""Tables of a profile's communication: all-reduces, their fits, the server, what backward hides."""

from __future__ import annotations

from collections.abc import Iterator

from simstrag.analysis.text.profile_text import MS, Table, bytes_of, ranks_of, shown, span, worst
from simstrag.profile.measurements import CollectiveCell
from simstrag.profile.profile import Profile

__all__ = ["collective_fits", "collectives", "locksteps", "overlaps", "transfers"]


def collectives(profile: Profile) -> Iterator[Table]:
    """One table per backend and load: a row per size, a column per number and group of ranks."""
    kinds = dict.fromkeys((c.backend, c.load, c.level) for c in profile.collectives)
    for backend, load, level in kinds:
        cells = [
            c for c in profile.collectives if (c.backend, c.load, c.level) == (backend, load, level)
        ]
        whom = dict.fromkeys((c.ranks, c.group) for c in cells)
        found = {(c.bytes, c.ranks, c.group): c for c in cells}
        over = {(c.ranks, c.group) for c in cells if c.oversubscribed}
        rows = [
            [bytes_of(size), *(_collective(found.get((size, *ranks))) for ranks in whom)]
            for size in sorted({c.bytes for c in cells})
        ]
        headers = [
            "bytes",
            *(ranks_of(*of) + (" **" if of in over else "") + " (ms)" for of in whom),
        ]
        latest = "Median from the latest start to the latest end of the members."
        notes = [latest] if profile.origin == "measured" else []
        notes += ["* held out of the fit."] if any(c.held_out for c in cells) else []
        notes += ["** more ranks than cores: the scheduler's time too."] if over else []
        beside = f", beside load {load} {level:g}" if load else ""
        least = tuple(reversed(headers[2:]))
        yield Table(
            f"All-reduce, {backend}{beside}",
            headers,
            rows,
            (" ".join(notes),) if notes else (),
            0,
            least,
        )


def _collective(cell: CollectiveCell | None) -> str:
    return "" if cell is None else shown(cell.seconds, MS) + (" *" if cell.held_out else "")


def collective_fits(profile: Profile) -> Table:
    """Constants of the formulas, and how far they are off."""
    rows = []
    for fit in profile.collective_fits:
        most = max(fit.residuals, key=lambda r: abs(r.error), default=None)
        at = "" if most is None else f" at {most.ranks} ranks, {bytes_of(most.bytes)}"
        rows.append([
            fit.backend, fit.algorithm, ranks_of(span(fit.ranks), fit.group),
            f"{bytes_of(fit.smallest)} to {bytes_of(fit.largest)}", shown(fit.alpha, 1e6),
            shown(fit.bandwidth, 1e-9), worst([r.error for r in fit.residuals]) + at,
        ])  # fmt: skip
    headers = ["backend", "algorithm", "ranks", "sizes", "alpha (µs)", "bandwidth (GB/s)",
               "off by at most (%)"]  # fmt: skip
    notes = tuple(dict.fromkeys(fit.note for fit in profile.collective_fits if fit.note))
    return Table("All-reduce: fits", headers, rows, notes, wraps=6, least=("backend", "sizes"))


SERVED = (
    "With ranks: those that train the workload under the server of simstrag.ddp, whose books and "
    "optimizer are in the service. Without: bytes moved over TCP, one worker."
)


def transfers(profile: Profile) -> Table:
    """The parameter server."""
    rows = [
        [
            bytes_of(t.bytes),
            str(t.ranks or ""),
            *(shown(each, MS) for each in (t.push, t.service, t.pull)),
            "" if t.slowdown is None else shown(t.slowdown),
        ]
        for t in profile.transfers
    ]
    headers = ["bytes", "ranks", "push (ms)", "service (ms)", "pull (ms)", "step slower"]
    notes = (SERVED,) if any(t.ranks for t in profile.transfers) else ()
    return Table("Parameter server", headers, rows, notes)


def overlaps(profile: Profile) -> Table:
    """What backward hides of an all-reduce."""
    rows = [
        [o.backend, str(o.ranks), o.precision, str(o.batch), bytes_of(o.bytes), shown(o.overlap)]
        for o in profile.overlaps
    ]
    headers = ["backend", "ranks", "precision", "batch", "bytes", "share hidden"]
    return Table("All-reduce hidden by backward", headers, rows)


def locksteps(profile: Profile) -> Table:
    """Ranks that train together under DDP."""
    rows = [
        [
            str(each.ranks), each.precision, str(each.batch),
            f"{each.load} {each.level:g}" if each.load else "none", shown(each.rest, MS),
            *("" if q is None else shown(q) for q in (each.slowdown, each.interference)),
        ]
        for each in profile.locksteps
    ]  # fmt: skip
    headers = ["ranks", "precision", "batch", "load on a core", "rest (ms)", "step slower",
               "bare step slower"]  # fmt: skip
    note = (
        "Rest: from the slowest rank's last gradient to the next step. Step slower: times as long "
        "among the ranks as alone on its core, beside load as among them without it; bare: on all "
        "their cores at once, without DDP."
    )
    return Table("Ranks in lockstep", headers, rows, (note,))
