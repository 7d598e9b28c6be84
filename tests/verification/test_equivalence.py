"""What tests/engine/test_equivalence.py asks, of many more drawn cases: corners are rare."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from simstrag.contract import Policy
from simstrag.scenario.scenario import Scenario
from tests.engine.test_equivalence import (
    assert_agreement,
    assert_agreement_while_filed_anew,
    quickly,
)
from tests.support.strategies import policies, scenarios, uneven


@settings(quickly, max_examples=4 * settings().max_examples)
@given(data=st.data(), scenario=uneven(), bounded=st.booleans())
def test_both_engines_agree_while_gradients_are_filed_anew_at_every_update(
    data: st.DataObject, scenario: Scenario, bounded: bool
) -> None:
    assert_agreement_while_filed_anew(data, scenario, bounded)


@settings(quickly, max_examples=5 * settings().max_examples // 2)
@given(scenario=scenarios() | uneven(), policy=policies(), seed=st.integers(0, 3))
def test_both_engines_agree_on_every_policy(scenario: Scenario, policy: Policy, seed: int) -> None:
    assert_agreement(scenario, policy, seed)
