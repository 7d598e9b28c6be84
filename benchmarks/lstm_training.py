"""Trains STAR's LSTM on the monitors of a cluster, and scores predictors by the 20 % rule.

    python -m benchmarks.lstm_training train STUDY... --out FILE.npz [--seed N] [--epochs N]
    python -m benchmarks.lstm_training check FILE.npz STUDY...

Training needs torch and takes minutes; policies read the weights with numpy alone.  As in STAR's
training code: the loss is the squared error over all positions of a window, of the next load and of
the next time of an iteration, each as a z-score; Adam at 1e-3.  Ours: intervals of monitors instead
of iterations, times without noise over those of a clean iteration, fewer windows and epochs.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from benchmarks.tables import Table, show
from simstrag.arrays import Array, Bools, Floats, Ints
from simstrag.cluster.job import STRAGGLES, RunningJob
from simstrag.cluster.simulate import simulate_cluster
from simstrag.cluster.study import ClusterStudy
from simstrag.cluster.telemetry import Monitors
from simstrag.contract.view import INTERVALS, MONITORED
from simstrag.documents.weights_file import Weights
from simstrag.errors import InputError, SimstragError
from simstrag.policies.estimators.lstm import HIDDEN, KIND, LAYERS, Lstm
from simstrag.policies.estimators.predictors import PREDICTORS
from simstrag.policies.estimators.time_to_progress import straggle

if TYPE_CHECKING:
    import torch


SSGD = "star_ring:ratio=1000"
"""All ranks in one all-reduce, with reviews and so with times in views; as in STAR's data."""
TRAINED = 0.7
"""The share of a run's intervals, from the first on, that is trained on, as in STAR's code."""
HORIZONS = (1, INTERVALS)
"""Intervals ahead for which predictions are scored."""
BATCH = 32
LEARNING_RATE = 1e-3
MOST = 8192
"""Windows that are trained on; more are drawn from."""


@dataclass(slots=True)
class JobRecord:
    """One job; row k is of the interval that begins at the end of interval `first` + k.

    nodes: of its ranks.
    first: number of intervals that ended before its first row.
    times: shape (rows, N), seconds of an iteration of each rank in that interval, without noise,
        over those of a clean one.
    predicted: by name of a predictor, the same as predicted when the interval begins.
    """

    nodes: Ints
    first: int
    times: list[Floats] = field(default_factory=list)
    predicted: dict[str, list[Floats]] = field(default_factory=dict)


@dataclass(slots=True)
class Recording:
    """One run.

    interval: seconds.
    loads: shape (nodes, 3) for each interval, as in `View.telemetry`.
    jobs: by name.
    """

    interval: float
    loads: list[Floats] = field(default_factory=list)
    jobs: dict[str, JobRecord] = field(default_factory=dict)

    def note(self, now: float, monitors: Monitors, jobs: list[RunningJob]) -> None:
        """Add an interval that has ended; called by `simulate_cluster`."""
        self.loads.append(monitors.windows[:, -1])
        for job in jobs:
            name = job.job.name
            if name not in self.jobs:
                self.jobs[name] = JobRecord(job.nodes, len(self.loads))
            record, clean = self.jobs[name], job.local_seconds(slowed=False)
            record.times.append(job.local_seconds() / clean)
            view = job.view()
            for predictor, predict in PREDICTORS.items():
                record.predicted.setdefault(predictor, []).append(predict(view) / clean)

    @property
    def digest(self) -> str:
        """The SHA-256 of its loads and times."""
        found = hashlib.sha256(np.array(self.loads).tobytes())
        for name, job in sorted(self.jobs.items()):
            found.update(name.encode() + np.array(job.times).tobytes())
        return found.hexdigest()


def record(study: ClusterStudy, seed: int) -> Recording:
    """A run of a study with its first placer, where jobs without a policy of their own do `SSGD`.

    Raises `InputError` where its views hold no times.
    """
    recording = Recording(study.interval)
    simulate_cluster(study, SSGD, seed=seed, alone=False, record=False, on_interval=recording.note)
    known = [np.nan_to_num(job.predicted["last"]).any() for job in recording.jobs.values()]
    if known and not any(known):  # an engine keeps no times for plans without reviews
        raise InputError(
            "no job's own policy asks for reviews, so that no view has any times; leave it out, or "
            f"give one that does, such as {SSGD}"
        )
    return recording


@dataclass(frozen=True, slots=True)
class Score:
    """The scores of one predictor.

    predictor: its name.
    ahead: intervals between the prediction and what it is about.
    states: jobs times intervals.
    share: of them that truly have a straggler.
    accuracy: share of the states that are predicted right.
    false_positive: share of the states without a straggler for which one is predicted.
    false_negative: share of those with a straggler for which none is.
    """

    predictor: str
    ahead: int
    states: int
    share: float
    accuracy: float
    false_positive: float
    false_negative: float

    @classmethod
    def of(
        cls, predictor: str, ahead: int, predicted: Sequence[bool], true: Sequence[bool]
    ) -> Score:
        """From what was predicted for each state, and what was true.

        >>> Score.of("last", 1, [True, True, False, False], [True, False, False, False])
        Score(predictor='last', ahead=1, states=4, share=0.25, accuracy=0.75, \
false_positive=0.3333333333333333, false_negative=0.0)
        """
        said, is_so = np.array(predicted, bool), np.array(true, bool)

        def share(of: Bools) -> float:
            return float(of.mean()) if of.size else math.nan

        return cls(
            predictor, ahead, len(is_so), share(is_so), share(said == is_so), share(said[~is_so]),
            share(~said[is_so]),
        )  # fmt: skip


def score(
    recordings: Sequence[Recording], network: Lstm | None, trained: Container[str] = ()
) -> list[Score]:
    """The scores of every predictor, of states in which all of them know all ranks.

    trained: digests of runs of which the last 30 % alone count, which no training saw.
    """
    states: dict[int, list[tuple[dict[str, bool], bool]]] = {ahead: [] for ahead in HORIZONS}
    for recording in recordings:
        rolled_out = None if network is None else _roll_out(network, recording)
        start = int(TRAINED * len(recording.loads)) if recording.digest in trained else 0
        for job in recording.jobs.values():
            times = np.array(job.times)
            predicted = {
                name: np.array(values)[:, :, np.newaxis].repeat(INTERVALS, axis=2)
                for name, values in job.predicted.items()
            }
            if rolled_out is not None:
                predicted["lstm"] = rolled_out[job.first : job.first + len(times), job.nodes]
            for ahead in HORIZONS:
                for k in range(max(start - job.first, 0), len(times) - ahead + 1):
                    said = {name: values[k, :, ahead - 1] for name, values in predicted.items()}
                    if not any(np.isnan(each).any() for each in said.values()):
                        flags = {name: _any_straggles(each) for name, each in said.items()}
                        states[ahead].append((flags, _any_straggles(times[k + ahead - 1])))
    names = list(states[1][0][0]) if states[1] else []
    return [
        Score.of(name, ahead, [flags[name] for flags, _ in rows], [true for _, true in rows])
        for ahead, rows in states.items()
        for name in names
    ]


def _roll_out(network: Lstm, recording: Recording) -> Floats:
    """Times of iterations, shape (intervals, nodes, 30), as predicted once so many have ended."""
    loads = np.array(recording.loads)
    before = np.full((INTERVALS - 1, *loads.shape[1:]), np.nan)
    every = sliding_window_view(np.concatenate([before, loads]), INTERVALS, axis=0)
    windows = every.swapaxes(2, 3).reshape(-1, INTERVALS, loads.shape[2])
    found = np.full((len(loads) + 1, loads.shape[1], INTERVALS), np.nan)
    found[1:] = network.predict(windows, INTERVALS).reshape(found[1:].shape)
    return found


def _any_straggles(times: Floats) -> bool:
    return bool(straggle(times, STRAGGLES).any())


def train(recordings: Sequence[Recording], seed: int, epochs: int, command: str) -> Weights:
    """Weights trained on the first 70 % of each run, with their scores on the rest.

    Raises `InputError` where there is nothing to learn from.
    """
    import torch

    loads, following, times = _samples(recordings)
    if not len(loads):
        most, interval = max(len(each.loads) for each in recordings), recordings[0].interval
        raise InputError(
            f"nothing to train on: a window has {INTERVALS + 1} intervals of the first "
            f"{TRAINED:.0%} of a run, and the longest run has {most} of {interval:g} s; let jobs "
            "run longer, or shorten `interval`"
        )
    draws = np.random.default_rng(seed)
    if len(loads) > MOST:
        chosen = draws.choice(len(loads), MOST, replace=False)
        loads, following, times = loads[chosen], following[chosen], times[chosen]
    load_mean, load_std = loads.mean(axis=(0, 1)), loads.std(axis=(0, 1))
    load_std[load_std == 0] = 1.0
    time_mean, time_std = np.nanmean(times), np.nanstd(times) or 1.0
    tensors = [
        torch.tensor(array, dtype=torch.float32)
        for array in (
            (loads - load_mean) / load_std, (following - load_mean) / load_std,
            (times - time_mean) / time_std,
        )
    ]  # fmt: skip
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    network = _network()
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    for _ in range(epochs):
        for batch in np.array_split(draws.permutation(len(loads)), -(-len(loads) // BATCH)):
            x, y, t = (each[batch] for each in tensors)
            optimizer.zero_grad()
            _loss(network, x, y, t).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    arrays = _arrays(network) | {
        "load_mean": load_mean, "load_std": load_std,
        "time_mean": np.float64(time_mean), "time_std": np.float64(time_std),
    }  # fmt: skip
    data = [recording.digest for recording in recordings]
    about = {
        "window": INTERVALS, "interval": recordings[0].interval, "seed": seed, "epochs": epochs,
        "windows": len(loads), "data": data, "command": command,
    }  # fmt: skip
    scores = score(recordings, Lstm(Weights(KIND, arrays, about)), data)
    return Weights(KIND, arrays, about | {"scores": [asdict(each) for each in scores]})


def _samples(recordings: Sequence[Recording]) -> tuple[Floats, Floats, Floats]:
    """Windows of loads, the load that follows each position, and the time that does; NaN without.

    Shapes (windows, 30, 3) twice, and (windows, 30): one for each job, node of it and interval.
    """
    loads, following, times = list[Floats](), list[Floats](), list[Floats]()
    for recording in recordings:
        seen, last = np.array(recording.loads), int(TRAINED * len(recording.loads))
        for job in recording.jobs.values():
            for node in np.unique(job.nodes):
                known = np.full(len(seen), np.nan)
                rows = np.array(job.times)[:, job.nodes == node].mean(axis=1)
                known[job.first : job.first + len(rows)] = rows[: len(known) - job.first]
                first = max(INTERVALS, job.first + 1) + 1
                for end in range(first, min(job.first + len(rows), last) + 1):
                    window = seen[end - INTERVALS - 1 : end, node]
                    loads.append(window[:-1])
                    following.append(window[1:])
                    times.append(known[end - INTERVALS : end])
    shape = (-1, INTERVALS, len(MONITORED))
    return (
        np.array(loads).reshape(shape), np.array(following).reshape(shape),
        np.array(times).reshape(-1, INTERVALS),
    )  # fmt: skip


def _network() -> Any:
    from torch import nn

    return nn.ModuleDict({
        "lstm": nn.LSTM(len(MONITORED), HIDDEN, LAYERS, batch_first=True),
        "a": nn.Linear(HIDDEN, len(MONITORED)),
        "b0": nn.Linear(len(MONITORED), 256), "b1": nn.Linear(256, 128), "b2": nn.Linear(128, 1),
    })  # fmt: skip


def _loss(network: Any, x: torch.Tensor, y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    import torch

    load = network["a"](network["lstm"](x)[0])
    hidden = torch.relu(network["b1"](torch.relu(network["b0"](load))))
    time = network["b2"](hidden)[:, :, 0]
    known = ~torch.isnan(t)
    wrong = torch.where(known, time - torch.nan_to_num(t), 0.0)
    loss: torch.Tensor = ((load - y) ** 2).sum() + (wrong**2).sum()
    return loss / (y.numel() + known.sum())


def _arrays(network: Any) -> dict[str, Array]:
    """The weights by the names that `Lstm` reads; the two biases of a layer are one."""
    found: dict[str, Array] = {}
    for layer in range(LAYERS):
        of = {
            name: getattr(network["lstm"], f"{name}_l{layer}").detach().numpy()
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        }
        found |= {
            f"input{layer}_weight": of["weight_ih"], f"hidden{layer}_weight": of["weight_hh"],
            f"layer{layer}_bias": of["bias_ih"] + of["bias_hh"],
        }  # fmt: skip
    for name in ("a", "b0", "b1", "b2"):
        found |= {
            f"{name}_weight": network[name].weight.detach().numpy(),
            f"{name}_bias": network[name].bias.detach().numpy(),
        }
    return found


def record_all(paths: Sequence[Path]) -> list[Recording]:
    """Every seed of every study.  Raises `InputError` where their intervals differ."""
    studies = [ClusterStudy.read(path) for path in paths]
    for path, study in zip(paths, studies, strict=True):
        if study.interval != studies[0].interval:
            raise InputError(
                f"{path}: interval is {study.interval:g} s, and that of {paths[0]} is "
                f"{studies[0].interval:g} s; they must be alike"
            )
    return [record(study, seed) for study in studies for seed in study.seed_list]


def check(file: Path, paths: Sequence[Path]) -> list[Score]:
    """The scores of last value, median, oracle and LSTM on runs of a cluster."""
    network, recordings = Lstm.read(file), record_all(paths)
    interval, data = network.about["interval"], network.about["data"]
    if interval != recordings[0].interval:
        raise InputError(
            f"{file}: was trained for intervals of {interval:g} s, and {paths[0]} has "
            f"{recordings[0].interval:g} s; change `interval`, or train again"
        )
    trained = sum(recording.digest in data for recording in recordings)
    if trained:
        print(f"{trained} of {len(recordings)} runs were trained on: their last 30 % count")
    return score(recordings, network, data)


def table(scores: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each predictor and horizon."""
    headers = ("predictor", "intervals ahead", "accuracy", "false positive", "false negative")
    about = [f"{s['states']} states, {s['share']:.1%} of them with a straggler" for s in scores[:1]]
    title = about[0] if about else "no state in which every predictor knows all ranks"
    return Table(title, headers, [_cells(each) for each in scores])


def _cells(each: Mapping[str, Any]) -> tuple[str, ...]:
    rates = [each[key] for key in ("accuracy", "false_positive", "false_negative")]
    shares = ["-" if math.isnan(rate) else f"{rate:.1%}" for rate in rates]
    return each["predictor"], str(each["ahead"]), *shares


def main(arguments: Sequence[str]) -> None:
    """Train or check, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    training, checking = (commands.add_parser(name) for name in ("train", "check"))
    checking.add_argument("file", type=Path)
    for each in (training, checking):
        each.add_argument("studies", type=Path, nargs="+", metavar="STUDY")
    training.add_argument("--out", type=Path, required=True, metavar="FILE.npz")
    training.add_argument("--seed", type=int, default=0)
    training.add_argument("--epochs", type=int, default=30)
    asked = parser.parse_args(arguments)
    try:
        if asked.command == "check":
            show([table([asdict(each) for each in check(asked.file, asked.studies)])])
            return
        command = " ".join(["python -m benchmarks.lstm_training", *arguments])
        weights = train(record_all(asked.studies), asked.seed, asked.epochs, command)
    except SimstragError as error:
        parser.error(str(error))
    weights.write(asked.out)
    print("the last 30 % of each run, which were not trained on:")
    show([table(weights.about["scores"])])


if __name__ == "__main__":
    main(sys.argv[1:])
