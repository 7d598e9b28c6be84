"""The tables of remarks and the sentences of their values."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter

import pytest

from simstrag.analysis import text
from simstrag.analysis.text.remark import Sentences, say


def tables() -> dict[str, Sentences]:
    """Every module-level table of `Sentences`, by its name."""
    names = [module.name for module in pkgutil.iter_modules(text.__path__, f"{text.__name__}.")]
    return {
        name: getattr(module, name)
        for module in map(importlib.import_module, names)
        for name, kind in vars(module).get("__annotations__", {}).items()
        if kind == "Sentences"
    }


def test_there_are_tables() -> None:
    assert "CAUTIONS" in tables()


@pytest.mark.parametrize("name", tables())
def test_a_kind_has_one_severity(name: str) -> None:
    kinds = Counter(kind for templates in tables()[name].values() for kind in templates)
    assert [kind for kind, count in kinds.items() if count > 1] == []


def test_a_value_may_have_any_name() -> None:
    assert say("{template} of {self}", template="one", self="two") == "one of two"
