"""STAR-ML, reconstructed: what it knows, what it learns, what it chooses."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.mode_learning import (
    AFTER,
    BEFORE,
    FIXED,
    HIDDEN,
    Moment,
    fit,
    main,
    moments,
    regrets,
    slopes,
)
from simstrag.contract import Hints, Quorum, Via, View
from simstrag.documents.weights_file import Weights
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.policies import load
from simstrag.policies.estimators.modes import FEATURES, KIND, ModeNetwork, describe, modes
from simstrag.policies.star_ml import SHIPPED
from simstrag.scenario.scenario import Scenario
from tests.support.trace_rows import slowed

SLOW = [slowed(3, 2.0, resource="step")]
SCENARIO = {
    "workers": 4, "updates": 10, "seeds": 2, "step": {"compute": 0.1},
    "learner": {"batch": 8, "noise_scale": 320, "c_tau": 1.0},
}  # fmt: skip


def prefers(mode: str) -> Weights:
    """Weights of a network whose best mode is known: `is_all`, or the lowest `log_x_over_n`."""
    weight0 = np.zeros((len(FEATURES), HIDDEN))
    weight0[FEATURES.index(mode), 0] = -1.0 if mode == "is_all" else 1.0
    arrays = {
        "mean": np.zeros(len(FEATURES)), "std": np.ones(len(FEATURES)), "weight0": weight0,
        "bias0": np.zeros(HIDDEN), "weight1": np.eye(HIDDEN), "bias1": np.zeros(HIDDEN),
        "weight2": np.eye(HIDDEN)[0],
    }  # fmt: skip
    return Weights(KIND, arrays, {"features": FEATURES})


def view(times: list[float], version: int = 1) -> View:
    return View(
        len(times), version=version, steps=[20] * len(times),
        local_times=np.repeat(np.array(times)[:, np.newaxis], 16, axis=1),
        hints=Hints(batch=8), noise_scale=100.0,
    )  # fmt: skip


# -- what it knows ---------------------------------------------------------------------------


def test_what_it_knows_does_not_depend_on_the_numbers_of_ranks() -> None:
    times, random = np.array([1.0, 1.1, 2.0, 1.05, 3.0, 2.1]), np.random.default_rng(0)
    straight = describe(modes(times), times, 500.0, 8, 0.2)
    assert straight.shape == (7, len(FEATURES))
    for _ in range(5):
        mixed = times[random.permutation(6)]
        np.testing.assert_allclose(
            describe(modes(mixed), mixed, 500.0, 8, 0.2), straight, rtol=1e-12
        )


def test_what_it_knows_does_not_depend_on_the_unit_of_time() -> None:
    times = np.array([1.0, 1.1, 2.0])
    ours, theirs = (describe(modes(t), t, 50.0, 8, 0.2) for t in (times, 60 * times))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def test_all_together_is_the_mode_that_the_others_are_measured_by() -> None:
    times = np.array([1.0, 1.0, 4.0])
    row = dict(zip(FEATURES, describe(modes(times), times, 24.0, 8, 0.0)[0], strict=True))
    assert row["is_all"] == 1
    for name in ("log_x_over_n", "log_gradient_rate", "log_updates", "log_time", "log_staleness"):
        assert row[name] == 0, name
    assert row["log_noise_over_batch"] == math.log(2)
    assert row["log_time_100"] == math.log(4)


# -- what it chooses -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("feature", "quorum"),
    [("is_all", Quorum(via=Via.SERVER)), ("log_x_over_n", Quorum(count=1, via=Via.SERVER))],
)
def test_it_takes_the_mode_with_the_lowest_score(
    feature: str, quorum: Quorum, tmp_path: Path
) -> None:
    prefers(feature).write(tmp_path / "w.npz")
    policy = load(f"star_ml:weights_file={tmp_path / 'w.npz'}")
    policy.plan(view([1, 1, 1, 2], version=0))
    assert policy.plan(view([1, 1, 1, 2])).quorums == (quorum,)


def test_without_stragglers_all_work_as_one(tmp_path: Path) -> None:
    prefers("log_x_over_n").write(tmp_path / "w.npz")
    policy = load(f"star_ml:weights_file={tmp_path / 'w.npz'}")
    assert policy.plan(view([1, 1, 1, 1.1])).quorums == (Quorum(via=Via.SERVER),)


def test_in_a_run_of_any_length_it_leaves_a_lasting_straggler_behind() -> None:
    for rounds in (50, 500):
        scenario = Scenario.of(SCENARIO | {"trace": SLOW, "samples": rounds * 32, "updates": None})
        runs = [simulate(scenario, policy).summary for policy in ("star_ml", "bsp:via=server")]
        assert runs[0]["makespan"] < 0.75 * runs[1]["makespan"]


def test_weights_of_other_features_are_refused(tmp_path: Path) -> None:
    Weights(KIND, {}, {"features": ["log_n"]}).write(tmp_path / "w.npz")
    with pytest.raises(InputError, match="was trained on other features; train again"):
        load(f"star_ml:weights_file={tmp_path / 'w.npz'}")


def test_the_shipped_weights_are_small_and_say_how_they_were_made() -> None:
    about = ModeNetwork.read(SHIPPED).about
    assert SHIPPED.stat().st_size < 100_000
    assert about["command"] == "simstrag learn star_ml train --out star_ml.npz"
    assert about.keys() >= {"data", "seed", "regrets", "moments", "rounds"}


# -- what it learns --------------------------------------------------------------------------


def found(**changes: object) -> list[Moment]:
    return moments([Scenario.of(SCENARIO | {"trace": SLOW} | changes)])


def test_the_cost_of_all_together_is_that_of_the_slowest_rank() -> None:
    """A round of 0.2 s makes a progress of 32 / (32 + 320) of a noise-free update."""
    for moment in found():
        assert moment.modes[0].x == 4
        assert moment.costs[0] == pytest.approx(0.2 * (32 + 320) / 32)
        assert moment.regrets.min() == 0


def test_groups_cost_what_both_of_them_make() -> None:
    """Per 0.2 s two updates of the three fast ranks and one of the slow one; c_tau is 0."""
    learner = {"batch": 8, "noise_scale": 320, "c_tau": 0.0}
    (moment, _) = found(learner=learner)
    assert moment.modes[-1].groups == ((0, 1, 2), (3,))
    progress = 2 * 24 / (320 + 24) + 8 / (320 + 8)
    assert moment.costs[-1] == pytest.approx(0.2 / progress, rel=0.05)


def test_without_a_straggler_there_is_nothing_to_learn() -> None:
    with pytest.raises(InputError, match="no rank straggles in any seed"):
        moments([Scenario.of(SCENARIO)])


def test_slopes_are_those_of_the_squared_error_within_episodes() -> None:
    random = np.random.default_rng(0)
    x, y, sizes = random.normal(size=(7, 3)), random.normal(size=7), np.array([3, 4])
    w = [random.normal(size=shape) for shape in ((3, 2), (2,), (2, 2), (2,), (2,))]

    def error() -> float:
        said = np.tanh(np.tanh(x @ w[0] + w[1]) @ w[2] + w[3]) @ w[4] - y
        parts = np.split(said, [3])
        return sum(float(((part - part.mean()) ** 2).sum()) for part in parts) / 2 / len(y)

    for array, slope in zip(w, slopes(w, x, y, sizes), strict=True):
        for at in np.ndindex(array.shape):
            array[at] += 1e-6
            above = error()
            array[at] -= 2e-6
            assert slope[at] == pytest.approx((above - error()) / 2e-6, abs=1e-8)
            array[at] += 1e-6


def test_it_learns_which_mode_is_cheap_and_that_equal_modes_are_equal() -> None:
    """Cost follows x/N alone; two modes have the same features and the same cost."""
    times = np.array([1.0, 1.0, 1.0, 2.0])
    features = describe(modes(times)[:4], times, 100.0, 8, 0.0)
    doubled = np.concatenate([features, features[:1]])
    costs = np.array([4.0, 3.0, 2.0, 1.0, 4.0])
    each = Moment(4, (*modes(times)[:4], modes(times)[0]), doubled, costs, 0)
    network = ModeNetwork(fit([each] * 4, 0, ""))
    scores = network.scores(doubled)
    assert scores.argmin() == 3
    assert scores[0] == pytest.approx(scores[4], rel=1e-12)
    best, *_ = regrets([each], network)
    assert (best.name, best.mean, best.best) == ("star_ml", 0.0, 1.0)
    assert [score.mean for score in regrets([each], network) if score.name in ("all", "x = 1")] == [
        3.0, 0.0
    ]  # fmt: skip
    assert set(FIXED) >= {"all", "x = 1", "groups"}
    assert BEFORE >= 16
    assert AFTER > 0


# -- commands --------------------------------------------------------------------------------


def test_training_and_judging_in_two_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "cases", tmp_path / "w.npz"
    folder.mkdir()
    (folder / "a.yaml").write_text(yaml.safe_dump(SCENARIO | {"trace": SLOW}))
    for name in (out, tmp_path / "again.npz"):
        main(["train", str(folder), "--out", str(name)])
        assert "2 moments with a straggler" in capsys.readouterr().out
    one, other = (np.load(path) for path in (out, tmp_path / "again.npz"))
    assert all(np.array_equal(one[name], other[name]) for name in one.files if name != "about")
    main(["check", str(out), str(folder)])
    shown = capsys.readouterr().out
    assert shown.index("star_ml") < shown.index("star_h")
    with pytest.raises(SystemExit):
        main(["check", "none.npz", str(folder)])
    assert "none.npz: no such file" in capsys.readouterr().err
