"""`record_command`: runs any command and records its ranks, without a line of it changed.

    record_command(["torchrun", "--nproc-per-node", "2", "train.py"], "runs/job")

The ranks find `startup/sitecustomize.py` on their PYTHONPATH; `in_process` goes on there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from simstrag.ddp.frameworks.in_process import NOTES, OUT, attempt_folder
from simstrag.ddp.frameworks.record_folder import has_record, require_new
from simstrag.errors import InputError
from simstrag.processes.signals import STOP_SIGNALS

STARTUP = Path(__file__).parent / "startup"
REASONS = {
    "warned": "the warning above says why",
    "bare": "no rank trained a model in DistributedDataParallel, fully_shard() or Megatron's DDP; "
    "FSDP1 and DeepSpeed are not recorded",
    "torch": "no process trained beside others; start several ranks, as with torchrun",
    "": "no process imported torch; PYTHONPATH must reach it, so not python -I or -E",
}
"""Why nothing was recorded, by the farthest that a process came; the first that fits counts."""


@dataclass(frozen=True, slots=True)
class RecordedCommand:
    """The end of a command, and its record.

    code: its exit code; 128 + n if signal n ended it.
    folder: of the record, that of the last attempt if torchrun restarted the job; None: nothing.
    reason: why there is none, in one line.
    """

    code: int
    folder: Path | None
    reason: str = ""


def record_command(command: Sequence[str], out: str | Path) -> RecordedCommand:
    """Run a command to its end, and record the first model that its ranks train together.

    command: words, such as `["torchrun", "--nproc-per-node", "2", "train.py"]`.
    out: a new folder for the record.

    Stop signals go on to the command.  Raises `InputError` for a folder that has a record, and for
    a command that does not exist.
    """
    folder = Path(out).absolute()
    require_new(folder)
    with tempfile.TemporaryDirectory(prefix="simstrag-") as scratch:
        notes = Path(scratch) / "notes"
        code = _run(command, {
            **os.environ,
            OUT: str(folder), NOTES: str(notes),
            "PYTHONPATH": os.pathsep.join(filter(None, [
                str(STARTUP), os.environ.get("PYTHONPATH", ""),
            ])),
        })  # fmt: skip
        found = set(notes.read_text(encoding="utf-8").split()) if notes.exists() else set()
    attempts = range(1 + sum(1 for _ in folder.glob("attempt-*")))
    for last in (attempt_folder(folder, restarts) for restarts in reversed(attempts)):
        if has_record(last):
            return RecordedCommand(code, Path(out) / last.relative_to(folder))
    with contextlib.suppress(OSError):
        folder.rmdir()  # if a rank made it and could not go on
    reason = next(text for word, text in REASONS.items() if not word or word in found)
    return RecordedCommand(code, None, reason)


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise InputError(f"{command[0]}: cannot be started: {error.strerror}") from None
    with _pass_on(process):
        code = process.wait()
    return 128 - code if code < 0 else code


@contextlib.contextmanager
def _pass_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Stop signals go to the command inside; Ctrl-C of a terminal has reached it already."""

    def send(number: int, _: FrameType | None) -> None:
        if number != signal.SIGINT or not _is_in_foreground():
            process.send_signal(number)

    before = {
        number: signal.signal(number, send)
        for number in STOP_SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_in_foreground() -> bool:
    """Whether a terminal sends Ctrl-C to this process and its children alike."""
    if sys.platform == "win32":
        return True
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
