"""`python -m tools.inspect_wheel WHEEL...`: whether a wheel is what its name says.

A released wheel has one native library, for the platform of its tag, which needs nothing that this
platform may lack; its metadata and its RECORD agree with its files.  LIEF reads ELF, Mach-O and PE.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib
import re
import sys
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

from build_backend.simstrag_build import SOURCE, TARGETS, library_name
from simstrag.contract.compiled import LOOPS
from simstrag.engine.native.library import FUNCTIONS

C_LIBRARY = {"free", "malloc", "memcpy", "memmove", "memset", "pow", "floor"}
"""What the engine takes from the C library and the mathematical library."""
MACOS = C_LIBRARY | {"bzero", "__bzero", "memset_pattern16", "dyld_stub_binder"}
"""Compilers for macOS take these too; the last one binds symbols."""
WINDOWS = re.compile(r"kernel32\.dll|api-ms-win-crt-\w+-l1-1-0\.dll")
"""Parts of Windows and of its C library, which Python needs as well."""
EXPORTS = {"layout", "sizes", *FUNCTIONS, *LOOPS}
"""What simstrag looks up in the library."""


class Binary(NamedTuple):
    """What a native library says of itself.

    symbols: what it takes from other libraries; for Windows, where only libraries count, none.
    oldest: the oldest version of glibc or macOS that it runs on; None if it names none.
    """

    system: str
    machine: str
    symbols: set[str]
    libraries: set[str]
    exports: set[str]
    oldest: tuple[int, ...] | None


def main(paths: list[str]) -> int:
    """Print the faults of wheels; 1 where there are any."""
    faults = [f"{Path(path).name}: {fault}" for path in paths for fault in inspect(Path(path))]
    print("\n".join(faults) or f"{len(paths)} wheels are what their names say")
    return 1 if faults else 0


def inspect(path: Path) -> Iterator[str]:
    """The faults of a wheel, one a line."""
    named = re.fullmatch(r"(\w+)-([\w.]+)-(py3-none-(\w+))\.whl", path.name)
    if not named or named[4] not in TARGETS:
        yield f"its platform is none of the released ones: {', '.join(TARGETS)}"
        return
    name, version, tag, platform = named.groups()
    with ZipFile(path) as wheel:
        files = {entry: wheel.read(entry) for entry in wheel.namelist()}
    about = f"{name}-{version}.dist-info"
    metadata = Parser().parsestr(files[f"{about}/METADATA"].decode())
    if (metadata["Name"], metadata["Version"]) != (name, version):
        yield f"METADATA is of {metadata['Name']} {metadata['Version']}"
    tags = Parser().parsestr(files[f"{about}/WHEEL"].decode()).get_all("Tag")
    if tags != [tag]:
        yield f"WHEEL has the tags {tags}"
    if f"{about}/licenses/LICENSE" not in files:
        yield "the licence is missing"
    yield from _faults_of_record(files, f"{about}/RECORD")
    wanted = SOURCE.with_name(library_name(platform)).as_posix()
    found = [entry for entry in files if re.search(r"\.(so|dylib|dll|pyd)\b", entry)]
    if found != [wanted]:
        yield f"its native libraries are {found}, and not {wanted}"
    else:
        yield from _faults_of_library(read_binary(files[wanted]), platform)


def _faults_of_record(files: dict[str, bytes], record: str) -> Iterator[str]:
    lines = csv.reader(files[record].decode().splitlines())
    rows = {name: (digest, size) for name, digest, size in lines}
    if rows.keys() != files.keys():
        yield f"RECORD and files differ: {sorted(rows.keys() ^ files.keys())}"
    for name in rows.keys() & files.keys() - {record}:
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=")
        if rows[name] != (f"sha256={digest.decode()}", str(len(files[name]))):
            yield f"RECORD is wrong about {name}"


def _faults_of_library(binary: Binary, platform: str) -> Iterator[str]:
    system, _, rest = platform.partition("_")
    *numbers, machine = rest.split("_", 2) if system != "win" else [rest]
    known, libraries = {
        "manylinux": (C_LIBRARY, {"libc.so.6", "libm.so.6"}),
        "musllinux": (C_LIBRARY, {"libc.so"}),
        "macosx": (MACOS, {"/usr/lib/libSystem.B.dylib"}),
        "win": (set[str](), {name for name in binary.libraries if WINDOWS.fullmatch(name.lower())}),
    }[system]
    if (binary.system, binary.machine) != (re.sub("many|musl", "", system), machine):
        yield f"its library is for {binary.system} on {binary.machine}"
    if unknown := binary.symbols - known:
        yield f"its library needs unknown symbols: {', '.join(sorted(unknown))}"
    if unknown := binary.libraries - libraries:
        yield f"its library needs other libraries: {', '.join(sorted(unknown))}"
    if missing := EXPORTS - binary.exports:
        yield f"its library lacks {', '.join(sorted(missing))}"
    versioned = system in ("manylinux", "macosx")
    if versioned != bool(binary.oldest) or (binary.oldest or ()) > tuple(map(int, numbers)):
        needed = ".".join(map(str, binary.oldest or ("unknown",)))
        yield f"its library needs version {needed} of the system"


def read_binary(content: bytes) -> Binary:
    """What a shared library for Linux, macOS or Windows says of itself."""
    lief: Any = importlib.import_module("lief")
    lief.disable_leak_warning()  # at the end of the process, on stderr
    lief.logging.disable()  # it reports places of a file that it need not read

    binary: Any = lief.parse(content)
    machine = str(binary.header.machine_type if isinstance(binary, lief.ELF.Binary) else
                  binary.header.cpu_type if isinstance(binary, lief.MachO.Binary) else
                  binary.header.machine).rpartition(".")[2].lower()  # fmt: skip
    libraries = {str(getattr(library, "name", library)) for library in binary.libraries}
    if isinstance(binary, lief.PE.Binary):
        exports = {entry.name for entry in binary.get_export().entries}
        return Binary("win", machine, set(), libraries, exports, None)
    strip = "_" if isinstance(binary, lief.MachO.Binary) else ""  # of each name in C
    exports = {symbol.name.removeprefix(strip) for symbol in binary.exported_symbols}
    symbols = {symbol.name.removeprefix(strip) for symbol in binary.imported_symbols if symbol.name}
    if isinstance(binary, lief.MachO.Binary):
        libraries.discard(f"@rpath/{library_name('macosx')}")  # its own name
        oldest = tuple(binary.build_version.minos[:2])
        return Binary("macosx", machine, symbols - exports, libraries, exports, oldest)
    versions = [
        tuple(map(int, version.name.removeprefix("GLIBC_").split(".")))
        for library in binary.symbols_version_requirement
        for version in library.get_auxiliary_symbols()
    ]
    return Binary("linux", machine, symbols, libraries, exports, max(versions, default=None))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
