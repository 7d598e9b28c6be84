"""A user's own workload, and what is said where it is not what it should be."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from simstrag.errors import InputError
from simstrag.workloads import TrainingTask, load
from tests.support.refusals import message_of

GOOD = """
import torch

def job():
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(model, batch):
        inputs, targets = batch
        return torch.nn.functional.mse_loss(model(inputs), targets)

    def make_batch(samples):
        return torch.randn(samples, 3), torch.randn(samples, 1)

    return model, loss, optimizer, make_batch
"""
NUMBER = itertools.count()
Write = Callable[[str], str]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a module that nobody has imported yet; its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str) -> str:
        name = f"own_workload_{next(NUMBER)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def test_a_users_function_is_a_workload(written: Write) -> None:
    workload = load(f"{written(GOOD)}:job").with_batches((2, 4, 8))
    assert workload.real_data
    job = TrainingTask(workload.build(), "fp32_of_fp64")
    before = job.model.weight.detach().clone()
    job.gradient(job.batch(4))
    job.update()
    assert (job.model.weight != before).any()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("def job():", "def job():\n    raise OSError('no data')", "the function raised OSError"),
        ("loss, optimizer, make_batch\n", "loss, optimizer\n", "returned 3 values; want (model"),
        ("return model, loss", "return 'model', loss", "its model is str; want a torch.nn"),
        ("return model, loss,", "return model, 3,", "its loss is int; want a function of model"),
        ("loss, optimizer,", "loss, None,", "its optimizer is NoneType; want a torch optimizer"),
        ("optimizer, make_batch\n", "optimizer, 8\n", "its make_batch is int; want a function of"),
        ("SGD(model.", "SGD(torch.nn.Linear(1, 1).", "its optimizer holds no parameter of its"),
        ("randn(samples, 3)", "randn(samples, 4)", "loss(model, make_batch(4)) raised"),
        ("randn(samples, 3)", "load('absent')", "make_batch(4) raised FileNotFoundError: "),
        ("targets)\n", "targets, reduction='none')\n", "is a tensor of shape (4, 1); want one"),
        ("targets)\n", "targets).item()\n", "loss(model, batch) is float; want one"),
        ("targets)\n", "targets).detach()\n", "loss(model, batch) needs no gradient"),
    ],
)  # fmt: skip
def test_a_mistake_in_it_is_one_line_that_names_it(
    written: Write, old: str, new: str, said: str
) -> None:
    assert old in GOOD
    name = written(GOOD.replace(old, new))
    message = message_of(lambda: load(f"{name}:job").build())
    assert said in message
    assert f"workload '{name}:job'" in message


def test_a_module_or_function_that_is_not_there_is_named(written: Write) -> None:
    with pytest.raises(InputError, match="cannot import 'no_such_module' for workload"):
        load("no_such_module:job")
    name = written(GOOD)
    with pytest.raises(InputError, match=rf"{name} has no function 'jop'.*Did you mean 'job'"):
        load(f"{name}:jop")


def test_a_module_that_fails_is_named(written: Write) -> None:
    name = written("raise SystemExit('stop')")
    with pytest.raises(InputError, match=f"cannot import '{name}' for workload '{name}:job': stop"):
        load(f"{name}:job")


def test_batches_of_another_size_than_asked_for_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "three.py").write_text(
        "import torch\n"
        "def job():\n"
        "    model = torch.nn.Linear(2, 1)\n"
        "    loss = lambda model, batch: model(batch).mean()\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    return model, loss, optimizer, lambda n: torch.randn(3, 2)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError, match=r"make_batch\(4\) gives tensors of 3 .* want 4 there"):
        load("three:job").build()
