"""Squared norms of gradients of small and large batches, along a training run.

They are the input of the two-batch estimator of the gradient noise scale (McCandlish et al. 2018,
arXiv:1812.06162, appendix A.1).  A large batch is `PARTS` small ones, drawn anew for each pair, and
its gradient is the mean of theirs.  One pass over all samples gives the same gradient, unless
samples interact in the model (batch normalisation), which the theory excludes.  `small` of a pair
is the mean of its parts' squared norms, `large` the squared norm of their mean.  With b samples in
a part and B = PARTS * b, the expectations are |G|^2 + S/b and |G|^2 + S/B, where S is the trace of
the covariance of one sample's gradient.  These give |G|^2 and S; the noise scale is S / |G|^2.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simstrag.calibration.benches.bench import Bench
from simstrag.calibration.benches.training_jobs import Jobs, skip_on_failure
from simstrag.calibration.cells import MeasurementCell, VisitSeries
from simstrag.workloads import TrainingTask

if TYPE_CHECKING:
    import torch

PARTS = 8
"""Small batches in a large one."""


class GradientBench(Bench):
    """Pairs along one training run per small batch size, in the optimizer's own steps.

    Each pair is followed by an update with the large batch's gradient, all in float32.  The small
    batch is the smallest or the nominal one; theory expects the same noise scale at both.

    span: seconds of pairs in a visit.
    """

    def __init__(self, jobs: Jobs, span: float = 1.0) -> None:
        self.jobs, self.span = jobs, span
        self._runs: dict[MeasurementCell, tuple[TrainingTask, int]] = {}
        sizes = sorted({jobs.workload.batches[0], jobs.workload.nominal})
        self.cells = [MeasurementCell("gradient", batch=s) for s in sizes if not self.why_not]

    @property
    def why_not(self) -> str:
        """The reason for having no cells, or ""."""
        workload = self.jobs.workload
        if workload.real_data:
            return ""
        return (
            f"workload '{workload.name}' has random inputs, from which nothing is learnt: its "
            "gradient noise scale would be no property of any training; measure it with 'digits' "
            "or your own module:function"
        )

    def seconds(self, cell: MeasurementCell) -> float:
        """The span, for every cell."""
        return self.span

    def visit(self, cell: MeasurementCell) -> tuple[VisitSeries, dict[str, Any]]:
        """Pairs for about `span` seconds of training; the facts say where the run stands."""
        device = self.jobs.device
        with skip_on_failure(self.jobs, cell), device.on_core():
            if cell not in self._runs:
                job = TrainingTask(self.jobs.workload.build(), "fp32", device.name)
                self._runs[cell] = job, 0
            job, trained = self._runs[cell]
            pairs: list[tuple[float, float]] = []
            until = time.monotonic() + self.span
            while not pairs or time.monotonic() < until:
                pairs.append(norm_pair(job, cell.batch))
                job.update()
        large = PARTS * cell.batch
        self._runs[cell] = job, trained + large * len(pairs)
        samples = {
            "small": tuple(small for small, _ in pairs),
            "large": tuple(large for _, large in pairs),
        }
        facts = {"trained": trained, "small_batch": cell.batch, "large_batch": large}
        return samples, facts

    def __exit__(self, *failure: object) -> None:
        self._runs.clear()
        super().__exit__(*failure)


def norm_pair(job: TrainingTask, samples: int) -> tuple[float, float]:
    """Mean squared norm of the parts' gradients, and squared norm of their mean.

    The mean stays in the parameters' gradients.
    """
    import torch

    trained = [p for p in job.model.parameters() if p.requires_grad]
    mean = [torch.zeros_like(p) for p in trained]
    small = 0.0
    for _ in range(PARTS):
        job.optimizer.zero_grad(set_to_none=True)
        job.gradient(job.batch(samples))
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in trained]
        small += _squared_norm(gradients) / PARTS
        for into, gradient in zip(mean, gradients, strict=True):
            into.add_(gradient, alpha=1 / PARTS)
    for parameter, gradient in zip(trained, mean, strict=True):
        parameter.grad = gradient
    return small, _squared_norm(mean)


def _squared_norm(gradients: Sequence[torch.Tensor]) -> float:
    """Sum of squares over all parameters, added up in float64."""
    import torch

    norms = [torch.linalg.vector_norm(g, dtype=torch.float64) for g in gradients]
    return float(torch.stack(norms).square().sum())
