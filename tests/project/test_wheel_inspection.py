"""The inspection of a released wheel finds what would not work where it is installed."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from zipfile import ZipFile

import pytest

from build_backend import simstrag_build
from build_backend.simstrag_build import TARGETS, library_name
from simstrag.contract.compiled import LIBRARY
from tools import inspect_wheel
from tools.inspect_wheel import C_LIBRARY, EXPORTS, Binary, inspect, read_binary

MANYLINUX = "manylinux_2_17_x86_64"
LIBC = {"libc.so.6", "libm.so.6"}
GOOD = {
    MANYLINUX: Binary("linux", "x86_64", C_LIBRARY, LIBC, EXPORTS, (2, 14)),
    "musllinux_1_2_aarch64": Binary("linux", "aarch64", {"pow"}, {"libc.so"}, EXPORTS, None),
    "macosx_11_0_arm64": Binary(
        "macosx", "arm64", {"bzero"}, {"/usr/lib/libSystem.B.dylib"}, EXPORTS, (11, 0)
    ),
    "win_amd64": Binary("win", "amd64", set(), {"KERNEL32.dll"}, EXPORTS, None),
}


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The faults of a small wheel for a platform, with this library and these files beside it."""

    def build(platform: str, binary: Binary, tag: str = "", **more: str) -> list[str]:
        monkeypatch.setattr(inspect_wheel, "read_binary", lambda content: binary)
        about = "simstrag-0.1.0.dist-info"
        files = {
            f"simstrag/engine/native/{library_name(platform)}": "library",
            f"{about}/METADATA": "Name: simstrag\nVersion: 0.1.0\n\nPage",
            f"{about}/WHEEL": f"Tag: py3-none-{tag or platform}\n",
            f"{about}/licenses/LICENSE": "Apache",
        } | more
        record = f"{about}/RECORD"
        lines = [f"{name},{digest(text)},{len(text)}" for name, text in files.items()]
        wheel = tmp_path / f"simstrag-0.1.0-py3-none-{platform}.whl"
        with ZipFile(wheel, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text.replace("changed later", "CHANGED LATER"))
            archive.writestr(record, "\n".join([*lines, f"{record},,"]))
        return list(inspect(wheel))

    return build


def digest(text: str) -> str:
    raw = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
    return f"sha256={raw.rstrip(b'=').decode()}"


@pytest.mark.parametrize("platform", GOOD)
def test_a_good_wheel_has_no_faults(faults, platform: str) -> None:
    assert faults(platform, GOOD[platform]) == []


@pytest.mark.parametrize(
    ("platform", "change", "fault"),
    [
        (MANYLINUX, {"oldest": (2, 29)}, "needs version 2.29 of the system"),
        (MANYLINUX, {"oldest": None}, "needs version unknown of the system"),
        (MANYLINUX, {"machine": "aarch64"}, "is for linux on aarch64"),
        (MANYLINUX, {"system": "macosx"}, "is for macosx on x86_64"),
        (MANYLINUX, {"symbols": {"pow", "gomp"}}, "unknown symbols: gomp"),
        (MANYLINUX, {"libraries": {"libgomp.so.1"}}, "other libraries: libgomp.so.1"),
        (MANYLINUX, {"exports": EXPORTS - {"advance"}}, "lacks advance"),
        ("musllinux_1_2_aarch64", {"oldest": (2, 17)}, "needs version 2.17"),
        ("macosx_11_0_arm64", {"oldest": (14, 0)}, "needs version 14.0"),
        ("win_amd64", {"libraries": {"vcomp140.dll"}}, "other libraries: vcomp140.dll"),
    ],
)
def test_a_library_that_does_not_fit_its_tag_is_a_fault(
    faults, platform: str, change: dict, fault: str
) -> None:
    (found,) = faults(platform, GOOD[platform]._replace(**change))
    assert fault in found


def test_files_that_do_not_fit_are_faults(faults) -> None:
    good = GOOD[MANYLINUX]
    assert "tags ['py3-none-any']" in faults(MANYLINUX, good, tag="any")[0]
    assert "RECORD is wrong about a.py" in faults(MANYLINUX, good, **{"a.py": "changed later"})[0]
    assert "native libraries are" in faults(MANYLINUX, good, **{"other.so": "library"})[0]
    assert "none of the released ones" in next(inspect(Path("a-1-py3-none-linux_x86_64.whl")))


def test_the_library_of_this_machine_is_read() -> None:
    binary = read_binary(LIBRARY.read_bytes())
    assert binary.exports >= EXPORTS
    assert binary.system in ("linux", "macosx", "win")


def test_a_target_that_is_not_known_ends_the_build() -> None:
    with pytest.raises(SystemExit, match=f"no target 'linux'; known: {MANYLINUX}"):
        simstrag_build.build_wheel("nowhere", {"target": "linux"})


@pytest.mark.parametrize("tag", [*TARGETS, None])
def test_a_build_for_another_platform_needs_the_compiler_that_knows_it(
    tag: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simstrag_build, "compilers", lambda: [["cc"]])
    needed = simstrag_build.get_requires_for_build_wheel({"target": tag} if tag else None)
    assert (simstrag_build.ZIG in needed) == (tag is not None)


def test_without_a_compiler_a_wheel_is_built_that_holds_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = {}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(simstrag_build, "compilers", list)
    monkeypatch.setattr(
        simstrag_build.build_meta, "build_wheel", lambda *arguments: built.update(arguments[1])
    )
    simstrag_build.build_wheel("nowhere")
    assert built == {}  # no platform: pure Python
