"""The bar of a calibration: drawn when it is told, and never by itself."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from simstrag.cli import progress


def test_the_bar_of_what_is_timed_is_drawn_when_it_is_told_and_by_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = io.StringIO()
    terminal = Console(file=shown, force_terminal=True, width=120)
    monkeypatch.setattr(progress, "console", lambda stderr: terminal)
    threads = threading.active_count()
    with progress.show_seconds() as show:
        assert "starting" in shown.getvalue()
        show(10.0, 100.0, "step fp32 batch 8")
        assert "step fp32 batch 8" in shown.getvalue()
        assert "at most 90 s left" in shown.getvalue()
        assert threading.active_count() == threads
