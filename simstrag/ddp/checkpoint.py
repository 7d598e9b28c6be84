"""Checkpoints of a training: one dict, for `torch.save`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simstrag.ddp.journal.journal import facts_from_json, facts_to_json
from simstrag.ddp.pickled_policy import pack_policy, unpack_policy
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.contract import Policy
    from simstrag.ddp.rank_setup import RankSetup
    from simstrag.engine.live import Facts

FORMAT = "simstrag-training/1"


@dataclass(frozen=True, slots=True)
class TrainingState:
    """What a training goes on from, besides model, optimizer, formats and sampler.

    facts: of the engine; None before the first step.
    outer: the state of outer steps.
    corrected: the state of a server's corrections of gradients.
    apart: whether each rank has a model and an optimizer of its own.
    """

    policy: Policy
    facts: Facts | None = None
    outer: Mapping[str, Any] | None = None
    corrected: Mapping[str, Any] | None = None
    apart: bool = False


def to_checkpoint(
    setup: RankSetup, state: TrainingState, served: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The checkpoint of a training.

    served: the state of a server that owns parameters and optimizer, as `Server.state` returns it.
    """
    replica, sampler = setup.replica, setup.sampler
    if served is None:
        model, optimizer = replica.model_state(), replica.optimizer_state()
    else:
        optimizer, before = served["optimizer"], replica.flat()
        replica.spread(served["parameters"])
        try:
            model = copy.deepcopy(replica.model_state())
        finally:
            replica.spread(before)
    return {
        "format": FORMAT, "name": setup.name, "world_size": setup.world.world_size,
        "model": model, "optimizer": optimizer, "formats": replica.formats.state_dict(),
        "sampler": None if sampler is None else sampler.state_dict(),
        "policy": pack_policy(state.policy),
        "facts": None if state.facts is None else facts_to_json(state.facts),
        "outer": copy.deepcopy(state.outer), "apart": state.apart,
        "corrected": state.corrected,
    }  # fmt: skip


def from_checkpoint(checkpoint: Mapping[str, Any], setup: RankSetup) -> TrainingState:
    """Load model, optimizer, formats and sampler from a checkpoint; return the rest of it.

    Raises `InputError` for a checkpoint of another policy or number of ranks.
    """
    replica, sampler, world_size = setup.replica, setup.sampler, setup.world.world_size
    for word, here in (("format", FORMAT), ("name", setup.name), ("world_size", world_size)):
        if checkpoint.get(word) != here:
            there = checkpoint.get(word)
            raise InputError(f"the checkpoint's {word} is {there!r}, here it is {here!r}")
    if (sampler is None) != (checkpoint["sampler"] is None):
        raise InputError(
            f"the checkpoint is of a training {'with' if sampler is None else 'without'} a "
            "ShareSampler; give wrap() the same arguments as then"
        )
    replica.load_model_state(checkpoint["model"])
    replica.load_optimizer_state(checkpoint["optimizer"])
    replica.formats.load_state_dict(checkpoint["formats"])
    if sampler is not None:
        sampler.load_state_dict(checkpoint["sampler"])
    facts = checkpoint["facts"]
    return TrainingState(
        unpack_policy(checkpoint["policy"]), None if facts is None else facts_from_json(facts),
        checkpoint["outer"], checkpoint["corrected"], checkpoint["apart"],
    )  # fmt: skip
