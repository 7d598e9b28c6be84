"""The same policies on real PyTorch: two lines in a training script.

    trainer = simstrag.ddp.wrap(model, optimizer, policy="korel")
    for batch in loader:
        loss = trainer.step(lambda: loss_fn(model, batch))

Start with `wrapping`, then `trainer`.  `record` records who was slow in any distributed script,
with or without a policy.  Nothing here is loaded before it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from simstrag.ddp.policy_support import check_torch

if TYPE_CHECKING:
    from simstrag.ddp.allreduce.allreduce_mode import Disagreement
    from simstrag.ddp.collector.record import StepRecorder, record
    from simstrag.ddp.failures.diagnosis import RankFailure
    from simstrag.ddp.rendezvous import join
    from simstrag.ddp.sampler import ShareSampler
    from simstrag.ddp.trainer import Trainer
    from simstrag.ddp.wrapping import wrap

__all__ = [
    "Disagreement", "RankFailure", "ShareSampler", "StepRecorder", "Trainer", "join", "record",
    "wrap",
]  # fmt: skip

PLACES = {
    "Disagreement": "allreduce.allreduce_mode", "RankFailure": "failures.diagnosis",
    "ShareSampler": "sampler", "StepRecorder": "collector.record", "Trainer": "trainer",
    "join": "rendezvous", "record": "collector.record", "wrap": "wrapping",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_torch()
    return getattr(importlib.import_module(f"{__name__}.{PLACES[name]}"), name)
