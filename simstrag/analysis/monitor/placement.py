"""Where advice may be computed beside a run: on cores on which none of its ranks trains.

The ranks are found by the files that they hold open in the folders of the run (Linux).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from simstrag.ddp.journal.journal import NAME
from simstrag.processes.affinity import cores

CROWDED = (
    "every core trains, so what would help is computed when the run is over; "
    "simstrag diagnose says it on another machine"
)
UNSEEN = (
    "no rank of this run is found among the processes here, so what would help is computed when it "
    "is over; simstrag diagnose says it now"
)
UNPINNED = "ranks are not pinned, so what would help is computed at the lowest priority"


class AdvicePlacement(NamedTuple):
    """The cores that compute advice.

    cores: on which it may run; none where every core trains, or may train.
    note: what there is to say of it.
    """

    cores: tuple[int, ...]
    note: str = ""


def place(folders: Sequence[Path]) -> AdvicePlacement:
    """The cores that no rank of a run needs.

    >>> place([]).note == UNSEEN
    True
    """
    return choose(cores(), [_affinity(process) for process in rank_processes(folders)])


def choose(allowed: Sequence[int], ranks: Sequence[frozenset[int]]) -> AdvicePlacement:
    """The cores of advice, of those that are allowed.

    ranks: the cores that each rank on this machine may use.

    >>> choose([0, 1, 2], [frozenset({0}), frozenset({1})]).cores
    (2,)
    """
    if not ranks:
        return AdvicePlacement((), UNSEEN)
    everywhere = frozenset(allowed)
    pinned = [own for own in ranks if not own >= everywhere]
    free = everywhere.difference(*pinned)
    if len(pinned) == len(ranks) and free:
        return AdvicePlacement(tuple(sorted(free)))
    if len(ranks) - len(pinned) < len(free):  # the others are somewhere among these
        return AdvicePlacement(tuple(sorted(free)), UNPINNED)
    return AdvicePlacement((), CROWDED)


def _affinity(process: int) -> frozenset[int]:
    try:
        return frozenset(os.sched_getaffinity(process))
    except OSError:  # it has just ended
        return frozenset()


def rank_processes(folders: Sequence[Path]) -> list[int]:
    """The processes of a run's ranks on this machine."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    others = [each for each in Path("/proc").glob("[0-9]*") if each.name != str(os.getpid())]
    files = {int(each.name): name for each in others if (name := _written(each, folders))}
    return sorted({*files, *_siblings(k for k, name in files.items() if name == NAME)})


def _written(process: Path, folders: Sequence[Path]) -> str:
    """The name of a file of these folders that a process has open for writing; empty for none."""
    inside = [f"{folder.resolve()}{os.sep}" for folder in folders]
    try:
        for each in (process / "fd").iterdir():
            name = os.readlink(each)
            if any(map(name.startswith, inside)) and (
                Path(name).name == NAME or Path(name).name.startswith("rank-")
            ):
                flags = (process / "fdinfo" / each.name).read_text().partition("flags:")[2]
                if int(flags.split()[0], 8) & os.O_ACCMODE != os.O_RDONLY:
                    return Path(name).name
    except (OSError, ValueError, IndexError):  # of another user, or it has just ended
        return ""
    return ""


def _siblings(writers: Iterable[int]) -> set[int]:
    """Processes of the same launcher: only the lowest rank writes the journal of a run."""
    import psutil

    found = set[int]()
    for process in writers:
        try:
            parent = psutil.Process(process).parent()
            if parent is not None and parent.pid > 1:
                found |= {each.pid for each in parent.children()} - {os.getpid()}
        except psutil.Error:
            continue
    return found
