"""The description of a policy: its docstring, its parameters, its first plan in words."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from simstrag.contract import Damping, Late, Plan, Policy, Precision, Quorum, Review, Via, Weigh
from simstrag.policies._parameters import Parameter, parameters

SOURCE = "Source:"
AUTHORS = re.compile(r'Source: (?:[^"]*(?:: | of ))?([^"]+?), "')  # Source: what of whom, "title"
YEAR = re.compile(r"\b(?:19|20)\d\d\b")
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
TITLE = re.compile(r'"[^"]*"')
ARCHITECTURES = {Via.ALLREDUCE: "all-reduce", Via.SERVER: "server", Via.LEADER: "leader"}
AVERAGING = {Via.ALLREDUCE: "model averaging", Via.SERVER: "model averaging at a server"}
VIA = {
    Via.ALLREDUCE: "by all-reduce",
    Via.SERVER: "each gradient a job of the server",
    Via.LEADER: "by all-reduce, then one job of the server",
}
LATE = {
    Late.QUEUE: "late ones count for the next update",
    Late.DROP: "late ones are dropped when done",
    Late.ABORT: "late ones are cancelled at once",
    Late.JOIN: "late ones join the next update without counting",
}


@dataclass(frozen=True, slots=True)
class PolicyDescription:
    """A policy's description, from its file and its first plan.

    name: its spec.
    title: its full name; the spec where its class has no `title`.
    sentence: its decision.
    details: further paragraphs on the decision.
    architecture: how updates are made: `all-reduce`, `server`, `leader`, `model averaging`
        or `model averaging at a server`.
    parameters: its parameters.
    plan: its first plan, (field, meaning) for each quorum and each field not at its default.
    paper: the first source in short.
    source: all sources.
    remarks: which rules are the paper's and which are this project's.
    """

    name: str
    title: str
    sentence: str
    details: tuple[str, ...]
    architecture: str
    parameters: tuple[Parameter, ...]
    plan: tuple[tuple[str, str], ...]
    paper: str
    source: str
    remarks: tuple[str, ...]


def describe_policy(
    policy: Policy, name: str, plan: Plan, world_size: int, alone: bool
) -> PolicyDescription:
    """The description of a policy.

    plan: its first plan in a world of `world_size` ranks.
    alone: whether its file defines no other policy, so that the file's docstring describes it.
    """
    cls = type(policy)
    text = inspect.getdoc(sys.modules[cls.__module__]) if alone else None
    if not text:
        text = inspect.getdoc(cls) or ""
        if text.startswith(f"{cls.__name__}("):  # the default docstring of a dataclass
            text = ""
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    at = next((k for k, text in enumerate(paragraphs) if text.startswith(SOURCE)), len(paragraphs))
    source = paragraphs[at] if at < len(paragraphs) else ""
    return PolicyDescription(
        name=name,
        title=getattr(cls, "title", name),
        sentence=paragraphs[0] if at else "",
        details=tuple(paragraphs[1:at]),
        architecture=" + ".join(architecture(plan)),
        parameters=parameters(cls),
        plan=describe_plan(plan, world_size),
        paper=_citation(source),
        source=source,
        remarks=tuple(paragraphs[at + 1 :]),
    )


def _citation(source: str) -> str:
    """The first paper of a source in short; empty where there is none.

    >>> _citation('Source: Ho et al., "More Effective ...", NIPS 2013; before: Li, "A", 2012.')
    'Ho et al. 2013'
    """
    first = TITLE.sub('""', source).partition(";")[0]
    authors = AUTHORS.search(first)
    name = authors[1] if authors else ""
    if "," in name:
        name = f"{name.partition(',')[0]} et al."
    year, arxiv = YEAR.search(first), ARXIV.search(first)
    cited = " ".join(part for part in (name, year[0] if year else "") if part)
    return ", ".join(part for part in (cited, arxiv[0] if arxiv else "") if part)


def architecture(plan: Plan) -> tuple[str, ...]:
    """How the updates of a plan are made, one word for each kind of quorum.

    >>> architecture(Plan((Quorum(via=Via.SERVER),))), architecture(Plan(average=True))
    (('server',), ('model averaging',))
    """
    words = AVERAGING if plan.average else ARCHITECTURES
    return tuple(dict.fromkeys(words[quorum.via] for quorum in plan.quorums))


def describe_plan(plan: Plan, world_size: int) -> tuple[tuple[str, str], ...]:
    """(field, meaning) for each quorum of a plan and for each other field not at its default.

    Raises `PlanError` where the plan does not fit the world.

    >>> plan = Plan((Quorum(count=6, late=Late.DROP),), review=Review(updates=10))
    >>> describe_plan(plan, world_size=8)
    (('quorum', 'the first 6 of all 8 ranks, by all-reduce; late ones are dropped when done'),
     ('review', 'after 10 updates'))
    """
    return tuple(_fields(plan.resolved(world_size), world_size))


def _fields(plan: Plan, world_size: int) -> Iterator[tuple[str, str]]:
    for quorum in plan.quorums:
        yield "quorum", _quorum(quorum, world_size)
    if plan.fuse:
        yield "fuse", "leaders' jobs that wait together become one update"
    if isinstance(plan.bound, tuple):
        yield "bound", f"{_per_rank(plan.bound)} steps ahead of the slowest rank at most"
    assert isinstance(plan.precision, tuple), "resolve the plan first"
    amp = [rank for rank, precision in enumerate(plan.precision) if precision is Precision.AMP]
    if amp:
        yield "precision", f"reduced on {_ranks(amp, world_size)}"
    if isinstance(plan.batch, tuple):
        yield "batch", f"{_per_rank(plan.batch)} of the nominal batch"
    if plan.deadline is not None:
        yield "deadline", f"steps stop at the first micro-batch that ends after {plan.deadline:g} s"
    if plan.average:
        yield "average", "ranks keep models of their own; an update averages its contributors'"
    if plan.fragments > 1:
        yield "fragments", f"an update averages one of {plan.fragments} parts of the model, in turn"
    for name in ("outer", "compensation", "screen"):
        if (choice := getattr(plan, name)) is not None:
            yield name, ", ".join(f"{key} {value}" for key, value in asdict(choice).items())
    if plan.weigh is Weigh.MEMBERS:
        yield "weigh", "an update is the mean of its gradients, however few"
    if damping := "; ".join(_damping(plan.damping)):
        yield "damping", damping
    if len(plan.suspected):
        yield "suspects", _ranks(plan.suspected.tolist(), world_size)
    if review := " or ".join(_review(plan.review)):
        yield "review", review


def _quorum(quorum: Quorum, world_size: int) -> str:
    members = _ranks(quorum.members, world_size)
    if quorum.count is not None:
        members = f"the first{'' if quorum.count == 1 else f' {quorum.count}'} of {members}"
    parts = [f"{members}, {VIA[quorum.via]}"]
    if quorum.window < math.inf:
        parts.append(f"or those there {quorum.window:g} s after the first of them")
    if quorum.grace:
        parts.append(f"and those that come up to {quorum.grace:g} s later")
    if quorum.partial:
        parts.append("by a collective of all members; one without a gradient sends zeros")
    if quorum.late is not Late.QUEUE:
        parts.append(LATE[quorum.late])
    if quorum.riders:
        pairs = ", ".join(f"{child} with {parent}" for child, parent in quorum.riders)
        parts.append(f"riders: {pairs}")
    if quorum.parents:
        pairs = ", ".join(f"{child} with {parent}" for child, parent in quorum.parents)
        parts.append(f"gradients in one message: {pairs}")
    if isinstance(quorum.steps, tuple):
        parts.append(f"each after its own number of private steps: {quorum.steps}")
    elif quorum.steps > 1:
        parts.append(f"each after {quorum.steps} private steps")
    if quorum.overlap:
        parts.append(f"{quorum.overlap} steps while its contribution is under way")
    if quorum.rounds > 1:
        parts.append(f"after {quorum.rounds} rounds among themselves")
    return "; ".join(parts)


def _damping(damping: Damping) -> Iterator[str]:
    if damping.power:
        staleness = f"{damping.shift:g} + staleness" if damping.shift else "staleness"
        yield f"a gradient weighs max({staleness}, 1)**-{damping.power:g}"
    if damping.cutoff is not None:
        yield f"gradients of staleness {damping.cutoff} or more are dropped"


def _review(review: Review) -> Iterator[str]:
    if review.updates is not None:
        yield "after every update" if review.updates == 1 else f"after {review.updates} updates"
    if review.samples is not None:
        yield f"after {review.samples} samples"
    if review.seconds is not None:
        yield f"after {review.seconds:g} s"
    if review.on_block:
        yield "when a rank would block"


def _per_rank(values: tuple[float | None, ...]) -> str:
    """One value for all, or one per rank."""
    texts = ["inf" if value is None else f"{value:g}" for value in values]
    return texts[0] if len(set(texts)) == 1 else f"by rank {', '.join(texts)}"


def _ranks(ranks: Iterable[int], world_size: int) -> str:
    """Ascending ranks, runs of them abbreviated: `ranks 0-3, 7`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    count = sum(len(run) for run in runs)
    if count == world_size > 1:
        return f"all {world_size} ranks"
    text = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"rank {text}" if count == 1 else f"ranks {text}"
