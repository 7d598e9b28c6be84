"""Workloads: what they are, and that every precision computes the gradient it should."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from simstrag import workloads  # noqa: E402
from simstrag.errors import InputError  # noqa: E402
from simstrag.workloads import Parts, TrainingTask, Workload, large, load, names  # noqa: E402
from simstrag.workloads.precision import tensor_cores  # noqa: E402

SIZES = {
    "resnet50": {"embedding_size": 8, "hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]},
    "vit_b16": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
    "bert_base": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
    "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2},
}


def normed() -> Parts:
    """Two layers with batch normalisation and a weight used twice."""
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 6, bias=False),
        torch.nn.BatchNorm1d(6),
        torch.nn.Tanh(),
        torch.nn.Linear(6, 6),
    )
    model[3].weight = model[0].weight
    generator = torch.Generator().manual_seed(0)

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = (model(batch) - 1).square().mean()
        return out

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Parts(model, loss, optimizer, lambda n: torch.randn(n, 6, generator=generator))


TINY = Workload("tiny", normed, (4, 8), 8, "cpu")


def gradients(precision: str) -> list[torch.Tensor]:
    job = TrainingTask(TINY.build(), precision)
    job.gradient(job.batch(8))
    return [p.grad for p in job.model.parameters()]


def test_naming_workloads_does_not_load_torch() -> None:
    program = (
        "import sys, simstrag.workloads as w; w.load('gpt2'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_unknown_workload_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match=r"no workload 'resnet5'; known: .*module:function.*\?"):
        load("resnet5")


@pytest.mark.parametrize("name", names())
def test_the_nominal_batch_is_one_of_at_least_four(name: str) -> None:
    workload = load(name)
    assert workload.nominal in workload.batches[1:-1]
    assert len(workload.batches) >= 4
    assert list(workload.batches) == sorted(set(workload.batches))


def test_other_batches_bring_their_middle_as_nominal() -> None:
    assert load("mlp").with_batches((4, 16, 8)).nominal == 8
    with pytest.raises(InputError, match="not one of the batches"):
        load("mlp").with_batches((4, 8), 5)
    with pytest.raises(InputError, match="each >= 1"):
        load("mlp").with_batches((0, 8))


def test_a_users_workload_has_batches_that_fill_a_gpu_there_alone() -> None:
    own = Workload("m:f", normed, (4, 8), 8, "", user_defined=True)
    assert own.fill("cuda:0").batches == (8, 16, 32, 64, 128, 256, 512)
    assert own.fill("cpu") is own
    assert load("mlp").fill("cuda:0") is load("mlp")


@pytest.mark.parametrize("name", names("cpu"))
@pytest.mark.parametrize("precision", ["fp32", "fp64", "fp32_of_fp64"])
def test_every_small_workload_has_a_gradient_in_every_precision(name: str, precision: str) -> None:
    workload = load(name)
    job = TrainingTask(workload.build(), precision)
    loss = job.gradient(job.batch(workload.batches[0]))
    assert loss.isfinite()
    for parameter in job.model.parameters():
        assert parameter.grad.dtype == (torch.float32 if precision == "fp32" else torch.float64)
        assert parameter.grad.isfinite().all()


@pytest.mark.parametrize(
    ("name", "millions"),
    [("resnet50", 25.557), ("vit_b16", 86.568), ("bert_base", 109.514), ("gpt2", 124.440)],
)
def test_large_workloads_have_the_published_numbers_of_parameters(
    name: str, millions: float
) -> None:
    pytest.importorskip("transformers")
    with torch.device("meta"):
        model = load(name).build().model
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(millions * 1e6, rel=1e-5)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp32_of_fp64"])
def test_models_of_transformers_train(name: str, precision: str) -> None:
    pytest.importorskip("transformers")
    small = {"side": 32} if name in ("resnet50", "vit_b16") else {"tokens": 8, "vocab_size": 32}
    job = TrainingTask(getattr(large, name)(**small, **SIZES[name]), precision)
    assert job.gradient(job.batch(2)).isfinite()
    assert any(p.grad is not None and p.grad.any() for p in job.model.parameters())
    job.update()


@pytest.mark.parametrize(("name", "package"), [("gpt2", "transformers"), ("digits", "sklearn")])
def test_a_missing_library_is_one_line_that_says_what_to_install(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [m for m in sys.modules if m.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"'{name}'.*pip install simstrag\[models\]"):
        load(name).build()


def test_the_same_seed_gives_the_same_weights_and_batches_and_leaves_torch_alone() -> None:
    state = torch.get_rng_state()
    one, other, third = (load("mlp").build(seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    weights = [next(parts.model.parameters()) for parts in (one, other, third)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(one.make_batch(2)[0], other.make_batch(2)[0])


@pytest.mark.parametrize(
    ("precision", "error"), [("fp32", 1e-5), ("fp32_of_fp64", 1e-5), ("bf16", 0.05)]
)
def test_reduced_gradients_are_those_of_fp64_but_for_rounding(precision: str, error: float) -> None:
    for found, exact in zip(gradients(precision), gradients("fp64"), strict=True):
        assert (found.double() - exact).norm() <= error * exact.norm() + 1e-6


def test_the_stand_in_rounds_where_fp64_does_not() -> None:
    pairs = zip(gradients("fp32_of_fp64"), gradients("fp64"), strict=True)
    assert not all(torch.equal(found, exact) for found, exact in pairs)


def test_the_stand_in_keeps_running_means() -> None:
    full, stand_in = (
        TrainingTask(TINY.build(), precision) for precision in ("fp64", "fp32_of_fp64")
    )
    for job in (full, stand_in):
        job.gradient(job.batch(8))
    assert full.model[1].running_mean.any()
    assert torch.allclose(full.model[1].running_mean, stand_in.model[1].running_mean, atol=1e-6)


def test_fp16_scales_gradients_until_the_update() -> None:
    scaled, plain = TrainingTask(TINY.build(), "fp16"), TrainingTask(TINY.build(), "fp32")
    for job in (scaled, plain):
        job.gradient(job.batch(8))
    ratio = scaled.model[3].bias.grad / plain.model[3].bias.grad
    assert (ratio > 1000).all()
    scaled.update()
    assert scaled.model[3].bias.grad is None


def test_fp16_ends_up_where_fp32_does_once_its_scale_overflows_no_more() -> None:
    scaled, plain = TrainingTask(TINY.build(), "fp16"), TrainingTask(TINY.build(), "fp32")
    start = plain.model[3].bias.detach().clone()
    batch = plain.batch(8)
    plain.gradient(batch)
    plain.update()
    for _ in range(8):
        if torch.equal(scaled.model[3].bias, start):  # the scaler left the update out
            scaled.gradient(batch)
            scaled.update()
    assert torch.allclose(scaled.model[3].bias, plain.model[3].bias, atol=1e-3)


def test_jobs_of_one_number_format_share_parameters() -> None:
    parts = TINY.build()
    one, other = TrainingTask(parts, "fp32"), TrainingTask(parts, "bf16")
    one.gradient(one.batch(4))
    one.update()
    assert one.model is other.model


@pytest.mark.parametrize("allowed", [True, False])
def test_switching_tensor_cores_is_undone(allowed: bool) -> None:
    def seen() -> list[str]:
        cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
        return [matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision]

    before = seen()
    with contextlib.suppress(KeyError), tensor_cores(allowed):
        assert seen() == ["tf32" if allowed else "ieee"] * 3
        raise KeyError
    assert seen() == before


def test_parts_of_a_batch_are_its_samples_whatever_its_shape() -> None:
    batch = {"x": torch.arange(6), "y": (torch.arange(12).reshape(6, 2), "name")}
    found = workloads.slice_batch(batch, 2, 4)
    assert found["x"].tolist() == [2, 3]
    assert found["y"][0].tolist() == [[4, 5], [6, 7]]
    assert found["y"][1] == "name"


def test_the_pair_of_a_cpu_is_bf16_only_where_that_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from simstrag.workloads import training_task

    for gain, pair in ((2.0, ("fp32", "bf16")), (1.1, ("fp64", "fp32_of_fp64"))):
        monkeypatch.setattr(training_task, "gain", lambda *_, found=gain, **__: found)
        chosen = training_task.choose_precisions(TINY)
        assert (chosen.full, chosen.amp) == pair
        assert chosen.stand_in == (pair[0] == "fp64")


def test_slow_steps_are_timed_no_more_often_than_a_gain_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from simstrag.workloads import training_task

    steps: list[str] = []
    now = 0.0
    monkeypatch.setattr(training_task.time, "monotonic", lambda: now)

    def step(name: str, seconds: float) -> None:
        nonlocal now
        steps.append(name)
        now += seconds

    found = training_task.gain(
        lambda _: step("full", 0.04), lambda _: step("amp", 0.02), limit=0.01
    )
    assert steps == ["full", "full", "amp", "amp"]
    assert found == pytest.approx(2)
