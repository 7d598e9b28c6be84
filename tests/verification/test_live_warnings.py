"""How often a job without a slow rank is warned of one while it runs."""

from __future__ import annotations

from tests.ddp.test_ddp_slow_ranks import drawn, messages

JOBS = 200


def test_at_most_one_clean_job_in_a_hundred_has_a_message() -> None:
    """Of 2 to 8 ranks and noise of 1, 3, 5 or 10 %, over 2,000 steps."""
    jobs = (
        drawn(1000 + k, cv=(0.01, 0.03, 0.05, 0.1)[k % 4], ranks=2 + k % 7) for k in range(JOBS)
    )
    assert sum(bool(messages(seconds)) for seconds in jobs) <= JOBS / 100
