"""Flat parameters and the user's optimizer at the server: the same updates as at home."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from simstrag.contract import Compensation
from simstrag.ddp.flat_parameters import (
    check_served,
    flatten_gradients,
    pack_optimizer,
    settings_of,
    trained_parameters,
    unflatten,
    unpack_optimizer,
)
from simstrag.ddp.plain_data import dump, load
from simstrag.ddp.server.messages import Apply, Compute, GradientRoute
from simstrag.ddp.server.parameter_store import ParameterStore
from simstrag.ddp.server.shared_buffer import allocate_private
from simstrag.ddp.server.validation_gradient import ValidationGradient, ValidationSpec
from simstrag.errors import InputError
from simstrag.learning.update_rule import UpdateRule

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adagrad": torch.optim.Adagrad,
}


def model_of(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 2)).to(dtype)


def groups_of(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Biases first: an order other than the model's."""
    named = dict(model.named_parameters())
    biases = [p for name, p in named.items() if name.endswith("bias")]
    return [{"params": biases, "lr": 0.05}, {"params": [p for p in named.values() if p.dim() > 1]}]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_server_s_optimizer_makes_the_steps_of_the_user_s(
    name: str, dtype: torch.dtype
) -> None:
    own = OPTIMIZERS[name](groups_of(model_of(dtype)))
    parameters = trained_parameters(own)
    flat = torch.zeros(sum(p.numel() for p in parameters), dtype=dtype)
    server = ParameterStore(pack_optimizer(own))
    for step in range(5):
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 0.1 * step) + parameter.detach()
        flatten_gradients(parameters, flat)
        own.step()
        server.step([(flat, 1.0)])
        assert torch.equal(server.flat, torch.cat([p.detach().reshape(-1) for p in parameters]))
    assert server.optimizer.state_dict().keys() == own.state_dict().keys()


def test_an_optimizer_goes_on_where_it_was_when_it_was_packed() -> None:
    own = OPTIMIZERS["adam"](groups_of(model_of()))
    for steps in (3, 2):
        for _ in range(steps):
            for parameter in trained_parameters(own):
                parameter.grad = torch.ones_like(parameter)
            own.step()
        if steps == 3:
            server = ParameterStore(pack_optimizer(own))
    for _ in range(2):
        server.step([(torch.ones_like(server.flat), 1.0)])
    assert torch.equal(
        server.flat, torch.cat([p.detach().reshape(-1) for p in trained_parameters(own)])
    )
    again = OPTIMIZERS["adam"](groups_of(model_of()))
    again.load_state_dict(server.optimizer.state_dict())
    assert again.state_dict()["state"][0]["step"] == 5


def test_gradients_are_weighted_and_added_up_in_their_order() -> None:
    server = ParameterStore(pack_optimizer(torch.optim.SGD(model_of().parameters(), lr=1.0)))
    before = server.flat.clone()
    one, other = torch.randn_like(before), torch.randn_like(before)
    server.step([(one, 0.25), (other, 0.5)])
    assert torch.equal(server.flat, before - (0.25 * one).add(other, alpha=0.5))


def test_an_update_without_any_gradient_changes_nothing() -> None:
    server = ParameterStore(pack_optimizer(OPTIMIZERS["adam"](model_of().parameters())))
    before = server.flat.clone()
    server.step([])
    assert torch.equal(server.flat, before)
    assert server.optimizer.state_dict()["state"] == {}


def test_a_model_gets_back_what_was_flattened_in_the_order_of_its_optimizer() -> None:
    own = OPTIMIZERS["sgd"](groups_of(model_of()))
    server = ParameterStore(pack_optimizer(own))
    other = model_of()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    unflatten(server.flat, trained_parameters(OPTIMIZERS["sgd"](groups_of(other))))
    for one, two in zip(model_of().parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_parameter_without_a_gradient_counts_as_zeros() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3))]
    parameters[1].grad = torch.full((3,), 7.0)
    into = torch.full((5,), -1.0)
    flatten_gradients(parameters, into)
    assert into.tolist() == [0, 0, 7, 7, 7]


def test_settings_differ_only_when_something_has_changed() -> None:
    own = OPTIMIZERS["sgd"](groups_of(model_of()))
    first = settings_of(own)
    own.param_groups[0]["params"][0].data.zero_()
    assert settings_of(own) == first
    own.param_groups[1]["lr"] = 0.5
    assert settings_of(own) != first
    server = ParameterStore(pack_optimizer(OPTIMIZERS["sgd"](groups_of(model_of()))))
    server.set(settings_of(own))
    assert [group["lr"] for group in server.optimizer.param_groups] == [0.05, 0.5]


def test_parameters_of_several_types_are_refused() -> None:
    mixed = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2).double())]
    with pytest.raises(InputError, match="of types float32, float64; one buffer holds one"):
        pack_optimizer(torch.optim.SGD(mixed, lr=0.1))


def test_an_optimizer_of_the_script_itself_is_refused_with_the_way_out() -> None:
    class Local(torch.optim.SGD):
        pass

    with pytest.raises(InputError, match="must stand in a module that can be imported"):
        ParameterStore(pack_optimizer(Local(model_of().parameters(), lr=0.1)))


def test_an_optimizer_arrives_with_its_parameters_and_state_as_it_was() -> None:
    own = OPTIMIZERS["adam"](groups_of(model_of()))
    own.param_groups[0] |= {"lr": torch.tensor(0.125), "eps": np.float64(1e-7)}
    for parameter in trained_parameters(own):
        parameter.grad = torch.ones_like(parameter)
    own.step()
    parameters, arrived, more = unpack_optimizer(pack_optimizer(own, outer={"steps": 3}))
    assert more == {"outer": {"steps": 3}}
    assert type(arrived) is torch.optim.Adam
    assert arrived.defaults == own.defaults
    held = trained_parameters(arrived)
    assert all(one is two for one, two in zip(parameters, held, strict=True))
    assert settings_of(arrived) == settings_of(own)
    assert type(arrived.param_groups[0]["betas"]) is tuple
    assert arrived.state[torch.zeros(1)] == {}, "a dict of dicts, as torch makes it"
    for one, two in zip(held, trained_parameters(own), strict=True):
        assert type(one) is torch.nn.Parameter
        assert torch.equal(one, two)
        assert [*arrived.state[one]] == [*own.state[two]]
        for name, value in own.state[two].items():
            assert arrived.state[one][name].dtype == value.dtype
            assert torch.equal(arrived.state[one][name], value)


class Counting(torch.optim.SGD):
    """An optimizer with an attribute of its own, which it puts into its state."""

    calls: Any = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "calls": self.calls}


def test_an_attribute_that_an_optimizer_puts_into_its_state_arrives() -> None:
    own = Counting(model_of().parameters(), lr=0.1)
    own.calls = 7
    _, arrived, _ = unpack_optimizer(pack_optimizer(own))
    assert isinstance(arrived, Counting)
    assert arrived.calls == 7


def test_a_state_that_is_no_plain_data_is_refused_with_the_way_out() -> None:
    own = Counting(model_of().parameters(), lr=0.1)
    own.calls = Path("here")
    packed = pack_optimizer(own)
    with pytest.raises(
        InputError, match=r"the optimizer cannot be read: it holds .*pathlib.*keep "
    ):
        ParameterStore(packed)


class Rebuilt(torch.optim.SGD):
    """An optimizer that is not rebuilt from its state."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Rebuilt, ([torch.zeros(1)], 0.5)


def test_an_optimizer_that_says_itself_how_it_is_rebuilt_is_refused() -> None:
    with pytest.raises(InputError, match="optimizer Rebuilt says by __reduce__ how it is rebuilt"):
        pack_optimizer(Rebuilt(model_of().parameters(), lr=0.1))


def test_a_class_that_is_no_optimizer_is_not_built_at_the_server() -> None:
    content = load(pack_optimizer(OPTIMIZERS["sgd"](model_of().parameters())), "it")
    content["class"] = "subprocess", "Popen"
    with pytest.raises(InputError, match=r"subprocess.Popen is no torch.optim class"):
        ParameterStore(dump(content))


def test_step_hooks_are_refused_where_a_copy_would_not_run_them() -> None:
    own = OPTIMIZERS["sgd"](model_of().parameters())
    check_served(own, "asgd")
    handle = own.register_step_pre_hook(lambda *_: None)
    with pytest.raises(InputError, match="policy asgd updates parameters at a server"):
        check_served(own, "asgd")
    handle.remove()
    check_served(own, "asgd")


def test_a_gradient_is_corrected_by_what_changed_since_its_rank_pulled() -> None:
    own = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=1.0)
    server = ParameterStore(pack_optimizer(own), rule=UpdateRule(compensation=Compensation(0.5)))
    for rank in (0, 1):
        server.admit(rank, allocate_private(3, torch.float32))
        server.pull(Compute(rank, 0, 0, False, 8, GradientRoute.PUSH))
        server._buffers[rank].gradient.fill_(2.0)
    server.apply(Apply(1, ((0, 0.5),), (), ()), [])
    assert server.flat.tolist() == [0.0] * 3, "nothing had changed"
    server.apply(Apply(2, ((1, 0.5),), (), ()), [])
    assert server.flat.tolist() == [0.0] * 3, "2 + 0.5 * 4 * (0 - 1) is 0"


def test_a_server_takes_gradients_of_a_workload_at_its_present_parameters() -> None:
    own = torch.nn.Linear(3, 2)
    names = tuple(name for name, _ in own.named_parameters())[::-1]
    optimizer = torch.optim.SGD([own.bias, own.weight], lr=1.0)
    flat = ParameterStore(pack_optimizer(optimizer)).flat
    gradient = ValidationGradient(ValidationSpec(f"{__name__}:linear_workload", names), flat, 0)
    for _ in range(2):
        found = gradient(5)
        loss = (own(torch.ones(5, 3)) ** 2).mean()
        expected = torch.autograd.grad(loss, [own.bias, own.weight])
        assert torch.equal(found, torch.cat([each.reshape(-1) for each in expected]))
        flat.mul_(2.0)
        unflatten(flat, [own.bias, own.weight])


def linear_workload() -> tuple[Any, ...]:
    model = torch.nn.Linear(3, 2)

    def loss(given: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return (given(batch) ** 2).mean()

    return model, loss, torch.optim.SGD(model.parameters(), lr=1.0), lambda n: torch.ones(n, 3)


def test_a_validation_of_another_model_is_refused() -> None:
    with pytest.raises(InputError, match="validation 'mlp' builds another model than the ranks"):
        ValidationGradient(ValidationSpec("mlp", ("weight",)), torch.zeros(3), 0)
