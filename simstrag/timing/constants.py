"""Costs of a step, a collective and a gradient at the server on an idle machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from simstrag.contract import OverlappingStep
from simstrag.contract.view import device_gain
from simstrag.errors import InputError
from simstrag.timing import collectives
from simstrag.timing.noise import Distribution
from simstrag.timing.worker import WorkerRanks

FLAT: Final[dict[str, Callable[[int, float, float, float], float]]] = {
    "ring": collectives.ring,
    "tree": collectives.tree,
    "halving_doubling": collectives.halving_doubling,
}
"""The algorithms for links that are all alike."""


@dataclass(frozen=True, slots=True)
class Step:
    """One training step on an idle machine, by one of two laws (rule 2).

    By the serial law it takes host + gpu; by the overlapping one, where the host launches while the
    device computes, the longer of the two.

    host: seconds that reduced precision cannot shorten; by the overlapping law, of launching.
    gpu: seconds of the computing device in full precision.
    amp_ratio: full over reduced-precision time of the whole step, None if unknown.
    noise: of the factors of step times, None for none.
    amp_switch: seconds of a change of precision.
    microbatches: equal parts of a step, at the ends of which a deadline may stop it.
    fixed_share: share of a nominal step's work that a smaller batch does not shorten; by the
        overlapping law, of the device's.
    amp: seconds of launching and of the device in reduced precision; None by the serial law.
    """

    host: float
    gpu: float
    amp_ratio: float | None = None
    noise: Distribution | None = None
    amp_switch: float = 0.0
    microbatches: int = 1
    fixed_share: float = 0.0
    amp: tuple[float, float] | None = None

    @classmethod
    def overlapping(
        cls,
        launch: float,
        device: float,
        amp_launch: float | None = None,
        amp_device: float | None = None,
        noise: Distribution | None = None,
        amp_switch: float = 0.0,
        microbatches: int = 1,
        fixed_share: float = 0.0,
    ) -> Step:
        """A step whose host launches while the device computes; seconds, in full precision.

        amp_launch: in reduced precision; by default the same.
        amp_device: in reduced precision; None where its gain is unknown.

        >>> step = Step.overlapping(launch=0.02, device=0.03, amp_launch=0.024, amp_device=0.012)
        >>> step.clean, round(step.amp_ratio, 6)
        (0.03, 1.25)
        """
        amp = launch if amp_launch is None else amp_launch, amp_device or device
        ratio = None if amp_device is None else max(launch, device) / max(amp)
        return cls(launch, device, ratio, noise, amp_switch, microbatches, fixed_share, amp)

    @property
    def overlaps(self) -> bool:
        """Whether the host launches while the device computes."""
        return self.amp is not None

    @property
    def clean(self) -> float:
        """Seconds of a noise-free nominal step in full precision."""
        return max(self.host, self.gpu) if self.overlaps else self.host + self.gpu

    @property
    def hint(self) -> OverlappingStep | None:
        """What policies know of it by the overlapping law; None by the serial one."""
        if self.amp is None:
            return None
        device = None if self.amp_ratio is None else self.amp[1]
        return OverlappingStep(self.host, self.gpu, self.amp[0], device, self.fixed_share)

    def of_worker(self, worker: WorkerRanks) -> Step:
        """The step of a worker, all of whose ranks take this step.

        In a pipeline a stage waits for others; a smaller batch has fewer micro-batches, which does
        not shorten that.

        >>> whole = Step(host=0.0, gpu=0.8).of_worker(WorkerRanks(4, stages=4, micro_batches=8))
        >>> round(whole.gpu, 9), round(whole.fixed_share, 9)   # 11 of 8 micro-batch times; 3 of 11
        (1.1, 0.272727273)
        """
        stretch = worker.stretch
        amp = None if self.amp is None else (self.amp[0] * stretch, self.amp[1] * stretch)
        return replace(
            self, host=self.host * stretch, gpu=self.gpu * stretch,
            fixed_share=1 - (1 - self.fixed_share) / stretch, amp=amp,
        )  # fmt: skip

    def effort(self, share: float) -> float:
        """The work of a step with that share of the nominal batch, relative to a nominal step.

        By the overlapping law, the device's: launching does not depend on the batch.

        >>> Step(host=0.0, gpu=0.1, fixed_share=0.25).effort(0.5)
        0.625
        """
        return share + self.fixed_share * (1.0 - share)

    def recorded_effort(self, share: float) -> float:
        """The same of a recorded duration, which does not tell launching from computing.

        >>> Step.overlapping(launch=0.02, device=0.03).recorded_effort(0.5)
        0.6666666666666667
        """
        effort = self.effort(share)
        return max(self.host, self.gpu * effort) / self.clean if self.overlaps else effort


@dataclass(frozen=True, slots=True)
class AllReduce:
    """An all-reduce.

    alpha: seconds per hop.
    bandwidth: bytes/s of a link.
    bytes: size of the reduced gradient.
    overlap: share that backward hides.
    algorithm: a function of `simstrag.timing.collectives`.
    intra_alpha, intra_bandwidth: for links inside a node; None if all links are alike.
    """

    alpha: float = 0.0
    bandwidth: float = math.inf
    bytes: float = 0.0
    overlap: float = 0.0
    algorithm: str = "ring"
    intra_alpha: float | None = None
    intra_bandwidth: float | None = None

    @property
    def inside(self) -> tuple[float, float]:
        """Alpha and bandwidth of the links inside a node."""
        alpha = self.alpha if self.intra_alpha is None else self.intra_alpha
        bandwidth = self.bandwidth if self.intra_bandwidth is None else self.intra_bandwidth
        return alpha, bandwidth

    def delayed(self, seconds: float) -> AllReduce:
        """The same with hops between nodes that take so many seconds more."""
        return replace(self, alpha=self.alpha + seconds)

    def seconds(self, ranks_per_node: Sequence[int], fragments: int = 1) -> float:
        """Seconds that backward does not hide, on an idle network.

        ranks_per_node: members on each node.  A flat algorithm is as fast as the links
        between nodes, unless all members share a node.
        fragments: equal parts of the bytes, of which it carries one; where no bytes are stated, it
        takes such a part of the time (assumed).

        >>> slow_outside = AllReduce(alpha=0.01, intra_alpha=0.001)
        >>> slow_outside.seconds([4]), slow_outside.seconds([3, 1])   # 2 (4 - 1) hops each
        (0.006, 0.06)
        >>> slow_outside.seconds([4], fragments=2)
        0.003
        """
        size = self.bytes / fragments
        outer = self.alpha, size, self.bandwidth
        alpha, bandwidth = self.inside
        if self.algorithm == "hierarchical":
            seconds = collectives.hierarchical(ranks_per_node, *outer, alpha, bandwidth)
        else:
            links = (alpha, size, bandwidth) if len(ranks_per_node) == 1 else outer
            seconds = FLAT[self.algorithm](sum(ranks_per_node), *links)
        return seconds * (1 - self.overlap) / (1 if self.bytes else fragments)


@dataclass(frozen=True, slots=True)
class ServerCost:
    """Seconds per gradient at a parameter server.

    service: at the server, first in, first out.
    push, pull: on the worker's side, before and after.
    shards: share of the service at each of several servers; they sum to 1.
    fused_allreduce: whether a job of several groups first all-reduces among all contributors.
    """

    service: float = 0.0
    push: float = 0.0
    pull: float = 0.0
    shards: tuple[float, ...] = (1.0,)
    fused_allreduce: bool = False

    @property
    def job(self) -> float:
        """Seconds of one job: all shards have the same queue, so the largest shard is the last.

        >>> ServerCost(service=8.0, shards=(0.25, 0.75)).job
        6.0
        """
        return self.service * max(self.shards)


def server_on_link(allreduce: AllReduce, ranks: int, stores: bool) -> ServerCost:
    """A server on a link like those of an all-reduce, where a gradient takes bytes / bandwidth.

    An all-reduce of known time alone, without bytes, takes 2(n-1)/n times as long as a gradient.
    stores: whether a push has passed the worker's link before the server begins to receive it.

    >>> server_on_link(AllReduce(alpha=0.01, bandwidth=1e9, bytes=4e8), 8, stores=False)
    ServerCost(service=0.4, push=0.01, pull=0.41000000000000003, shards=(1.0,), \
fused_allreduce=False)
    """
    latency, gradient = allreduce.alpha, allreduce.bytes / allreduce.bandwidth
    if not gradient and ranks > 1:
        whole = replace(allreduce, overlap=0.0).seconds([1] * ranks)
        latency, gradient = 0.0, whole * ranks / (2 * (ranks - 1))
    pull = latency + gradient
    return ServerCost(gradient, pull if stores else latency, pull)


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """Slowdown of the ranks on the server's node while the server is in use: factors >= 1.

    ranks: the ranks on its node.
    host: slowdown of the host work of their steps.
    net: slowdown of their pushes, pulls and collectives.
    """

    ranks: frozenset[int]
    host: float = 1.0
    net: float = 1.0


def gain_key(step: Step) -> str:
    """The key of a scenario that states what reduced precision gains."""
    return "step.device.amp" if step.overlaps else "step.amp_ratio"


def amp_gain(step: Step) -> float:
    """Speed-up of the device's part of a step by reduced precision, r = g / ((h+g)/rho - h).

    By the overlapping law it is stated.  Raises `InputError` if the gain is unknown, or larger than
    the host part allows.
    """
    rho, total = step.amp_ratio, step.host + step.gpu
    if rho is None:
        raise InputError(
            "the policy uses reduced precision, but its gain is unknown: "
            f"give {gain_key(step)} or a profile"
        )
    if step.amp is not None:
        return step.gpu / step.amp[1]
    try:
        return device_gain(rho, step.host, total)
    except InputError:
        raise InputError(
            f"step.amp_ratio {rho:g} is impossible with host_share {step.host / total:g}: "
            f"reduced precision shortens the device's part only, so it must be below "
            f"{total / step.host:g}"
        ) from None
