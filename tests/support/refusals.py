"""Tables of what is refused: in a line what is given, as YAML, and how its message begins."""

from __future__ import annotations

from typing import Any

import pytest
from ruamel.yaml import YAML


def refusals(table: str) -> Any:
    """Parametrize a test of `given` and `message` by rows `YAML | message`; `#` is a comment."""
    yaml, rows = YAML(typ="safe", pure=True), table.strip().splitlines()
    pairs = [row.split(" | ", 1) for row in rows if row and not row.startswith("#")]
    cases = [(yaml.load(given), message.strip()) for given, message in pairs]
    return pytest.mark.parametrize(
        ("given", "message"), cases, ids=[message.strip() for _, message in pairs]
    )
