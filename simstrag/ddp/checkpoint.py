"""What a training is taken up from: one dict, which `torch.save` writes."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simstrag.ddp.record.journal import facts_from_json, facts_to_json, latest_attempt
from simstrag.ddp.workload_main import ASKED, CHECKPOINT, RESULT, Training
from simstrag.documents.paths import write_json
from simstrag.errors import InputError
from simstrag.processes.affinity import cores
from simstrag.runs.run import check_directory

if TYPE_CHECKING:
    import torch

    from simstrag.ddp.replica import Replica
    from simstrag.ddp.sampler import ShareSampler
    from simstrag.engine.live import Facts
    from simstrag.policy import Policy

__all__ = ["from_checkpoint", "prepare", "to_checkpoint"]

FORMAT = "simstrag-training/1"


def to_checkpoint(
    replica: Replica,
    name: str,
    world_size: int,
    sampler: ShareSampler | None,
    policy: Policy,
    facts: Facts | None,
    served: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All there is to go on from.

    name: of the policy.  served: parameters, shape (count,), and optimizer state of a server that
    owns them; the rank's own stay as they are, for its next gradient is booked as computed there.
    """
    if served is None:
        model, optimizer = replica.model.state_dict(), replica.optimizer.state_dict()
    else:
        model, optimizer = _with(replica, served["parameters"]), served["optimizer"]
    return {
        "format": FORMAT, "name": name, "world_size": world_size,
        "model": model, "optimizer": optimizer, "formats": replica.formats.state_dict(),
        "sampler": None if sampler is None else sampler.state_dict(),
        "policy": pickle.dumps(policy),
        "facts": None if facts is None else facts_to_json(facts),
    }  # fmt: skip


def from_checkpoint(
    state: Mapping[str, Any],
    replica: Replica,
    name: str,
    world_size: int,
    sampler: ShareSampler | None,
) -> tuple[Policy, Facts | None]:
    """Fill model, optimizer, formats and sampler; the policy and its books.

    Raises `InputError` where the checkpoint is of another policy or of another number of ranks.
    """
    for word, here in (("format", FORMAT), ("name", name), ("world_size", world_size)):
        if state.get(word) != here:
            raise InputError(f"the checkpoint's {word} is {state.get(word)!r}, here it is {here!r}")
    if (sampler is None) != (state["sampler"] is None):
        raise InputError(
            "the checkpoint is of a training "
            + ("without a ShareSampler" if sampler is not None else "with a ShareSampler")
            + "; give wrap() the same arguments as then"
        )
    replica.model.load_state_dict(state["model"])
    replica.optimizer.load_state_dict(state["optimizer"])
    replica.formats.load_state_dict(state["formats"])
    if sampler is not None:
        sampler.load_state_dict(state["sampler"])
    facts = state["facts"]
    return pickle.loads(state["policy"]), None if facts is None else facts_from_json(facts)


def _with(replica: Replica, flat: torch.Tensor) -> dict[str, Any]:
    """The model's state with these parameters; the model is afterwards as it was."""
    import torch

    before = torch.cat([each.detach().reshape(-1) for each in replica.parameters])
    replica.spread(flat)
    try:
        return copy.deepcopy(replica.model.state_dict())
    finally:
        replica.spread(before)


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
