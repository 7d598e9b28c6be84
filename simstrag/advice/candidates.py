"""The policies and parameters that advice tries, and those that a scenario rules out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from simstrag import policies
from simstrag.contract.policy import LANES
from simstrag.ddp.policy_support import mechanism
from simstrag.engine.simulate import check
from simstrag.errors import InputError, SimstragError
from simstrag.experiments.runner import BASELINE
from simstrag.scenario.scenario import Scenario


class Candidates(NamedTuple):
    """The policies that a search tries, and those it leaves out.

    specs: the policies with their parameters, bsp first.
    excluded: why a policy is not tried, by its spec.
    """

    specs: tuple[str, ...]
    excluded: Mapping[str, str]


def grid(workers: int) -> list[str]:
    """All candidates for a number of workers: each built-in policy, at one to five settings.

    Counts of ranks are an eighth, a quarter and a half of the workers.

    >>> [spec for spec in grid(8) if spec.startswith("backup")]
    ['backup', 'backup:b=2']
    """
    eighth, quarter, half = (max(1, workers // k) for k in (8, 4, 2))
    settings = {
        "backup": [f"b={b}" for b in sorted({1, eighth, quarter})],
        "async_local_sgd": ["", "grace=0.5,delay=4,dylu=true"],
        "cgp": ["", "ratio=1.1", "ratio=1.5", "groups=window", "groups=window,window=0.1"],
        "diloco": ["", "h=32"],
        "drain": ["", "ratio=1.1", "ratio=1.5"],
        "fewer": [f"leave_out={k}" for k in sorted({1, eighth, quarter})],
        "k_async": [f"x={x}" for x in sorted({quarter, half, workers - quarter})],
        "lb_bsp": ["", "window=16"],
        "local_sgd": ["h=4", "h=16"],
        "p_reduce": [f"p={p}" for p in sorted({2, max(2, half)})],
        "ssp": ["bound=1", "bound=3", "bound=10"],
        "staleness_lr": ["", "power=0.5"],
    }
    specs = [f"{name}:{values}" for name in policies.names() for values in settings.get(name, [""])]
    return list(dict.fromkeys(policies.spec(policies.load(spec.rstrip(":"))) for spec in specs))


def candidates(
    scenario: Scenario, specs: str | Sequence[str] | None = None, change: str = LANES[-1]
) -> Candidates:
    """The candidates that a scenario admits and that real ranks can run.

    specs: instead of `grid`.
    change: the last lane that is tried, of A (training is not changed), B (some gradients are late,
        left out or in reduced precision) and C (the algorithm may change).

    Raises `InputError` for another lane, and for a policy of `specs` that is not known.

    >>> scenario = Scenario(workers=4, samples=25600, step={"compute": 0.1})
    >>> found = candidates(scenario, ["korel", "drain", "asgd"], change="B")
    >>> found.specs
    ('bsp', 'drain')
    >>> found.excluded["asgd"]
    'it changes training more (lane C)'
    """
    if change not in tuple(LANES):
        raise InputError(f"change {change}: give one of {', '.join(LANES)}")
    asked = grid(scenario.workers) if specs is None else policies.specs(specs)
    found, excluded = [BASELINE], {}
    for spec in asked:
        reason = _obstacle(scenario, spec, change)
        if reason:
            excluded[spec] = reason
        elif spec not in found:
            found.append(spec)
    return Candidates(tuple(found), excluded)


def _obstacle(scenario: Scenario, spec: str, change: str) -> str | None:
    """Why a policy is not tried; None where it is."""
    policy = policies.load(spec)
    lane = policies.declared_lane(policy, spec)
    if lane is not None and lane > change:
        return f"it changes training more (lane {lane})"
    try:
        mode = mechanism(spec)
        if mode.startswith("no: "):
            return f"real ranks cannot run it: {mode.removeprefix('no: ')}"
        with policies.collect_warnings(spec):
            check(scenario, spec, scenario.seed_list[0])
    except SimstragError as error:
        return str(error)
    return None
