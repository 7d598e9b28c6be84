"""The build backend: setuptools, after compiling the native engine to one shared library.

The library needs no Python, so one wheel serves every Python version on a platform.  Where nothing
compiles C, the wheel is built without the library, and simstrag runs its plain engine.
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
LIBRARY = SOURCE.with_suffix({"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so"))
# No flag may change a bit of a result: no contraction to fused multiply-add, no re-association.
# Functions begin with a line of the cache: else a change of one may slow the loops of another.
FLAGS = (
    "-std=c17 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -fopenmp-simd "
    "-falign-functions=64 -shared -fPIC"
)
# Python's compiler for machines without one; ask for it only where it has a wheel.
ZIG = "ziglang; platform_machine in 'x86_64 AMD64 aarch64 arm64 ARM64'"

Settings = dict[str, Any] | None


def get_requires_for_build_wheel(settings: Settings = None) -> list[str]:
    """What the build needs: a compiler, where the system has none."""
    return [*build_meta.get_requires_for_build_wheel(settings), *([] if compilers() else [ZIG])]


def get_requires_for_build_editable(settings: Settings = None) -> list[str]:
    """The same for an editable build."""
    return [*build_meta.get_requires_for_build_editable(settings), *([] if compilers() else [ZIG])]


def build_wheel(directory: str, settings: Settings = None, metadata: str | None = None) -> str:
    """Build a wheel for this platform and any Python 3."""
    shutil.rmtree("build/lib", ignore_errors=True)  # else modules of earlier builds stay in
    settings = dict(settings or {})
    if compile_library():
        options = settings.get("--build-option", [])
        options = shlex.split(options) if isinstance(options, str) else options
        settings["--build-option"] = [*options, "--plat-name", platform_tag()]
    return build_meta.build_wheel(directory, settings, metadata)


def build_editable(directory: str, settings: Settings = None, metadata: str | None = None) -> str:
    """Compile in place, then install links to the sources."""
    compile_library()
    return build_meta.build_editable(directory, settings, metadata)


def compilers() -> list[list[str]]:
    """Commands that compile C here, the preferred one first."""
    named = [shlex.split(os.environ["CC"])] if os.environ.get("CC") else []
    known = [*named, ["cc"], ["gcc"], ["clang"]]
    if find_spec("ziglang"):
        known.append([sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline"])
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


def compile_library() -> bool:
    """Compile the library beside its sources; False where nothing here can."""
    LIBRARY.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        new = Path(folder, LIBRARY.name)
        for command in compilers():
            arguments = [*command, *FLAGS.split(), "-o", str(new), str(SOURCE), "-lm"]
            if subprocess.run(arguments, check=False).returncode == 0:
                shutil.move(new, LIBRARY)
                return True
    print("simstrag: no C compiler works here; the plain engine will run, and takes far longer")
    return False


def platform_tag() -> str:
    """The platforms that the library runs on; on Linux, from the oldest glibc that it needs."""
    needed = re.findall(rb"GLIBC_(\d+)\.(\d+)", LIBRARY.read_bytes())
    if not needed:
        return next(tags.platform_tags())
    major, minor = max((2, 17), *((int(major), int(minor)) for major, minor in needed))
    machine = sysconfig.get_platform().removeprefix("linux-")
    return f"manylinux_{major}_{minor}_{machine}"
