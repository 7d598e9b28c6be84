"""Tables of what is refused: in a line what is given, as YAML, and how its message begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ruamel.yaml import YAML

from simstrag.errors import InputError


def refusals(table: str) -> Any:
    """Parametrize a test of `given` and `message` by rows `YAML | message`; `#` is a comment."""
    yaml, rows = YAML(typ="safe", pure=True), table.strip().splitlines()
    pairs = [row.split(" | ", 1) for row in rows if row and not row.startswith("#")]
    cases = [(yaml.load(given), message.strip()) for given, message in pairs]
    return pytest.mark.parametrize(
        ("given", "message"), cases, ids=[message.strip() for _, message in pairs]
    )


def message_of(action: Callable[[], Any]) -> str:
    """Why an action is refused: one line."""
    with pytest.raises(InputError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)
