"""The journals of a training on real ranks: in which folder each is, and how it begins."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from simstrag.ddp import plain_collectives
from simstrag.ddp.journal.journal import Journal, attempt_folder, facts_to_json, latest_attempt
from simstrag.processes.affinity import cores_of_all
from simstrag.workloads.device import describe_device

if TYPE_CHECKING:
    from simstrag.ddp.rank_setup import RankSetup
    from simstrag.engine.live import Facts


class TrainingJournal:
    """The journal that the lowest rank keeps: a new one at each start, and in each smaller world.

    folder: of the present journal; None records nothing.
    """

    def __init__(self, setup: RankSetup) -> None:
        self._setup = setup
        self.folder = self._start = setup.out
        self._journal: Journal | None = None

    @property
    def note(self) -> Callable[..., None] | None:
        """Records an event; None on a rank that keeps no journal."""
        return None if self._journal is None else self._journal.note

    def choose_folder(self, resumed: bool) -> None:
        """The lowest rank looks which subfolder a later start has, for all ranks; collective.

        resumed: whether the training goes on from a checkpoint.
        """
        members = self._setup.members
        again = resumed or (members.joined is not None and members.joined.attempt > 0)
        if members.rank == 0 and self.folder is not None and again:
            before = latest_attempt(self.folder)
            if before is not None:
                self.folder = attempt_folder(self.folder, before + 1)
        place = plain_collectives.broadcast(None if self.folder is None else str(self.folder))
        self.folder = self._start = None if place is None else Path(place)

    def begin(self, facts: Facts | None, generation: int = 0) -> None:
        """Begin a journal on the lowest rank, and end that of a larger world.

        facts: which the training goes on from.
        """
        self.close()
        if self._start is not None and generation:  # a smaller world records in a subfolder
            self.folder = self._start / f"generation-{generation}"
        setup, replica = self._setup, self._setup.replica
        if self.folder is None or setup.members.rank > 0:
            return
        formats, place = replica.formats, replica.parameters[0].device
        self._journal = Journal(self.folder, {
            "policy": setup.name, "world_size": setup.world.world_size, "batch": setup.batch,
            "hints": dataclasses.asdict(setup.hints), "precision": formats.label,
            "gain": formats.gain, "clock": replica.clock.reason,
            "backend": dist.get_backend(), "began": time.time(),
            "software": {"torch": torch.__version__}, "cores": len(cores_of_all()),
            "device": describe_device("cpu" if place.type == "cpu" else str(place)),
            "facts": None if facts is None else facts_to_json(facts),
        })  # fmt: skip

    def close(self) -> None:
        """End the journal."""
        if self._journal is not None:
            self._journal.close()
        self._journal = None
