"""`simstrag learn`: train star_ml on the simulated costs of modes, or judge its weights by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from simstrag.cli.console import command_line, print_line, print_table
from simstrag.cli.options import argument, option, out_option
from simstrag.cli.output import emit
from simstrag.cli.progress import show_count
from simstrag.documents.file_io import writable
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError

LEARNED = ("star_ml",)
"""The policies that are trained."""


def learn(
    policy: Annotated[str, argument("star_ml.", "POLICY")],
    scenarios: Annotated[
        list[Path], argument("Scenarios with traces, or folders of them.", "SCENARIO...")
    ],
    out: Annotated[Path | None, out_option("File of the weights.", "FILE.npz")] = None,
    check: Annotated[
        str | None, option("Train nothing; judge these weights, or those `shipped`.", "FILE")
    ] = None,
    seed: Annotated[int, option("Of the first weights.", min=0)] = 0,
) -> None:
    """Train star_ml on costs of modes, or judge it elsewhere.

    Each seed of a scenario is one moment, elsewhere in its trace.
    """
    from simstrag.experiments.mode_learning import scores, training
    from simstrag.experiments.mode_learning.moments import moments
    from simstrag.policies.estimators.modes import ModeNetwork
    from simstrag.policies.star_ml import SHIPPED
    from simstrag.scenario.scenario import Scenario

    if policy not in LEARNED:
        known = ", ".join(LEARNED)
        raise InputError(f"'{policy}' learns nothing; known: {known}{nearest(policy, LEARNED)}")
    if (out is None) == (check is None):
        raise InputError("give --out FILE.npz to train, or --check FILE to judge weights")
    if out is not None:
        writable(out, ".npz")
    else:
        network = ModeNetwork.read(SHIPPED if check == "shipped" else str(check))
    read = [Scenario.read(path) for given in scenarios for path in _files(given)]
    with show_count() as show:
        found = moments(read, lambda done, total: show(done, total, "moments"))
    if out is None:
        table = _table(scores.regrets(found, network))
    else:
        weights = training.fit(found, seed, command_line())
        table = _table(scores.regrets(found, ModeNetwork(weights)))
        replace(weights, about={**weights.about, "regrets": table}).write(out)

    def show_table() -> None:
        what = "judged on" if out is None else "trained on"
        print_line(
            f"{what} {len(found)} moments with a straggler; regret over the best mode of each:"
        )
        headers = ("choice", "mean", "worst", "within 1 %")
        print_table(headers, [_cells(each) for each in table])

    document = {"moments": len(found), "regrets": table, "written": out}
    emit(document, show_table, weights=out)


def _files(path: Path) -> list[Path]:
    return sorted(path.glob("*.yaml")) if path.is_dir() else [path]


def _table(rows: Sequence[Any]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]


def _cells(row: dict[str, Any]) -> list[str]:
    return [row["name"], *(f"{row[key]:.1%}" for key in ("mean", "worst", "best"))]
