"""Scenarios: everything a run depends on except policy and seed, as one validated value."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    InstanceOf,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from simstrag.documents.file_io import path_of
from simstrag.documents.suggestions import nearest
from simstrag.documents.validation_errors import explain
from simstrag.documents.yaml_file import read_mapping
from simstrag.errors import InputError
from simstrag.profile.batch_laws import times_at
from simstrag.profile.profile import Profile, StepTimes
from simstrag.profile.quantity import ProfilePart
from simstrag.profile.responses import responses_for, translate
from simstrag.scenario.failures import FailuresSection
from simstrag.scenario.resolved_inputs import Inputs, constants_of, step_of
from simstrag.scenario.sections import (
    LEAST,
    MOST,
    MOST_GRADIENTS,
    AllReduceSection,
    Amount,
    ContentionSection,
    CostSection,
    Count,
    LearnerSection,
    NoiseSection,
    Positive,
    Section,
    Seed,
    ServerLoadSection,
    ServerSection,
    StepSection,
    WorkerSection,
)
from simstrag.timing.collectives import ranks_per_node
from simstrag.timing.constants import AllReduce, ServerCost, ServerLoad, server_on_link
from simstrag.timing.contention import Contention
from simstrag.timing.noise import Noise, constant, offset, pace_of
from simstrag.timing.timing import Timing
from simstrag.timing.worker import WorkerRanks
from simstrag.trace.trace import COLUMNS, Trace, column_names

ROWS_SCHEMA = {"type": "array", "items": {"type": "object", "additionalProperties": True}}
WAYS_OUT = "give step: {compute: ...}, a profile, or a trace with durations of every rank's node"
DEMO = Path(__file__).parent.parent / "examples" / "h200.yaml"
"""The scenario that ships with simstrag: eight H200 that train beside processes of others."""
InlineTrace = Annotated[InstanceOf[Trace], WithJsonSchema(ROWS_SCHEMA)]


class Scenario(Section):
    """A validated scenario; `Scenario.read(path)` loads YAML, `Scenario(...)` takes the same keys.

    Mistakes are an `InputError`.  `trace` is the name of a file, a `Trace`, rows, or a DataFrame as
    `Trace.from_frame` takes it.

    A run ends at `samples` (rounded up to a multiple of workers x batch), `target_progress` or
    `target_accuracy`; or at `updates`, which `compare` refuses.  With both `samples` and a target
    it ends when both are reached; the makespan is the time at which `samples` was reached.

    >>> Scenario(workers=8, samples=1_024_000, step={"compute": 0.1}).seed_list
    (0,)
    """

    workers: Amount
    samples: Count | None = None
    updates: Count | None = None
    target_progress: Positive | None = None
    target_accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    step: StepSection | None = None
    noise: NoiseSection | None = None
    worker: WorkerSection | None = None
    microbatches: Count = 1
    allreduce: AllReduceSection | None = None
    server: ServerSection | None = None
    server_load: ServerLoadSection | None = None
    learner: LearnerSection = LearnerSection()
    contention: ContentionSection = ContentionSection()
    cost: CostSection = CostSection()
    failures: FailuresSection | None = None
    profile: str | None = None
    trace: str | InlineTrace | None = None
    trace_end: Literal["hold", "loop", "error"] = "hold"
    trace_per_seed: Literal["same", "shift"] = "same"
    durations: Literal["recorded", "median"] = "recorded"
    nodes: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    ranks_per_node: Count | None = None
    allow_speedup: bool = False
    straggler_ratio: Annotated[float, Field(gt=1)] = 1.2
    placeholders: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    policies: Annotated[tuple[str, ...], Field(min_length=1)] = ("bsp",)
    seeds: Amount | Annotated[tuple[Seed, ...], Field(min_length=1)] = 1
    _folder: Path = PrivateAttr(Path())
    _source: str = PrivateAttr("scenario")
    _inputs: Inputs | None = PrivateAttr(None)
    _timing: tuple[int | None, Timing] | None = PrivateAttr(None)
    _declared: dict[str, Any] | None = PrivateAttr(None)

    @field_validator("trace", mode="before")
    @classmethod
    def _parse_trace(cls, value: Any, info: ValidationInfo) -> Any:
        return _inline_trace(value, (info.context or {}).get("source", "scenario"))

    @field_validator("seeds", mode="wrap")
    @classmethod
    def _parse_seeds(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            if isinstance(value, Sequence) and value and not isinstance(value, str):
                raise
            reason = f"must be a number of seeds from 1 to {MOST}, or a list such as [0, 1]"
            raise PydanticCustomError("seeds", reason) from None

    @field_serializer("trace")
    def _rows(self, trace: str | Trace | None) -> str | list[dict[str, Any]] | None:
        if not isinstance(trace, Trace):
            return trace
        columns = (column.tolist() for column in trace.changes)
        return [dict(zip(COLUMNS, row, strict=True)) for row in zip(*columns, strict=True)]

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        others = (self.samples, self.target_progress, self.target_accuracy)
        if others == (None, None, None) and self.updates is None:
            raise ValueError(
                "nothing ends the run: give samples, target_progress, target_accuracy or updates"
            )
        if others != (None, None, None) and self.updates is not None:
            raise ValueError("updates cannot stand beside samples or a target")
        if self.target_progress is not None and self.target_accuracy is not None:
            raise ValueError("give target_progress or target_accuracy, not both")
        if self.step is None and self.profile is None and self.trace is None:
            raise ValueError(f"nothing says how long a step is: {WAYS_OUT}")
        if self.microbatches > self.learner.batch:
            raise ValueError(
                f"microbatches is {self.microbatches}, but a step has learner.batch "
                f"{self.learner.batch} samples; a micro-batch needs at least one"
            )
        if isinstance(self.seeds, tuple) and len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds names a seed twice")
        if self.learner.is_real and (self.samples is None or self.target_progress is not None):
            raise ValueError(
                "a real learner trains on at most so many samples: give samples, beside it "
                "target_accuracy if training is to end there, and no other target"
            )
        gradients = -(-(self.samples or 0) // self.learner.batch)
        if self.learner.is_real and gradients > MOST_GRADIENTS:
            raise ValueError(
                f"samples is {self.samples}, so a run has {gradients:,} gradients of "
                f"learner.batch {self.learner.batch}, more than memory is meant for: a real "
                f"learner has at most {MOST_GRADIENTS:,}; lower samples, or raise learner.batch"
            )
        if self.target_accuracy is not None and not self.learner.is_real:
            self.learner.progress_for(self.target_accuracy)
        return self

    @model_validator(mode="after")
    def _check_failures(self) -> Self:
        failures = self.failures
        if failures is None:
            return self
        if self.learner.is_real and not failures.continues:
            raise ValueError(
                "failures.on_fault is restart, and a real learner has no checkpoint of its model "
                "to go back to; say continue, or leave learner.kind out"
            )
        if failures.min_workers > self.workers:
            raise ValueError(
                f"failures.min_workers is {failures.min_workers}, and there are {self.workers} "
                "workers; give at most so many"
            )
        for event in failures.events or ():
            if event.rank >= self.workers:
                raise ValueError(
                    f"failures.events: rank {event.rank} fails, and there are {self.workers} "
                    f"workers, 0 to {self.workers - 1}"
                )
        return self

    @model_validator(mode="after")
    def _check_nodes(self) -> Self:
        if self.nodes is not None and len(self.nodes) != self.ranks:
            of = f"{self.workers} workers" + (
                f" of {self.worker.ranks} ranks" if self.worker else ""
            )
            raise ValueError(f"nodes has {len(self.nodes)} entries for {of}")
        if self.nodes is not None and self.ranks_per_node is not None:
            raise ValueError("give nodes or ranks_per_node, not both")
        reason = None if self.allreduce is None else self.allreduce.needs_nodes
        if reason is not None and self.rank_places is None:
            raise ValueError(
                f"{reason}, but nothing says which ranks share a node; give ranks_per_node or nodes"
            )
        if self.server_load is not None and not self._ranks_on(self.server_load.node):
            nodes = sorted(set(self.places or range(self.workers)))
            listed = ", ".join(map(str, nodes if len(nodes) <= 8 else [*nodes[:8], "..."]))
            raise ValueError(
                f"server_load.node is {self.server_load.node}, but no rank is on it; "
                f"the ranks are on {listed}"
            )
        return self

    @model_validator(mode="after")
    def _check_worker(self) -> Self:
        if self.worker is None:
            return self
        ranks, stages = self.worker.ranks, self.worker.stages
        if self.worker.chunks > 1 and self.microbatches % stages:
            raise ValueError(
                f"microbatches is {self.microbatches}; an interleaved pipeline of {stages} stages "
                "needs a multiple of them"
            )
        if self.cost.gpus not in (None, ranks):
            raise ValueError(
                f"cost.gpus is {self.cost.gpus}, but worker.ranks {ranks}; leave it out"
            )
        if self.server_load is not None:
            raise ValueError("server_load slows workers of one rank; leave it out beside worker")
        return self

    @model_validator(mode="after")
    def _check_placeholders(self) -> Self:
        """Each names a number that the scenario states."""
        known = [*self._numbers()]
        for name in self.placeholders:
            if name not in known:
                raise ValueError(
                    f"placeholders names '{name}', a number that the scenario does not state; take "
                    f"it off the list{nearest(name, known)}"
                )
        return self

    def _numbers(self) -> Iterator[str]:
        """The numbers that are stated, as `key` or `section.key`."""
        for key in self.model_fields_set:
            value = getattr(self, key)
            if isinstance(value, Section):
                yield from (f"{key}.{name}" for name in value.model_fields_set)
            elif isinstance(value, int | float):
                yield key

    @classmethod
    def read(cls, path: str | Path) -> Scenario:
        """From a YAML file; file names in it are relative to its folder.

        Raises `InputError` that names the file, the field, the value and the way out.
        """
        path = path_of(path, "a scenario, or a Scenario")
        data = read_mapping(path, "scenario", "workers: 8")
        if "workloads" in data:
            raise InputError(f"{path}: is a cluster study; `simstrag cluster {path}` runs it")
        if "scenario" in data:
            raise InputError(f"{path}: is a study, not a scenario; `simstrag sweep {path}` runs it")
        return cls.of(data, str(path), path.parent)

    @classmethod
    def of(
        cls,
        data: Mapping[str, Any],
        source: str = "scenario",
        folder: str | Path = ".",
        profile: Profile | None = None,
    ) -> Scenario:
        """From a mapping with the keys of a scenario file.

        profile: used in place of the file that the key `profile` names.
        """
        if isinstance(data, Mapping) and "trace" in data:
            data = {**data, "trace": _inline_trace(data["trace"], source)}
        try:
            context = {"source": source, "folder": folder}
            scenario = cls.model_validate(data, context=context)
        except ValidationError as error:
            raise InputError(explain(error, cls, source)) from None
        scenario._folder, scenario._source = Path(folder), source
        if profile is not None:
            scenario._inputs = scenario._load(profile)
        return scenario

    @classmethod
    def given(cls, scenario: Scenario | str | Path) -> Scenario:
        """A scenario itself, or that of the YAML file at a path."""
        if isinstance(scenario, Mapping):
            raise InputError("a dict is no scenario; give Scenario(**keys), or Scenario.of(keys)")
        return scenario if isinstance(scenario, Scenario) else cls.read(scenario)

    @classmethod
    def demo(cls) -> Scenario:
        """The scenario of `simstrag demo`: eight H200 that train beside processes of others.

        >>> Scenario.demo().policies
        ('bsp', 'amp_all', 'korel', 'lb_bsp')
        """
        return cls.read(DEMO)

    def replaced(self, **changes: Any) -> Scenario:
        """This scenario with some keys changed, validated anew.

        Files are not read again unless their key changes.
        """
        data = {name: getattr(self, name) for name in self.model_fields_set} | changes
        replaced = Scenario.of(data, self._source, self._folder)
        if (inputs := self._inputs) and "profile" not in changes:
            if changes.get("trace") is not None:
                replaced._inputs = replaced._load(inputs.profile)
            else:
                trace = None if "trace" in changes else inputs.trace
                replaced._inputs = replaced._with(trace, inputs.profile)
        return replaced

    @property
    def seed_list(self) -> tuple[int, ...]:
        """`seeds: 20` means 0..19; a list is taken as it is."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    @property
    def ranks(self) -> int:
        """Ranks of all workers."""
        return self.workers * (1 if self.worker is None else self.worker.ranks)

    @property
    def gpus(self) -> int:
        """Devices of all workers."""
        return self.ranks if self.cost.gpus is None else self.workers * self.cost.gpus

    @property
    def rank_places(self) -> tuple[int, ...] | None:
        """The node of each rank of all workers in the trace; None if rank k is on node k.

        >>> Scenario(workers=5, updates=1, step={"compute": 0.1}, ranks_per_node=2).rank_places
        (0, 0, 1, 1, 2)
        """
        if self.ranks_per_node is None:
            return self.nodes
        return tuple(rank // self.ranks_per_node for rank in range(self.ranks))

    @property
    def places(self) -> tuple[int, ...] | None:
        """The node of each worker, that of its first rank; None if worker k is on node k."""
        if self.worker is None:
            return self.rank_places
        return tuple(self.rank_places or range(self.ranks))[:: self.worker.ranks]

    @property
    def all_reduce_seconds(self) -> float:
        """Exposed seconds of an all-reduce of all ranks."""
        everybody = ranks_per_node(range(self.workers), self.network_places)
        return self.inputs.allreduce.seconds(everybody)

    @property
    def network_places(self) -> tuple[int, ...] | None:
        """The node of each rank in the network; None if nodes make no difference to links.

        Without `nodes` and `ranks_per_node` the nodes are filled as the profile's were
        (`gpus_per_node`). In the trace, rank k is still on node k.
        """
        profile, a = self.inputs.profile, self.inputs.allreduce
        size = None if profile is None else profile.gpus_per_node
        links_are_alike = a.algorithm != "hierarchical" and a.inside == (a.alpha, a.bandwidth)
        if self.rank_places is not None or size is None or links_are_alike:
            return self.places
        of_worker = 1 if self.worker is None else self.worker.ranks
        return tuple(rank // size for rank in range(0, self.ranks, of_worker))

    def without_contention(self) -> Scenario:
        """The clean control: no trace; with recorded durations, each step at its median over ranks.

        Recorded durations have no run without contention (docs/formats/scenario.md).
        """
        trace = self.inputs.trace
        if trace is not None and trace.replays:
            return self.replaced(durations="median")
        return self.replaced(trace=None)

    def without_launching(self) -> Scenario:
        """The same, with steps that take as long as the device alone (rule 2, overlapping)."""
        step = self.inputs.step
        assert step.amp is not None
        alone = replace(step, host=LEAST, amp=(LEAST, step.amp[1]))
        case = self.replaced()
        case._inputs = replace(self.inputs, step=alone)
        return case

    @property
    def progress_target(self) -> float | None:
        """The target, declared as progress or as an accuracy; None where a real model learns."""
        if self.target_accuracy is not None and not self.learner.is_real:
            return self.learner.progress_for(self.target_accuracy)
        return self.target_progress

    @property
    def has_target(self) -> bool:
        """Whether runs have a time to a target."""
        return self.target_progress is not None or self.target_accuracy is not None

    @property
    def sample_target(self) -> int | None:
        """`samples` rounded up to a multiple of workers x batch (rule 23)."""
        if self.samples is None:
            return None
        batch = self.workers * self.learner.batch
        return -(-self.samples // batch) * batch

    @property
    def folder(self) -> Path:
        """That of its file, to which file names in it are relative."""
        return self._folder

    @property
    def watts(self) -> tuple[float | None, float | None]:
        """Of a device while it computes, and while it waits or communicates; None if unknown.

        Those of `cost`, else those that NVML measured for the profile.  RAPL's are of whole
        processor packages, of which a worker is a part that nobody measured.
        """
        cost, profile = self.cost, self.inputs.profile
        power = None if profile is None else profile.power
        if power is None or power.source != "NVML":
            return cost.watts, cost.idle_watts
        busy, idle = (None if q is None else q.value for q in (power.busy, power.idle))
        return cost.watts or busy, cost.idle_watts or idle

    @property
    def certain(self) -> bool:
        """Whether nothing is random, so that all seeds give the same run."""
        shifted = self.trace is not None and self.trace_per_seed == "shift"
        drawn = self.inputs.step.noise is not None or self.pace > 0
        return not (drawn or shifted or self.learner.is_real)

    @property
    def declared(self) -> dict[str, Any]:
        """The keys that are set, as JSON; one object for all runs, which must not be changed.

        >>> Scenario(workers=8, updates=10, step={"compute": 0.1}).declared
        {'workers': 8, 'updates': 10, 'step': {'compute': 0.1}}
        """
        if self._declared is None:
            self._declared = self.model_dump(mode="json", exclude_unset=True)
        return self._declared

    @property
    def inputs(self) -> Inputs:
        """The constants in force, the trace and the profile, read once. Raises `InputError`."""
        if self._inputs is None:
            self._inputs = self._load()
        return self._inputs

    def timing(self, seed: int) -> Timing:
        """When things end in a run; runs that meet the same trace share all but the noise."""
        noise_of_seed = self.noise_of(seed)
        shifted_by = seed if self.trace_per_seed == "shift" else None
        last = self._timing
        if last is None or last[0] != shifted_by:
            trace = self.inputs.contention
            if trace is not None and shifted_by is not None:
                trace = trace.shift(offset(seed) * trace.end)
            self._timing = last = shifted_by, self._timing_of(trace, noise_of_seed)
        return last[1].under(noise_of_seed)

    @property
    def pace(self) -> float:
        """The standard deviation of the pace of whole runs; 0 where every run has pace 1."""
        return 0.0 if self.noise is None or self.replays else self.noise.pace

    def noise_of(self, seed: int) -> Noise:
        """The noise of the steps of a run, at its pace."""
        drawn = self.inputs.step.noise
        if self.pace:
            pace = pace_of(seed, self.pace)
            drawn = constant(pace) if drawn is None else drawn.at_pace(pace)
        return Noise(seed, drawn)

    def _timing_of(self, trace: Trace | None, noise_of_seed: Noise) -> Timing:
        inputs, places, k = self.inputs, self.rank_places, self.ranks_per_node
        if trace is not None and k is not None and trace.nodes[-1] > (self.ranks - 1) // k:
            unit = "ranks" if self.worker else "workers"
            raise InputError(
                f"{trace.recorded.source}: node {trace.nodes[-1]} is beyond {self.ranks} {unit}, "
                f"{k} per node; raise `workers`, or choose nodes with `nodes: [...]`"
            )
        shape = self._shape
        contention = Contention.of(
            trace, self.workers, places, self.trace_end, self.allow_speedup, shape
        )
        if trace is not None and contention.durations and self.contention.host_share:
            clean = trace.without_contention(places or range(self.ranks))
            contention = contention.on_host(
                self.contention.host_share,
                Contention.of(clean, self.workers, places, worker=shape),
            )
        s = self.server_load
        load = None if s is None else ServerLoad(self._ranks_on(s.node), s.host, s.net)
        return Timing(
            inputs.step, inputs.allreduce, inputs.server, contention, noise_of_seed,
            self.network_places, load,
        )  # fmt: skip

    def __getstate__(self) -> dict[Any, Any]:
        """The state for another process: the inputs read, without what is derived from them."""
        state = super().__getstate__()
        private = state["__pydantic_private__"] | {"_timing": None, "_declared": None}
        return state | {"__pydantic_private__": private}

    def write(self, folder: Path, name: str = "scenario.yaml") -> None:
        """Write a scenario file, and copies of the files that it names, to a folder."""
        from ruamel.yaml import YAML

        data = self.model_dump(mode="json", exclude_unset=True)
        trace, profile = self.inputs.trace, self.inputs.profile
        if isinstance(self.trace, str) and trace is not None:
            data["trace"] = f"trace{Path(self.trace).suffix}"
            if not _copy(self._folder / self.trace, folder / data["trace"], trace.sha256):
                trace.write(folder / data["trace"])
        if self.profile is not None and profile is not None:
            data["profile"] = "profile.json"
            if not _copy(self._folder / self.profile, folder / data["profile"], profile.sha256):
                (folder / data["profile"]).write_text(profile.model_dump_json(), encoding="utf-8")
        with (folder / name).open("w", encoding="utf-8") as file:
            YAML(typ="safe", pure=True).dump(data, file)

    def _load(self, profile: Profile | None = None) -> Inputs:
        trace = self.trace
        if isinstance(trace, str):
            trace = Trace.read(self._folder / trace)
        if profile is None and self.profile is not None:
            profile = Profile.read(self._folder / self.profile)
        return self._with(trace, profile)

    def _with(self, trace: Trace | None, profile: Profile | None) -> Inputs:
        times = self._times_by(profile, trace)
        try:
            step = step_of(self.step, self.noise, times, trace, self.microbatches)
        except InputError as error:  # a lag 1 that the noise cannot have
            of_profile = f"lag1_autocorrelation of the profile {self.profile}"
            stated = self.noise is not None and self.noise.lag1 is not None
            key = "noise.lag1" if stated else of_profile
            raise InputError(f"{self._source}: {key}: {error}") from None
        if self._shape is not None:
            step = step.of_worker(self._shape)
        may_be_idle = self._every_rank_replays(trace) or (
            self.step is not None and "cv" in self.step.model_fields_set
        )
        if self.noise and self.noise.lag1 and step.noise is None and not may_be_idle:
            raise InputError(
                f"{self._source}: noise.lag1 is {self.noise.lag1:g}, but steps have no noise: give "
                "step.cv, a profile with noise, or no `noise`"
            )
        contention = (
            None if trace is None
            else translate(trace, profile, step, self.contention.response)
        )  # fmt: skip
        places = self.rank_places or range(self.ranks)
        if contention is not None and self.durations == "median":
            contention = contention.without_contention(places)
        if contention is not None and self.contention.severity != 1:
            contention = contention.scaled(self.contention.severity, places)
        allreduce = constants_of(AllReduce, self.allreduce, profile and profile.allreduce)
        server: ProfilePart | ServerCost | None = profile and profile.server
        if self.server is not None and self.server.link is not None:
            stores = self.server.link == "store_and_forward"
            server = server_on_link(allreduce, self.workers, stores)
        return Inputs(
            trace, profile, times, step, allreduce,
            constants_of(ServerCost, self.server, server), contention,
            () if trace is None else responses_for(trace, profile),
        )  # fmt: skip

    @property
    def replays(self) -> bool:
        """Whether every step of every rank takes a recorded duration."""
        return self._every_rank_replays(self.inputs.trace)

    def _every_rank_replays(self, trace: Trace | None) -> bool:
        recorded = set() if trace is None else trace.nodes_with_durations
        return recorded.issuperset(self.rank_places or range(self.ranks))

    @property
    def _shape(self) -> WorkerRanks | None:
        """The ranks that make a worker; None if it is one."""
        if self.worker is None:
            return None
        return WorkerRanks(micro_batches=self.microbatches, **self.worker.model_dump())

    def _times_by(self, profile: Profile | None, trace: Trace | None) -> StepTimes | None:
        """The profile's times of a step at the learner's batch; None if they are not needed.

        Raises `InputError` if a rank's step times are unknown.
        """
        if self.step is not None:
            return None
        if profile is None or profile.step is None:
            recorded = set() if trace is None else trace.nodes_with_durations
            places = enumerate(self.rank_places or range(self.ranks))
            rank, node = next((place for place in places if place[1] not in recorded), (None, 0))
            if rank is None:
                return None
            if profile is None or recorded:
                which = f"rank {rank} are: the trace records no duration of node {node}"
                what = f"the steps of {which}" if recorded else "a step is"
                raise InputError(f"{self._source}: nothing says how long {what}: {WAYS_OUT}")
        try:
            return times_at(profile, self.learner.batch)
        except InputError as error:
            raise InputError(f"{self._source}: {error}") from None

    def _ranks_on(self, node: int) -> frozenset[int]:
        places = self.places or range(self.workers)
        return frozenset(rank for rank in range(self.workers) if places[rank] == node)


def _inline_trace(value: Any, source: str) -> Any:
    """Rows, or a trace from elsewhere, as the scenario's own trace; other values as they are.

    Raises `InputError` for a row that cannot be in a trace.
    """
    source = f"{source}: trace"
    if isinstance(value, Trace):
        is_own = (value.source, value.sha256_of_file, value.shifted_from) == (source, None, None)
        return value if is_own else Trace(value.histories, source, names=value.names)
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list | tuple):
        if column_names(value):
            return Trace.from_frame(value, source)
        raise InputError(f"{source} is {value!r}: give the name of a file, or a list of rows")
    for k, row in enumerate(value, start=1):
        if not isinstance(row, Mapping):
            raise InputError(f"{source}, row {k}: {row!r} is not a mapping of {', '.join(COLUMNS)}")
    return Trace.from_rows(value, source)


def _copy(source: Path, target: Path, sha256: str) -> bool:
    """Copy a file unless it has changed since it was read; returns whether it was copied."""
    try:
        data = source.read_bytes()
    except OSError:
        return False
    if hashlib.sha256(data).hexdigest() != sha256:
        return False
    target.write_bytes(data)
    return True
