"""The exceptions: `SimstragError` > `InputError` > `PlanError`; `SimstragError` > `StallError`."""


class SimstragError(Exception):
    """Base of all exceptions of this package; the message is one line that a user can act on."""


class InputError(SimstragError, ValueError):
    """A file, field, name or value that the user can correct."""


class PlanError(InputError):
    """An impossible plan; the message names the field and the reason."""


class NobodyLeft(PlanError):
    """All ranks of a plan's quorums have left."""


class StallError(SimstragError, RuntimeError):
    """A deadlock: no further event can occur before the end of the run."""
