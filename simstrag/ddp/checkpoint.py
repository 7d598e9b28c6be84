"""Checkpoints of a training: one dict, for `torch.save`."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from simstrag.ddp.journal.journal import facts_from_json, facts_to_json
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.ddp.replica import Replica
    from simstrag.ddp.sampler import ShareSampler
    from simstrag.engine.live import Facts
    from simstrag.policy import Policy

FORMAT = "simstrag-training/1"


def to_checkpoint(
    replica: Replica,
    name: str,
    world_size: int,
    sampler: ShareSampler | None,
    policy: Policy,
    facts: Facts | None,
    served: Mapping[str, Any] | None,
    outer: Mapping[str, Any] | None,
    apart: bool,
) -> dict[str, Any]:
    """The checkpoint of a training.

    name: the policy's name.
    served: the state of a server that owns parameters and optimizer, as `Server.state` returns it.
    outer: the state of outer steps.
    apart: whether each rank has a model and an optimizer of its own.
    """
    model, optimizer = replica.model.state_dict(), replica.optimizer.state_dict()
    if served is not None:
        optimizer = served["optimizer"]
        before = torch.cat([each.detach().reshape(-1) for each in replica.parameters])
        replica.spread(served["parameters"])
        try:
            model = copy.deepcopy(replica.model.state_dict())
        finally:
            replica.spread(before)
    return {
        "format": FORMAT, "name": name, "world_size": world_size,
        "model": model, "optimizer": optimizer, "formats": replica.formats.state_dict(),
        "sampler": None if sampler is None else sampler.state_dict(),
        "policy": pickle.dumps(policy),
        "facts": None if facts is None else facts_to_json(facts),
        "outer": copy.deepcopy(outer), "apart": apart,
        "corrected": None if served is None else served["corrected"],
    }  # fmt: skip


def from_checkpoint(
    state: Mapping[str, Any],
    replica: Replica,
    name: str,
    world_size: int,
    sampler: ShareSampler | None,
) -> tuple[Policy, Facts | None]:
    """Load model, optimizer, formats and sampler from a checkpoint; return its policy and facts.

    Raises `InputError` for a checkpoint of another policy or number of ranks.
    """
    for word, here in (("format", FORMAT), ("name", name), ("world_size", world_size)):
        if state.get(word) != here:
            raise InputError(f"the checkpoint's {word} is {state.get(word)!r}, here it is {here!r}")
    if (sampler is None) != (state["sampler"] is None):
        raise InputError(
            f"the checkpoint is of a training {'with' if sampler is None else 'without'} a "
            "ShareSampler; give wrap() the same arguments as then"
        )
    replica.model.load_state_dict(state["model"])
    replica.optimizer.load_state_dict(state["optimizer"])
    replica.formats.load_state_dict(state["formats"])
    if sampler is not None:
        sampler.load_state_dict(state["sampler"])
    facts = state["facts"]
    return pickle.loads(state["policy"]), None if facts is None else facts_from_json(facts)
