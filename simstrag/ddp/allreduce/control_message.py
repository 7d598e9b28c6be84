"""The message of each rank to all others with every step: start, local time, plan, norms.

Seven float64 per rank.  The digest stands for the step's version and plan (see `allreduce_mode`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from simstrag.arrays import Floats, Ints
from simstrag.contract import Plan
from simstrag.ddp.journal.journal import plan_to_json

WIDTH = 7
"""Numbers in a message."""

DIGEST_BYTES = 6
"""48 bits, which a float64 holds exactly."""


class ControlMessages(NamedTuple):
    """Gathered messages; each field has shape (members,).

    start: when the step began, on the rank's own clock.
    seconds: the step's local time.
    digest, version: identify the plan that the step was computed under.
    flags: a whole number; the sender defines its meaning.
    squared_norm: of the rank's own gradient, before it is weighed; NaN where it is not measured.
    squared_sum: squared norm of what the step before reduced; NaN where it is not measured.
    """

    start: Floats
    seconds: Floats
    digest: Ints
    version: Ints
    flags: Ints
    squared_norm: Floats
    squared_sum: Floats


def pack(
    slot: torch.Tensor,
    start: float,
    seconds: float,
    digest: int,
    version: int,
    flags: int = 0,
    squared_norm: float = math.nan,
    squared_sum: float = math.nan,
) -> None:
    """Write one rank's message into `slot`, float64 of shape (7,) on the CPU."""
    slot.numpy()[:] = start, seconds, digest, version, flags, squared_norm, squared_sum


def unpack(gathered: torch.Tensor) -> ControlMessages:
    """The messages of all members from a gathered tensor, float64 of shape (members, 7).

    >>> slots = torch.zeros(2, WIDTH, dtype=torch.float64)
    >>> pack(slots[1], start=3.0, seconds=0.25, digest=2**48 - 1, version=7)
    >>> unpack(slots).digest.tolist(), unpack(slots).seconds.tolist()
    ([0, 281474976710655], [0.0, 0.25])
    """
    start, seconds, *whole, squared_norm, squared_sum = gathered.numpy().copy().T
    digests, versions, flags = (each.astype(np.int64) for each in whole)
    return ControlMessages(start, seconds, digests, versions, flags, squared_norm, squared_sum)


class PlanDigests:
    """Digests of plans, with the hash of the last plan cached: most plans hold for many updates.

    The cache compares by identity, so plans must not change; resolved ones cannot.

    >>> from simstrag.contract import Plan, Precision
    >>> digests = PlanDigests()
    >>> one, other = (Plan(precision={rank: Precision.AMP}).resolved(3) for rank in (1, 2))
    >>> digests.of(one, 5) == digests.of(Plan(precision={1: Precision.AMP}).resolved(3), 5)
    True
    >>> digests.of(one, 5) in (digests.of(other, 5), digests.of(one, 6))
    False
    """

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._text = hashlib.blake2b(digest_size=DIGEST_BYTES)

    def of(self, plan: Plan, version: int) -> int:
        """48 bits that are equal for equal plans and versions, in all processes."""
        if plan is not self._plan:
            self._text = hashlib.blake2b(_text(plan).encode(), digest_size=DIGEST_BYTES)
            self._plan = plan
        whole = self._text.copy()
        whole.update(b"@%d" % version)
        return int.from_bytes(whole.digest(), "big")


def _text(plan: Plan) -> str:
    """A canonical text of a plan, the same in all processes; 1 and 1.0 read the same."""
    written = json.dumps(plan_to_json(plan), sort_keys=True, default=_refuse)
    return json.dumps(json.loads(written, parse_int=float))


def _refuse(value: object) -> None:
    raise TypeError(f"a plan cannot hold {value!r}: its text would differ between processes")


def describe_disagreement(slots: ControlMessages, ranks: Sequence[int] | None = None) -> str | None:
    """A sentence that names the members that decided differently; None if all decided the same.

    ranks: the members; None if they are all ranks.

    It names the members that differ from a majority of three or more; without one, all members.
    """
    if (slots.digest == slots.digest[0]).all() and (slots.version == slots.version[0]).all():
        return None
    names = list(range(len(slots.digest))) if ranks is None else list(ranks)
    decisions = list(zip(slots.digest.tolist(), slots.version.tolist(), strict=True))
    (common, count), *_ = Counter(decisions).most_common(1)
    most = len(decisions) >= 3 and 2 * count > len(decisions)
    shown = {d: f"at version {d[1]} with plan {d[0]:012x}" for d in decisions}
    odd = "; ".join(
        f"rank {name} is {shown[own]}"
        for name, own in zip(names, decisions, strict=True)
        if not most or own != common
    )
    rest = f", the other {count} ranks are {shown[common]}" if most else ""
    return f"{odd}{rest}: their plans are not the same"
