"""Calls of FSDP that the hook changes, with a stand-in for FSDP that notes what it is called with."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import ShardingStrategy

from torchx_cubicml.recorder.apply import constructor_layers
from torchx_cubicml.recorder.apply.fsdp_hook import FsdpHook
from torchx_cubicml.recorder.apply.hooks import hook_facts, installed, warn_of_refusals
from torchx_cubicml.records.standard_names import RESHARD_SIZES

if TYPE_CHECKING:
    from collections.abc import Callable

PLAIN = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")


class Block(nn.Module):
    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)


class Model(nn.Module):
    def __init__(self, n_layers: int = 3, width: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(n_layers))


class Ranks:
    """The other ranks, which answer as they are told."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, float]] = []

    def agree(self, name: str, word: str, *, within_s: float) -> bool:
        self.asked.append((name, word, within_s))
        return self.answers.pop(0) if self.answers else bool(word)


@pytest.fixture
def fsdp(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a stand-in for torch's FSDP; ``calls`` holds the arguments of each call."""
    module = ModuleType("torch.distributed.fsdp")
    module.calls = []
    module.ShardingStrategy = ShardingStrategy

    class FullyShardedDataParallel(nn.Module):
        def __init__(
            self,
            module: nn.Module,
            process_group: object = None,
            sharding_strategy: ShardingStrategy | None = None,
            *,
            device_mesh: object = None,
        ) -> None:
            super().__init__()
            self._fsdp_wrapped_module = module
            calls.append((module, sharding_strategy, process_group))

    def fully_shard(
        module: nn.Module | list[nn.Module], *, mesh: object = None, reshard_after_forward: bool | None = None
    ) -> object:
        calls.append((module, reshard_after_forward, mesh))
        return module

    calls = module.calls
    module.FullyShardedDataParallel, module.fully_shard = FullyShardedDataParallel, fully_shard
    holders = {"torch.elsewhere": ModuleType("torch.elsewhere"), "users": ModuleType("users")}
    for holder in holders.values():
        holder.fully_shard = fully_shard
    for name, each in {"torch.distributed.fsdp": module, **holders}.items():
        monkeypatch.setitem(sys.modules, name, each)
    monkeypatch.setattr(torch.distributed, "fsdp", module, raising=False)
    return module


def hooked(strategies: object, ranks: Ranks | None = None, *, only_checks: bool = False) -> FsdpHook:
    hook = FsdpHook(strategies, peers=ranks or Ranks(), guard=lambda call: call, only_checks=only_checks)
    hook.install()
    return hook


def reason_left(hook: FsdpHook) -> str:
    """Return what the hook refused, as it is known at the first step."""
    hook.release()
    return hook.refusal()


def strategies_of(fsdp: ModuleType) -> list[object]:
    return [getattr(strategy, "name", strategy) for _, strategy, _ in fsdp.calls]


def test_each_layer_gets_its_strategy_in_any_order(fsdp: ModuleType) -> None:
    hook, model = hooked(PLAIN), Model()
    for layer in reversed(model.layers):
        fsdp.FullyShardedDataParallel(layer, "group")
    fsdp.FullyShardedDataParallel(model, "group", ShardingStrategy.NO_SHARD)
    assert strategies_of(fsdp) == ["NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD", "NO_SHARD"]
    assert [module for module, _, _ in fsdp.calls] == [*reversed(model.layers), model]
    assert {group for _, _, group in fsdp.calls} == {"group"}
    assert reason_left(hook) == ""


def test_one_strategy_serves_all_layers(fsdp: ModuleType) -> None:
    hook, model = hooked("SHARD_GRAD_OP"), Model(5)
    for layer in model.layers:
        fsdp.FullyShardedDataParallel(layer)
    fsdp.FullyShardedDataParallel(model.embedding, None, ShardingStrategy.FULL_SHARD)
    assert strategies_of(fsdp) == ["SHARD_GRAD_OP"] * 5 + ["FULL_SHARD"]
    assert reason_left(hook) == ""


@pytest.mark.parametrize(
    ("strategies", "mesh", "reshards"),
    [
        (("FULL_SHARD", "SHARD_GRAD_OP"), None, [True, False]),
        (("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"), SimpleNamespace(ndim=2), [True, False]),
        (("SHARD_GRAD_OP", "FULL_SHARD"), SimpleNamespace(ndim=1), [False, True]),
    ],
)
def test_the_second_fsdp_reshards_as_asked(
    fsdp: ModuleType, strategies: tuple[str, ...], mesh: object, reshards: list[bool]
) -> None:
    hook, model = hooked(strategies), Model(2)
    for layer in model.layers:
        assert fsdp.fully_shard(layer, mesh=mesh) is layer
    assert strategies_of(fsdp) == reshards
    assert all(given is mesh for _, _, given in fsdp.calls)
    assert reason_left(hook) == ""


def test_the_second_fsdp_reshards_to_groups_that_divide_the_ranks(fsdp: ModuleType) -> None:
    mesh = SimpleNamespace(ndim=1, size=lambda: 8)
    hook, model = hooked(("FULL_SHARD_2", "FULL_SHARD", "FULL_SHARD_4")), Model()
    for layer in model.layers:
        fsdp.fully_shard(layer, mesh=mesh)
    assert strategies_of(fsdp) == [2, True, 4]
    assert hook.illegal_values()[1:5] == ("FULL_SHARD_8", "FULL_SHARD_16", "FULL_SHARD_32", "FULL_SHARD_64")
    assert reason_left(hook) == ""


def test_ranks_that_wrap_in_another_order_make_no_groups(fsdp: ModuleType) -> None:
    mesh, ranks = SimpleNamespace(ndim=1, size=lambda: 4), Ranks(True, True, False)
    hook, model = hooked(("FULL_SHARD_2", "SHARD_GRAD_OP", "FULL_SHARD_2"), ranks), Model()
    for layer in reversed(model.layers):
        fsdp.fully_shard(layer, mesh=mesh)
    assert strategies_of(fsdp) == [2, False, None]
    assert [(name, word) for name, word, _ in ranks.asked[1:]] == [("fsdp/1", "2"), ("fsdp/2", "0")]
    assert "in the same order" in reason_left(hook)


@pytest.mark.parametrize(("ndim", "size"), [(1, 3), (1, 2), (2, 8)], ids=["no part", "all ranks", "two copies"])
def test_other_groups_are_refused(fsdp: ModuleType, ndim: int, size: int) -> None:
    hook, model = hooked("FULL_SHARD_2"), Model()
    fsdp.fully_shard(model.layers[0], mesh=SimpleNamespace(ndim=ndim, size=lambda: size))
    assert strategies_of(fsdp) == [None]
    reason = f"FULL_SHARD_2 is illegal here: 2 ranks must be a part of the {size} of one copy"
    assert hook.refusal() == reason


def test_a_list_of_modules_is_wrapped_as_its_first_layer(fsdp: ModuleType) -> None:
    hook, model = hooked(("FULL_SHARD", "SHARD_GRAD_OP", "FULL_SHARD")), Model()
    fsdp.fully_shard([model.embedding, model.layers[1], model.layers[2]])
    fsdp.fully_shard((model.layers[0],))
    assert strategies_of(fsdp) == [False, True]
    assert reason_left(hook) == ""


def test_every_name_inside_torch_is_hooked_and_restored(fsdp: ModuleType) -> None:
    original, constructor = fsdp.fully_shard, fsdp.FullyShardedDataParallel.__init__
    elsewhere, users = sys.modules["torch.elsewhere"], sys.modules["users"]
    hook = hooked("SHARD_GRAD_OP")
    assert elsewhere.fully_shard is not original
    assert users.fully_shard is original
    assert inspect.signature(fsdp.fully_shard) == inspect.signature(original)
    assert fsdp.fully_shard.__name__ == "fully_shard"
    later = elsewhere.fully_shard = lambda module: module
    hook.release()
    assert fsdp.fully_shard is original
    assert fsdp.FullyShardedDataParallel.__init__ is constructor
    assert elsewhere.fully_shard is later  # another library's wrapper stays
    fsdp.fully_shard(Model().layers[0])
    assert strategies_of(fsdp) == [None]


def test_a_torch_without_the_second_fsdp_has_the_first(fsdp: ModuleType) -> None:
    del fsdp.fully_shard
    hook, model = hooked("NO_SHARD"), Model(2)
    for layer in model.layers:
        fsdp.FullyShardedDataParallel(layer)
    assert strategies_of(fsdp) == ["NO_SHARD", "NO_SHARD"]
    assert reason_left(hook) == ""


def test_layers_that_were_not_wrapped_are_counted(fsdp: ModuleType) -> None:
    hook, model = hooked(PLAIN), Model()
    assert hook.refusal() == "the program wraps no module in FSDP"
    fsdp.FullyShardedDataParallel(model.layers[1])
    assert reason_left(hook) == "2 of the repeated layers were not wrapped in FSDP; the others were set as requested"


@pytest.mark.parametrize(
    ("n_layers", "reason"),
    [
        (2, "3 layers were requested, but the model repeats 2"),
        (4, "3 layers were requested, but the model repeats 4"),
        (1, "the model has no repeated layers when its first module is wrapped"),
    ],
)
def test_another_number_of_layers_is_left_alone(fsdp: ModuleType, n_layers: int, reason: str) -> None:
    ranks = Ranks()
    hook, model = hooked(PLAIN, ranks), Model(n_layers)
    for layer in model.layers:
        fsdp.FullyShardedDataParallel(layer, None, ShardingStrategy.FULL_SHARD)
    assert strategies_of(fsdp) == ["FULL_SHARD"] * n_layers
    assert hook.refusal() == reason
    assert ranks.asked == [("fsdp/0", "", 30.0)]  # once for each model
    other = Model(3)
    fsdp.FullyShardedDataParallel(other.layers[2], None, ShardingStrategy.FULL_SHARD)
    assert strategies_of(fsdp)[-1] == "NO_SHARD"
    assert [name for name, _, _ in ranks.asked] == ["fsdp/0", "fsdp/1"]


PLAIN_REASON = "the script shards over all ranks, where {} is illegal; choose from FULL_SHARD, SHARD_GRAD_OP, NO_SHARD"
HYBRID_REASON = (
    "the script shards within replicated groups, where {} is illegal; choose from HYBRID_SHARD, _HYBRID_SHARD_ZERO2"
)


@pytest.mark.parametrize(
    ("given", "strategy", "reason"),
    [
        ({}, "HYBRID_SHARD", PLAIN_REASON),
        ({"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}, "_HYBRID_SHARD_ZERO2", PLAIN_REASON),
        ({"process_group": "one"}, "HYBRID_SHARD", PLAIN_REASON),
        ({"device_mesh": SimpleNamespace(ndim=1)}, "HYBRID_SHARD", PLAIN_REASON),
        ({"sharding_strategy": ShardingStrategy.HYBRID_SHARD}, "FULL_SHARD", HYBRID_REASON),
        ({"process_group": ("within", "between")}, "NO_SHARD", HYBRID_REASON),
        ({"device_mesh": SimpleNamespace(ndim=2)}, "SHARD_GRAD_OP", HYBRID_REASON),
    ],
)
def test_a_strategy_of_the_other_family_is_refused(
    fsdp: ModuleType, given: dict[str, Any], strategy: str, reason: str
) -> None:
    hook, model = hooked(strategy), Model(2)
    fsdp.FullyShardedDataParallel(model.layers[0], **given)
    assert fsdp.calls[0][1] is given.get("sharding_strategy")
    assert hook.refusal() == reason.format(strategy)


def test_no_shard_is_unknown_to_the_second_fsdp(fsdp: ModuleType) -> None:
    ranks = Ranks()
    hook, model = hooked(("FULL_SHARD", "NO_SHARD"), ranks), Model(2)
    fsdp.fully_shard(model.layers[0])
    assert strategies_of(fsdp) == [None]
    assert hook.refusal() == "fully_shard has no NO_SHARD; choose from FULL_SHARD, SHARD_GRAD_OP"
    assert ranks.asked == [("fsdp/0", "", 30.0)]


def test_ranks_that_disagree_change_nothing(fsdp: ModuleType) -> None:
    ranks = Ranks(False)
    hook, model = hooked("NO_SHARD", ranks), Model(2)
    for layer in model.layers:
        fsdp.FullyShardedDataParallel(layer)
    assert strategies_of(fsdp) == [None, None]
    assert hook.refusal() == "the ranks do not wrap the same layers in the same way"
    assert len(ranks.asked) == 1


def test_plans_are_compared_by_layers_and_strategies(fsdp: ModuleType) -> None:
    words = []
    for strategies, model in (
        (PLAIN, Model()),
        (PLAIN, Model()),
        (PLAIN[::-1], Model()),
        (PLAIN, Model(width=3)),
    ):
        ranks = Ranks()
        hook = hooked(strategies, ranks)
        fsdp.FullyShardedDataParallel(model.layers[0])
        hook.release()
        words += [word for _, word, _ in ranks.asked]
    assert words[0] == words[1] != ""
    assert len(set(words)) == 3


def test_a_call_that_fsdp_refuses_fails_as_before(fsdp: ModuleType) -> None:
    hooked("NO_SHARD")
    with pytest.raises(TypeError, match="fully_shard"):
        fsdp.fully_shard()
    with pytest.raises(TypeError, match="unknown"):
        fsdp.fully_shard(Model().layers[0], unknown=3)
    assert fsdp.calls == []


def test_known_hooks_of_a_contract_are_installed(fsdp: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    hooks = installed({"fsdp": "NO_SHARD", "none": 1}, {}, peers=Ranks(), guard=lambda call: call)
    assert list(hooks) == ["fsdp"]
    model = Model(2)
    assert hook_facts("fsdp", hooks["fsdp"]) == {"fsdp_hook": "refused: the program wraps no module in FSDP"}
    assert capsys.readouterr().err == ""
    warn_of_refusals(hooks, ())
    assert capsys.readouterr().err == ""
    warn_of_refusals(hooks, {"fsdp": "NO_SHARD"})
    assert capsys.readouterr().err == (
        "torchx-cubicml: warning: hook = 'fsdp' was not applied as requested: the program wraps no module in FSDP\n"
    )
    for layer in model.layers:
        fsdp.FullyShardedDataParallel(layer)
    hooks["fsdp"].release()
    assert strategies_of(fsdp) == ["NO_SHARD"] * 2
    assert hook_facts("fsdp", hooks["fsdp"]) == {
        "fsdp_hook_illegal": (*RESHARD_SIZES, "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
    }


class BuiltInside(nn.Module):
    """A model whose constructor wraps its layers, and another module before them."""

    def __init__(self, wrap: Callable[[nn.Module], nn.Module], n_layers: int = 3, *, first: type = nn.Identity) -> None:
        super().__init__()
        self.first = wrap(first())
        self.layers = nn.ModuleList([wrap(Block()) for _ in range(n_layers)])


class Stem(Block):
    """A module with submodules that is no repeated layer."""


class TestLayersWrappedInAConstructor:
    def test_the_first_fsdp_counts_them_in_order(self, fsdp: ModuleType) -> None:
        hook, model = hooked(PLAIN), BuiltInside(fsdp.FullyShardedDataParallel)
        assert strategies_of(fsdp) == [None, *PLAIN]
        assert reason_left(hook) == ""
        assert len(model.layers) == 3

    def test_more_layers_than_requested_are_told(self, fsdp: ModuleType) -> None:
        hook = hooked(PLAIN)
        model = BuiltInside(fsdp.FullyShardedDataParallel, 4)
        fsdp.FullyShardedDataParallel(model, None, ShardingStrategy.FULL_SHARD)
        assert strategies_of(fsdp) == [None, *PLAIN, None, "FULL_SHARD"]
        told = "3 layers were requested, but the model repeats 4; 3 layers were set before that was known"
        assert reason_left(hook) == told

    def test_another_module_in_the_constructor_is_told(self, fsdp: ModuleType) -> None:
        hook = hooked(PLAIN)
        model = BuiltInside(fsdp.FullyShardedDataParallel, first=Stem)
        fsdp.FullyShardedDataParallel(model)
        assert reason_left(hook).startswith("the constructor wraps other modules than the repeated layers")

    def test_ranks_that_disagree_change_nothing(self, fsdp: ModuleType) -> None:
        hook = hooked(PLAIN, Ranks(False, False, False, False, False))
        model = BuiltInside(fsdp.FullyShardedDataParallel)
        assert strategies_of(fsdp) == [None] * 4
        assert reason_left(hook) == "the ranks do not wrap the same layers in the same way"
        assert len(model.layers) == 3

    def test_the_second_fsdp_changes_them_with_the_model(self, fsdp: ModuleType) -> None:
        set_later: list[tuple[bool, bool]] = []

        def wrap(layer: nn.Module) -> nn.Module:
            fsdp.fully_shard(layer)
            kind = type(layer)

            def set_reshard_after_forward(self: nn.Module, reshards: bool, recurse: bool = True) -> None:
                set_later.append((reshards, recurse))

            methods = {"set_reshard_after_forward": set_reshard_after_forward, "_get_fsdp_state": None}
            layer.__class__ = type(f"FSDP{kind.__name__}", (kind,), methods)
            return layer

        hook = hooked(("FULL_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"))
        fsdp.fully_shard(BuiltInside(wrap))
        assert strategies_of(fsdp) == [None] * 5
        assert set_later == [(True, False), (False, False), (True, False)]
        assert reason_left(hook) == ""

    def test_the_second_fsdp_cannot_change_them_to_groups(self, fsdp: ModuleType) -> None:
        def wrap(layer: nn.Module) -> nn.Module:
            layer.__class__ = type("FSDPBlock", (Block,), {"set_reshard_after_forward": print, "_get_fsdp_state": None})
            return layer

        hook = hooked(("FULL_SHARD", "FULL_SHARD_2", "FULL_SHARD"))
        fsdp.fully_shard(BuiltInside(wrap, first=Block), mesh=SimpleNamespace(ndim=1, size=lambda: 4))
        assert hook.refusal() == "a layer that is wrapped in a constructor cannot be set to FULL_SHARD_2"

    def test_the_second_fsdp_without_the_model_is_refused(self, fsdp: ModuleType) -> None:
        ranks = Ranks()
        hook = hooked("SHARD_GRAD_OP", ranks)
        model = BuiltInside(fsdp.fully_shard, first=Block)
        assert strategies_of(fsdp) == [None] * 4
        assert reason_left(hook) == "the script wraps layers in a constructor, and not the model around them"
        assert (len(model.layers), ranks.asked) == (3, [])

    def test_live_modules_are_searched_once_per_class(self, fsdp: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        searched: list[nn.Module] = []
        monkeypatch.setattr(constructor_layers, "ancestors", lambda module: searched.append(module) or [])
        hooked("FULL_SHARD")
        model = BuiltInside(fsdp.FullyShardedDataParallel, 9, first=Block)
        assert [type(each) for each in searched] == [Block]
        assert len(model.layers) == 9


@pytest.mark.parametrize("built_inside", [False, True])
def test_a_check_changes_nothing_and_tells_what_is_illegal(fsdp: ModuleType, built_inside: bool) -> None:
    hook = hooked(("FULL_SHARD",) * 3, only_checks=True)
    model = BuiltInside(fsdp.FullyShardedDataParallel) if built_inside else Model()
    for layer in [] if built_inside else model.layers:
        fsdp.FullyShardedDataParallel(layer)
    fsdp.FullyShardedDataParallel(model)
    assert set(strategies_of(fsdp)) == {None}
    assert reason_left(hook) == ""
    assert hook.illegal_values() == (*RESHARD_SIZES, "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")


def test_a_check_tells_the_refusal_without_a_warning(fsdp: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    hooks = installed({}, {"fsdp": ("FULL_SHARD",) * 2}, peers=Ranks(), guard=lambda call: call)
    model = Model(3)
    fsdp.FullyShardedDataParallel(model.layers[0])
    hooks["fsdp"].release()
    facts = hook_facts("fsdp", hooks["fsdp"])
    assert facts == {"fsdp_hook": "refused: 2 layers were requested, but the model repeats 3"}
    assert capsys.readouterr().err == ""
