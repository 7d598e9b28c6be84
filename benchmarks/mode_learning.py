"""Trains STAR-ML: what every mode costs over the next rounds, and a network that learns it.

    python -m benchmarks.mode_learning train SCENARIO|FOLDER... --out FILE.npz [--seed N]
    python -m benchmarks.mode_learning check FILE.npz|shipped SCENARIO|FOLDER...

At a moment ranks straggle.  The cost of a mode is seconds per progress over the next rounds,
simulated by the engine from the very state of the moment: the same run, under the same noise and
trace, goes on in each mode.  Each seed of a scenario is one moment, elsewhere in its trace.

The network learns the logarithm of a mode's cost up to a constant of its moment, by least squares:
modes that cost the same get the same score, and no mode is named the right one.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import Table, show
from simstrag.arrays import Floats, Ints
from simstrag.contract import Plan, Quorum, Review, Via, View
from simstrag.documents.weights_file import Weights
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError, SimstragError
from simstrag.policies.estimators.modes import FEATURES, KIND, Mode, ModeNetwork, modes
from simstrag.policies.estimators.time_to_progress import straggle
from simstrag.policies.star_h import StarH
from simstrag.policies.star_ml import SHIPPED, features_of
from simstrag.scenario.scenario import Scenario

BEFORE = 16
"""Rounds of SSGD before the moment: a full window of times."""
AFTER = 20
"""Rounds from the moment on over which a mode is judged."""
SIZES = 9
"""Values of x that are tried in a large world, from 1 to N."""
HIDDEN = 8
PASSES = 1000
RATE, DECAY = 3e-3, 1.0
"""Of Adam, and of the weights; chosen with the other two by cross-validation over scenarios."""
ARRAYS = ("weight0", "bias0", "weight1", "bias1", "weight2")


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """A moment of one run.

    ranks: N.
    modes: that were tried, all together first.
    features: shape (modes, features), as `star_ml` sees them.
    costs: shape (modes,), seconds per progress.
    star_h: the number of the mode that star_h chooses.
    """

    ranks: int
    modes: tuple[Mode, ...]
    features: Floats
    costs: Floats
    star_h: int

    @property
    def regrets(self) -> Floats:
        """Cost of each mode over the least, minus 1."""
        answer: Floats = self.costs / self.costs.min() - 1
        return answer


def moments(scenarios: Iterable[Scenario]) -> list[Moment]:
    """A moment for each scenario and seed; none where no rank straggles at the moment.

    Each seed begins elsewhere in the scenario's trace.  Raises `InputError` where none straggles.
    """
    pairs = [(scenario, seed) for scenario in scenarios for seed in scenario.seed_list]
    every = [_moment(scenario, seed) for scenario, seed in pairs]
    if not (found := [moment for moment in every if moment is not None]):
        raise InputError("no rank straggles in any seed of these scenarios: nothing to learn from")
    return found


def digest(found: Sequence[Moment]) -> str:
    """The SHA-256 of features and costs."""
    joined = b"".join(each.features.tobytes() + each.costs.tobytes() for each in found)
    return hashlib.sha256(joined).hexdigest()


@dataclass(eq=False)
class _Going:
    """All together for some rounds, then one mode; notes what star_ml and star_h would know.

    mode: None stands for all together.
    """

    mode: Mode | None = None
    seen: dict[str, Any] = field(default_factory=dict)

    def __deepcopy__(self, memo: Any) -> _Going:
        return self  # an engine copies its policy, and `seen` is read afterwards

    def plan(self, view: View) -> Plan:
        """The plan; it looks at the view of the moment once."""
        if view.version < BEFORE:
            return Plan((Quorum(via=Via.SERVER),), review=Review(updates=1))
        if self.mode is not None:
            return Plan(self.mode.quorums(view.world_size))
        if not self.seen:
            self._look(view)
        return Plan((Quorum(via=Via.SERVER),))

    def _look(self, view: View) -> None:
        heuristic = StarH()
        t = heuristic.predicted(view)
        self.seen["straggles"] = bool(straggle(t, heuristic.ratio).any())
        if self.seen["straggles"]:
            phi = view.noise_scale
            assert phi is not None, "a simulation knows it"
            chosen = heuristic._choose_mode(t, phi, view)[1]
            self.seen |= {
                "modes": modes(t), "features": features_of(t, phi, view),
                "star_h": [mode.quorums(len(t)) for mode in modes(t)].index(chosen),
            }  # fmt: skip


def _moment(scenario: Scenario, seed: int) -> Moment | None:
    n, batch = scenario.workers, scenario.learner.batch
    shifted = {} if scenario.trace is None else {"trace_end": "loop", "trace_per_seed": "shift"}
    scenario = scenario.replaced(
        samples=(BEFORE + AFTER) * n * batch, updates=None, target_progress=None, **shifted
    )
    first = _Going()
    together = _cost(scenario, seed, first)
    seen = first.seen
    if not seen.get("straggles"):
        return None
    tried = {n - int(x) for x in np.linspace(1, n, SIZES)} | {0, seen["star_h"]}
    kept = [k for k, mode in enumerate(seen["modes"]) if mode.groups or k in tried]
    chosen = [seen["modes"][k] for k in kept]
    costs = [together, *(_cost(scenario, seed, _Going(mode)) for mode in chosen[1:])]
    return Moment(
        n, tuple(chosen), seen["features"][kept], np.array(costs), kept.index(seen["star_h"])
    )


def _cost(scenario: Scenario, seed: int, policy: _Going) -> float:
    """Seconds per progress after the moment."""
    updates = simulate(scenario, policy, seed).updates
    assert updates is not None
    version, time, progress = (
        np.asarray(updates[name]) for name in ("version", "time", "progress")
    )
    at = int(np.flatnonzero(version == BEFORE)[0])
    return float((time[-1] - time[at]) / (progress[-1] - progress[at]))


@dataclass(frozen=True, slots=True)
class RegretScore:
    """The regret of one way to choose.

    name: star_ml, star_h or a fixed mode.
    mean, worst: cost over the least of all modes, minus 1.
    best: share of the moments in which it is within 1 % of the least.
    """

    name: str
    mean: float
    worst: float
    best: float


def _share(share: float) -> Callable[[Moment], int]:
    """The number of the tried x that is nearest to a share of the ranks."""

    def choose(moment: Moment) -> int:
        apart = [
            np.inf if mode.groups else abs(mode.x - max(share * moment.ranks, 1))
            for mode in moment.modes
        ]
        return int(np.argmin(apart))

    return choose


FIXED: dict[str, Callable[[Moment], int]] = {
    "all": lambda moment: 0,
    "x = 3N/4": _share(0.75), "x = N/2": _share(0.5), "x = N/4": _share(0.25),
    "x = 1": _share(0.0),
    "groups": lambda moment: len(moment.modes) - 1 if moment.modes[-1].groups else 0,
}  # fmt: skip
"""Modes that stay whatever is seen; groups are those of the moment, all together if it has none."""


def regrets(found: Sequence[Moment], network: ModeNetwork) -> list[RegretScore]:
    """Of star_ml, star_h and every fixed mode; a mode that was not tried stands for its nearest."""
    rules: dict[str, Callable[[Moment], int]] = {
        "star_ml": lambda moment: int(np.argmin(network.scores(moment.features))),
        "star_h": lambda moment: moment.star_h,
        **FIXED,
    }
    rows = []
    for name, choose in rules.items():
        lost = np.array([each.regrets[choose(each)] for each in found])
        rows.append(
            RegretScore(name, float(lost.mean()), float(lost.max()), float((lost <= 0.01).mean()))
        )
    return rows


def fit(found: Sequence[Moment], seed: int, command: str) -> Weights:
    """Weights trained on moments."""
    x = np.concatenate([each.features for each in found])
    y = np.concatenate([np.log(each.costs) for each in found])
    sizes = np.array([len(each.costs) for each in found])
    mean, std = x.mean(axis=0), x.std(axis=0)
    std[std < 1e-9] = 1.0  # a feature that is the same everywhere, but for its last bits
    arrays = _trained((x - mean) / std, y, sizes, seed)
    return Weights(
        KIND,
        {name: array.astype(np.float32) for name, array in arrays.items()}
        | {"mean": mean, "std": std},
        {
            "features": FEATURES, "seed": seed, "data": digest(found), "moments": len(found),
            "rounds": [BEFORE, AFTER], "command": command,
        },
    )  # fmt: skip


def _trained(x: Floats, y: Floats, sizes: Ints, seed: int) -> dict[str, Floats]:
    """By Adam on all rows at once."""
    random = np.random.default_rng(seed)
    shapes = ((x.shape[1], HIDDEN), (HIDDEN,), (HIDDEN, HIDDEN), (HIDDEN,), (HIDDEN,))
    w = [random.normal(0, 1 / np.sqrt(shape[0]), shape) * (len(shape) > 1) for shape in shapes]
    w[4] = random.normal(0, 1 / np.sqrt(HIDDEN), HIDDEN)
    first, second = [np.zeros_like(each) for each in w], [np.zeros_like(each) for each in w]
    for step in range(1, PASSES + 1):
        for k, slope in enumerate(slopes(w, x, y, sizes)):
            first[k] = 0.9 * first[k] + 0.1 * slope
            second[k] = 0.999 * second[k] + 0.001 * slope**2
            move = first[k] / (1 - 0.9**step) / (np.sqrt(second[k] / (1 - 0.999**step)) + 1e-8)
            w[k] = w[k] - RATE * (1 - step / PASSES) * (move + DECAY * w[k])
    return dict(zip(ARRAYS, w, strict=True))


def slopes(w: Sequence[Floats], x: Floats, y: Floats, sizes: Ints) -> tuple[Floats, ...]:
    """Of the mean squared error, within moments, in each array."""
    one = np.tanh(x @ w[0] + w[1])
    two = np.tanh(one @ w[2] + w[3])
    wrong = _centred(two @ w[4] - y, sizes) / len(y)  # centring is its own transpose
    back_two = np.outer(wrong, w[4]) * (1 - two**2)
    back_one = back_two @ w[2].T * (1 - one**2)
    return x.T @ back_one, back_one.sum(0), one.T @ back_two, back_two.sum(0), two.T @ wrong


def _centred(values: Floats, sizes: Ints) -> Floats:
    """Values minus the mean of their moment."""
    starts = np.cumsum(sizes) - sizes
    answer: Floats = values - np.repeat(np.add.reduceat(values, starts) / sizes, sizes)
    return answer


def read(paths: Sequence[Path]) -> list[Moment]:
    """The moments of scenarios, and of folders of them."""
    files = [each for path in paths for each in (sorted(path.glob("*.yaml")) or [path])]
    return moments([Scenario.read(path) for path in files])


def table(title: str, scores: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each way to choose: its regret over the best mode of each moment."""
    rows = [(r["name"], *(f"{r[key]:.1%}" for key in ("mean", "worst", "best"))) for r in scores]
    return Table(title, ("choice", "mean", "worst", "within 1 %"), rows)


def main(arguments: Sequence[str]) -> None:
    """Train or check, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    training, checking = (commands.add_parser(name) for name in ("train", "check"))
    checking.add_argument("file", metavar="FILE.npz|shipped")
    for each in (training, checking):
        each.add_argument("scenarios", type=Path, nargs="+", metavar="SCENARIO|FOLDER")
    training.add_argument("--out", type=Path, required=True, metavar="FILE.npz")
    training.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    try:
        found = read(asked.scenarios)
        if asked.command == "check":
            network = ModeNetwork.read(SHIPPED if asked.file == "shipped" else asked.file)
        else:
            command = " ".join(["python -m benchmarks.mode_learning", *arguments])
            weights = fit(found, asked.seed, command)
            network = ModeNetwork(weights)
    except SimstragError as error:
        parser.error(str(error))
    scores = [asdict(each) for each in regrets(found, network)]
    if asked.command == "train":
        replace(weights, about={**weights.about, "regrets": scores}).write(asked.out)
    show([table(f"{len(found)} moments with a straggler: regret over the best mode", scores)])


if __name__ == "__main__":
    main(sys.argv[1:])
