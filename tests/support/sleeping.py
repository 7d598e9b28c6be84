"""A workload whose steps sleep, so that they take as long on a busy machine as on an idle one."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

STEP = 0.1
"""Seconds of a step."""


def workload() -> tuple[nn.Module, Any, torch.optim.Optimizer, Any]:
    """A small linear model whose loss takes `STEP` seconds."""
    model = nn.Linear(4, 1)

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        time.sleep(STEP)
        mean: torch.Tensor = model(batch).square().mean()
        return mean

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, loss, optimizer, lambda samples: torch.randn(samples, 4)
