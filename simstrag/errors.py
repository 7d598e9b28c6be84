"""What can go wrong, as a tree: `SimstragError` > `InputError` > `PlanError`; > `StallError`."""

__all__ = ["InputError", "PlanError", "SimstragError", "StallError"]


class SimstragError(Exception):
    """Anything this package raises on purpose; the message is one line a person can act on."""


class InputError(SimstragError, ValueError):
    """A file, field, name or value that the user can correct."""


class PlanError(InputError):
    """A plan that cannot be carried out: the message says which part and why."""


class NobodyLeft(PlanError):
    """All ranks that a plan counts on are gone."""


class StallError(SimstragError, RuntimeError):
    """Nothing is left that could happen, and the run has not reached its end."""
