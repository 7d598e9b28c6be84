"""What a workload is: parts that make up one training task, and where they come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from simstrag.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Batch", "Parts", "Workload", "luck", "mapped", "part"]

Batch = Any
"""A tensor, or tuples, lists and dicts of tensors; samples are counted along dimension 0."""

PROTOCOL = "(model, loss, optimizer, make_batch)"


class Parts(NamedTuple):
    """One training task, on the CPU and in float32 when made.

    loss(model, batch) is the mean over the batch, a tensor of one element that needs a gradient.
    make_batch(n) is a batch of n samples, on the CPU; it is moved to where the model is.
    """

    model: nn.Module
    loss: Callable[[nn.Module, Batch], torch.Tensor]
    optimizer: torch.optim.Optimizer
    make_batch: Callable[[int], Batch]


@dataclass(frozen=True, slots=True)
class Workload:
    """A training task that can be made anew, and the batch sizes to look at.

    make: returns its `Parts`.  batches: samples, ascending; nominal: the one of them that stands
    for the workload.  device: what its sizes suit, "cpu" or "cuda" ("" for a user's own).
    real_data: its batches are drawn from data, so that training it means something.
    test: a batch of inputs and labels that no training sees, where accuracy can be told.
    """

    name: str
    make: Callable[[], object]
    batches: tuple[int, ...]
    nominal: int
    device: str
    real_data: bool = False
    own: bool = False
    test: Callable[[], Batch] | None = None

    @property
    def about(self) -> str:
        """What it is, in one line."""
        return (self.make.__doc__ or "").strip().partition("\n")[0]

    def with_batches(self, batches: tuple[int, ...], nominal: int = 0) -> Workload:
        """The same with other batch sizes; nominal: the middle one, unless it is given.

        >>> from simstrag.workloads import load
        >>> load("mlp").with_batches((8, 2, 4)).nominal
        4
        """
        if not batches or min(batches) < 1:
            raise InputError(f"batches {list(batches)} of '{self.name}': want some, each >= 1")
        ordered = tuple(sorted(set(batches)))
        nominal = nominal or ordered[len(ordered) // 2]
        if nominal not in ordered:
            raise InputError(f"nominal batch {nominal} is none of the batches {list(ordered)}")
        return replace(self, batches=ordered, nominal=nominal)

    def build(self, seed: int = 0) -> Parts:
        """Make its parts; the same seed gives the same weights, and torch's own stays as it was.

        Raises `InputError` where a user's function fails or returns something else.
        """
        import torch

        with torch.random.fork_rng():
            torch.manual_seed(seed)
            if not self.own:
                made = self.make()
                assert isinstance(made, Parts)
                return made
            try:
                made = self.make()
            except (Exception, SystemExit) as error:
                raise self.complaint("the function", error) from error
            parts = _checked(self.name, made)
            self._try(parts)
            return parts

    def accuracy(self, model: nn.Module) -> float | None:
        """The share of held-out samples that a model gets right; None where there are none."""
        import torch

        if self.test is None:
            return None
        kind = next(model.parameters())
        inputs, labels = self.test()
        training = model.training
        model.eval()
        with torch.no_grad():
            scores = model(inputs.to(kind.device, kind.dtype))
        model.train(training)
        return float((scores.argmax(dim=1).cpu() == labels).double().mean())

    def complaint(self, what: str, error: BaseException) -> InputError:
        """What a user's code did wrong, in one line."""
        said = " ".join(str(error).split())[:200]
        return InputError(f"workload '{self.name}': {what} raised {type(error).__name__}: {said}")

    def _try(self, parts: Parts) -> None:
        """One batch of the smallest size through the loss, so that mistakes show at once."""
        import torch

        count = self.batches[0]
        try:
            batch = parts.make_batch(count)
        except Exception as error:
            raise self.complaint(f"make_batch({count})", error) from error
        sizes = {len(tensor) for tensor in tensors(batch) if tensor.ndim}
        if sizes and count not in sizes:
            raise InputError(
                f"workload '{self.name}': make_batch({count}) gives tensors of "
                f"{', '.join(map(str, sorted(sizes)))} along dimension 0; want {count} there"
            )
        parts.model.train()
        try:
            loss: object = parts.loss(parts.model, batch)
        except Exception as error:
            raise self.complaint(f"loss(model, make_batch({count}))", error) from error
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shown = (
                f"a tensor of shape {tuple(loss.shape)}"
                if isinstance(loss, torch.Tensor)
                else f"{type(loss).__name__}"
            )
            raise InputError(
                f"workload '{self.name}': loss(model, batch) is {shown}; want one number in a "
                "tensor, the mean over the batch"
            )
        if not loss.requires_grad:
            raise InputError(
                f"workload '{self.name}': loss(model, batch) needs no gradient; compute it from "
                "the model's output, with gradients enabled and not detached"
            )


def _checked(name: str, made: object) -> Parts:
    """As parts, or `InputError` that says which of the four is something else."""
    import torch
    from torch import nn

    if not isinstance(made, tuple) or len(made) != 4:
        shown = f"{len(made)} values" if isinstance(made, tuple) else type(made).__name__
        raise InputError(f"workload '{name}': returned {shown}; want {PROTOCOL}")
    parts = Parts(*made)
    wanted = (
        ("model", isinstance(parts.model, nn.Module), "a torch.nn.Module"),
        ("loss", callable(parts.loss), "a function of model and batch"),
        ("optimizer", isinstance(parts.optimizer, torch.optim.Optimizer), "a torch optimizer"),
        ("make_batch", callable(parts.make_batch), "a function of a number of samples"),
    )
    for k, (word, right, kind) in enumerate(wanted):
        if not right:
            raise InputError(
                f"workload '{name}': its {word} is {type(made[k]).__name__}; want {kind}; "
                f"it returns {PROTOCOL}"
            )
    trained = {id(p) for p in parts.model.parameters() if p.requires_grad}
    held = {id(p) for group in parts.optimizer.param_groups for p in group["params"]}
    if not trained & held:
        raise InputError(
            f"workload '{name}': its optimizer holds no parameter of its model that needs a "
            "gradient; make it with model.parameters()"
        )
    return parts


def luck() -> torch.Generator:
    """Random numbers for batches, from the seed of the build and apart from torch's own."""
    import torch

    return torch.Generator().manual_seed(torch.initial_seed())


def mapped(batch: Batch, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    """The same batch with every tensor changed."""
    import torch

    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {name: mapped(each, change) for name, each in batch.items()}
    if isinstance(batch, (tuple, list)):
        changed = [mapped(each, change) for each in batch]
        return type(batch)(*changed) if hasattr(batch, "_fields") else type(batch)(changed)
    return batch


def tensors(batch: Batch) -> list[torch.Tensor]:
    """All of them.

    >>> import torch
    >>> [len(tensor) for tensor in tensors({"x": torch.zeros(4), "y": [torch.zeros(3)]})]
    [4, 3]
    """
    found: list[torch.Tensor] = []
    mapped(batch, lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found


def part(batch: Batch, start: int, stop: int) -> Batch:
    """Samples start .. stop-1 of a batch.

    >>> import torch
    >>> part({"x": torch.arange(4)}, 1, 3)
    {'x': tensor([1, 2])}
    """
    return mapped(batch, lambda tensor: tensor[start:stop])
