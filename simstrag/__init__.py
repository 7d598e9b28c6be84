"""simstrag compares straggler-mitigation policies for data-parallel training.

>>> import simstrag
>>> scenario = simstrag.Scenario(workers=4, samples=10_000, step={"compute": 0.1})
>>> simstrag.simulate(scenario, "asgd").summary["updates"]
80
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simstrag.advice.advise import advise
    from simstrag.analysis.monitor.watcher import watch
    from simstrag.analysis.pages.report import report
    from simstrag.calibration.calibrate import calibrate
    from simstrag.contract import (
        ALL,
        Damping,
        Hints,
        Late,
        Plan,
        Policy,
        Precision,
        Quorum,
        Review,
        Via,
        View,
        Weigh,
    )
    from simstrag.engine.simulate import simulate
    from simstrag.errors import InputError, PlanError, SimstragError, StallError
    from simstrag.experiments.compare import compare
    from simstrag.experiments.comparison import Comparison
    from simstrag.experiments.sweep import Sweep, sweep
    from simstrag.profile.profile import Profile
    from simstrag.runs.run import Run
    from simstrag.scenario.scenario import Scenario
    from simstrag.trace.trace import Trace
    from simstrag.validation.policy_contract import check_policy
    from simstrag.whatif.diagnosis import diagnose
    from simstrag.whatif.first_scenario import write_first_scenario

__all__ = [
    "ALL",
    "Comparison",
    "Damping",
    "Hints",
    "InputError",
    "Late",
    "Plan",
    "PlanError",
    "Policy",
    "Precision",
    "Profile",
    "Quorum",
    "Review",
    "Run",
    "Scenario",
    "SimstragError",
    "StallError",
    "Sweep",
    "Trace",
    "Via",
    "View",
    "Weigh",
    "advise",
    "calibrate",
    "check_policy",
    "compare",
    "diagnose",
    "report",
    "simulate",
    "sweep",
    "watch",
    "write_first_scenario",
]

_HOME = {
    "advice.advise": ["advise"],
    "analysis.monitor.watcher": ["watch"],
    "analysis.pages.report": ["report"],
    "calibration.calibrate": ["calibrate"],
    "engine.simulate": ["simulate"],
    "errors": ["InputError", "PlanError", "SimstragError", "StallError"],
    "experiments.compare": ["compare"],
    "experiments.comparison": ["Comparison"],
    "experiments.sweep": ["Sweep", "sweep"],
    "profile.profile": ["Profile"],
    "runs.run": ["Run"],
    "scenario.scenario": ["Scenario"],
    "trace.trace": ["Trace"],
    "validation.policy_contract": ["check_policy"],
    "whatif.diagnosis": ["diagnose"],
    "whatif.first_scenario": ["write_first_scenario"],
}
"""The names of each module; all other public names are of `contract`."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used; the package itself imports nothing heavy."""
    if name in ("claims", "ddp", "whatif"):  # `simstrag.ddp.wrap` works without another import
        return importlib.import_module(f"simstrag.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'simstrag' has no attribute '{name}'")
    home = next((module for module, names in _HOME.items() if name in names), "contract")
    return getattr(importlib.import_module(f"simstrag.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
