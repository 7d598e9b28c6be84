"""The program of a rank that trains a workload: what `simstrag ddp WORKLOAD` starts and resumes.

It is an example too: without checkpoints and accuracy, a script needs `wrap` and `step` only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simstrag.ddp.failures.diagnosis import first_line
from simstrag.ddp.journal.journal import latest_attempt
from simstrag.documents.file_io import write_atomically, write_json
from simstrag.documents.printable import printable
from simstrag.errors import InputError
from simstrag.processes.affinity import cores
from simstrag.runs.run import check_directory

if TYPE_CHECKING:
    from torch import nn

    from simstrag.ddp.rendezvous import RankPlace
    from simstrag.ddp.replica import Replica
    from simstrag.ddp.trainer import Trainer
    from simstrag.workloads.workload import Workload

ASKED, RESULT, CHECKPOINT = "training.json", "result.json", "checkpoint.pt"
"""Files beside the record: the `Training`, its accuracy at the end, and its checkpoint."""


@dataclass(frozen=True)
class Training:
    """A workload, its length and its policy.

    samples: samples of all ranks together.
    batch: samples of the batch of a rank, or of a replica.
    shards: ranks of a replica, which shard its model.
    checkpoint: steps of a rank between two checkpoints; at 0 one is written only after a failure.
    attempt: how often the training was resumed; it goes on from a checkpoint, if there is one.
    """

    workload: str
    policy: str
    samples: int
    batch: int
    seed: int = 0
    precision: str = "auto"
    profile: str | None = None
    out: str | None = None
    checkpoint: int = 0
    attempt: int = 0
    shards: int = 1


def command(training: Training) -> list[str]:
    """The arguments with which Python runs a training on a rank."""
    return ["-m", "simstrag.ddp.workload_rank", json.dumps(asdict(training))]


def main() -> None:
    """Train on this rank; the lowest rank writes the result."""
    from simstrag.ddp.failures.diagnosis import RankFailure
    from simstrag.ddp.rendezvous import join
    from simstrag.ddp.script_rank import INTERRUPTED

    try:
        train(Training(**json.loads(sys.argv[1])), join(patient=True))
    except RankFailure as failure:
        print(
            f"error: rank {os.environ.get('RANK', '?')}: {printable(str(failure))}",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)  # an orderly exit waits seconds for a broken group
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)  # an orderly exit waits for the other ranks


def train(training: Training, joined: RankPlace) -> None:
    """The training loop."""
    import torch

    from simstrag.ddp import RankFailure, wrap
    from simstrag.ddp.rendezvous import device_of
    from simstrag.errors import SimstragError
    from simstrag.workloads import load, map_tensors

    workload = load(training.workload)
    place = torch.device(device_of(int(os.environ.get("LOCAL_RANK", "0"))))
    if place.type == "cuda":
        torch.cuda.set_device(place)
    out = None if training.out is None else Path(training.out)
    checkpoint = None if out is None else out / CHECKPOINT
    kept = checkpoint is not None and checkpoint.exists()
    # Each rank draws batches of its own, and new ones after a restart; rank 0's weights count.
    start = training.attempt + joined.attempt if kept else 0
    parts = workload.build(1_000_000 * start + 1000 * training.seed + joined.rank)
    model = parts.model.to(place).train()
    if training.shards > 1:
        from torch.distributed.device_mesh import init_device_mesh

        from simstrag.ddp.sharded.shard_workload import shard_parts

        shape = joined.world_size // training.shards, training.shards
        mesh = init_device_mesh(place.type, shape, mesh_dim_names=("replicate", "shard"))
        parts = shard_parts(parts, mesh["shard"])
    trainer = wrap(
        model, parts.optimizer, training.policy, training.profile, batch=training.batch,
        samples=training.samples, precision=training.precision,
        validation=training.workload, out=out, joined=joined,
    )  # fmt: skip
    if checkpoint is not None and kept:
        trainer.load_state_dict(torch.load(checkpoint, weights_only=True))
    steps = 0

    def loss() -> torch.Tensor:
        drawn = parts.make_batch(trainer.next_batch)
        return parts.loss(model, map_tensors(drawn, lambda tensor: tensor.to(place)))

    try:
        while not trainer.over:
            trainer.step(loss)
            steps += 1
            due = training.checkpoint and steps % training.checkpoint == 0
            if checkpoint is not None and due and (trainer.lowest or training.shards > 1):
                _save(trainer, checkpoint)
    except RankFailure as failure:
        others = set(range(trainer.world_size)) - set(failure.diagnosis.lost)
        saves = training.shards == 1 and trainer.rank == min(others, default=trainer.rank)
        if checkpoint is not None and saves:
            # The state of a server may be lost with it; the failure must still be reported.
            with contextlib.suppress(OSError, RuntimeError, SimstragError):
                _save(trainer, checkpoint)
        raise
    state = trainer.state_dict()
    if out is not None and trainer.lowest:
        model = global_model(trainer, workload, state)
        result = {"accuracy": workload.accuracy(model), "samples": trainer.samples}
        write_json(out / RESULT, result)
    trainer.close()


def global_model(trainer: Trainer, workload: Workload, state: Mapping[str, Any]) -> nn.Module:
    """The model of the job; that of a sharded replica is built anew.

    state: a checkpoint.
    """
    from simstrag.ddp.replica import Replica

    replica = trainer.replica
    if trainer.shards > 1:
        parts = workload.build()
        parts.model.to(replica.dtype)
        replica = Replica(parts.model, parts.optimizer, replica.formats, replica.clock)
    load_global_model(replica, state)
    return replica.model


def load_global_model(replica: Replica, state: Mapping[str, Any]) -> None:
    """Give a replica the model of the job, which is not its own where ranks keep models apart."""
    replica.model.load_state_dict(state["model"])
    if state["apart"] and state["outer"] is not None:  # its own model has private steps in it
        replica.spread(state["outer"]["flat"])


def _save(trainer: Trainer, path: Path) -> None:
    """Write a checkpoint atomically, on the lowest rank; none before the first step."""
    import torch

    state: dict[str, Any] = trainer.state_dict()
    if trainer.lowest and state["facts"] is not None:
        try:
            write_atomically(path, lambda part: torch.save(state, part))
        except RuntimeError as error:  # how torch says that a disk is full
            raise InputError(
                f"{path}: cannot be written, perhaps for lack of space: {first_line(error)}"
            ) from None


SAME = ("workload", "policy", "samples", "batch", "seed", "precision", "profile", "shards")
"""Fields that must be equal for a training to be resumed."""


def prepare(training: Training, folder: Path, ranks: int) -> tuple[Training, int]:
    """Prepare a folder; return the training to start there, and the samples applied before.

    A training that was stopped and has a checkpoint is resumed.  Other runs are removed.  Raises
    `InputError` where another training was stopped there, and for a folder with other files.
    """
    check_directory(folder, ASKED if (folder / ASKED).exists() else "run.json")
    request = {name: value for name, value in asdict(training).items() if name in SAME}
    if (folder / RESULT).exists() or not (folder / CHECKPOINT).exists():
        _clear(folder)
        write_json(folder / ASKED, {**request, "cores": len(cores())})
        return training, 0
    there, samples = _read_stopped(folder)
    for name, now in {**request, "ranks": ranks // training.shards}.items():
        if there.get(name, 1 if name == "shards" else None) != now:
            raise InputError(
                f"{folder}: a training with {name} {there.get(name)} was stopped there, and "
                f"{now} is asked for; ask for the same to go on, or choose another folder"
            )
    return replace(training, attempt=1 + (latest_attempt(folder) or 0)), samples


def _clear(folder: Path) -> None:
    """Remove an earlier run; a link to a folder stays."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in folder.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink()


def _read_stopped(folder: Path) -> tuple[dict[str, Any], int]:
    """The stopped training as requested, its remaining ranks, and the checkpoint's samples."""
    import torch

    path = folder / CHECKPOINT
    try:
        asked: dict[str, Any] = json.loads((folder / ASKED).read_text(encoding="utf-8"))
        state = torch.load(path, weights_only=True, mmap=True)
        return {**asked, "ranks": state["world_size"]}, state["facts"]["samples"]
    except Exception as error:  # torch raises many kinds for a file that is no checkpoint
        reason = " ".join(str(error).split())[:80]
        raise InputError(
            f"{path}: cannot be gone on from ({reason}); remove it to begin anew, or choose "
            "another folder"
        ) from None


if __name__ == "__main__":
    main()
