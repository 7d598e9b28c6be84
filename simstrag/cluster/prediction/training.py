"""Trains STAR's LSTM on what monitors showed; needs torch.

As in STAR's training code: the loss is the squared error over all positions of a window, of the
next load and of the next time of an iteration, each as a z-score; Adam at 1e-3.  Ours: intervals of
monitors instead of iterations, times without noise over those of a clean iteration, fewer windows
and epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simstrag.cluster.prediction.recording import Recording
from simstrag.cluster.prediction.scores import TRAINED, score
from simstrag.contract.view import INTERVALS, MONITORED
from simstrag.documents.weights_file import Weights
from simstrag.errors import InputError
from simstrag.policies.estimators.lstm import HIDDEN, KIND, LAYERS, Lstm

if TYPE_CHECKING:
    import torch

Floats = npt.NDArray[np.float64]

BATCH = 32
LEARNING_RATE = 1e-3
MOST = 8192
"""Windows that are trained on; more are drawn from."""


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


def _arrays(network: Any) -> dict[str, npt.NDArray[Any]]:
    """The weights by the names that `Lstm` reads; the two biases of a layer are one."""
    found: dict[str, npt.NDArray[Any]] = {}
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
