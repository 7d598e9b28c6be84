"""Predictors of iteration times: what each reads, and the LSTM that reads the load of nodes."""

from __future__ import annotations

import math
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.lstm_training import Recording, Score, main, record, score, train
from simstrag.cluster.runs import cluster
from simstrag.cluster.simulate import simulate_cluster
from simstrag.contract import Hints, Plan, PlanError, View
from simstrag.ddp.policy_support import refusal_reason
from simstrag.documents.weights_file import Weights, read_weights
from simstrag.errors import InputError
from simstrag.policies import load, spec
from simstrag.policies.estimators.lstm import HIDDEN, KIND, LAYERS, Lstm
from simstrag.policies.estimators.predictors import load_predictor
from tests.cluster.test_cluster import SMALL, study
from tests.support.refusals import message_of

CONTENDED: dict[str, Any] = {
    "nodes": [{"gpus": 2, "cores": 0.6}, {"gpus": 2, "cores": 8.0}],
    "jobs": [{"workload": "small", "workers": 2, "samples": 3200, "count": 2, "every": 20}],
}
SHORT = CONTENDED | {"jobs": [CONTENDED["jobs"][0] | {"samples": 320, "every": 2}]}
"""Too short for a full window of the LSTM."""


def weights(**about: Any) -> Weights:
    """Of a network that was not trained."""
    random = np.random.default_rng(0)
    shapes = {
        **{f"input{k}_weight": (4 * HIDDEN, HIDDEN if k else 3) for k in range(LAYERS)},
        **{f"hidden{k}_weight": (4 * HIDDEN, HIDDEN) for k in range(LAYERS)},
        **{f"layer{k}_bias": (4 * HIDDEN,) for k in range(LAYERS)},
        "a_weight": (3, HIDDEN), "a_bias": (3,), "b0_weight": (256, 3), "b0_bias": (256,),
        "b1_weight": (128, 256), "b1_bias": (128,), "b2_weight": (1, 128), "b2_bias": (1,),
    }  # fmt: skip
    arrays = {name: random.normal(0, 0.2, shape) for name, shape in shapes.items()}
    arrays |= {"load_mean": np.full(3, 0.5), "load_std": np.full(3, 0.25)}
    arrays |= {"time_mean": np.array(3.0), "time_std": np.array(0.5)}
    return Weights(KIND, arrays, {"window": 30, "interval": 1.0, "data": "", **about})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    weights().write(tmp_path / "lstm.npz")
    return tmp_path / "lstm.npz"


def loads(ranks: int) -> Any:
    return np.random.default_rng(1).uniform(0, 1, (ranks, 30, 3))


# -- the network -----------------------------------------------------------------------------


def test_the_numpy_network_says_what_torch_says() -> None:
    torch = pytest.importorskip("torch")
    made = weights().arrays
    lstm = torch.nn.LSTM(3, HIDDEN, LAYERS, batch_first=True).double()
    for k in range(LAYERS):
        for ours, theirs in (
            (made[f"input{k}_weight"], f"weight_ih_l{k}"),
            (made[f"hidden{k}_weight"], f"weight_hh_l{k}"),
            (made[f"layer{k}_bias"], f"bias_ih_l{k}"), (np.zeros(256), f"bias_hh_l{k}"),
        ):  # fmt: skip
            getattr(lstm, theirs).data = torch.tensor(ours)
    x = torch.tensor((loads(4) - 0.5) / 0.25)
    load = lstm(x)[0][:, -1].detach().numpy() @ made["a_weight"].T + made["a_bias"]
    hidden = np.maximum(load @ made["b0_weight"].T + made["b0_bias"], 0)
    hidden = np.maximum(hidden @ made["b1_weight"].T + made["b1_bias"], 0)
    times = 3.0 + 0.5 * (hidden @ made["b2_weight"].T + made["b2_bias"])[:, 0]
    np.testing.assert_allclose(Lstm(weights()).predict(loads(4))[:, 0], times, rtol=1e-12)


def test_ranks_of_one_node_have_one_prediction_whatever_their_numbers() -> None:
    network, windows = Lstm(weights()), loads(3)[[0, 1, 0, 2]]
    times = network.predict(windows, 5)
    np.testing.assert_array_equal(times[0], times[2])
    np.testing.assert_array_equal(network.predict(windows[[3, 0, 1, 2]], 5), times[[3, 0, 1, 2]])


def test_intervals_before_the_first_have_the_load_of_the_first() -> None:
    network, windows = Lstm(weights()), loads(2)
    full, short = windows.copy(), windows.copy()
    full[:, :12], short[:, :12] = windows[:, 12:13], math.nan
    np.testing.assert_array_equal(network.predict(short), network.predict(full))
    assert np.isnan(network.predict(np.full((1, 30, 3), math.nan))).all()


# -- specs and their mistakes ----------------------------------------------------------------


def test_a_spec_names_the_predictor_and_its_file(file: Path) -> None:
    text = f"star_h:predictor=lstm:{file}"
    assert spec(load(text)) == text
    assert spec(load("star_h:predictor=median")) == "star_h"


@pytest.mark.parametrize(
    ("predictor", "message"),
    [
        ("medain", r"no predictor 'medain'; known: last, median, oracle, lstm:FILE. Did you mean"),
        ("lstm:none.npz", "none.npz: no such file"),
        ("lstm:pyproject.toml", "pyproject.toml: holds no weights of lstm: it is no .npz file"),
    ],
)
@pytest.mark.parametrize("policy", ["star_h", "star_ring", "star_dynamic"])
def test_a_wrong_predictor_is_refused_in_one_line(
    policy: str, predictor: str, message: str
) -> None:
    assert re.search(message, message_of(lambda: load(f"{policy}:predictor={predictor}")))


def test_weights_for_another_window_or_model_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.npz"
    weights(window=25).write(path)
    with pytest.raises(InputError, match="trained for windows of 25 intervals, and a view has 30"):
        load(f"star_h:predictor=lstm:{path}")
    with pytest.raises(InputError, match="holds no weights of star_ml: it is of another model"):
        read_weights(path, "star_ml")


def test_the_same_weights_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        weights().write(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# -- in policies -----------------------------------------------------------------------------


def view(ranks: int, version: int, telemetry: Any = None) -> View:
    """Ranks whose last one takes twice the time; batch and noise scale known."""
    times = np.ones((ranks, 16))
    times[-1] = 2.0
    return View(
        ranks, version=version, steps=[20] * ranks, local_times=times,
        hints=Hints(batch=128, clean_seconds=0.5), noise_scale=1000.0, telemetry=telemetry,
        truth=lambda: times[:, -1],
    )  # fmt: skip


@pytest.mark.parametrize("policy", ["star_h", "star_ring", "star_dynamic"])
def test_a_policy_with_the_lstm_follows_the_nodes_and_not_the_ranks_numbers(
    policy: str, file: Path
) -> None:
    order = np.array([2, 0, 3, 1])
    windows = loads(4)
    windows[3] += 5.0

    def decide(seen: View) -> Plan:
        chosen = load(f"{policy}:predictor=lstm:{file}")
        chosen.plan(view(4, 0, np.full((4, 30, 3), math.nan)))
        return pickle.loads(pickle.dumps(chosen)).plan(seen)

    straight, mixed = decide(view(4, 1, windows)), decide(view(4, 1, windows[order]))
    assert decide(view(4, 1, windows)) == straight
    if straight.suspects is not None:
        assert {int(order[k]) for k in mixed.suspects or ()} == set(straight.suspects)


def test_what_the_lstm_predicts_is_computing_and_communication_is_added(file: Path) -> None:
    """As with every other predictor: it is trained on ranks whose all-reduce is no local time."""
    windows, moved = loads(2), [[math.nan] * 13 + [0.5, 9.0, 0.5], [math.nan] * 16]
    seen = replace(view(2, 1, windows), communication=np.array(moved))
    computing = 0.5 * Lstm(weights()).predict(windows)[:, 0]
    np.testing.assert_allclose(
        load_predictor(f"lstm:{file}")(seen), computing + np.array([0.5, 0.0]), rtol=1e-12
    )


def test_outside_a_cluster_the_lstm_has_nothing_to_read(file: Path) -> None:
    policy = load(f"star_h:predictor=lstm:{file}")
    policy.plan(view(4, 0))
    with pytest.raises(PlanError, match="reads the load of nodes, which only `simstrag cluster`"):
        policy.plan(view(4, 1))


def test_real_ranks_refuse_the_lstm_at_the_start(file: Path) -> None:
    policy = load(f"star_h:predictor=lstm:{file}")
    assert refusal_reason(policy, "star_h", view(4, 0)) == (
        "it reads the load of nodes, which no real rank monitors"
    )


def test_the_oracle_predictor_decides_as_star_h_oracle() -> None:
    one, other = load("star_h:predictor=oracle"), load("star_h_oracle")
    seen = replace(view(8, 1), local_times=np.ones((8, 16)))
    for policy in (one, other):
        policy.plan(view(8, 0))
    assert one.plan(seen) == other.plan(seen)
    assert one.plan(seen).suspects == {7}
    with pytest.raises(InputError, match="predictor must be last or median, not oracle"):
        load("star_h_oracle:predictor=oracle")


def test_a_cluster_runs_under_the_lstm_and_again_the_same(file: Path) -> None:
    jobs = [CONTENDED["jobs"][0] | {"samples": 1600}]
    runs = [
        simulate_cluster(study(**CONTENDED | {"jobs": jobs}), f"star_h:predictor=lstm:{file}",
                         alone=False)
        for _ in range(2)
    ]  # fmt: skip
    assert [run.shares for run in runs] == [runs[0].shares] * 2
    assert all(math.isfinite(job["end"]) for job in runs[0].jobs)


# -- scores ----------------------------------------------------------------------------------


def test_a_cluster_refuses_weights_of_another_interval(tmp_path: Path) -> None:
    weights(interval=1.0).write(tmp_path / "one.npz")
    policy = f"star_h:predictor=lstm:{tmp_path / 'one.npz'}"
    simulate_cluster(study(**SHORT, interval=1.0), policy, alone=False)
    two = study(**SHORT, interval=2.0, policies=[policy])
    refusal = r"trained on intervals of 1 s, and the study's are of 2 s"
    with pytest.raises(InputError, match=refusal):
        simulate_cluster(two, policy, alone=False)
    with pytest.raises(InputError, match=refusal):
        cluster(two, tmp_path / "out", jobs=1)
    assert not (tmp_path / "out").exists()


def test_a_cluster_study_takes_no_run_of_other_weights(tmp_path: Path) -> None:
    path, said = tmp_path / "lstm.npz", list[str]()
    for data, found in (("one", False), ("one", True), ("two", False)):
        weights(data=data).write(path)
        predicted = study(**SHORT, policies=[f"star_h:predictor=lstm:{path}"])
        said.clear()
        cluster(predicted, tmp_path / "out", jobs=1, on_progress=lambda *of: said.append(of[2]))
        assert ("found finished" in said) == found


def test_rates_are_shares_of_the_states_without_and_with_a_straggler() -> None:
    found = Score.of("x", 1, [True, False, True, False], [True, True, False, False])
    assert (found.accuracy, found.false_positive, found.false_negative) == (0.5, 0.5, 0.5)


def test_the_oracle_is_right_about_the_next_interval_and_the_last_value_is_misled_by_noise() -> (
    None
):
    recording = record(study(**CONTENDED | {"placers": ["spread"]}), 0)
    found = {each.predictor: each for each in score([recording], None) if each.ahead == 1}
    assert found["oracle"].accuracy == 1
    assert 0.3 < found["oracle"].share < 1
    assert found["last"].accuracy < found["median"].accuracy < 1


def test_runs_that_were_trained_on_are_scored_on_their_last_30_percent_alone() -> None:
    """Whichever runs stand beside them."""
    seen, other = (record(study(**CONTENDED | {"placers": ["spread"]}), k) for k in (0, 1))

    def states(*recordings: Recording) -> int:
        return score(recordings, None, [seen.digest])[0].states

    assert states(other) == score([other], None)[0].states
    assert states(seen) < 0.4 * score([seen], None)[0].states
    assert states(seen, other) == states(seen) + states(other)


def test_a_policy_without_reviews_gives_nothing_to_train_on() -> None:
    jobs = [job | {"policy": "bsp"} for job in CONTENDED["jobs"]]
    with pytest.raises(InputError, match="no job's own policy asks for reviews"):
        record(study(**CONTENDED | {"jobs": jobs}), 0)


def test_runs_that_are_too_short_to_train_on_say_how_long_they_are() -> None:
    pytest.importorskip("torch")
    short = record(study(**CONTENDED), 0)
    del short.loads[44:]
    with pytest.raises(
        InputError, match="a window has 31 intervals of the first 70% of a run, and"
    ):
        train([short], 0, 1, "")


# -- commands --------------------------------------------------------------------------------


def test_training_and_checking_in_two_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    import yaml

    path, out = tmp_path / "small.yaml", tmp_path / "lstm.npz"
    path.write_text(yaml.safe_dump(SMALL | CONTENDED | {"placers": ["spread"]}))
    for name in (out, tmp_path / "again.npz"):
        main(["train", str(path), "--out", str(name), "--epochs", "1"])
        text = capsys.readouterr().out
        assert "the last 30 % of each run, which were not trained on:" in text
    about = read_weights(out, KIND).about
    assert {"data", "seed", "scores", "command", "window", "interval"} <= about.keys()
    main(["check", str(out), str(path)])
    text = capsys.readouterr().out
    assert text.startswith("1 of 1 runs were trained on: their last 30 % count")
    rows = [line.split()[0] for line in text.splitlines() if "%" in line and "." in line]
    assert rows[1:5] == ["last", "median", "oracle", "lstm"]
    path.write_text(path.read_text() + "interval: 0.5\n")
    with pytest.raises(SystemExit):
        main(["check", str(out), str(path)])
    assert "was trained for intervals of 1 s, and" in capsys.readouterr().err
