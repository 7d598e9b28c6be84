"""While there are stragglers, the mode that a small network scores best; else all as one.

The modes are those of star_h: an update of every x gradients, for each x, and groups of similar
speed that update independently.  The network was trained on simulated costs of every mode.

Source: STAR-ML, the learned choice of Zhang & Shen, "Straggler Tolerant and Resilient DL Training
on Homogeneous GPUs", 2025, arXiv:2512.09685.  Only the abstract and the first sentences of the
introduction were at hand.  The abstract's: a learned method chooses the mode.  Ours, as the
released code has untrained weights, no labels and no training set: everything else.  The labels are
seconds per progress of every mode over the next 20 rounds in the engine.  The features are sorted
relative times, N, batch over noise scale, communication share and the terms of star_h's model;
progress acts through the noise scale alone.  The moments of decision are star_h's.  See
docs/star.md for how good its choices are.
"""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from simstrag.arrays import Floats
from simstrag.contract import WINDOW, View
from simstrag.contract.ties import is_at_most
from simstrag.policies.estimators.mode_choice import (
    ChoosesModes,
    ModeState,
    NoiseSource,
    Quorums,
)
from simstrag.policies.estimators.modes import ModeNetwork, describe, modes
from simstrag.policies.estimators.predictors import ALLOWED

SHIPPED = Path(__file__).with_suffix(".npz")


def features_of(t: Floats, phi: float, view: View) -> Floats:
    """What the network is told of each of `modes(t)`; phi: the noise scale in samples."""
    b = ChoosesModes._samples_of(view)
    seen = view.newest("communication", WINDOW)
    known = seen[~np.isnan(seen)]
    moved = float(np.median(known) / np.median(t)) if known.size else 0.0
    return describe(modes(t), t, phi, b, moved)


@dataclass(frozen=True)
class StarML(ChoosesModes):
    """A reconstruction of STAR-ML.

    weights_file: the shipped one by default; in a checkout of simstrag,
        `python -m benchmarks.mode_learning` makes others.
    predictor: `last` or `median` of the recent times of a rank, `oracle`, or `lstm:FILE`.
    noise: where phi comes from: `live`, `hint`, or the table of a model.
    phi: noise scale in samples, instead of `noise`.
    ratio: a rank is a straggler if its step is longer than the fastest rank's by more than this
        share.
    tree: where updates wait for all ranks, or for all of a group, the ranks of a node push one
        message.
    """

    title = "STAR-ML, reconstructed"
    lane = "C"

    weights_file: str | None = field(default=None, metadata={"none": "shipped"})
    predictor: str = field(default="median", metadata={"allowed": ALLOWED})
    noise: NoiseSource = NoiseSource.LIVE
    phi: float | None = None
    ratio: float = 0.2
    tree: bool = False
    state_: ModeState = field(default_factory=ModeState, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._load()
        self._check(("ratio",), ("phi",))
        _ = self.network_

    @cached_property
    def network_(self) -> ModeNetwork:
        """The network of the weights. Raises `InputError` for a file without such weights."""
        return ModeNetwork.read(SHIPPED if self.weights_file is None else self.weights_file)

    @property
    def weights(self) -> str:
        """The SHA-256 of the files that it reads."""
        return super().weights + self.network_.sha256

    def _choose_mode(self, t: Floats, phi: float, view: View) -> tuple[str, Quorums]:
        """The mode with the lowest score; of tied ones all together, then the largest x."""
        costs = np.exp(self.network_.scores(features_of(t, phi, view)))
        mode = modes(t)[int(np.flatnonzero(is_at_most(costs, costs.min()))[0])]
        name = "dynamic" if mode.groups else "ssgd" if mode.x == len(t) else "static"
        return name, mode.quorums(len(t))
