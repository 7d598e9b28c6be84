"""The demo: the scenario that ships with simstrag, with its trace and profile, for you to edit."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from simstrag.documents.file_io import refuse_file, write_atomically
from simstrag.errors import InputError
from simstrag.scenario.scenario import DEMO, Scenario


def copy_demo(folder: Path) -> Path:
    """Copy the demo's scenario, trace and profile to a folder; returns the scenario's path.

    Raises `InputError` where the folder holds other files, or a copy that was edited.
    """
    refuse_file(folder)
    contents = _contents()
    if folder.is_dir() and any(folder.iterdir()) and not (folder / DEMO.name).exists():
        raise InputError(f"{folder}: holds other files; choose a folder that does not exist yet")
    for name, data in contents.items():
        path = folder / name
        if path.exists() and path.read_bytes() != data:
            raise InputError(
                f"{path}: is not the demo's any more; run simstrag compare {folder / DEMO.name}, "
                "or choose a folder that does not exist yet"
            )
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        write_atomically(folder / name, partial(Path.write_bytes, data=data))
    return folder / DEMO.name


def _contents() -> dict[str, bytes]:
    """The demo's files by name; its scenario names those beside it."""
    scenario = Scenario.demo()
    trace, profile = (DEMO.parent / str(name) for name in (scenario.trace, scenario.profile))
    text = DEMO.read_text(encoding="utf-8").replace(str(scenario.profile), profile.name)
    return {
        DEMO.name: text.encode(),
        trace.name: trace.read_bytes(),
        profile.name: profile.read_bytes(),
    }
