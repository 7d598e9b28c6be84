"""A workload: the model, loss, optimizer and batches of one training task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

from simstrag.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import nn

Batch = Any
"""A tensor, or tuples, lists and dicts of tensors; dimension 0 counts the samples."""

FILLING = (8, 16, 32, 64, 128, 256, 512)
"""Default batch sizes of a user's workload on a GPU; memory cuts them."""

PROTOCOL = "(model, loss, optimizer, make_batch)"


class Parts(NamedTuple):
    """The parts of one training task, on the CPU and in float32.

    model: the model, in any mode.
    loss: a function of model and batch; its mean over the batch, one element with a gradient.
    optimizer: a torch optimizer of the model's parameters.
    make_batch: a function of a number of samples; a batch of that size on the CPU.
    """

    model: nn.Module
    loss: Callable[[nn.Module, Batch], torch.Tensor]
    optimizer: torch.optim.Optimizer
    make_batch: Callable[[int], Batch]


@dataclass(frozen=True, slots=True)
class Workload:
    """A training task that can be built any number of times, and its batch sizes.

    make: the function that returns its `Parts`.
    batches: samples, ascending.
    nominal: the batch size that represents the workload.
    device: the device that its sizes suit, "cpu" or "cuda"; "" for a user's workload.
    real_data: whether batches are drawn from a data set, so that its accuracy can improve.
    user_defined: whether `make` is a user's function, whose result is checked.
    test: a function that returns held-out inputs and labels; None if there are none.
    """

    name: str
    make: Callable[[], object]
    batches: tuple[int, ...]
    nominal: int
    device: str
    real_data: bool = False
    user_defined: bool = False
    test: Callable[[], Batch] | None = None

    @property
    def about(self) -> str:
        """A description in one line."""
        return (self.make.__doc__ or "").strip().partition("\n")[0]

    def with_batches(self, batches: tuple[int, ...], nominal: int = 0) -> Workload:
        """This workload with other batch sizes.

        nominal: the batch size that represents it; the middle one by default.

        >>> from simstrag.workloads import load
        >>> load("mlp").with_batches((8, 2, 4)).nominal
        4
        """
        if not batches or not all(isinstance(each, Integral) and each >= 1 for each in batches):
            raise InputError(
                f"batches {list(batches)} of '{self.name}': want at least one, each >= 1"
            )
        ordered = tuple(sorted(set(batches)))
        nominal = nominal or ordered[len(ordered) // 2]
        if nominal not in ordered:
            raise InputError(f"nominal batch {nominal} is not one of the batches {list(ordered)}")
        return replace(self, batches=ordered, nominal=nominal)

    def fill(self, device: str) -> Workload:
        """This workload on a device: a user's gets the batch sizes that fill a GPU."""
        is_mine = self.user_defined and device != "cpu"
        return self.with_batches(FILLING) if is_mine else self

    def build(self, seed: int = 0) -> Parts:
        """Build its parts; the same seed gives the same weights. Torch's random state is kept.

        Raises `InputError` if a user's function fails or returns something else.
        """
        import torch

        with torch.random.fork_rng():
            torch.manual_seed(seed)
            if not self.user_defined:
                parts = self.make()
                assert isinstance(parts, Parts)
                return parts
            try:
                result = self.make()
            except (Exception, SystemExit) as error:
                raise self.describe_failure("the function", error) from error
            parts = _check_parts(self.name, result)
            self._try(parts)
            return parts

    def accuracy(self, model: nn.Module) -> float | None:
        """The share of held-out samples that a model classifies correctly; None without any."""
        import torch

        if self.test is None:
            return None
        parameter = next(model.parameters())
        inputs, labels = self.test()
        training = model.training
        model.eval()
        with torch.no_grad():
            scores = model(inputs.to(parameter.device, parameter.dtype))
        model.train(training)
        return float((scores.argmax(dim=1).cpu() == labels).double().mean())

    def describe_failure(self, what: str, error: BaseException) -> InputError:
        """The failure of a user's code in one line."""
        message = " ".join(str(error).split())[:200]
        kind = type(error).__name__
        return InputError(f"workload '{self.name}': {what} raised {kind}: {message}")

    def _try(self, parts: Parts) -> None:
        """Compute the loss of the smallest batch, so that mistakes show at once."""
        import torch

        count = self.batches[0]
        try:
            batch = parts.make_batch(count)
        except Exception as error:
            raise self.describe_failure(f"make_batch({count})", error) from error
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
            raise self.describe_failure(f"loss(model, make_batch({count}))", error) from error
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            kind = (
                f"a tensor of shape {tuple(loss.shape)}"
                if isinstance(loss, torch.Tensor)
                else type(loss).__name__
            )
            raise InputError(
                f"workload '{self.name}': loss(model, batch) is {kind}; want one number in a "
                "tensor, the mean over the batch"
            )
        if not loss.requires_grad:
            raise InputError(
                f"workload '{self.name}': loss(model, batch) needs no gradient; compute it from "
                "the model's output, with gradients enabled and not detached"
            )


def _check_parts(name: str, result: object) -> Parts:
    """The result of a user's function as `Parts`. Raises `InputError` that names a wrong part."""
    import torch
    from torch import nn

    if not isinstance(result, tuple) or len(result) != 4:
        kind = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        raise InputError(f"workload '{name}': returned {kind}; want {PROTOCOL}")
    parts = Parts(*result)
    wanted = (
        ("model", isinstance(parts.model, nn.Module), "a torch.nn.Module"),
        ("loss", callable(parts.loss), "a function of model and batch"),
        ("optimizer", isinstance(parts.optimizer, torch.optim.Optimizer), "a torch optimizer"),
        ("make_batch", callable(parts.make_batch), "a function of a number of samples"),
    )
    for part, (word, is_right, kind) in zip(result, wanted, strict=True):
        if not is_right:
            raise InputError(
                f"workload '{name}': its {word} is {type(part).__name__}; want {kind}; "
                f"it returns {PROTOCOL}"
            )
    trainable = {id(p) for p in parts.model.parameters() if p.requires_grad}
    updated = {id(p) for group in parts.optimizer.param_groups for p in group["params"]}
    if not trainable & updated:
        raise InputError(
            f"workload '{name}': its optimizer holds no parameter of its model that needs a "
            "gradient; make it with model.parameters()"
        )
    return parts


def batch_generator() -> torch.Generator:
    """A random generator for batches, with the seed of the build."""
    import torch

    return torch.Generator().manual_seed(torch.initial_seed())


def random_images(*shape: int, classes: int) -> Callable[[int], Batch]:
    """Draws batches of normal inputs of a shape, and of their classes."""
    import torch

    generator = batch_generator()
    return lambda samples: (
        torch.randn(samples, *shape, generator=generator),
        torch.randint(0, classes, (samples,), generator=generator),
    )


def random_tokens(tokens: int, vocabulary: int) -> Callable[[int], Batch]:
    """Draws batches of tokens, and of as many labels."""
    import torch

    generator = batch_generator()
    return lambda samples: tuple(
        torch.randint(0, vocabulary, (2, samples, tokens), generator=generator)
    )


def map_tensors(batch: Batch, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    """A batch of the same structure, with `change` applied to every tensor."""
    import torch

    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {name: map_tensors(value, change) for name, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        changed = [map_tensors(value, change) for value in batch]
        return type(batch)(*changed) if hasattr(batch, "_fields") else type(batch)(changed)
    return batch


def tensors(batch: Batch) -> list[torch.Tensor]:
    """Every tensor of a batch.

    >>> import torch
    >>> [len(tensor) for tensor in tensors({"x": torch.zeros(4), "y": [torch.zeros(3)]})]
    [4, 3]
    """
    flat: list[torch.Tensor] = []
    map_tensors(batch, lambda tensor: flat.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return flat


def slice_batch(batch: Batch, start: int, stop: int) -> Batch:
    """Samples start .. stop-1 of a batch.

    >>> import torch
    >>> slice_batch({"x": torch.arange(4)}, 1, 3)
    {'x': tensor([1, 2])}
    """
    return map_tensors(batch, lambda tensor: tensor[start:stop])
