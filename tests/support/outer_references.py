"""Outer steps in plain torch, one private step at a time, after other sources than the replay's.

Streaming DiLoCo by a cycle counter, as torchft's fixtures describe it; anything else by a life of
each rank, which is followed as far as the next update needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from simstrag.learning.gradient_log import GradientLog

Slope = Callable[[int, int, torch.Tensor], torch.Tensor]
"""The gradient of a rank's step at flat parameters."""


def log_of_rows(rows: Sequence[dict[str, Any]], updates: int) -> GradientLog:
    """A log of these gradients, by default in full precision and no round, an update a second."""
    log = GradientLog()
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    log._gradients = [{"amp": np.zeros(len(rows), bool), "round": np.full(len(rows), -1)} | columns]
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


def follow(
    log: GradientLog,
    start: torch.Tensor,
    slope: Slope,
    *,
    fragments: int = 1,
    overlap: int = 0,
    alpha: float = 0.0,
    inner: dict[str, Any],
    outer: Callable[[torch.nn.Parameter], torch.optim.Optimizer],
) -> torch.Tensor:
    """The global parameters after a log in which ranks contribute in any order, one at a time.

    The pseudogradient of a contribution is the difference from the parameters that it began with.
    """
    columns, versions = log.gradients, [start]
    copies = [torch.nn.Parameter(part.clone()) for part in start.tensor_split(fragments)]
    outers = [outer(copy) for copy in copies]

    def live(rank: int) -> Iterator[list[torch.Tensor]]:
        """The pseudogradients of each contribution of a rank, by fragment."""
        model = torch.nn.Parameter(start.clone())
        optimizer, base, taken, early = torch.optim.SGD([model], **inner), start.clone(), None, 0

        def take(rows: Sequence[int]) -> None:
            for row in rows:
                model.grad = slope(rank, int(columns["step"][row]), model.detach().clone())
                optimizer.step()

        for update in sorted(set(columns["update"][columns["rank"] == rank].tolist())):
            (rows,) = np.nonzero((columns["rank"] == rank) & (columns["update"] == update))
            rows = rows[np.argsort(columns["step"][rows])]
            take(rows[:early])
            new = versions[columns["version"][rows[0]]]
            for number in range(fragments):
                if taken in (None, number):
                    own, copy, began = (
                        flat.tensor_split(fragments)[number] for flat in (model.data, new, base)
                    )
                    own.copy_(copy + alpha * (own - copy) if taken is not None else copy)
                    began.copy_(copy)
            take(rows[early:])
            taken, early = (update - 1) % fragments, overlap
            yield [*(base - model.detach()).tensor_split(fragments)]

    lives = {rank: live(rank) for rank in set(columns["rank"].tolist())}
    for update in range(1, len(log.times) + 1):
        due, total = (update - 1) % fragments, torch.zeros(())
        for rank in sorted(set(columns["rank"][columns["update"] == update].tolist())):
            of_rank = (columns["update"] == update) & (columns["rank"] == rank)
            total = total + float(columns["weight"][of_rank].sum()) * next(lives[rank])[due]
        copies[due].grad = total
        outers[due].step()
        versions.append(torch.cat([copy.detach() for copy in copies]))
    return versions[-1]
