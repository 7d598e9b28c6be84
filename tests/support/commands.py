"""What tests of the command line share: a small scenario, and how its lines are read."""

from __future__ import annotations

import re
from collections.abc import Callable

SCENARIO = """
workers: 4
samples: 5120
target_progress: 3
step: {compute: 0.1, amp_ratio: 1.6, cv: 0.03}
server: {service: 0.001}
learner: {kind: noise-scale, batch: 128, noise_scale: 500, c_tau: 1.0}
trace: slow.csv
trace_end: loop
policies: [bsp, asgd]
seeds: 2
"""
TRACE = """time,node,resource,kind,value
0.2,3,gpu,slowdown,2.0
0.6,3,gpu,slowdown,1.0
"""
Call = Callable[..., tuple[int, str, str]]


def refusal(answer: tuple[int, str, str]) -> str:
    """The one line that answers a mistake, with nothing on stdout and exit code 2."""
    code, out, err = answer
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    return err


def plain_lines(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
