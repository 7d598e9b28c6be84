"""Settings of the whole suite."""

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("long", parent=settings.get_profile("default"), max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(params=["by_reference", "by_engine"])
def engine(request: pytest.FixtureRequest) -> object:
    """Each of the two engines, as a function from scenario and policy to a story."""
    from tests import stories

    return getattr(stories, request.param)
