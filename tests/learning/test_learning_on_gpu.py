"""A real learner on a GPU; nothing here but the refusal has run yet."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from simstrag import InputError, Scenario, simulate  # noqa: E402


def scenario(**learner: Any) -> Scenario:
    real = {"kind": "real", "task": "tabular", "batch": 8, "full": "fp64", "amp": "fp32"}
    keys = {"workers": 4, "samples": 1280, "step": {"compute": 0.1, "cv": 0.2}}
    return Scenario(**keys, learner=real | learner)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("policy", ["asgd", "local_sgd:h=3", "diloco:h=3", "dc_asgd", "zeno"])
@pytest.mark.parametrize("task", ["digits", "characters", "digits_cnn"])
def test_a_gpu_trains_as_the_cpu_does(policy: str, task: str) -> None:
    found, wanted = (
        simulate(scenario(task=task, device=device), policy).evaluations
        for device in ("cuda", "cpu")
    )
    assert found["loss"] == pytest.approx(list(wanted["loss"]), rel=1e-6)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_torch_does_not_see_is_refused() -> None:
    with pytest.raises(InputError, match="torch sees no GPU here: say device: cpu"):
        simulate(scenario(device="cuda"))
