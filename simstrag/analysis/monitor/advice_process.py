"""The process that computes what would help: a diagnosis, and a quick search of a policy.

It has the lowest priority, the cores that it is given, and no output but one line of JSON.  It dies
with the watcher.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from simstrag.processes.affinity import pin
from simstrag.processes.children import receive_arguments
from simstrag.processes.pool import THREADS

if TYPE_CHECKING:
    from simstrag.records.record import Record
    from simstrag.whatif.diagnosis import Diagnosis

SEARCHED = 400
"""Latest steps on which policies are searched: 5 s on one core, for 8 ranks (28 November 2026)."""
SEEDS = 2
"""Seeds of a quick search."""
LABELS = ("who", "lost", "why", "fix", "policy", "unseen")
"""Lines of a diagnosis that the view shows."""


def main() -> None:
    """Advise on the record that the watcher sends, and print it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # the watcher draws there
    if hasattr(os, "nice"):
        os.nice(19)
    os.environ |= dict.fromkeys(THREADS, "1")
    record, price, cores = receive_arguments()
    if cores:
        pin(set(cores))
    print(json.dumps(advise_on(record, price)), flush=True)


def advise_on(record: Record, price: float | None) -> dict[str, Any]:
    """The lines of a diagnosis, and what to run; a record that allows neither says why."""
    from simstrag.analysis.text.diagnosis_lines import lines
    from simstrag.errors import InputError
    from simstrag.whatif.diagnosis import diagnose

    try:
        found = diagnose(record, gpu_price=price, jobs=1)
    except InputError as error:
        return {"lines": [["unseen", str(error)]], "action": "", "assumed": ""}
    said = [[each.label, each.text] for each in lines(found) if each.label in LABELS]
    action, assumed = _search(found) if found.gains else ("", "")
    return {"lines": said, "action": action, "assumed": assumed}


def _search(found: Diagnosis) -> tuple[str, str]:
    """What to run by a search of all policies on the latest steps, and what that assumes.

    Both are empty where it finds nothing.
    """
    from simstrag.advice.advise import advise
    from simstrag.analysis.text.advice_text import brief
    from simstrag.errors import SimstragError
    from simstrag.whatif.analysis import replay_of
    from simstrag.whatif.job_scenario import job_scenario

    assert found.steps is not None
    record = found.record.of_steps(found.steps.replay.layout.step[-SEARCHED:])
    try:
        job = job_scenario(record, replay_of(record), (), gpus=found.steps.gpus)
        scenario = job.readings[0]
        known = scenario.replaced(placeholders=[])  # which `assumed` says instead
        action = str(brief(advise(known, seeds=SEEDS, jobs=1)).action)
    except SimstragError:
        return "", ""
    is_assumed = "learner.batch" in scenario.placeholders
    return action, f"a batch of {scenario.learner.batch} samples a rank" if is_assumed else ""


if __name__ == "__main__":
    main()
