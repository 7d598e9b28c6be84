"""A described trace: the figures are those of its rows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from simstrag.trace.trace import Trace
from simstrag.traces.describe import describe, episodes

SLOWDOWNS = Trace.from_rows(
    [
        (10.0, 0, "gpu", "slowdown", 2.0),
        (20.0, 0, "gpu", "slowdown", 4.0),  # the same episode goes on, worse
        (25.0, 0, "gpu", "slowdown", 1.0),
        (31.0, 0, "net", "slowdown", 3.0),
        (40.0, 1, "gpu", "slowdown", 1.5),
        (60.0, 1, "gpu", "slowdown", 0.5),  # faster than usual is not slowed
        (70.0, 1, "gpu", "slowdown", 1.0),
        (90.0, 1, "gpu", "slowdown", 8.0),
        (100.0, 2, "gpu", "slowdown", 1.0),  # ends the trace, so the 8 lasts 10 s
    ],
    source="hand-made",
)


def row_of(node: int, resource: str) -> dict[str, float]:
    table = describe(SLOWDOWNS).slowdowns
    found = table[(table["node"] == node) & (table["resource"] == resource)]
    (row,) = found.to_dict("records")
    return row


def test_a_change_between_two_slowdowns_does_not_end_an_episode() -> None:
    row = row_of(0, "gpu")
    assert row["episodes"] == 1
    assert row["share_slowed"] == 0.15
    assert row["mean_slowdown"] == pytest.approx((10 * 2 + 5 * 4) / 15)
    assert row["max_slowdown"] == 4
    assert row["longest_clean"] == 75  # 25 to 100
    assert (row["first"], row["last"]) == (10, 25)


def test_a_speed_up_counts_as_clean() -> None:
    row = row_of(1, "gpu")
    assert row["episodes"] == 2
    assert row["share_slowed"] == pytest.approx(0.3)
    assert row["mean_slowdown"] == pytest.approx((20 * 1.5 + 10 * 8) / 30)
    assert row["longest_clean"] == 40


def test_resources_of_a_node_are_told_apart() -> None:
    row = row_of(0, "net")
    assert (row["episodes"], row["share_slowed"], row["longest_clean"]) == (1, 0.69, 31)


def test_a_node_that_is_never_slowed_has_no_mean_slowdown() -> None:
    row = row_of(2, "gpu")
    assert (row["episodes"], row["share_slowed"], row["max_slowdown"]) == (0, 0.0, 1.0)
    assert math.isnan(row["mean_slowdown"])
    assert row["longest_clean"] == 100


def test_episodes_are_listed_in_order_of_time() -> None:
    table = episodes(SLOWDOWNS)
    assert table[["node", "resource", "start", "end", "max"]].values.tolist() == [
        [0, "gpu", 10.0, 25.0, 4.0],
        [0, "net", 31.0, 100.0, 3.0],
        [1, "gpu", 40.0, 60.0, 1.5],
        [1, "gpu", 90.0, 100.0, 8.0],
    ]


def test_the_paragraph_says_the_most_of_it() -> None:
    assert describe(SLOWDOWNS).text == (
        "hand-made: 9 rows about 3 nodes (gpu slowdown, net slowdown), the last at 100 s. "
        "4 episodes of slowdown; a node's resource is slowed for 28.5% of the time in the mean "
        "(0.0% to 69.0%), by a factor of 3.11 then, and by 8 at most (node 1, gpu, in the episode "
        "from 90 s on). Episodes last 20 s in the median, 69 s at most; some node is slowed for "
        "84.0% of the time. 1 row with a slowdown below 1, counted as clean here (the first is "
        "row 6, with 0.5): a scenario refuses that unless it says "
        "allow_speedup: true. Held after the end unless trace_end says otherwise, and not counted "
        "here: node 0 net 3x, node 1 gpu 8x."
    )


def test_a_trace_of_constants_is_slowed_for_the_whole_time() -> None:
    rows = [(0, 0, "gpu", "slowdown", 2.0), (0, 1, "gpu", "slowdown", 1.0)]
    table = describe(Trace.from_rows(rows)).slowdowns
    assert table["share_slowed"].tolist() == [1.0, 0.0]
    assert table["mean_slowdown"].tolist()[0] == 2.0
    assert table["episodes"].tolist() == [1, 0]


def test_of_rows_of_equal_time_the_last_counts() -> None:
    rows = [(0, 0, "gpu", "slowdown", 9.0), (0, 0, "gpu", "slowdown", 1.0)]
    rows += [(10, 0, "gpu", "slowdown", 1.0)]
    assert describe(Trace.from_rows(rows)).slowdowns["max_slowdown"].tolist() == [1.0]


def test_a_clean_trace_is_called_clean() -> None:
    described = describe(
        Trace.from_rows([(0.0, 0, "gpu", "slowdown", 1.0), (5.0, 0, "gpu", "slowdown", 1.0)])
    )
    assert described.text.endswith("Nothing is ever slowed.")


def test_durations_and_utilisations_are_described_apart() -> None:
    rows = [
        (0.0, 0, "step", "duration", 0.5),
        (1.0, 0, "step", "duration", 1.5),
        (1.0, 1, "step", "duration", 3.0),
        (2.0, 2, "gpu", "utilisation", 0.5),
        (4.0, 2, "gpu", "utilisation", 0.0),
    ]
    described = describe(Trace.from_rows(rows))
    assert described.slowdowns.empty
    assert described.others.values.tolist() == [
        [0, "step", "duration", 2, 1.0, 1.5, 0.0, 1.0],
        [1, "step", "duration", 1, 3.0, 3.0, 1.0, 1.0],
        [2, "gpu", "utilisation", 2, 0.25, 0.5, 2.0, 4.0],  # 0 before its first row
    ]
    assert "3 recorded steps; a node's mean step takes 1 to 3 s." in described.text
    assert "Utilisation is simulated only with a profile" in described.text


def test_a_node_between_others_that_has_no_rows_is_named() -> None:
    rows = [(0, node, "gpu", "slowdown", 2.0) for node in (0, 1, 3, 7)]
    assert "Node 2 has no rows, and counts as clean." in describe(Trace.from_rows(rows[:3])).text
    assert "Nodes 2, 4, 5, 6 have no rows, and count as clean." in (
        describe(Trace.from_rows(rows)).text
    )
    assert "no rows" not in describe(Trace.from_rows(rows[:2])).text


def test_what_holds_after_the_last_row_is_told() -> None:
    rows = [(0, 0, "gpu", "slowdown", 1), (2, 0, "gpu", "slowdown", 3)]
    assert "not counted here: node 0 gpu 3x." in describe(Trace.from_rows(rows)).text


def test_nodes_with_names_are_called_by_them() -> None:
    described = describe(replace(SLOWDOWNS, names={0: "gpu-a", 1: "gpu-b"}))
    assert described.slowdowns["host"].tolist() == ["gpu-a", "gpu-a", "gpu-b", ""]
    assert "at most (gpu-b (node 1), gpu, in the episode" in described.text
    assert "gpu-a (node 0) net 3x, gpu-b (node 1) gpu 8x" in described.text
