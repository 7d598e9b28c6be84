"""The contract of a user's policy on two real ranks, which `simstrag policies --check` starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from simstrag import check_policy

POLICIES = """
from dataclasses import dataclass, replace

from simstrag import Plan, Quorum, Review, Via, View


@dataclass(frozen=True)
class AllBut:
    few: int = 1

    def plan(self, view: View) -> Plan:
        return Plan((Quorum(count=max(view.world_size - self.few, 1), via=Via.SERVER),))


class Late(AllBut):
    def plan(self, view: View) -> Plan:
        if view.world_size == 2 and view.version > 3:
            raise ValueError("late is broken")
        return replace(super().plan(view), review=Review(updates=1))
"""


def test_two_real_ranks_train_under_a_policy_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("two_policies.py").write_text(POLICIES)
    fine = check_policy("two_policies.py:AllBut").checks[-1]
    assert fine.ok, fine
    late = check_policy("two_policies.py:Late").checks[-1]
    assert late.ok is False
    assert "late is broken" in late.detail
    assert "two_policies.py, line" in late.detail
