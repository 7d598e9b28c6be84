"""`simstrag predict`: train a predictor of stragglers, and check predictors on a cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simstrag.cli.console import command_line, print_line, print_table
from simstrag.cli.options import argument, option, out_option
from simstrag.cli.output import emit
from simstrag.documents.file_io import writable
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.cluster.prediction.recording import Recording

Studies = Annotated[list[Path], argument("Cluster studies in YAML.", "STUDY...")]


def train(
    studies: Studies,
    out: Annotated[Path, out_option("File of the weights.", "FILE.npz")],
    seed: Annotated[int, option("Of the first weights and the order of windows.", min=0)] = 0,
    epochs: Annotated[int, option("Passes over the windows.", min=1)] = 30,
) -> None:
    """Train STAR's LSTM on the monitors of a simulated cluster; needs torch, takes minutes."""
    from simstrag.ddp.policy_support import check_torch

    check_torch()
    writable(out, ".npz")
    recordings = _record(studies)
    from simstrag.cluster.prediction.training import train as train_network

    weights = train_network(recordings, seed, epochs, command_line())
    weights.write(out)
    document = {**weights.about, "written": out}

    def show() -> None:
        print_line("the last 30 % of each run, which were not trained on:")
        _print(weights.about["scores"])

    emit(document, show, weights=out)


def check(
    file: Annotated[Path, argument("Weights of `simstrag predict train`.", "FILE")],
    studies: Studies,
) -> None:
    """Score last value, median, oracle and LSTM by the 20 % rule on runs of a cluster."""
    from simstrag.cluster.prediction.scores import score
    from simstrag.policies.estimators.lstm import Lstm

    network, recordings = Lstm.read(file), _record(studies)
    interval = network.about["interval"]
    if interval != recordings[0].interval:
        raise InputError(
            f"{file}: was trained for intervals of {interval:g} s, and {studies[0]} has "
            f"{recordings[0].interval:g} s; change `interval`, or train again"
        )
    data = network.about["data"]
    trained = sum(recording.digest in data for recording in recordings)
    scores = [asdict(each) for each in score(recordings, network, data)]

    def show() -> None:
        if trained:
            print_line(
                f"{trained} of {len(recordings)} runs were trained on: their last 30 % count"
            )
        _print(scores)

    document = {"runs": len(recordings), "trained_on": trained, "scores": scores}
    emit(document, show)


def _record(studies: Sequence[Path]) -> list[Recording]:
    """Every seed of every study.  Raises `InputError` where intervals or views are of no use."""
    from simstrag.cluster.prediction.recording import record
    from simstrag.cluster.study import ClusterStudy

    read = [ClusterStudy.read(path) for path in studies]
    for path, study in zip(studies, read, strict=True):
        if study.interval != read[0].interval:
            raise InputError(
                f"{path}: interval is {study.interval:g} s, and that of {studies[0]} is "
                f"{read[0].interval:g} s; they must be alike"
            )
    return [record(study, seed) for study in read for seed in study.seed_list]


def _print(scores: Sequence[dict[str, Any]]) -> None:
    headers = ("predictor", "intervals ahead", "accuracy", "false positive", "false negative")
    print_table(headers, [_cells(each) for each in scores])
    if scores:
        first = scores[0]
        print_line(f"{first['states']} states, {first['share']:.1%} of them with a straggler")


def _cells(each: dict[str, Any]) -> list[str]:
    rates = [each[key] for key in ("accuracy", "false_positive", "false_negative")]
    shares = ["-" if math.isnan(rate) else f"{rate:.1%}" for rate in rates]
    return [each["predictor"], str(each["ahead"]), *shares]
