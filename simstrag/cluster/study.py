"""Cluster studies: nodes, workloads, and jobs that arrive; one validated value in YAML."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, PrivateAttr, ValidationError, model_validator

from simstrag import policies
from simstrag.cluster import constants
from simstrag.cluster.arrivals import ArrivalRow, ArrivalsSection
from simstrag.cluster.colocation import LAWS, TIME_SLICES
from simstrag.cluster.managers import load_manager
from simstrag.cluster.placers import load_placer
from simstrag.cluster.study_sections import JobSection, NodeSection, WorkloadSection
from simstrag.documents.file_io import path_of, require_path
from simstrag.documents.suggestions import choices
from simstrag.documents.validation_errors import explain, require_distinct
from simstrag.documents.yaml_file import read_mapping
from simstrag.errors import InputError
from simstrag.scenario.scenario import Scenario
from simstrag.scenario.sections import Amount, Count, Endless, Section, Seed
from simstrag.timing.contention import Contention
from simstrag.timing.noise import stream

INSIDE = {"intra_alpha", "intra_bandwidth"}
"""Keys of an all-reduce that are of links inside nodes."""
STREAM = 2**64 - 1
"""The number of the stream that draws the workloads of arrivals; no rank and no placer has it."""
SHORTEST = 1e-3
"""Shortest interval, ASSUMED, in seconds: a run has as many renegotiations as intervals."""


@dataclass(frozen=True, slots=True)
class ArrivingJob:
    """One job of a study: what it computes, how long, when it arrives, under which policy."""

    number: int
    name: str
    workload: str
    workers: int
    arrival: float
    policy: str
    samples: int | None
    target_progress: float | None


class ClusterStudy(Section):
    """Jobs on a cluster; `ClusterStudy.read(path)` loads YAML, the constructor takes the same keys.

    nodes: the kinds of nodes.
    workers_per_gpu: workers that may share a device.
    colocation: how they slow each other there: a name of `simstrag.cluster.colocation.LAWS`.
    interval: seconds between two renegotiations of shares (rule C5).
    placers, policies, managers: each combination is run; a policy is a spec for all jobs without
        their own, or a mapping from workloads to specs.
    constants: of workloads for the managers: measured by simulation, or those of STAR's table.
    trace: load of others, by node, as slowdowns of host, gpu and net; they multiply (rule C10).
    horizon: seconds after which a run ends, finished or not.

    >>> study = ClusterStudy(
    ...     nodes=[{"gpus": 4, "cores": 8}],
    ...     workloads={"small": {"scenario": {"step": {"compute": 0.1}}}},
    ...     jobs=[{"workload": "small", "workers": 4, "samples": 10_000, "count": 2}],
    ... )
    >>> [job.name for job in study.arriving("bsp", seed=0)]
    ['small-0', 'small-1']
    """

    nodes: Annotated[tuple[NodeSection, ...], Field(min_length=1)]
    workloads: Annotated[dict[str, WorkloadSection], Field(min_length=1)]
    jobs: tuple[JobSection, ...] = ()
    arrivals: ArrivalsSection | None = None
    trace: str | tuple[dict[str, Any], ...] | None = None
    trace_end: Literal["hold", "loop"] = "hold"
    workers_per_gpu: Count = 1
    colocation: str = TIME_SLICES.name
    interval: Annotated[float, Field(ge=SHORTEST)] = 1.0
    placers: Annotated[tuple[str, ...], Field(min_length=1)] = ("packed",)
    policies: Annotated[tuple[str | dict[str, str], ...], Field(min_length=1)] = ("bsp",)
    managers: Annotated[tuple[str, ...], Field(min_length=1)] = ("none",)
    constants: Literal["measured", "star"] = "measured"
    horizon: Endless = math.inf
    seeds: Amount | Annotated[tuple[Seed, ...], Field(min_length=1)] = 1
    _folder: Path = PrivateAttr(Path())
    _source: str = PrivateAttr("cluster")
    _paces: dict[tuple[str, int], tuple[int, float]] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.jobs and self.arrivals is None:
            raise ValueError("there are no jobs: give jobs or arrivals")
        for k, job in enumerate(self.jobs):
            self._require_workload(job.workload, f"jobs.{k}.workload")
            if job.workers > self.slots:
                raise ValueError(
                    f"jobs.{k}.workers is {job.workers}, but the nodes have room for {self.slots} "
                    "workers; add nodes, or raise workers_per_gpu"
                )
        if self.colocation not in LAWS:
            known = choices(self.colocation, LAWS)
            raise ValueError(f"there is no colocation '{self.colocation}'; {known}")
        law = LAWS[self.colocation]
        for key, section in self.workloads.items():
            name = section.colocates_as
            if name is not None and name not in law.workloads:
                raise ValueError(
                    f"workloads.{key}.colocates_as is '{name}', which {law.name} does not know; "
                    f"{choices(name, law.workloads)}"
                )
        if self.arrivals is not None:
            for name in self.arrivals.workloads:
                self._require_workload(name, "arrivals.workloads")
        require_distinct(
            policies=map(mix_name, self.policies), placers=self.placers, managers=self.managers,
            seeds=self.seed_list,
        )  # fmt: skip
        for name in self.placers:
            load_placer(name, 0)
        for name in self.managers:
            load_manager(name)
        if self.constants == "star":
            for name in self.workloads:
                if name not in constants.STAR:
                    raise ValueError(
                        f"workloads.{name}: constants is 'star', but STAR's table has no '{name}'; "
                        f"{choices(name, constants.STAR)}"
                    )
        for chosen in self.policies:
            named = chosen if isinstance(chosen, dict) else {}
            for workload in named:
                self._require_workload(workload, "policies")
            for spec in named.values() if named else (chosen,):
                policies.load(str(spec))
        return self

    def _require_workload(self, name: str, key: str) -> None:
        if name not in self.workloads:
            raise ValueError(
                f"{key} names '{name}', which is no workload; {choices(name, self.workloads)}"
            )

    @classmethod
    def read(cls, path: str | Path) -> ClusterStudy:
        """From a YAML file. Raises `InputError` that names the file, the field and the way out."""
        path = path_of(path, "a cluster study, or a ClusterStudy")
        data = read_mapping(path, "cluster study", "nodes: [{gpus: 8, cores: 32}]")
        for key, kind, command in (
            ("scenario", "study", "sweep"),
            ("workers", "scenario", "compare"),
        ):
            if key in data and "workloads" not in data:
                raise InputError(
                    f"{path}: is a {kind}, no cluster study; `simstrag {command} {path}` runs it"
                )
        return cls.of(data, str(path), path.parent)

    @classmethod
    def of(
        cls, data: Mapping[str, Any], source: str = "cluster", folder: str | Path = "."
    ) -> ClusterStudy:
        """The study that a mapping with the keys of a file describes."""
        try:
            study = cls.model_validate(data)
        except ValidationError as error:
            raise InputError(explain(error, cls, source)) from None
        study._folder, study._source = Path(folder), source
        for name in study.workloads:
            study.scenario(name, 1, samples=1)  # a mistake in it is said now
        trace, last = study._with_trace.inputs.trace, len(study.each_node) - 1
        if trace is not None and trace.nodes[-1] > last:
            raise InputError(
                f"{source}: trace names node {trace.nodes[-1]}, but the study's nodes are 0 to "
                f"{last}; add nodes, or correct the trace"
            )
        if trace is not None and any(kind == "delay" for *_, kind in trace.keys):
            raise InputError(
                f"{source}: trace: delays of messages are not modelled where jobs share nodes; "
                "leave these rows out, or compare one job by itself"
            )
        study.others(0)
        study.arriving(study.policies[0], study.seed_list[0])
        return study

    def replaced(self, **changes: Any) -> ClusterStudy:
        """This study with some keys changed, validated anew."""
        data = {name: getattr(self, name) for name in self.model_fields_set} | changes
        return ClusterStudy.of(data, self._source, self._folder)

    @property
    def slots(self) -> int:
        """Number of workers that all devices can take."""
        return self.workers_per_gpu * sum(kind.count * kind.gpus for kind in self.nodes)

    @property
    def each_node(self) -> tuple[NodeSection, ...]:
        """The kind of every node, in order."""
        return tuple(kind for kind in self.nodes for _ in range(kind.count))

    @property
    def seed_list(self) -> tuple[int, ...]:
        """`seeds: 20` means 0..19; a list is taken as it is."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    def scenario(
        self,
        workload: str,
        workers: int,
        samples: int | None = None,
        target_progress: float | None = None,
        nodes: tuple[int, ...] | None = None,
    ) -> Scenario:
        """The scenario of one job by itself, on nodes without other load."""
        given = self.workloads[workload].scenario.get("allreduce")
        inside = isinstance(given, dict) and (
            given.get("algorithm") == "hierarchical" or not INSIDE.isdisjoint(given)
        )
        if inside and nodes is None:
            nodes = tuple(range(workers))  # until it is placed, each rank has a node
        ends = {"samples": samples, "target_progress": target_progress, "nodes": nodes}
        data = {
            **self.workloads[workload].scenario, "workers": workers,
            **{key: value for key, value in ends.items() if value is not None},
        }  # fmt: skip
        source = f"{self._source}: workloads.{workload}"
        return Scenario.of(data, source, self._folder)

    @property
    def declared(self) -> dict[str, Any]:
        """The keys that are set, as JSON."""
        return self.model_dump(mode="json", exclude_unset=True)

    @property
    def digest(self) -> str:
        """Of all that its runs depend on but policies, placer, manager and seed."""
        from simstrag.experiments.runner import digest, program

        apart = ("policies", "placers", "managers", "seeds")
        keys = {key: value for key, value in self.declared.items() if key not in apart}
        files: list[Any] = [self.rows() if self.arrivals else None]
        for name in self.workloads:
            profile = self.scenario(name, 1, samples=1).inputs.profile
            files.append(None if profile is None else profile.sha256)
        trace = self._with_trace.inputs.trace
        return digest([keys, files, None if trace is None else trace.sha256, dict(program())])

    @property
    def _with_trace(self) -> Scenario:
        """A scenario whose ranks are the nodes, with the load of others."""
        data = {
            "workers": len(self.each_node), "updates": 1, "step": {"compute": 1.0},
            "trace": self.trace, "trace_end": self.trace_end,
        }  # fmt: skip
        return Scenario.of(data, self._source, self._folder)

    def others(self, seed: int) -> Contention:
        """The load of others: slowdowns by node."""
        return self._with_trace.timing(seed).contention

    def policy_of(self, mix: str | Mapping[str, str], workload: str) -> str:
        """The policy of the jobs of a workload that state none."""
        return mix if isinstance(mix, str) else mix.get(workload, "bsp")

    def specs(self, mix: str | Mapping[str, str]) -> list[str]:
        """Every policy that any job may have."""
        stated = [job.policy for job in self.jobs]
        if self.arrivals is not None:
            stated += [row.policy for row in self.rows()]
        own = [self.policy_of(mix, workload) for workload in self.workloads]
        return sorted({*filter(None, stated), *own})

    def arriving(self, mix: str | Mapping[str, str], seed: int) -> list[ArrivingJob]:
        """All jobs in order of arrival, then of name.  Raises `InputError` for a name of two."""
        found = []
        bases = [section.name or section.workload for section in self.jobs]
        totals = Counter(np.repeat(bases, [section.count for section in self.jobs]).tolist())
        numbers: Counter[str] = Counter()
        for section, base in zip(self.jobs, bases, strict=True):
            for k in range(section.count):
                name = f"{base}-{numbers[base]}" if totals[base] > 1 else base
                numbers[base] += 1
                policy = section.policy or self.policy_of(mix, section.workload)
                arrival = section.arrival + k * section.every
                found.append((
                    arrival, name, section.workload, section.workers, policy, section.samples,
                    section.target_progress,
                ))  # fmt: skip
        if self.arrivals is not None:
            found += self._from_file(self.arrivals, mix, seed)
        found.sort(key=lambda job: job[:2])
        name, times = Counter(job[1] for job in found).most_common(1)[0]
        if times > 1:
            raise InputError(f"{self._source}: {times} jobs are named '{name}'; rename one of them")
        return [
            ArrivingJob(k, name, workload, workers, arrival, policy, samples, target)
            for k, (arrival, name, workload, workers, policy, samples, target) in enumerate(found)
        ]

    def _from_file(
        self, section: ArrivalsSection, mix: str | Mapping[str, str], seed: int
    ) -> list[tuple[float, str, str, int, str, int | None, float | None]]:
        weights = section.weights(tuple(self.workloads))
        known, total = tuple(weights), sum(weights.values())
        draws = stream(seed, STREAM)
        shares = [weight / total for weight in weights.values()]
        jobs: list[tuple[float, str, str, int, str, int | None, float | None]] = []
        for k, row in enumerate(self.rows()):
            drawn = known[int(draws.choice(len(known), p=shares))]  # as many draws as rows
            workload, samples = row.workload or drawn, row.samples
            if samples is None:
                assert row.duration is not None
                batch, seconds = self.pace(workload, row.workers)
                samples = max(1, round(row.duration / section.compress / seconds)) * batch
            policy = row.policy or self.policy_of(mix, workload)
            name = row.name or f"job-{k:05d}"
            jobs.append((row.submit, name, workload, row.workers, policy, samples, None))
        return jobs

    def pace(self, workload: str, workers: int) -> tuple[int, float]:
        """Samples of a bsp update, and its seconds without noise on idle nodes."""
        if (workload, workers) not in self._paces:
            scenario = self.scenario(workload, workers, samples=1)
            step, timing = scenario.inputs.step, scenario.timing(0)
            seconds = step.clean + timing.reduce(tuple(range(workers)), 0.0)
            self._paces[workload, workers] = workers * scenario.learner.batch, seconds
        return self._paces[workload, workers]

    def rows(self) -> list[ArrivalRow]:
        """The rows of the file of arrivals that are simulated, checked."""
        assert self.arrivals is not None
        path = require_path(self._folder / self.arrivals.file)
        return self.arrivals.read(path, self.slots, tuple(self.workloads))


def mix_name(mix: str | Mapping[str, str]) -> str:
    """A mix of policies as tables name it.

    >>> mix_name({"vgg16": "asgd", "lstm": "bsp"})
    'vgg16=asgd lstm=bsp'
    """
    return mix if isinstance(mix, str) else " ".join(f"{k}={v}" for k, v in mix.items())
