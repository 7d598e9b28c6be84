"""What a folder of a sweep or of a cluster study keeps when another study begins in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from simstrag import Sweep, sweep
from simstrag.cluster.runs import ClusterResults, cluster
from tests.cluster.test_cluster import SMALL
from tests.support.commands import Call
from tests.support.damage import damaged, outcome

MADE = {"job": "first", "by": "a", "at": "2026-01-01"}
MUTATIONS = 100
CASE = {"workers": 4, "samples": 5120, "step": {"compute": 0.1}}


class Kind(NamedTuple):
    """A kind of study; `short` has less work than `study`, and so no run in common."""

    results: type[Any]
    begin: Callable[..., Any]
    study: dict[str, Any]
    short: dict[str, Any]


JOB = SMALL["jobs"][0] | {"count": 1}
KINDS = {
    "sweep": Kind(
        Sweep, sweep, {"scenario": CASE, "policies": ["bsp"], "seeds": 2},
        {"scenario": CASE | {"samples": 2560}, "policies": ["bsp"], "seeds": 2},
    ),
    "cluster": Kind(
        ClusterResults, cluster, SMALL | {"jobs": [JOB], "seeds": 2},
        SMALL | {"jobs": [JOB | {"samples": 800}], "seeds": 2},
    ),
}  # fmt: skip


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def used(kind: Kind, tmp_path: Path) -> Path:
    """The folder of a finished study, with a report, begun on another day."""
    folder = tmp_path / "used"
    kind.begin(kind.study, folder, jobs=1)
    marker = folder / kind.results.MARKER
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"made": MADE}))
    (folder / "report.html").write_text("of the first")
    assert left_in(folder, kind)
    return folder


def left_in(folder: Path, kind: Kind) -> set[str]:
    """The tables and the report in a folder."""
    return {name for name in (*kind.results.TABLES, "report.html") if (folder / name).exists()}


def test_tables_report_and_maker_of_another_study_go(kind: Kind, used: Path) -> None:
    """A shard that is not the last writes no tables of its own."""
    kind.begin(kind.short, used, jobs=1, shard=(1, 2))
    assert left_in(used, kind) == set()
    made = kind.results.read(used).made
    assert made.keys() <= {"by", "at"}
    assert made != MADE


def test_a_study_with_more_seeds_goes_on_and_keeps_tables_report_and_maker(
    kind: Kind, used: Path
) -> None:
    before = left_in(used, kind)
    kind.begin(kind.study | {"seeds": 3}, used, jobs=1, shard=(2, 3))
    assert left_in(used, kind) == before
    assert kind.results.read(used).made == MADE


def test_a_study_with_fewer_seeds_is_another(kind: Kind, used: Path) -> None:
    kind.begin(kind.study | {"seeds": 1}, used, jobs=1)
    assert "report.html" not in left_in(used, kind)
    assert kind.results.read(used).made != MADE


def test_a_study_begins_anew_where_the_list_of_runs_is_damaged(kind: Kind, used: Path) -> None:
    """Nobody can say what the tables and the report were of."""
    (used / kind.results.MARKER).write_bytes(b"\xff{")
    kind.begin(kind.study, used, jobs=1, shard=(2, 2))
    assert "report.html" not in left_in(used, kind)
    assert kind.results.read(used).made != MADE


def test_a_damaged_list_of_runs_is_read_or_refused_by_its_name(kind: Kind, used: Path) -> None:
    marker, refused = used / kind.results.MARKER, 0
    whole = marker.read_bytes()
    for number in range(MUTATIONS):
        marker.write_bytes(damaged(whole, f"{kind.results.MARKER} {number}"))
        message = outcome(lambda: kind.results.read(used))
        assert not message or message.startswith(f"{marker}: not a "), number
        refused += bool(message)
    assert refused > MUTATIONS / 2


@pytest.mark.parametrize("name", KINDS)
def test_the_report_of_a_folder_whose_list_is_no_text_ends_in_one_line(
    call: Call, tmp_path: Path, name: str
) -> None:
    marker = tmp_path / KINDS[name].results.MARKER
    marker.write_bytes(b"\xff")
    code, out, err = call("report", str(tmp_path))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {marker}: not a {KINDS[name].results.WHAT}: ")


def test_a_shard_of_fewer_runs_than_those_before_it_warns(used: Path, kind: Kind) -> None:
    with pytest.warns(UserWarning, match="2 runs, this one is of 1: all shards need the same"):
        kind.begin(kind.study | {"seeds": 1}, used, jobs=1, shard=(1, 2))
