"""The program of a rank that trains a shipped workload: what `simstrag ddp WORKLOAD` starts.

It is an example too: but for checkpoints and the accuracy at the end, a script needs `wrap` and
`step` only.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Training", "command", "main"]

RESULT, CHECKPOINT = "result.json", "checkpoint.pt"


@dataclass(frozen=True)
class Training:
    """What is trained, how long, and under which policy.

    samples: of all ranks together, after which it ends.  batch: of a rank.  checkpoint: after how
    many steps of this rank a checkpoint is written, 0 for none but after a failure.
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


def command(training: Training) -> list[str]:
    """The arguments by which Python runs it on a rank."""
    return ["-m", "simstrag.ddp.training", json.dumps(asdict(training))]


def main() -> None:
    """Train on this rank; the lowest writes the result."""
    from simstrag.ddp.launch import join
    from simstrag.errors import SimstragError

    try:
        train(Training(**json.loads(sys.argv[1])), join(patient=True))
    except SimstragError as error:
        print(f"error: rank {os.environ.get('RANK', '?')}: {error}", file=sys.stderr, flush=True)
        raise SystemExit(1) from None


def train(given: Training, joined: Any) -> None:
    """The training loop."""
    import torch

    from simstrag.ddp import RankFailure, wrap
    from simstrag.workloads import load

    workload = load(given.workload)
    place = torch.device("cuda" if "nccl" in joined.backend else "cpu")
    # Each rank draws batches of its own; the lowest one's weights are sent to all.
    parts = workload.build(1000 * given.seed + joined.rank)
    model = parts.model.to(place).train()
    out = None if given.out is None else Path(given.out)
    record = out if out is None or not joined.attempt else out / f"attempt-{joined.attempt}"
    trainer = wrap(
        model, parts.optimizer, given.policy, given.profile, batch=given.batch,
        samples=given.samples, precision=given.precision, out=record, joined=joined,
    )  # fmt: skip
    checkpoint = None if out is None else out / CHECKPOINT
    if checkpoint is not None and checkpoint.exists():
        trainer.load_state_dict(torch.load(checkpoint, weights_only=True))
    steps = 0

    def loss() -> torch.Tensor:
        return parts.loss(model, parts.make_batch(trainer.next_batch))

    try:
        while not trainer.over:
            trainer.step(loss)
            steps += 1
            if checkpoint is not None and given.checkpoint and steps % given.checkpoint == 0:
                _save(trainer, checkpoint, writes=joined.rank == 0)
    except RankFailure as failure:
        lowest = min(set(range(joined.world_size)) - set(failure.blame.lost))
        if checkpoint is not None:
            _save(trainer, checkpoint, writes=joined.rank == lowest)
        raise
    state = trainer.state_dict()
    if joined.rank == 0 and out is not None:
        model.load_state_dict(state["model"])
        result = {"accuracy": workload.accuracy(model), "samples": trainer.samples}
        (out / RESULT).write_text(json.dumps(result) + "\n")
    trainer.close()


def _save(trainer: Any, path: Path, writes: bool) -> None:
    """Whole or not at all; every rank takes part, for what a server holds is asked of all."""
    import torch

    state = trainer.state_dict()
    if writes:
        scratch = path.with_suffix(".part")
        torch.save(state, scratch)
        scratch.replace(path)


if __name__ == "__main__":
    main()
