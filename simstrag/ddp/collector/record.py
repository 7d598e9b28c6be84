"""`record`: who computed and who waited for whom in a distributed script, from two lines in it.

    model = DistributedDataParallel(model)          # or fully_shard(model)
    simstrag.ddp.record(model, out="runs/record")   # simstrag diagnose runs/record

Every rank writes `rank-R.csv` (rank, step, stage, seconds, and group where it has several), which
`simstrag diagnose` reads.  The ranks of a group leave a collective together, so that steps are
aligned there, and no clocks are compared.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import math
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store
from torch.nn.parallel import DistributedDataParallel

from simstrag.ddp import plain_collectives
from simstrag.ddp.collector.group_waits import GroupWaits
from simstrag.ddp.collector.groups import (
    GroupLabels,
    describe_mesh,
    has_one_group,
    meshes_of,
    wrapper_of,
)
from simstrag.ddp.collector.hooks import attach
from simstrag.ddp.collector.own_collectives import mark_collectives
from simstrag.ddp.collector.stand_ins import StandIns
from simstrag.ddp.collector.step_marks import StepMarks, StepSeconds
from simstrag.ddp.failures.diagnosis import warn
from simstrag.ddp.failures.slow_ranks import SlowRankDetector
from simstrag.ddp.local_step_timer import measure_cores_per_rank, shared_core_clock
from simstrag.documents.file_io import refuse_file, write_atomically
from simstrag.documents.job_mesh import JobMesh
from simstrag.errors import InputError
from simstrag.workloads.clocks import Clock, CudaClock, HostClock

HEADER, GROUPED_HEADER = "rank,step,stage,seconds\n", "rank,step,stage,seconds,group\n"
BEFORE, PART = "optimizer-and-input", ("compute", "all-reduce")
"""Stages of a step; those of `PART` have numbers where the rank waits more than once."""
META = "meta.yaml"
PAUSE = 1.0
"""Seconds after which the steps so far are written, and perhaps sent."""
SENT = 200
"""Latest steps of a rank that rank 0 can see."""


def record(
    model: nn.Module,
    out: str | Path | None = None,
    *,
    look_every: float = 10.0,
    mesh: DeviceMesh | None = None,
) -> StepRecorder:
    """Record the steps of a wrapped model until the script ends; every rank calls this.

    model: in `DistributedDataParallel`, `fully_shard` or `parallelize_module`, on any mesh.
    out: a new folder for the record; without one, slow ranks are named and nothing is written.
    look_every: seconds between two looks of rank 0 at all ranks, for a slow one; 0: none.
    mesh: of the job, where parameters do not show it: for a stage of a pipeline.

    Under one group of all ranks a step ends with its last gradient collective: a backward that
    reduces gradients ends it, and under FSDP2 on a device every backward.  Where ranks wait in
    several groups, it ends when the model's optimizer steps.  In these cases seconds of waiting
    count as computing: DDP's broadcast of buffers at the start of the forward, and collectives of
    the script's own that are asynchronous, functional, or not of all ranks.  Waits of an evaluation
    between steps, under `torch.no_grad()`, are none of the next step's.

    A disk that is full or a store that is lost ends the record with a warning, not the training.
    Raises `InputError` for a model without a wrapper and mesh, and for a folder that has a record.
    """
    if not dist.is_initialized():
        raise InputError("record() needs a process group: call init_process_group() before it")
    if not look_every >= 0:
        raise InputError(f"look_every is {look_every!r}; give seconds, 0 or more")
    return StepRecorder(model, None if out is None else Path(out), look_every, mesh)


class StepRecorder:
    """The record of one rank; `close` ends it, and the end of the script does."""

    def __init__(
        self, model: nn.Module, folder: Path | None, look_every: float, mesh: DeviceMesh | None
    ) -> None:
        self.rank, world = dist.get_rank(), dist.get_world_size()
        wrapper, device = wrapper_of(model, mesh), next(model.parameters()).device
        clock = _clock(model, device)
        pause = min(PAUSE, look_every or PAUSE)
        self._marks = StepMarks(clock, pause=pause)
        self._waits = StandIns()
        is_one, meshes = mesh is None and has_one_group(model), list[DeviceMesh]()
        if not is_one:
            meshes = [*([] if mesh is None else [mesh]), *meshes_of(model)]
        whole = describe_mesh(meshes)
        self._file = None if folder is None else StepFile(folder, self.rank, not is_one)
        self._looks: Looks | None = None
        try:
            if folder is not None and self.rank == 0:
                _write_meta(folder / META, wrapper, world, device, clock.reason, whole)
            if look_every and world > 1:
                stages = {} if whole is None else whole.stage_of()
                self._looks = Looks(self.rank, world, look_every, pause, device, stages)
            if is_one:
                attach(model, self._marks)
                mark_collectives(self._marks, self._waits)
            else:
                GroupWaits(model, self._marks, GroupLabels(meshes), self._waits)
        except BaseException:
            self._end()
            raise
        self._latest: StepSeconds | None = None
        self._marks.on_end = self._collect
        atexit.register(self.close)

    def latest(self) -> StepSeconds | None:
        """The newest step of this rank that has come to its end; None in the first ones."""
        return self._marks.newest() or self._latest

    def slowest(self) -> tuple[int, float] | None:
        """The slowest rank, and its computing over its peers', at the last look of rank 0.

        None where the tests call no rank chronically slow, and on all other ranks.
        """
        return None if self._looks is None else self._looks.slowest()

    def close(self) -> None:
        """Write what is known, and record no further step."""
        atexit.unregister(self.close)
        try:
            self._collect()
        finally:
            self._end()

    def _end(self) -> None:
        self._marks.stop()
        self._waits.close()
        self._write(StepFile.close)
        self._file = self._looks = None

    def __enter__(self) -> StepRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _collect(self) -> None:
        """Write and send the steps that are known; what fails there is given up."""
        steps = list(self._marks.known())
        self._latest = steps[-1] if steps else self._latest
        self._write(lambda file: file.add(steps))
        try:
            if self._looks is not None:
                self._looks.add(steps)
        except (RuntimeError, ValueError) as error:  # torch.distributed's errors are the former
            warn(f"slow ranks are no longer looked for: {str(error).splitlines()[0]}")
            self._looks = None

    def _write(self, what: Callable[[StepFile], None]) -> None:
        try:
            if self._file is not None:
                what(self._file)
        except OSError as error:
            warn(f"{self._file}: the record of rank {self.rank} ends: {error.strerror}")
            self._file = None


def _clock(model: nn.Module, device: torch.device) -> Clock:
    if device.type == "cuda":
        return CudaClock()
    if not isinstance(model, DistributedDataParallel):  # nothing is sent beside computing
        return HostClock("collectives block the rank: wall clock as it is")
    return shared_core_clock(measure_cores_per_rank())


class StepFile:
    """The file of one rank."""

    def __init__(self, folder: Path, rank: int, has_groups: bool = False) -> None:
        self.path, self._rank = folder / f"rank-{rank}.csv", rank
        self._has_groups = has_groups
        refuse_file(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("xb", buffering=0)
            self._write(GROUPED_HEADER if has_groups else HEADER)
        except FileExistsError:
            raise InputError(
                f"{self.path}: a job was recorded there; choose another folder"
            ) from None
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror}") from None

    def __str__(self) -> str:
        return str(self.path)

    def add(self, steps: list[StepSeconds]) -> None:
        """Append the rows of these steps."""
        self._write("".join(
            (self._template(each) % (each.before, *itertools.chain(*each.parts)))
            .replace("@", str(each.step))
            for each in steps
        ))  # fmt: skip

    def _template(self, each: StepSeconds) -> str:
        parts = len(each.parts)
        groups = (each.groups or ("",) * parts) if self._has_groups else ()
        return _template(self._rank, parts, groups)

    def _write(self, text: str) -> None:
        rest = text.encode()
        try:
            while rest:
                rest = rest[self._file.write(rest) :]  # a disk that fills up takes a part
        except OSError:
            self._file.close()
            raise

    def close(self) -> None:
        self._file.close()


@functools.lru_cache(64)
def _template(rank: int, parts: int, groups: tuple[str, ...] = ()) -> str:
    """The rows of a step, with `@` for its number; made once, because it takes time.

    groups: of the collectives, for a file that has a column for them.
    """
    numbers = [""] if parts == 1 else [f"-{k}" for k in range(1, parts + 1)]
    stages = [BEFORE, *(f"{stage}{number}" for number in numbers for stage in PART)]
    ends = [""] * len(stages)
    if groups:
        ends = [",", *(end for group in groups for end in (",", f",{group}"))]
    return "".join(f"{rank},@,{s},%.6f{end}\n" for s, end in zip(stages, ends, strict=True))


class Looks:
    """Rank 0's looks at the latest steps of all ranks, through the store of the process group.

    A rank sets one key from time to time, which waits for nothing; no collective is added.

    stages: of a pipeline, by rank: ranks of a stage do the same work and are compared.
    """

    def __init__(
        self,
        rank: int,
        world: int,
        every: float,
        pause: float,
        device: torch.device,
        stages: Mapping[int, int] | None = None,
    ) -> None:
        # a restart, or another model of the script, has other keys
        own = plain_collectives.broadcast(uuid.uuid4().hex, device=device)
        self._store = PrefixStore(f"simstrag record {own}", _get_default_store())
        self._rank, self._keys = rank, [str(k) for k in range(world)]
        self._every, self._pause = every, pause
        self._set(b"")
        dist.barrier()
        self._stage = [(stages or {}).get(k, 0) for k in range(world)]
        self._slow = [SlowRankDetector() for _ in range(1 + max(self._stage))] if rank == 0 else []
        self._latest: deque[tuple[int, float]] = deque(maxlen=SENT)
        self._seen, self._next = -1, time.monotonic() + every
        self._sent: dict[int, float] = {}
        self._look_at = math.inf

    def add(self, steps: list[StepSeconds]) -> None:
        """Take in steps; at the time for it, send them; rank 0 looks once all have done so.

        All ranks count their times to send from the same barrier, so that they send about the same
        steps.
        """
        self._latest.extend((each.step, each.own) for each in steps)
        now = time.monotonic()
        if now >= self._next:
            self._next += self._every * (1 + (now - self._next) // self._every)
            self._set(np.array(self._latest).tobytes())
            if self._slow and self._look_at == math.inf:
                self._sent, self._look_at = dict(self._latest), now + 2 * self._pause
        if self._slow and now >= self._look_at:
            self._look_at = math.inf
            self._look()

    def slowest(self) -> tuple[int, float] | None:
        """The rank that was slowest at the last look, and its factor; see `SlowRankDetector`."""
        slow = [found for each in self._slow if (found := each.slowest()) is not None]
        return max(slow, key=lambda found: found[1], default=None)

    def _look(self) -> None:
        sent = [np.frombuffer(each) for each in self._store.multi_get(self._keys[1:])]
        seconds = [
            self._sent,
            *(dict(zip(own[::2].astype(int).tolist(), own[1::2], strict=True)) for own in sent),
        ]
        common = set(seconds[0]).intersection(*seconds)
        new = sorted(step for step in common if step > self._seen)
        for stage, slow in enumerate(self._slow):
            slow.extend(
                (rank, step, float(own[step]))
                for step in new
                for rank, own in enumerate(seconds)
                if self._stage[rank] == stage
            )
        self._seen = max(new, default=self._seen)

    def _set(self, value: bytes) -> None:
        self._store.set(str(self._rank), value)  # type: ignore[arg-type]  # bytes will do


def _write_meta(
    path: Path, wrapper: str, world: int, device: torch.device, clock: str, mesh: JobMesh | None
) -> None:
    """Write what the files of ranks do not say."""
    lines = {
        "world_size": world, "wrapper": wrapper, "backend": dist.get_backend(),
        "device": device.type, "torch": torch.__version__, "clock": clock,
    }  # fmt: skip
    text = "".join(f"{name}: {value}\n" for name, value in lines.items())
    text += "" if mesh is None else mesh.lines()
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))
