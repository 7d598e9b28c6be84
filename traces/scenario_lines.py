"""Lines of a scenario for a trace: what importers and `simstrag init` know of one, as YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

BATCH = 128


def workers(nodes: Sequence[int]) -> list[str]:
    """A worker on each node.

    >>> workers([0, 1]), workers([3, 5])
    (['workers: 2'], ['workers: 2', 'nodes: [3, 5]'])
    """
    by_default = list(nodes) == list(range(len(nodes)))
    return [f"workers: {len(nodes)}", *([] if by_default else [f"nodes: {list(nodes)}"])]


def constant_allreduce(seconds: float, ranks: int) -> str:
    """An all-reduce of `ranks` ranks that takes `seconds` s.

    A ring of n ranks has 2 (n - 1) hops of alpha; with no bytes to send they are all it takes.

    >>> constant_allreduce(0.6, 4)
    'allreduce: {alpha: 0.1, bytes: 0}  # a ring of 4: 6 hops, 0.6 s in all'
    """
    hops = 2 * (ranks - 1)
    how = f"# a ring of {ranks}: {hops} hops, {seconds:.4g} s in all"
    return f"allreduce: {{alpha: {seconds / hops:.6g}, bytes: 0}}  {how}"


def run_of(steps: int, ranks: int) -> list[str]:
    """The end of a run: the samples of `steps` steps of each rank.

    >>> run_of(100, 4)
    ['samples: 51200  # 100 steps of each worker', 'learner: {batch: 128}  # ASSUMED']
    """
    samples = f"samples: {steps * ranks * BATCH}  # {steps} steps of each worker"
    return [samples, f"learner: {{batch: {BATCH}}}  # ASSUMED"]


def quoted(text: str) -> str:
    """A string in YAML, in quotes unless it can be nothing else.

    >>> quoted("slow.csv"), quoted("1.5"), quoted("no: 1.csv")
    ('slow.csv', '"1.5"', '"no: 1.csv"')
    """
    is_plain = re.fullmatch(r"[\w./][\w./-]*\.(csv|parquet)", text, re.ASCII)
    return text if is_plain else json.dumps(text, ensure_ascii=False)
