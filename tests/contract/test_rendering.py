"""Renderers: modules that register them are loaded as far as a result needs."""

from __future__ import annotations

from importlib import metadata

import pytest

from simstrag import rendering


class Result:
    """A result that one module can draw."""


class Module:
    """An entry point; `load` registers a renderer of `Result`, or fails."""

    def __init__(self, draws: bool) -> None:
        self.draws = draws

    def load(self) -> None:
        assert self.draws, "nobody needs this module"
        rendering.html_fragment.register(Result, lambda result: "<p>drawn</p>")


def test_no_module_is_loaded_beyond_the_one_that_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group: [Module(True), Module(False)])
    assert rendering.html_fragment(Result()) == "<p>drawn</p>"


def test_a_result_that_no_module_draws_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group: [])
    with pytest.raises(TypeError, match=r"no renderer of int: no module in the entry points"):
        rendering.html_page(3)
