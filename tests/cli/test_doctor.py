"""What an installation can do: tried; what it lacks comes with the way to get it."""

import importlib
import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from simstrag.cli import doctor, errors
from simstrag.cli.doctor import Finding, examine


@pytest.fixture(scope="module")
def findings() -> dict[str, Finding]:
    """What there is to find here, by its name: found once, for that takes a moment."""
    return {finding.what: finding for finding in examine()}


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a package look as if nobody had installed it."""
    version = metadata.version

    def hide(package: str) -> None:
        def missing(name: str) -> str:
            if name == package:
                raise metadata.PackageNotFoundError(name)
            return version(name)

        monkeypatch.setattr(metadata, "version", missing)
        monkeypatch.setitem(sys.modules, package, None)

    return hide


def test_here_all_that_is_needed_works(findings: dict[str, Finding]) -> None:
    assert findings["libraries"].works
    assert findings["a report"].works


def test_all_that_may_be_needed_is_looked_for(findings: dict[str, Finding]) -> None:
    assert {"simstrag", "python", "cores", *doctor.OPTIONAL, "cuda"} <= findings.keys()


def test_every_library_is_named_with_its_version(findings: dict[str, Finding]) -> None:
    assert f"numpy {metadata.version('numpy')}" in findings["libraries"].says


def test_a_torch_on_which_real_ranks_were_not_tried_is_named_and_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from simstrag.ddp import policy_support

    monkeypatch.setattr(metadata, "version", lambda _: "2.12.1+cpu")
    says = "torch 2.12.1+cpu is installed, and real ranks were tried on 2.11 and 2.13 alone"
    assert doctor.check_optional("torch") == Finding("torch", True, says)
    policy_support.check_torch.cache_clear()
    for _ in range(2):
        policy_support.check_torch()
    assert capsys.readouterr().err == f"warning: {says}\n"


def test_a_missing_package_comes_with_the_extra_that_brings_it(
    without: Callable[[str], None],
) -> None:
    without("torch")
    assert doctor.check_optional("torch") == Finding(
        "torch", None, "not installed", 'pip install "simstrag[torch]"'
    )
    assert doctor.check_cuda().works is None


def test_a_package_that_cannot_be_imported_is_a_fault_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(name: str) -> Any:
        raise OSError("libcudart.so: cannot open shared object file\nand more")

    monkeypatch.setattr(importlib, "import_module", broken)
    finding = doctor.check_optional("torch")
    assert not finding.works
    assert "importing it fails: libcudart.so: cannot open shared object file" in finding.says
    assert "and more" not in finding.says


def test_a_missing_library_is_a_fault(without: Callable[[str], None]) -> None:
    without("jinja2")
    assert doctor.check_libraries()[1:3] == (False, "missing: jinja2")


def test_a_report_that_cannot_be_drawn_is_a_fault_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*given: Any) -> str:
        raise RuntimeError("no font")

    monkeypatch.setattr("simstrag.analysis.pages.report.render", fails)
    assert doctor.check_report()[1:3] == (False, "fails: no font")


@pytest.mark.parametrize(
    ("flags", "works", "says"),
    [
        ("fpu avx512f avx512_bf16 amx_bf16 amx_tile", True, "amx_bf16, avx512_bf16; AMX: yes"),
        ("fpu avx512_bf16", True, "avx512_bf16; AMX: no"),
        ("fpu avx2", None, "no instructions for it; AMX: no"),
    ],
)
def test_bf16_on_a_cpu_is_what_the_kernel_says(
    flags: str, works: bool | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"processor : 0\nflags : {flags}\n")
    assert doctor._check_cpu_bf16()[1:3] == (works, says)


@pytest.mark.parametrize("bf16", [True, False])
def test_cuda_devices_are_named_and_their_bf16_asked_for(
    bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 2,
        get_device_name=lambda k: f"Device {k}",
        is_bf16_supported=lambda: bf16,
    )
    monkeypatch.setattr(importlib, "import_module", lambda _: SimpleNamespace(cuda=cuda))
    word = "computes" if bf16 else "does not compute"
    assert doctor.check_cuda()[1:3] == (
        True, f"2 device(s): Device 0, Device 1; the first {word} in bf16",
    )  # fmt: skip


def test_findings_are_plain_values(findings: dict[str, Finding]) -> None:
    plain = [finding._asdict() for finding in findings.values()]
    assert json.loads(json.dumps(plain)) == plain


def test_extras_are_those_that_the_package_declares() -> None:
    declared = {*metadata.metadata("simstrag").get_all("Provides-Extra", [])}
    assert {*errors.EXTRAS.values()} <= declared
