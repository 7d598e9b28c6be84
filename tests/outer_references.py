"""Outer steps in plain torch, one private step at a time, after other sources than the replay's.

Streaming DiLoCo by a cycle counter, as torchft's fixtures describe it; asynchronous local SGD by
a list of who contributes when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from simstrag.learning.gradient_log import GradientLog

Slope = Callable[[int, int, torch.Tensor], torch.Tensor]
"""The gradient of a rank's step at flat parameters."""


def log_of_rows(rows: Sequence[dict[str, Any]], updates: int) -> GradientLog:
    """A log of these gradients in full precision, an update a second."""
    log = GradientLog()
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    log._gradients = [columns | {"amp": np.zeros(len(rows), bool)}]
    log._times = [np.arange(1.0, updates + 1)]
    return log


def log_of_rounds(
    ranks: int, updates: int, steps: int, overlap: int, samples: int = 1
) -> GradientLog:
    """Updates of all ranks' contributions; all but the first begin with `overlap` early steps."""
    rows = []
    for rank in range(ranks):
        step = 0
        for update in range(1, updates + 1):
            for _ in range(steps - overlap if update == 1 else steps):
                rows.append(
                    {
                        "update": update, "rank": rank, "step": step, "version": update - 1,
                        "samples": samples, "weight": 1 / (ranks * steps),
                    }
                )  # fmt: skip
                step += 1
    for row in rows:
        if row["update"] == 1:
            row["weight"] = 1 / (ranks * (steps - overlap))
    return log_of_rows(rows, updates)


def log_of_turns(turns: Sequence[int], steps: int, samples: int) -> GradientLog:
    """An update for each of these ranks' contributions, which start from their last one."""
    rows, version, step = [], dict.fromkeys(turns, 0), dict.fromkeys(turns, 0)
    for update, rank in enumerate(turns, 1):
        for _ in range(steps):
            rows.append(
                {
                    "update": update, "rank": rank, "step": step[rank], "version": version[rank],
                    "samples": samples, "weight": 1 / steps,
                }
            )  # fmt: skip
            step[rank] += 1
        version[rank] = update
    return log_of_rows(rows, len(turns))


def stream(
    start: torch.Tensor,
    slope: Slope,
    *,
    ranks: int,
    syncs: int,
    cycle: int,
    fragments: int = 1,
    delay: int = 0,
    alpha: float = 0.0,
    inner: dict[str, Any],
    outer: dict[str, Any],
) -> tuple[list[list[torch.Tensor]], list[torch.Tensor]]:
    """Weights of each rank before each inner step, and the global copy after each sync.

    cycle: inner steps from one sync to the next; delay: from preparation to sync.
    """
    parts = [start.tensor_split(fragments) for _ in range(ranks)]
    weights = [[torch.nn.Parameter(part.clone()) for part in own] for own in parts]
    inners = [torch.optim.SGD(own, **inner) for own in weights]
    copies = [torch.nn.Parameter(part.clone()) for part in parts[0]]
    outers = [torch.optim.SGD([copy], **outer) for copy in copies]
    history: list[list[torch.Tensor]] = [[] for _ in range(ranks)]
    after, step = [], 0
    for sync in range(syncs):
        due = sync % fragments
        for counter in range(1, cycle + 1):
            for rank, own in enumerate(weights):
                flat = torch.cat([part.detach() for part in own])
                history[rank].append(flat)
                slopes = slope(rank, step, flat).tensor_split(fragments)
                for part, of_part in zip(own, slopes, strict=True):
                    part.grad = of_part
                inners[rank].step()
            step += 1
            if counter == cycle - delay:
                taken = [copies[due].detach() - own[due].detach() for own in weights]
                copies[due].grad = torch.stack(taken).mean(0)
        outers[due].step()
        for own in weights:
            new, local = copies[due].detach(), own[due].detach()
            own[due].data = new + alpha * (local - new)
        after.append(torch.cat([copy.detach() for copy in copies]))
    return history, after


def take_turns(
    start: torch.Tensor,
    slope: Slope,
    *,
    turns: Sequence[int],
    steps: int,
    inner: dict[str, Any],
    outer: torch.optim.Optimizer,
) -> None:
    """Asynchronous local SGD: one rank after the other changes the parameter of `outer`."""
    (server,) = outer.param_groups[0]["params"]
    models = {rank: torch.nn.Parameter(start.clone()) for rank in turns}
    inners = {rank: torch.optim.SGD([model], **inner) for rank, model in models.items()}
    pulled = {rank: start.clone() for rank in turns}
    counts = dict.fromkeys(turns, 0)
    for rank in turns:
        models[rank].data.copy_(pulled[rank])
        for _ in range(steps):
            models[rank].grad = slope(rank, counts[rank], models[rank].detach().clone())
            inners[rank].step()
            counts[rank] += 1
        server.grad = pulled[rank] - models[rank].detach()
        outer.step()
        pulled[rank] = server.detach().clone()
