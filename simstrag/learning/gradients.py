"""Gradients of many workers at once, each at its own parameters.

Three ways, the fastest that a model allows: a perceptron's layers as batched matrix products, any
other model through `torch.vmap`, or one gradient after the other.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from simstrag.errors import InputError
from simstrag.learning.tasks.task import LearningTask

if TYPE_CHECKING:
    import torch

ELEMENTWISE = ("ReLU", "Tanh", "Sigmoid", "GELU", "SiLU", "Identity", "Softplus", "LeakyReLU")
"""Layers that do to each number what they do to it alone."""
PRECISIONS = {"bf16": "bfloat16", "fp16": "float16"}
"""Reduced precisions by autocast, with torch's names of their number formats."""
MOST = 1 << 16
"""Samples of one forward and backward; more are computed in several."""


class GradientEngine:
    """Computes weighted sums of sample gradients at any parameters.

    full: number format of the parameters, "fp32" or "fp64".
    amp: the reduced precision, "bf16" or "fp16" by autocast, or "fp32" below fp64 parameters.
    way: "batched layers", "vmap" or "one by one"; by default the first that the task allows.
    device: "cpu" or "cuda", where everything is computed; what it is given is brought there.

    Parameters are flat, shape (P,), in the order of `model.named_parameters()`.
    Raises `InputError` for "cuda" where torch sees none.

    >>> from simstrag.learning import tasks
    >>> engine = GradientEngine(tasks.load("digits"))
    >>> engine.way, engine.initial.shape
    ('batched layers', torch.Size([9610]))
    """

    def __init__(
        self,
        task: LearningTask,
        full: str = "fp32",
        amp: str = "bf16",
        way: str | None = None,
        device: str = "cpu",
    ) -> None:
        import torch

        if device == "cuda" and not torch.cuda.is_available():
            raise InputError("learner.device is cuda, but torch sees no GPU here: say device: cpu")
        self.task, self.device = task, torch.device(device)
        self._model = task.model if device == "cpu" else copy.deepcopy(task.model).to(self.device)
        self.dtype = torch.float64 if full == "fp64" else torch.float32
        self.autocast = getattr(torch, PRECISIONS[amp]) if amp in PRECISIONS else None
        self.scales_losses = amp == "fp16"
        named = [(n, p) for n, p in self._model.named_parameters() if p.requires_grad]
        self._names = [name for name, _ in named]
        self._shapes = [p.shape for _, p in named]
        self._sizes = [p.numel() for _, p in named]
        self.initial = torch.cat([p.detach().flatten() for _, p in named]).to(self.dtype)
        self.inputs, self.targets = self._cast(task.inputs), self._cast(task.targets)
        self._test = self._cast(task.test_inputs), self._cast(task.test_targets)
        self._layers = _perceptron(task)
        self.way = way or self._fastest()

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        dtype = self.dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(self.device, dtype)

    def _fastest(self) -> str:
        if self._layers is not None:
            return "batched layers"
        import torch

        if any(isinstance(m, torch.nn.modules.conv._ConvNd) for m in self.task.model.modules()):
            return "one by one"  # a convolution of many kernels is slower than many convolutions
        one = torch.zeros(2, 1, dtype=torch.int64, device=self.device)
        try:
            weights = torch.ones(2, 1, dtype=self.dtype, device=self.device)
            self._vmapped(self.initial.expand(2, -1), one, weights, amp=False)
        except Exception:  # whatever a user's model raises there; alone it has been computed
            return "one by one"
        return "vmap"

    def rows(
        self,
        parameters: Sequence[torch.Tensor],
        samples: torch.Tensor,
        weights: torch.Tensor,
        sizes: Sequence[int],
        amp: bool,
    ) -> list[torch.Tensor]:
        """For each entry, the sum of its samples' gradients at its parameters, by their weights.

        The results may be views of one tensor.

        parameters: of each entry, shape (P,).
        samples: numbers of the samples of all entries, one after the other.
        weights: of these samples.
        sizes: the number of samples of each entry.
        amp: whether in reduced precision.
        """
        import torch

        samples, weights = samples.to(self.device), weights.to(self.device)
        count, sizes = len(parameters), list(sizes)
        parts = torch.split(samples, sizes), torch.split(weights, sizes)
        if self.way == "one by one" or count == 1:
            return [self.one(*each, amp) for each in zip(parameters, *parts, strict=True)]
        compute = self._batched if self.way == "batched layers" else self._vmapped
        found: list[torch.Tensor] = [self.initial] * count
        for places in _alike(sizes):
            stacked = torch.stack([parameters[k] for k in places])
            if len(places) == count and len(set(sizes)) == 1:
                chosen, weighed = samples.view(count, -1), weights.view(count, -1)
            else:
                chosen, weighed = (
                    torch.nn.utils.rnn.pad_sequence([part[k] for k in places], batch_first=True)
                    for part in parts
                )
            for k, row in zip(places, compute(stacked, chosen, weighed, amp).unbind(), strict=True):
                found[k] = row
        return found

    def one(
        self, parameters: torch.Tensor, samples: torch.Tensor, weights: torch.Tensor, amp: bool
    ) -> torch.Tensor:
        """The sum of sample gradients at one set of parameters, by their weights; shape (P,)."""
        import torch

        samples, weights = samples.to(self.device), weights.to(self.device)
        total: torch.Tensor | None = None
        for chosen, weighed in zip(
            torch.split(samples, MOST), torch.split(weights, MOST), strict=True
        ):
            leaf = parameters.detach().requires_grad_()
            with self._precision(amp):
                losses = self._losses(leaf, self.inputs[chosen], self.targets[chosen], amp)
                loss = (losses.to(self.dtype) * weighed).sum()
            (gradient,) = torch.autograd.grad(loss, leaf)
            total = gradient if total is None else total + gradient
        assert total is not None
        return total

    def evaluate(self, parameters: torch.Tensor) -> tuple[float, float]:
        """Mean score and mean loss over the held-out samples."""
        import torch

        with torch.no_grad():
            inputs, targets = self._test
            outputs = self._outputs(parameters, inputs)
            scores = self.task.score(outputs, targets)
            losses = self.task.loss(outputs, targets)
            return float(scores.double().mean()), float(losses.double().mean())

    @contextlib.contextmanager
    def _precision(self, amp: bool) -> Iterator[None]:
        import torch

        if amp and self.autocast is not None:
            with torch.autocast(self.device.type, self.autocast):
                yield
        else:
            yield

    def _reduced(self, tensor: torch.Tensor, amp: bool) -> torch.Tensor:
        """A tensor in float32 where precision is reduced; autocast leaves float64 as it is."""
        return tensor.float() if amp and tensor.is_floating_point() else tensor

    def _at_loss(self, outputs: torch.Tensor, amp: bool) -> torch.Tensor:
        """Outputs as the loss takes them: autocast's in float32."""
        return outputs.float() if amp and self.autocast else outputs

    def _losses(
        self, flat: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor, amp: bool
    ) -> torch.Tensor:
        outputs = self._outputs(self._reduced(flat, amp), self._reduced(inputs, amp))
        return self.task.loss(self._at_loss(outputs, amp), targets)

    def _outputs(self, flat: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        import torch

        parts = torch.split(flat, self._sizes)
        named = {
            name: part.view(shape)
            for name, part, shape in zip(self._names, parts, self._shapes, strict=True)
        }
        out: torch.Tensor = torch.func.functional_call(self._model, named, (inputs,))
        return out

    def _vmapped(
        self, stacked: torch.Tensor, samples: torch.Tensor, weights: torch.Tensor, amp: bool
    ) -> torch.Tensor:
        import torch

        def weighed(
            flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor
        ) -> torch.Tensor:
            return (self._losses(flat, x, y, amp).to(self.dtype) * w).sum()

        leaf = stacked.detach().requires_grad_()
        with self._precision(amp):
            losses = torch.vmap(weighed)(leaf, self.inputs[samples], self.targets[samples], weights)
        return torch.autograd.grad(losses.sum(), leaf)[0]

    def _batched(
        self, stacked: torch.Tensor, samples: torch.Tensor, weights: torch.Tensor, amp: bool
    ) -> torch.Tensor:
        import torch

        assert self._layers is not None
        count = len(stacked)
        leaves = [
            part.view(count, *shape).detach().requires_grad_()
            for part, shape in zip(torch.split(stacked, self._sizes, 1), self._shapes, strict=True)
        ]
        pending = iter(leaves)
        with self._precision(amp):
            x = self._reduced(self.inputs[samples], amp)
            x = x.flatten(2).mT  # features before samples, so that gradients need no transposition
            for layer in self._layers:
                if not isinstance(layer, torch.nn.Linear):
                    x = layer(x)
                    continue
                kernel = self._reduced(next(pending), amp)
                if layer.bias is None:
                    x = torch.bmm(kernel, x)
                else:
                    bias = self._reduced(next(pending), amp).unsqueeze(-1)
                    x = torch.baddbmm(bias, kernel, x)
            outputs = x.mT.flatten(0, 1)
            targets = self.targets[samples].flatten(0, 1)
            losses = self.task.loss(self._at_loss(outputs, amp), targets)
            loss = (losses.to(self.dtype) * weights.flatten()).sum()
        gradients = torch.autograd.grad(loss, leaves)
        return torch.cat([each.flatten(1) for each in gradients], 1)


def _perceptron(task: LearningTask) -> list[torch.nn.Module] | None:
    """The layers of a sequence of linear and elementwise layers; None for any other model."""
    import torch

    if not isinstance(task.model, torch.nn.Sequential):
        return None
    layers, rows = list(task.model), task.inputs.ndim == 2
    if layers and isinstance(layers[0], torch.nn.Flatten):
        rows = (layers[0].start_dim, layers[0].end_dim) == (1, -1)
        layers = layers[1:]
    linear = [layer for layer in layers if isinstance(layer, torch.nn.Linear)]
    names = [type(layer).__name__ for layer in layers if layer not in linear]
    plain = {*names} <= {*ELEMENTWISE} and len({*linear}) == len(linear) > 0
    trained = all(parameter.requires_grad for parameter in task.model.parameters())
    return layers if rows and plain and trained else None


def _alike(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Places of entries, in groups of similar size and of at most `MOST` samples together.

    >>> list(_alike([4, 100, 3, 4]))
    [[1], [0, 2, 3]]
    """
    if len(set(sizes)) == 1 and len(sizes) * sizes[0] <= MOST:
        yield [*range(len(sizes))]
        return
    order = sorted(range(len(sizes)), key=lambda k: (-(sizes[k] - 1).bit_length(), k))
    group: list[int] = []
    for k in order:
        if group and (
            (sizes[k] - 1).bit_length() != (sizes[group[0]] - 1).bit_length()
            or (len(group) + 1) * sizes[group[0]] > MOST
        ):
            yield group
            group = []
        group.append(k)
    if group:
        yield group
