"""The build backend: setuptools, after compiling the native engine to one shared library.

The library needs no Python, so one wheel serves every Python version on a platform.  Where nothing
compiles C, the wheel is built without the library, and simstrag runs its plain engine.  With
`--config-setting target=TAG`, one of `TARGETS`, the wheel is for that platform (`make wheels`).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging import tags
from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

SOURCE = Path("simstrag/engine/native/kernel.c")
SUFFIXES = {"win": ".dll", "macosx": ".dylib", "manylinux": ".so", "musllinux": ".so"}
HERE = {"win32": "win", "darwin": "macosx"}.get(sys.platform, "manylinux")
# No flag may change a bit of a result: no contraction to fused multiply-add, no re-association.
# Functions begin with a line of the cache: else a change of one may slow the loops of another.
FLAGS = (
    "-std=c17 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -fopenmp-simd "
    "-falign-functions=64 -shared -fPIC"
)
# Python's compiler for machines without one; ask for it only where it has a wheel.
ZIG = "ziglang; platform_machine in 'x86_64 AMD64 aarch64 arm64 ARM64'"
# For the oldest CPU of a target, without symbols for a debugger, which hold paths; it warns of
# loops that this CPU has no vectors for.
ZIG_CC = [sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline", "-g0", "-s", "-Wno-pass-failed"]
TARGETS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "win_amd64": "x86_64-windows-gnu",
}
"""The platforms of released wheels by their tags, and their names in zig's words."""

Settings = dict[str, Any] | None


def get_requires_for_build_wheel(settings: Settings = None) -> list[str]:
    """What the build needs: a compiler, where the system has none for the target."""
    compiler = [ZIG] if target(settings) or not compilers() else []
    return [*build_meta.get_requires_for_build_wheel(settings), *compiler]


def get_requires_for_build_editable(settings: Settings = None) -> list[str]:
    """The same for an editable build."""
    return [*build_meta.get_requires_for_build_editable(settings), *([] if compilers() else [ZIG])]


def build_wheel(directory: str, settings: Settings = None, metadata: str | None = None) -> str:
    """Build a wheel for any Python 3, for this platform or for the setting `target`."""
    shutil.rmtree("build/lib", ignore_errors=True)  # else modules of earlier builds stay in
    settings = dict(settings or {})
    tag = target(settings)
    settings.pop("target", None)
    if compile_library(tag):
        options = settings.get("--build-option", [])
        options = shlex.split(options) if isinstance(options, str) else options
        settings["--build-option"] = [*options, "--plat-name", tag or platform_tag()]
    wheel: str = build_meta.build_wheel(directory, settings, metadata)
    return wheel


def target(settings: Settings) -> str | None:
    """The platform tag to build for; None for this platform.  Raises `SystemExit` if unknown."""
    tag: str | None = (settings or {}).get("target")
    if tag is not None and tag not in TARGETS:
        raise SystemExit(f"simstrag: no target {tag!r}; known: {', '.join(TARGETS)}")
    return tag


def build_editable(directory: str, settings: Settings = None, metadata: str | None = None) -> str:
    """Compile in place, then install links to the sources."""
    compile_library()
    wheel: str = build_meta.build_editable(directory, settings, metadata)
    return wheel


def compilers() -> list[list[str]]:
    """Commands that compile C here, the preferred one first."""
    named = [shlex.split(os.environ["CC"])] if os.environ.get("CC") else []
    known = [*named, ["cc"], ["gcc"], ["clang"]]
    if find_spec("ziglang"):
        known.append(ZIG_CC)
    return [command for command in known if finds_headers(command)]


def finds_headers(command: list[str]) -> bool:
    """Whether a compiler runs; macOS has a `cc` that only offers to install one."""
    if not shutil.which(command[0]):
        return False
    ran = subprocess.run(
        [*command, "-E", "-x", "c", "-"],
        input=b"#include <math.h>\n",
        capture_output=True,
        check=False,
    )
    return ran.returncode == 0


def compile_library(tag: str | None = None) -> bool:
    """Compile the library beside its sources; False where nothing here can.

    Raises `SystemExit` where the library for another platform, named by its tag, does not compile.
    """
    for suffix in SUFFIXES.values():  # a wheel takes one library
        SOURCE.with_suffix(suffix).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for command in [[*ZIG_CC, "-target", TARGETS[tag]]] if tag else compilers():
            new = Path(folder, library_name(tag))
            named = [f"-Wl,-install_name,@rpath/{new.name}"] if new.suffix == ".dylib" else []
            arguments = [*command, *FLAGS.split(), *named, "-o", str(new), str(SOURCE), "-lm"]
            if subprocess.run(arguments, check=False).returncode == 0:
                shutil.move(new, SOURCE.parent)
                return True
    if tag:
        raise SystemExit(f"simstrag: no library for {tag}; `pip install ziglang` compiles it")
    print("simstrag: no C compiler works here; the plain engine will run, and takes far longer")
    return False


def library_name(tag: str | None = None) -> str:
    """The file name of the library on a platform; for None, on this one."""
    return SOURCE.with_suffix(SUFFIXES[(tag or HERE).partition("_")[0]]).name


def platform_tag() -> str:
    """The platforms that the library runs on; on Linux, from the oldest glibc that it needs."""
    needed = re.findall(rb"GLIBC_(\d+)\.(\d+)", SOURCE.with_name(library_name()).read_bytes())
    if not needed:
        return next(tags.platform_tags())
    major, minor = max((2, 17), *((int(major), int(minor)) for major, minor in needed))
    machine = sysconfig.get_platform().removeprefix("linux-")
    return f"manylinux_{major}_{minor}_{machine}"
