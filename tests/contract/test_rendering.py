"""Renderers: modules that register them are loaded as far as a result needs."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import ModuleType

import pytest

from simstrag import rendering


class Result:
    """A result that one module can draw."""


def test_no_module_is_loaded_beyond_the_one_that_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> ModuleType:
        assert name == "one that draws", "nobody needs this module"
        rendering.html_fragment.register(Result, lambda result: "<p>drawn</p>")
        return ModuleType(name)

    monkeypatch.setattr(importlib, "import_module", load)
    monkeypatch.setattr(rendering, "RENDERERS", ("one that draws", "another"))
    assert rendering.html_fragment(Result()) == "<p>drawn</p>"


def test_a_result_that_no_module_draws_is_named() -> None:
    with pytest.raises(TypeError, match=r"no renderer of int: none of simstrag\.analysis\."):
        rendering.html_page(3)


def test_a_module_that_results_are_of_does_not_load_what_draws_them() -> None:
    program = (
        "import sys, simstrag.profile.profile, simstrag.experiments.sweep; "
        "from simstrag import rendering as r; "
        "print(*{*r.RENDERERS} & {*sys.modules})"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == []
