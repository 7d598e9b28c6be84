"""Profiles: numbers of one device, each measured, fitted or assumed."""

from __future__ import annotations

import hashlib
import json
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from simstrag.documents.file_io import path_of, require_path
from simstrag.documents.validation_errors import explain
from simstrag.errors import InputError
from simstrag.profile.measurements import (
    AmpRatio,
    BatchFit,
    CollectiveCell,
    CollectiveFit,
    Count,
    HeldOut,
    LockstepCell,
    NoiseScaleAt,
    OverlapCell,
    Response,
    Size,
    SkippedCell,
    StepCell,
    TransferCell,
)
from simstrag.profile.quantity import (
    NoiseSamples,
    NotNegativeQuantity,
    PositiveQuantity,
    ProfilePart,
    Quantity,
    ShareQuantity,
)
from simstrag.rendering import html_fragment


class MeasuredWorkload(ProfilePart):
    """The timed model and its two precisions."""

    name: str
    parameters: int
    batch: int
    full: str
    amp: str
    stand_in: bool


class PrecisionSeconds(ProfilePart):
    """Seconds in full and in reduced precision; the latter None where they are unknown."""

    full: PositiveQuantity
    amp: PositiveQuantity | None = None


class StepTimes(ProfilePart):
    """Seconds and ratios of one step; see `simstrag.timing.constants.Step`.

    host_share: of the serial law, in which a step is host and device after one another.
    launch, device: of the overlapping law, in which it takes the longer of both.
    amp_ratio: without it, and without `device.amp`, no policy may use reduced precision.
    fixed_share: share that a smaller batch does not shorten; without it, 0.
    noise: without it all steps take equally long.
    pace: relative standard deviation of the pace that lasts through a run.
    """

    compute: PositiveQuantity
    host_share: ShareQuantity | None = None
    launch: PrecisionSeconds | None = None
    device: PrecisionSeconds | None = None
    amp_ratio: PositiveQuantity | None = None
    amp_ratio_contended: PositiveQuantity | None = None
    amp_switch: NotNegativeQuantity
    fixed_share: ShareQuantity | None = None
    noise: NoiseSamples | None = None
    pace: NotNegativeQuantity | None = None

    @model_validator(mode="after")
    def _has_one_law(self) -> Self:
        if (self.launch is None) != (self.device is None):
            given, other = ("launch", "device") if self.device is None else ("device", "launch")
            raise ValueError(f"{given} needs {other}: a step takes the longer of the two")
        if (self.host_share is None) == (self.launch is None):
            raise ValueError("give either host_share, or launch and device")
        return self

    @property
    def streams(self) -> tuple[PrecisionSeconds, PrecisionSeconds] | None:
        """Launch and device of the overlapping law; None under the serial one."""
        if self.launch is None or self.device is None:
            return None
        return self.launch, self.device


class AllReduceTimes(ProfilePart):
    """Constants of an all-reduce; see `simstrag.timing.constants.AllReduce`.

    ranks: numbers of ranks in the fit; empty if unknown.
    smallest, largest: bytes in the fit.
    """

    alpha: NotNegativeQuantity
    bandwidth: PositiveQuantity
    bytes: NotNegativeQuantity
    overlap: ShareQuantity
    algorithm: Literal["ring", "tree", "halving_doubling", "hierarchical"] = "ring"
    intra_alpha: NotNegativeQuantity | None = None
    intra_bandwidth: PositiveQuantity | None = None
    ranks: tuple[Count, ...] = ()
    smallest: Size | None = None
    largest: Size | None = None


class ServerTimes(ProfilePart):
    """Seconds per gradient; see `simstrag.timing.constants.ServerCost`."""

    service: NotNegativeQuantity
    push: NotNegativeQuantity
    pull: NotNegativeQuantity


class PowerDraw(ProfilePart):
    """Mean watts of the device; see `Scenario.watts`.

    source: the counter: RAPL is of all processor packages with all their cores, NVML of one GPU.
    idle: without work.
    busy, busy_amp: while it computes steps in full and in reduced precision, at the nominal batch.
    """

    source: Literal["NVML", "RAPL"]
    idle: PositiveQuantity | None = None
    busy: PositiveQuantity | None = None
    busy_amp: PositiveQuantity | None = None


class Profile(ProfilePart):
    """Measurements of one device or cluster. `Profile.read(path)` loads and checks a file.

    origin: measured by this project's calibration, or derived from others' measurements.
    source: in a derived profile, the measurements of others.
    missing: numbers that a reader might expect but the profile lacks.
    conditions: least and most of clocks (MHz), temperatures (C) and power (W) at visits.
    samples: names of the files with all samples, and their SHA-256.
    """

    format: Literal["simstrag-profile/1"] = "simstrag-profile/1"
    name: str
    origin: Literal["measured", "derived"] = "measured"
    source: str = ""
    missing: tuple[str, ...] = ()
    note: str = ""
    date: str
    command: str
    commit: str = ""
    device: dict[str, Any]
    conditions: dict[str, tuple[float, float]] = Field(default_factory=dict)
    software: dict[str, Any]
    workload: MeasuredWorkload | None = None
    step: StepTimes | None = None
    allreduce: AllReduceTimes | None = None
    server: ServerTimes | None = None
    power: PowerDraw | None = None
    cells: tuple[StepCell, ...] = ()
    batches: tuple[BatchFit, ...] = ()
    responses: tuple[Response, ...] = ()
    collectives: tuple[CollectiveCell, ...] = ()
    collective_fits: tuple[CollectiveFit, ...] = ()
    transfers: tuple[TransferCell, ...] = ()
    overlaps: tuple[OverlapCell, ...] = ()
    locksteps: tuple[LockstepCell, ...] = ()
    learning: tuple[NoiseScaleAt, ...] = ()
    amp_ratios: tuple[AmpRatio, ...] = ()
    held_out: tuple[HeldOut, ...] = ()
    skipped: tuple[SkippedCell, ...] = ()
    samples: dict[str, str] = Field(default_factory=dict)
    recordings: dict[str, Any] = Field(default_factory=dict)
    _sha256: str = PrivateAttr("")

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.step is not None and self.step.streams and self.step.amp_ratio is not None:
            raise ValueError("step: amp_ratio follows from launch and device; leave it out")
        if self.step is not None and self.workload is None:
            raise ValueError("step needs workload, which names the timed model")
        if self.origin == "derived" and not self.source:
            raise ValueError("a derived profile needs source: the measurements that it is from")
        return self

    @property
    def gpus_per_node(self) -> int | None:
        """Ranks on a full node of the measured cluster; None if unknown.

        `device.gpus_per_node` is that number, or the GPUs of each node by the number of ranks.
        """
        stated = self.device.get("gpus_per_node")
        sizes = stated.values() if isinstance(stated, dict) else [stated]
        numbers = [
            n for size in sizes for n in (size if isinstance(size, list | tuple) else [size])
        ]
        return max((n for n in numbers if isinstance(n, int) and n > 0), default=None)

    @property
    def sha256(self) -> str:
        """SHA-256 of the file's bytes; empty for a profile without a file."""
        return self._sha256

    @property
    def text(self) -> str:
        """The text of its file: JSON without default values."""
        data = {"format": self.format, **self.model_dump(mode="json", exclude_defaults=True)}
        return json.dumps(data, indent=1) + "\n"

    def _repr_html_(self) -> str:
        return html_fragment(self)

    @classmethod
    def read(cls, path: str | Path) -> Profile:
        """From a JSON file, or the one in a calibration's folder.

        Raises `InputError` that names the file, the field and the way out.
        """
        path = find_profile(path)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path}: cannot read the profile: {error.strerror}") from None
        try:
            profile = cls.model_validate_json(data)
        except ValidationError as error:
            raise InputError(explain(error, cls, str(path))) from None
        profile._sha256 = hashlib.sha256(data).hexdigest()
        return profile


def find_profile(path: str | Path) -> Path:
    """A profile's file, or the one in a calibration's folder.

    Raises `InputError` that names the nearest path, or the shipped profile of this name.
    """
    path = path_of(path, "a profile")
    shipped = files("simstrag.calibration") / "profiles" / f"{path.name.removesuffix('.json')}.json"
    if shipped.is_file() and not path.exists():
        raise InputError(f"{path}: no such file or folder; the shipped profile is {shipped}")
    file = path / "profile.json" if require_path(path).is_dir() else path
    if not file.exists():
        raise InputError(
            f"{path}: has no {file.name}; give a profile, or let simstrag calibrate --out {path} "
            "finish it"
        )
    return file


def constant_of(profile: Profile, part: str, name: str) -> Quantity | None:
    """A constant by the names of its section and its keys; None where the profile lacks it."""
    found: Any = getattr(profile, part)
    for key in name.split("."):
        found = getattr(found, key, None)
    return found if isinstance(found, Quantity) else None


def pair_slowdowns(profile: Profile) -> dict[str, list[float | None]]:
    """Slowdowns of each job beside each other job on one device; None where memory was too small.

    Sources that state no levels of load give such pairs and no law.

    >>> data = {"name": "a card", "date": "", "command": "", "device": {}, "software": {}}
    >>> beside = {"slowdown_beside": {"resnet": {"lm": 1.5, "gan": None}}}
    >>> pair_slowdowns(Profile.model_validate({**data, "recordings": beside}))
    {'resnet': [1.5, None]}
    """
    found = profile.recordings.get("slowdown_beside", {})
    return {job: list(beside.values()) for job, beside in found.items() if beside}
