"""Says in words how a trace was recorded and what came out; written beside the trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simstrag.calibration import estimate
from simstrag.calibration.recording import Recording

__all__ = ["account"]


def account(recording: Recording, profile: dict[str, Any], name: str) -> str:
    """The text of `NAME.md`, in Markdown."""
    return (
        "\n\n".join(
            [
                f"# {name}: a recorded contention trace",
                _origin(recording),
                _meaning(recording),
                "## Episodes",
                _episodes(recording),
                "Slowdown = median of the episode's full-precision steps / median of its series' "
                "clean ones (and the same of means); p10 and p90 are of single steps against the "
                "same clean median, early and late of the episode's two halves: how far one "
                "constant per episode is a simplification. The last columns are the same ratio of "
                "reduced-precision steps, and the gain of reduced precision inside the episode.",
                "## Key numbers",
                _numbers(profile),
                "## Disturbance",
                _undeclared(recording),
                _disturbance(profile),
            ]
        )
        + "\n"
    )


def _origin(recording: Recording) -> str:
    described = recording.described
    device, software, plan = described["device"], described["software"], described["plan"]
    return (
        f"Recorded on {described['date']} by this project, on {device['cores']} cores of "
        f"{device['model']} ({device['flags']}), torch {software['torch']}, Linux "
        f"{software['kernel']}:\n\n"
        f"    {described['command']}\n    {recording.communication['command']}\n\n"
        f"{described['how']}\n\n"
        f"{len(recording.series)} series of {plan['seconds']:g} s. Workload: "
        f"{described['workload']['name']}, batch {described['workload']['shape']['batch']}, "
        f"{described['workload']['parameters']} parameters; full = "
        f"{described['precisions']['full']}, amp = {described['precisions']['amp']}, in turns of "
        f"{plan['full_block']} and {plan['amp_block']} steps. The seed of a series is its number."
    )


def _meaning(recording: Recording) -> str:
    return (
        "**Measured:** every step's local time, every burner's start and stop. **Derived:** one "
        "slowdown per episode (resource `gpu`: the computing device, here a CPU core), constant "
        "within it; values below 1 would be set to 1. **Assumed:** that the "
        f"{len(recording.series)} series, recorded one at a time on one core, may be replayed "
        f"side by side as the nodes 0 to {len(recording.series) - 1} of one cluster; no cluster "
        "was measured."
    )


def _episodes(recording: Recording) -> str:
    heads = ["node", "start s", "stop s", "load", "steps", "slowdown", "of means", "p10", "p90"]
    heads += ["early", "late", "amp slowdown", "gain", "foreign"]
    lines = [_line(heads), _line(["---"] * len(heads))]
    for series in recording.series:
        for e in estimate.episodes(series):
            factors = [e.slowdown, e.mean_slowdown, e.low, e.high, e.early, e.late]
            factors += [e.amp_slowdown, e.amp_ratio]
            where = [str(e.series), f"{e.start:.1f}", f"{e.stop:.1f}", e.kind, str(e.steps)]
            shown = [f"{factor:.2f}" for factor in factors]
            lines.append(_line([*where, *shown, f"{max(0.0, e.foreign):.1%}"]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _numbers(profile: dict[str, Any]) -> str:
    lines = ["| quantity | value | 95 % interval | kind | note |", "|---|---|---|---|---|"]
    for part in ("step", "allreduce", "server"):
        for name, q in profile[part].items():
            if name == "noise":
                continue
            interval = "" if q["low"] is None else f"{q['low']:.4g} to {q['high']:.4g}"
            lines.append(
                f"| {part}.{name} | {q['value']:.5g} | {interval} | {q['kind']} | {q['note']} |"
            )
    noise = profile["step"]["noise"]
    table = noise["quantiles"]
    low, high = table[(len(table) - 1) // 20], table[(len(table) - 1) * 19 // 20]
    lines.append(
        f"| step.noise | p5 {low:.3f}, p95 {high:.3f} | | measured | lag-1 autocorrelation "
        f"{noise['lag1_autocorrelation']:.2f}; {noise['note']} |"
    )
    return "\n".join(lines)


def _undeclared(recording: Recording) -> str:
    text = (
        "Other work ran on this machine. Foreign load is what processes that no schedule declares "
        "took of the recording core, told from CPU times; below, of the worst episode and of the "
        "worst clean stretch of each series. Clean stretches with more than "
        f"{estimate.FOREIGN_LIMIT:.0%} of it count neither as clean nor as noise. Episodes with "
        "more are in the trace as they were measured, with the foreign load in them (column "
        "`foreign` above), and are left out of the gain under contention. `Stolen` is what the "
        "hypervisor took."
    )
    aside = recording.described.get("set_aside")
    return f"{text}\n\n{aside['why']}" if aside else text


def _disturbance(profile: dict[str, Any]) -> str:
    heads = ["node", "clean median ms", "other cores busy", "stolen s"]
    heads += ["foreign, worst episode", "foreign, worst clean", "clean steps left out"]
    lines = [_line(heads), _line(["---"] * len(heads))]
    lines += [
        _line(
            [
                str(each["series"]),
                f"{1e3 * each['clean_median']:.2f}",
                f"{each['other_cores_busy']:.1%}",
                f"{each['stolen_seconds']:.2f}",
                f"{each['worst_foreign_share_contended']:.1%}",
                f"{each['worst_foreign_share_clean']:.1%}",
                str(each["disturbed_steps_left_out"]),
            ]
        )
        for each in profile["recordings"]["disturbance"]
    ]
    return "\n".join(lines)
