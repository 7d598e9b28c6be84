"""One line in each framework: from a script to its diagnosis, and to the framework's own log."""

from __future__ import annotations

import csv
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.parallel import DistributedDataParallel

from simstrag.ddp.collector.step_marks import StepSeconds
from simstrag.ddp.frameworks import first_model, torchtitan
from simstrag.ddp.frameworks.first_model import NO_WRAPPER, ONE_PROCESS, FirstModelRecorder
from simstrag.ddp.frameworks.scalars import scalars
from simstrag.errors import InputError
from simstrag.whatif import analyse
from tests.support.ranks import Ranks, ranks

__all__ = ["ranks"]

ROOT = Path(__file__).parents[2]
NEEDED = {
    "train_lightning": "lightning", "train_transformers": "transformers",
    "train_accelerate_record": "accelerate", "train_megatron": "megatron",
}  # fmt: skip
NAMES = {"simstrag/step_seconds", "simstrag/compute_seconds", "simstrag/wait_seconds"}


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of the examples' records, and what they print."""
    for package in NEEDED.values():
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("examples")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.example_ranks", str(folder), *NEEDED], cwd=ROOT,
        env=environment, capture_output=True, text=True, timeout=540, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.mark.parametrize("name", NEEDED)
def test_the_diagnosis_of_an_example_names_the_slow_rank(
    name: str, examples: tuple[Path, str]
) -> None:
    found = analyse(examples[0] / name)
    assert [(each.rank, each.pattern) for each in found.culprits] == [(1, "chronic")]


def test_lightning_logs_the_scalars_with_those_of_the_script(examples: tuple[Path, str]) -> None:
    (path,) = examples[0].glob("train_lightning-logs/**/metrics.csv")
    with path.open(encoding="utf-8") as file:
        *_, last = csv.DictReader(file)
    assert {*last} >= {*NAMES, "loss"}
    assert float(last["simstrag/wait_seconds"]) > 0.005


def test_transformers_prints_the_scalars_with_the_loss(examples: tuple[Path, str]) -> None:
    lines = [line for line in examples[1].splitlines() if "'loss'" in line]
    assert {*re.findall(r"simstrag/\w+", lines[-1])} >= NAMES


# -- the model that is recorded ------------------------------------------------------------------


class Outer(nn.Module):
    """A module around a wrapped one, as a GAN's is."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.other = inner, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.other(x))  # type: ignore[no-any-return]


def rank_in_another_module(rank: int, world: int, folder: str) -> tuple[bool, int]:
    first = FirstModelRecorder(folder)
    model = DistributedDataParallel(nn.Linear(4, 1))
    outer = Outer(model)
    with torch.no_grad():
        outer(torch.ones(2, 4))
    assert first.recorder is None
    for _ in range(5):
        outer(torch.ones(2, 4)).mean().backward()
    hooks = len(first._hooks)
    first.close()
    return first.recorder is not None, hooks


def test_a_wrapped_model_within_another_module_is_recorded(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(rank_in_another_module, 2, str(tmp_path / "run")) == [(True, 0)] * 2
    assert len(list((tmp_path / "run").glob("rank-*.csv"))) == 2


def rank_whose_disk_is_bad(rank: int, world: int, folder: str) -> tuple[bool, str]:
    said: list[str] = []
    first_model.warn = said.append  # type: ignore[assignment]
    original = first_model._problem
    if rank == 1:
        first_model._problem = lambda _: "disk full"
    try:
        first = FirstModelRecorder(folder)
        model = DistributedDataParallel(nn.Linear(4, 1))
        for _ in range(5):
            model(torch.ones(2, 4)).mean().backward()
        first.close()
    finally:
        first_model._problem = original
    return first.recorder is None, " ".join(said)


def test_no_rank_records_where_one_cannot_and_all_train_on(ranks: Ranks, tmp_path: Path) -> None:
    said = "nothing is recorded: disk full"
    assert ranks.run(rank_whose_disk_is_bad, 2, str(tmp_path / "run")) == [(True, said)] * 2


def rank_that_is_late(rank: int, world: int) -> tuple[bool, bool, str]:
    """Whether the first model is recorded, whose training one rank begins late, and the second."""
    said, store = list[str](), _get_default_store()

    def warn(sentence: str) -> None:
        said.append(sentence)
        store.set("rank 0 has given up", "")

    first_model.warn = warn
    recorded, patience = list[bool](), first_model.PATIENCE
    try:
        for first_model.PATIENCE, is_late in ((0.2, rank == 1), (1e3, False)):
            first = FirstModelRecorder(None)
            model = DistributedDataParallel(nn.Linear(4, 1))
            if is_late:
                store.wait(["rank 0 has given up"])
            for _ in range(2):
                model(torch.ones(2, 4)).mean().backward()
            recorded.append(first.recorder is not None)
            first.close()
    finally:
        first_model.PATIENCE = patience
    return recorded[0], recorded[1], " ".join(said)


def test_all_ranks_obey_one_verdict_where_one_is_late_and_the_next_model_has_another(
    ranks: Ranks,
) -> None:
    said = f"nothing is recorded: {first_model.TOO_LATE}"
    assert ranks.run(rank_that_is_late, 2) == [(False, True, said), (False, True, "")]


def rank_without_wrapper(rank: int, world: int) -> tuple[str, int]:
    first = FirstModelRecorder(None)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(first_model.OPTIMIZER_STEPS):
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
    return first.reason, len(first._hooks)


def test_a_model_without_wrapper_is_soon_looked_at_no_more(ranks: Ranks) -> None:
    assert ranks.run(rank_without_wrapper, 2) == [(NO_WRAPPER, 0)] * 2


def test_one_process_gets_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    first = FirstModelRecorder(None)
    nn.Linear(4, 1)(torch.ones(2, 4))
    first.close()
    first.close()
    assert capsys.readouterr().err == f"warning: nothing was recorded: {ONE_PROCESS}\n"


def test_a_folder_with_a_record_is_refused_before_the_training(tmp_path: Path) -> None:
    (tmp_path / "rank-0.csv").touch()
    with pytest.raises(InputError, match="a job was recorded there; choose another folder"):
        FirstModelRecorder(tmp_path)


def test_scalars_have_the_newest_step_and_the_slowest_rank() -> None:
    recorder: Any = SimpleNamespace(
        latest=lambda: StepSeconds(7, 0.25, ((0.5, 0.125), (0.25, 0.375))),
        slowest=lambda: (3, 1.5),
    )
    assert scalars(recorder) == {
        "simstrag/step_seconds": 1.5, "simstrag/compute_seconds": 1.0,
        "simstrag/wait_seconds": 0.5, "simstrag/slowest_rank": 3.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("framework", "kind", "begin"),
    [
        ("transformers", "_Record", "on_train_begin"),
        ("lightning", "RecordCallback", "on_train_start"),
    ],
)
def test_a_training_after_one_that_raised_closes_its_record(
    framework: str, kind: str, begin: str
) -> None:
    pytest.importorskip(framework)
    module = importlib.import_module(f"simstrag.ddp.frameworks.{framework}")
    callback = getattr(module, kind)()
    given = (None,) * (3 if framework == "transformers" else 2)
    getattr(callback, begin)(*given)
    first = callback._record
    assert first._hooks
    getattr(callback, begin)(*given)
    assert not first._hooks
    callback._close()
    assert callback._record is None


# -- torchtitan, which needs CUDA: a stand-in with the methods of 0.3.0 that the hook uses ---------


def test_a_trainer_of_torchtitan_logs_the_scalars_and_closes_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logged: list[Any] = []
    processor = SimpleNamespace(
        log=lambda step, *_, extra_metrics=None: logged.append((step, extra_metrics))
    )
    trainer = SimpleNamespace(metrics_processor=processor, close=lambda: logged.append("closed"))
    monkeypatch.setattr(FirstModelRecorder, "scalars", lambda _: {"simstrag/wait_seconds": 0.5})
    monkeypatch.setattr(FirstModelRecorder, "close", lambda self: self._stop())
    assert torchtitan.record(trainer) is trainer
    trainer.metrics_processor.log(1, 0.1, 0.2, 0.3, extra_metrics={"lr": 0.01})
    trainer.close()
    assert logged == [(1, {"lr": 0.01, "simstrag/wait_seconds": 0.5}), "closed"]
