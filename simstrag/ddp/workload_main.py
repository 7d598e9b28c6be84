"""The program of a rank that trains a shipped workload: what `simstrag ddp WORKLOAD` starts.

It is an example too: but for checkpoints and the accuracy at the end, a script needs `wrap` and
`step` only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simstrag.ddp.record.journal import latest_attempt
from simstrag.documents.paths import write_json
from simstrag.errors import InputError
from simstrag.processes.affinity import cores
from simstrag.runs.run import check_directory

if TYPE_CHECKING:
    from simstrag.ddp.rendezvous import RankPlace
    from simstrag.ddp.trainer import Trainer

__all__ = ["ASKED", "CHECKPOINT", "RESULT", "Training", "command", "main", "prepare"]

ASKED, RESULT, CHECKPOINT = "training.json", "result.json", "checkpoint.pt"
"""Files beside the record: what was asked for, what was measured at the end."""


@dataclass(frozen=True)
class Training:
    """What is trained, how long, and under which policy.

    samples: of all ranks together, after which it ends.  batch: of a rank.  checkpoint: after how
    many steps of this rank a checkpoint is written, 0 for none but after a failure.  attempt: how
    often it was taken up; where there is a checkpoint, it goes on from that.
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


def command(training: Training) -> list[str]:
    """The arguments by which Python runs it on a rank."""
    return ["-m", "simstrag.ddp.workload_main", json.dumps(asdict(training))]


def main() -> None:
    """Train on this rank; the lowest writes the result."""
    from simstrag.ddp.failures.membership import RankFailure
    from simstrag.ddp.rank_main import INTERRUPTED
    from simstrag.ddp.rendezvous import join

    try:
        train(Training(**json.loads(sys.argv[1])), join(patient=True))
    except RankFailure as failure:
        print(f"error: rank {os.environ.get('RANK', '?')}: {failure}", file=sys.stderr, flush=True)
        os._exit(1)  # at an orderly end torch waits seconds for a group that is broken
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)  # the launcher says what is left; an orderly end waits for the others


def train(given: Training, joined: RankPlace) -> None:
    """The training loop."""
    import torch

    from simstrag.ddp import RankFailure, wrap
    from simstrag.ddp.rendezvous import device_of
    from simstrag.errors import SimstragError
    from simstrag.workloads import load, map_tensors

    workload = load(given.workload)
    place = torch.device(device_of(int(os.environ.get("LOCAL_RANK", "0"))))
    if place.type == "cuda":
        torch.cuda.set_device(place)
    out = None if given.out is None else Path(given.out)
    checkpoint = None if out is None else out / CHECKPOINT
    kept = checkpoint is not None and checkpoint.exists()
    # Each rank draws batches of its own, and others where it goes on; the lowest one's weights are
    # sent to all.
    start = given.attempt + joined.attempt if kept else 0
    parts = workload.build(1_000_000 * start + 1000 * given.seed + joined.rank)
    model = parts.model.to(place).train()
    trainer = wrap(
        model, parts.optimizer, given.policy, given.profile, batch=given.batch,
        samples=given.samples, precision=given.precision,
        out=out, joined=joined,
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
            due = given.checkpoint and steps % given.checkpoint == 0
            if checkpoint is not None and due and trainer.lowest:
                _save(trainer, checkpoint)
    except RankFailure as failure:
        others = set(range(trainer.world_size)) - set(failure.diagnosis.lost)
        if checkpoint is not None and trainer.rank == min(others, default=trainer.rank):
            # What a server held may be gone with it; the failure itself is what must be said.
            with contextlib.suppress(OSError, RuntimeError, SimstragError):
                _save(trainer, checkpoint)
        raise
    state = trainer.state_dict()
    if out is not None and trainer.lowest:
        model.load_state_dict(state["model"])
        result = {"accuracy": workload.accuracy(model), "samples": trainer.samples}
        write_json(out / RESULT, result)
    trainer.close()


def _save(trainer: Trainer, path: Path) -> None:
    """Whole or not at all; nothing where there is no policy to go on from, as before a step."""
    import torch

    state: dict[str, Any] = trainer.state_dict()
    if state["facts"] is not None:
        scratch = path.with_suffix(".part")
        torch.save(state, scratch)
        scratch.replace(path)


SAME = ("workload", "policy", "samples", "batch", "seed", "precision", "profile")
"""What must be as it was for a training to go on."""


def prepare(training: Training, folder: Path, ranks: int) -> tuple[Training, int]:
    """The training as it is to be started in a folder, and the samples that were applied before.

    One that was stopped and has a checkpoint goes on.  Whatever else a run left there makes room.
    Raises `InputError` where another training was stopped there, and where the folder is of
    something else.
    """
    check_directory(folder, ASKED if (folder / ASKED).exists() else "run.json")
    asked = {name: value for name, value in asdict(training).items() if name in SAME}
    if (folder / RESULT).exists() or not (folder / CHECKPOINT).exists():
        _clear(folder)
        write_json(folder / ASKED, {**asked, "cores": len(cores())})
        return training, 0
    there, samples = _stopped(folder)
    for name, now in {**asked, "ranks": ranks}.items():
        if there.get(name) != now:
            raise InputError(
                f"{folder}: a training with {name} {there.get(name)} was stopped there, and "
                f"{now} is asked for; ask for the same to go on, or choose another folder"
            )
    return replace(training, attempt=1 + (latest_attempt(folder) or 0)), samples


def _clear(folder: Path) -> None:
    """An earlier run makes room; a link to a folder stays one."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in folder.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink()


def _stopped(folder: Path) -> tuple[dict[str, Any], int]:
    """What was asked for, with the ranks that were left, and samples applied at the checkpoint."""
    import torch

    path = folder / CHECKPOINT
    try:
        asked: dict[str, Any] = json.loads((folder / ASKED).read_text(encoding="utf-8"))
        state = torch.load(path, weights_only=True, mmap=True)
        return {**asked, "ranks": state["world_size"]}, state["facts"]["samples"]
    except Exception as error:  # whatever torch says of a file that is no checkpoint
        said = " ".join(str(error).split())[:80]
        raise InputError(
            f"{path}: cannot be gone on from ({said}); remove it to begin anew, or choose another "
            "folder"
        ) from None


if __name__ == "__main__":
    main()
