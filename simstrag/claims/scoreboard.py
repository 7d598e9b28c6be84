"""The scoreboard: every claim tried in its nearest scenario and on its map, and what came out.

Its runs are sweeps, or cluster studies, in the scoreboard's folder, each kept as it finishes, so
that the same command goes on after an interrupt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simstrag.claims.claim import SEVERITY, TARGETS, Claim, Learner, points_of
from simstrag.claims.cluster_sweep import asked_runs, run_draws
from simstrag.claims.identities import Identity, identities
from simstrag.claims.measures import PointRuns
from simstrag.claims.registry import CLAIMS
from simstrag.claims.trial import ClaimVerdict, Trial, try_claim
from simstrag.documents.file_io import write_atomically
from simstrag.documents.suggestions import choices
from simstrag.errors import InputError
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.kept_runs import Report
from simstrag.experiments.sweep import sweep
from simstrag.rendering import html_fragment, html_page
from simstrag.runs.run import plain

if TYPE_CHECKING:
    import pandas as pd

FOLDER = Path("reports/claims")
FOUND = "found finished"
"""What a sweep reports of runs that an earlier command finished."""


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """A claim and what came out; trials by learner."""

    claim: Claim
    trials: Mapping[Learner, Trial]

    @property
    def verdict(self) -> ClaimVerdict:
        """Verdict of the trial that has the map."""
        nothing = ClaimVerdict.UNTRIED if self.claim.learners else ClaimVerdict.UNTESTABLE
        return next((trial.verdict for trial in self.trials.values()), nothing)

    @property
    def document(self) -> dict[str, Any]:
        """The claim's row as JSON."""
        trials: dict[str, Any] = {
            learner: {
                **trial.here.estimate._asdict(), "holds": trial.here.holds,
                "versus": {name: e._asdict() for name, e in trial.here.versus.items()},
                "note": trial.here.note, "verdict": trial.verdict, "region": trial.region,
                "points": [{
                    **{a.key: a.values[k] for a, k in zip(trial.axes, p.place, strict=True)},
                    **p.estimate._asdict(), "holds": p.holds,
                } for p in trial.points],
                **({"average": trial.average.document} if trial.average else {}),
                **({"entrants": [
                    {"words": e.words, "entrant": e.entrant, "missed": e.missed,
                     "stragglers": e.stragglers, "seconds": e.seconds._asdict(),
                     "saved": e.saved._asdict(), "accuracy": e.accuracy._asdict()}
                    for e in trial.entrants
                ]} if trial.entrants else {}),
            } for learner, trial in self.trials.items()
        }  # fmt: skip
        about = {name: getattr(self.claim, name) for name in ("name", "paper", "says", "number")}
        return {**about, "measure": self.claim.measure.words, "verdict": self.verdict, **trials}


@dataclass(frozen=True, slots=True)
class Scoreboard:
    """The rows of the scoreboard; `print` shows the verdicts.

    quick: whether maps are coarse, seeds few and nothing is trained.
    """

    folder: Path
    quick: bool
    rows: tuple[ClaimResult, ...]

    def __str__(self) -> str:
        width = max(len(row.claim.name) for row in self.rows)
        return "\n".join(f"{row.claim.name:{width}}  {row.verdict}" for row in self.rows)

    @property
    def identities(self) -> tuple[Identity, ...]:
        """What follows from the claims' numbers and from the models."""
        return identities(self.quick)

    @property
    def document(self) -> dict[str, Any]:
        """The scoreboard as JSON."""
        return {
            "quick": self.quick,
            "claims": [row.document for row in self.rows],
            "identities": [each._asdict() for each in self.identities],
        }

    def frame(self) -> pd.DataFrame:
        """A row for each point of each trial: claim, learner, place by axis, value, low, high."""
        import pandas as pd

        return pd.DataFrame([
            {"claim": row.claim.name, "learner": learner, "at": trial.describe(point),
             "number": row.claim.number, **point.estimate._asdict(), "holds": point.holds}
            for row in self.rows for learner, trial in row.trials.items() for point in trial.points
        ])  # fmt: skip

    def write(self, command: str | None = None) -> Path:
        """Write its page to its folder; returns the page's path."""
        page, path = html_page(self, command), self.folder / "claims.html"
        write_atomically(path, lambda part: part.write_text(page, encoding="utf-8"))
        return path

    def _repr_html_(self) -> str:
        return html_fragment(self)


def judge(
    only: Sequence[str | Claim] = (),
    folder: str | Path = FOLDER,
    *,
    quick: bool = False,
    jobs: int | None = None,
    on_progress: Report | None = None,
) -> Scoreboard:
    """Try the papers' claims.

    only: their names, or claims of your own; all by default.
    folder: for the runs, which are not computed again by the next call.
    quick: coarse maps, three seeds, and nothing is trained.
    jobs: processes, all cores by default, or this process alone where it is quick.
    on_progress: called as (done, total, what).
    Raises `InputError` for an unknown name.  On Ctrl-C, the `KeyboardInterrupt` says how many runs
    are kept.
    """
    known = {claim.name: claim for claim in CLAIMS}
    for name in only:
        if isinstance(name, str) and name not in known:
            raise InputError(f"there is no claim '{name}'; {choices(name, known)}")
    wanted = {each if isinstance(each, str) else each.name: each for each in only or known}
    claims = [known[each] if isinstance(each, str) else each for each in wanted.values()]
    total = sum(_count_runs(claim, each, quick) for claim in claims for each in claim.tried(quick))
    done = 0
    report = on_progress or (lambda *_: None)
    rows = []
    for claim in claims:
        trials: dict[Learner, Trial] = {}
        for learner in claim.tried(quick):
            kept = Path(folder) / f"{claim.name}-{learner}"

            def show(k: int, _: int, what: str, before: int = done, name: str = claim.name) -> None:
                report(before + k, total, what if what == FOUND else f"{name}: {what}")

            run = _run_sweep if claim.draw is None else run_draws
            try:
                cores = 1 if quick and jobs is None else jobs
                trials[learner] = run(claim, learner, quick, kept, cores, show)
            except KeyboardInterrupt:
                kept_so_far = f"about {done} of {total} runs are finished and kept in {folder}"
                raise KeyboardInterrupt(kept_so_far) from None
            done += _count_runs(claim, learner, quick)
        rows.append(ClaimResult(claim, trials))
    return Scoreboard(Path(folder), quick, tuple(rows))


def _run_sweep(
    claim: Claim, learner: Learner, quick: bool, folder: Path, jobs: int | None, report: Report
) -> Trial:
    """Try a claim about one job: a sweep of its scenario."""
    found = sweep(claim.study(learner, quick), folder, jobs=jobs, on_progress=report)
    axes, outcomes = claim.drawn_axes(learner, quick), found.outcomes()
    summaries = defaultdict[int, dict[str, list[Mapping[str, Any]]]](lambda: defaultdict(list))
    failed: dict[int, str] = {}
    for run in found.runs:
        if error := outcomes[run]["error"]:
            failed.setdefault(run.point, f"{run.policy} failed: {error}")
        summaries[run.point][run.policy].append(outcomes[run]["summary"])
    numbers = {_values(values): number for number, values in enumerate(found.points)}
    has_target = any(key in found.study["scenario"] for key in TARGETS)
    points: dict[tuple[int, ...], PointRuns | str] = {}
    for place, values in points_of(axes):
        needed = [numbers[_values(values)]]
        if claim.measure.needs_clean:
            needed.append(numbers[_values({**values, SEVERITY: 0.0})])
        number, *clean = needed
        errors = [failed[point] for point in needed if point in failed]
        controls = [run for point in clean for run in summaries[point][BASELINE]]
        runs = PointRuns(summaries[number], controls, has_target)
        points[place] = errors[0] if errors else runs
    return try_claim(claim, learner, axes, points)


def _count_runs(claim: Claim, learner: Learner, quick: bool) -> int:
    if claim.draw:
        return sum(1 for _ in asked_runs(claim, learner, quick))
    return claim.count_runs(learner, quick)


def _values(values: Mapping[str, Any]) -> str:
    """The values of a point as a key."""
    return repr(plain(dict(sorted(values.items()))))
