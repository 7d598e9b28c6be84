"""What happens in the processes of `simstrag record`: each waits for torch, and then for a model.

A process that never imports torch pays for one look at each of its imports.  Whatever fails here is
one warning, and never an error of the program.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

OUT = "SIMSTRAG_RECORD"
"""Environment variable: the folder of the record."""
NOTES = "SIMSTRAG_RECORD_NOTES"
"""Environment variable: a file to which processes without a record append why."""
RESTARTS = "TORCHELASTIC_RESTART_COUNT"


def wait_for_torch() -> None:
    """Look for a model once the program has imported torch."""
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _TorchFinder(_record))


def attempt_folder(out: Path, restarts: int) -> Path:
    """The folder of a job that torchrun has started again.

    >>> attempt_folder(Path("runs/job"), 2).as_posix()
    'runs/job/attempt-2'
    """
    return out / f"attempt-{restarts}" if restarts else out


def note(line: str) -> None:
    """Tell `simstrag record` how far this process came, unless that has ended before it."""
    with contextlib.suppress(OSError), open(os.environ[NOTES], "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


class _TorchFinder:
    """Finds torch as others do, and calls a function after torch has been executed."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Any) -> None:
        execute = loader.exec_module

        def execute_and_follow(module: ModuleType) -> None:
            execute(module)
            self._then()

        loader.exec_module = execute_and_follow


def _record() -> None:
    try:
        note("torch")
        from simstrag.ddp.frameworks.first_model import NO_WRAPPER, FirstModelRecorder

        folder = attempt_folder(Path(os.environ[OUT]), int(os.environ.get(RESTARTS, "0")))
        recorder = FirstModelRecorder(folder)
    except Exception as error:  # of ours: the program goes on
        print(f"warning: nothing is recorded: {error}", file=sys.stderr, flush=True)
        return
    process = os.getpid()

    def end() -> None:
        if os.getpid() == process and recorder.recorder is None:
            note({NO_WRAPPER: "bare", "": "warned"}.get(recorder.reason, "torch"))

    atexit.register(end)
