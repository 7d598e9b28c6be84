"""A policy as bytes: the one thing that processes of a job, and checkpoints, unpickle.

A policy is an object of any class, with what it has learnt, so that nothing less than a pickle
holds it.  It comes from a rank or a server that has proved that it knows the secret of the job, or
out of a checkpoint that the user trusts.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.contract import Policy


def pack_policy(policy: Policy) -> bytes:
    """Pickle a policy and its state."""
    return pickle.dumps(policy)


def unpack_policy(packed: bytes) -> Policy:
    """The policy that `pack_policy` pickled; raises `InputError` where its class is not found."""
    try:
        policy: Policy = pickle.loads(packed)
    except (AttributeError, ImportError) as error:
        raise InputError(
            f"the policy cannot be built here: {error}; its class must stand in a module that can "
            "be imported, not in the script itself"
        ) from None
    return policy
