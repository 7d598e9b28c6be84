"""What a report says a simulation takes for granted: every option is named with its values."""

from __future__ import annotations

from typing import Any

import pytest

from simstrag.analysis.text.assumptions import assumptions
from simstrag.engine.simulate import simulate
from simstrag.scenario.scenario import Scenario

BASE = {
    "workers": 8,
    "updates": 2,
    "step": {"compute": 0.1},
    "allreduce": {"alpha": 1e-3},
    "server": {"service": 0.02},
}


def sentences(policy: str = "bsp", **changes: Any) -> list[str]:
    scenario = Scenario.of(BASE | changes)
    return assumptions(scenario, [simulate(scenario, policy)])


def one(found: list[str], word: str) -> str:
    """The only sentence with this word."""
    (sentence,) = [text for text in found if word in text]
    return sentence


def test_what_is_not_declared_is_not_spoken_of() -> None:
    text = " ".join(sentences())
    for word in ("micro-batch", "shard", "fused", "node", "takes one gradient after the other"):
        assert word not in text


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ("ring", "by the ring formula"),
        ("tree", "by the formula of two pipelined binary trees"),
        ("halving_doubling", "by the formula of recursive halving and doubling"),
        ("hierarchical", "by the formula of rings inside the nodes and between them"),
    ],
)
def test_the_formula_of_the_all_reduce_is_named(algorithm: str, words: str) -> None:
    allreduce = {"alpha": 1e-3, "algorithm": algorithm}
    assert words in one(sentences(allreduce=allreduce, ranks_per_node=4), "extrapolated")


def test_the_links_inside_and_between_nodes_are_told() -> None:
    allreduce = {"alpha": 1e-3, "bandwidth": 1e9, "bytes": 1e6, "intra_bandwidth": 1e10}
    assert one(sentences(allreduce=allreduce, nodes=[0, 0, 0, 1, 1, 1, 2, 2]), "Links") == (
        "Links inside a node of 2 to 3 ranks are assumed to have 1.00 ms per hop and "
        "1.00e+10 bytes/s, those between nodes 1.00 ms and 1.00e+09 bytes/s, however many ranks of "
        "a node send at once."
    )
    hierarchical = {"alpha": 1e-3, "algorithm": "hierarchical", "intra_alpha": 1e-5}
    found = sentences(allreduce=hierarchical, ranks_per_node=4)
    assert "inside a node of 4 ranks are assumed to have 0.0100 ms" in one(found, "Links")


def test_shards_are_named_with_the_largest_share() -> None:
    found = sentences("asgd", server={"service": 0.02, "shards": [0.7, 0.3]})
    assert "one gradient after the other, 14.0 ms each" in one(found, "parameter server")
    assert one(found, "shards") == (
        "The 2 shards of the server are assumed to see the same gradients in the same order, so "
        "that the largest, with 70.0 % of 20.0 ms, is always the last to be done."
    )


def test_the_all_reduce_of_a_fused_job_is_named() -> None:
    server = {"service": 0.02, "fused_allreduce": True}
    assert "while the server waits" in one(sentences(server=server), "fused_allreduce")


def test_the_load_of_the_server_is_named_with_its_node_and_factors() -> None:
    load = {"node": 3, "host": 1.5, "net": 2}
    step = {"compute": 0.1, "host_share": 0.2}
    assert one(sentences("asgd", step=step, server_load=load), "node") == (
        "While a policy makes updates through the server, the ranks on node 3 are assumed to be "
        "slower: their host work takes 1.50 times and their communication takes 2.00 times as "
        "long, however much the server has to do."
    )
    assert "node" not in " ".join(sentences("asgd", server_load={"node": 3}))


def test_a_load_of_host_work_that_no_step_has_is_told_to_have_no_effect() -> None:
    found = sentences("asgd", server_load={"node": 3, "host": 3})
    assert one(found, "server_load").startswith(
        "The host factor of server_load, 3.00, has no effect: steps have no host work"
    )
    assert "their host work" not in " ".join(found)


def test_micro_batches_are_named_with_their_number() -> None:
    assert one(sentences(microbatches=16), "micro-batches").startswith(
        "The 16 micro-batches of a step are assumed to be equal shares of its work"
    )


def test_what_policies_are_told_beforehand_is_named() -> None:
    """Also without reduced precision: star_h decides by the noise scale, cgp by the clean step."""
    for policy in ("star_h", "cgp:groups=window", "amp_all"):
        told = one(sentences(policy, step={"compute": 0.1, "amp_ratio": 1.5}), "Policies get")
        assert "noise scale exactly as they are simulated" in told


def test_a_policy_with_several_ways_counts_for_each() -> None:
    found = sentences("sync_switch", updates=None, samples=40 * 8 * 128)
    assert one(found, "extrapolated")
    assert one(found, "takes one gradient after the other")
