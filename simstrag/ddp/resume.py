"""Beginning a training in a folder, or going on with one that was stopped there."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from simstrag.ddp.record.journal import latest
from simstrag.ddp.workload_main import ASKED, CHECKPOINT, RESULT, Training
from simstrag.documents.paths import write_json
from simstrag.errors import InputError
from simstrag.processes.affinity import cores
from simstrag.runs.run import check_directory

__all__ = ["begun"]

SAME = ("workload", "policy", "samples", "batch", "seed", "precision", "profile")
"""What must be as it was for a training to go on."""


def begun(training: Training, folder: Path, ranks: int) -> tuple[Training, int]:
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
    return replace(training, attempt=1 + (latest(folder) or 0)), samples


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
