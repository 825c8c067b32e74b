"""The mesh hook around torch's functions in one process that takes itself for four."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import torch
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh

from tests.recorder.model.fake_ranks import fake_ranks
from torchx_cubicml.recorder.apply import mesh_calls
from torchx_cubicml.recorder.apply.hooks import hook_facts, installed
from torchx_cubicml.recorder.apply.mesh_hook import MeshHook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torchx_cubicml.records.values import Value


class Ranks:
    """The other ranks of a job, which all answer alike."""

    def __init__(self, world_size: int = 4, *, agree: bool = True) -> None:
        self.world_size, self.rank, self.answer = world_size, 0, agree
        self.words: list[str] = []

    def agree(self, _name: str, word: str, *, within_s: float) -> bool:
        assert within_s == 30.0
        self.words.append(word)
        return self.answer and bool(word)

    def post(self, _name: str, _value: str) -> None: ...

    def ask(self, _name: str, *, within_s: float) -> str:
        assert within_s <= 2.0
        return ""


@pytest.fixture(autouse=True)
def four_ranks() -> Iterator[None]:
    """Make torch take this process for the first of four."""
    with fake_ranks(4):
        yield


@contextmanager
def hooked(value: dict[str, Value], ranks: Ranks | None = None, *, only_checks: bool = False) -> Iterator[MeshHook]:
    hook = MeshHook(value, peers=ranks or Ranks(), guard=lambda call: call, only_checks=only_checks)
    hook.install()
    try:
        yield hook
    finally:
        hook.release()


def made(shape: tuple[int, ...], names: tuple[str, ...] | None, **more: object) -> tuple[int, ...]:
    return device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=names, **more).shape


def test_the_axes_get_the_sizes_under_the_names_of_the_script() -> None:
    original, ranks = device_mesh.init_device_mesh, Ranks()
    with hooked({"tp": 4, "dp_shard": 1}, ranks) as hook:
        assert inspect.signature(device_mesh.init_device_mesh) == inspect.signature(original)
        assert made((2, 2), ("fsdp", "model")) == (1, 4)
        assert made((2, 2), ("fsdp", "model")) == (1, 4)
        assert made((4,), ("world",)) == (4,)
        assert made((2, 2), None) == (2, 2)
        assert len(ranks.words) == 1
        taken = device_mesh.init_device_mesh
    assert taken("cpu", (2, 2), mesh_dim_names=("fsdp", "model")).shape == (2, 2)
    assert (hook.refusal(), hook.illegal_values()) == ("", ())
    assert device_mesh.init_device_mesh is original


def by_ranks(ranks: object) -> DeviceMesh:
    return DeviceMesh("cpu", ranks, mesh_dim_names=("fsdp", "tp"))


@pytest.mark.parametrize(
    ("order", "own", "mesh"),
    [
        ("", [[0, 1], [2, 3]], [[0, 1, 2, 3]]),
        ("", torch.arange(4).view(2, 2).t(), [[0, 1, 2, 3]]),
        ("tp,dp_shard", [[0, 1], [2, 3]], [[0, 2], [1, 3]]),
    ],
)
def test_a_mesh_of_given_ranks_gets_other_ranks(order: str, own: object, mesh: list[list[int]]) -> None:
    constructor = DeviceMesh.__init__
    value: dict[str, Value] = {"tp": 2, "dp_shard": 2, "order": order} if order else {"tp": 4, "dp_shard": 1}
    with hooked(value) as hook:
        changed = by_ranks(own)
        assert changed.mesh.tolist() == mesh
        assert changed["tp"].mesh.tolist() == mesh[0]
        assert changed._flatten("all").size() == 4
    assert hook.refusal() == ""
    assert DeviceMesh.__init__ is constructor


def test_a_mesh_of_given_ranks_keeps_its_order() -> None:
    with hooked({"tp": 2, "dp_shard": 2}):
        assert by_ranks([[0, 2], [1, 3]]).mesh.tolist() == [[0, 2], [1, 3]]
    with hooked({"tp": 4, "dp_shard": 1}) as hook:
        assert by_ranks([[0, 1], [3, 2]]).mesh.tolist() == [[0, 1], [3, 2]]
        assert hook.refusal() == "the ranks of the script's mesh fsdp=2,tp=2 are in no order of its axes"


def test_a_mesh_of_one_axis_is_unflattened_otherwise() -> None:
    with hooked({"tp": 4, "dp_shard": 1}) as hook:
        world = device_mesh.init_device_mesh("cpu", (4,), mesh_dim_names=("world",))
        assert world._unflatten(0, (2, 2), ("fsdp", "tp")).mesh.tolist() == [[0, 1, 2, 3]]
        assert hook.refusal() == ""
    with hooked({"tp": 2, "dp_shard": 2, "order": "tp,dp_shard"}) as hook:
        assert world._unflatten(0, (2, 2), ("fsdp", "tp")).mesh.tolist() == [[0, 1], [2, 3]]
        assert hook.refusal() == (
            "the order of a mesh that the script unflattens (DeviceMesh._unflatten) cannot be changed"
        )
    two = device_mesh.init_device_mesh("cpu", (4, 1), mesh_dim_names=("dp", "tp"))
    with hooked({"tp": 1, "dp_shard": 4, "dp_replicate": 1}) as hook:
        assert two._unflatten("dp", (2, 2), ("dp_replicate", "fsdp")).shape == (2, 2, 1)
        assert hook.refusal() == "the script unflattens an axis of a mesh of several axes, which stays as it is"


@pytest.mark.parametrize(
    "make", [by_ranks, lambda _: device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))]
)
def test_a_failure_while_a_mesh_is_prepared_leaves_the_script_its_own(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[object], DeviceMesh]
) -> None:
    failures: list[Exception] = []

    def guard(call: Callable[..., object]) -> Callable[..., None]:
        def guarded(*args: object) -> None:
            try:
                call(*args)
            except ValueError as error:
                failures.append(error)

        return guarded

    def fail(*_: object) -> None:
        raise ValueError("of ours")

    monkeypatch.setattr(mesh_calls, "_ranks", fail)
    hook = MeshHook({"tp": 2, "dp_shard": 2, "order": "tp,dp_shard"}, peers=Ranks(), guard=guard)
    hook.install()
    try:
        assert make([[0, 1], [2, 3]]).mesh.tolist() == [[0, 1], [2, 3]]
    finally:
        hook.release()
    assert [str(error) for error in failures] == ["of ours"]


def test_a_mesh_of_given_groups_stays_as_it_is() -> None:
    groups = by_ranks([[0, 1], [2, 3]]).get_all_groups()
    with hooked({"tp": 4, "dp_shard": 1}) as hook:
        ranks = torch.arange(4).view(2, 2)
        assert DeviceMesh.from_group(groups, "cpu", ranks, mesh_dim_names=("fsdp", "tp")).shape == (2, 2)
        assert hook.refusal() == (
            "the script makes its mesh from process groups of its own (DeviceMesh.from_group), which stay as they are"
        )
        assert DeviceMesh.from_group(groups[0], "cpu").shape == (2,)


def test_a_mesh_without_names_is_named() -> None:
    with hooked({"tp": 4, "dp_shard": 1}) as hook:
        made((4,), None)
        assert hook.refusal() == "the program makes no device mesh of several named axes"
        made((2, 2), None)
        assert hook.refusal() == "the script's mesh of 2 x 2 processes has no names for its axes"


@pytest.mark.parametrize(
    ("value", "names", "shape", "why"),
    [
        (
            {"tp": 4, "dp_shard": 1},
            ("dp", "tp"),
            (2, 2),
            "the script's mesh has the axes dp, tp, and the space file tp",
        ),
        ({"tp": 4, "dp_shard": 1}, ("x", "y"), (2, 2), "the script's mesh has the axes x, y"),
        ({"tp": 4, "dp_shard": 2}, ("dp_shard", "tp"), (2, 2), "dp_shard=2,tp=4 is no mesh of 4 processes"),
        ({"tp": 4, "dp_shard": 1}, ("dp_shard", "tp"), (1, 2), "mesh dp_shard=1,tp=2 is not of all 4 processes"),
    ],
)
def test_a_mesh_that_does_not_fit_stays_as_it_is(
    value: dict[str, Value], names: tuple[str, ...], shape: tuple[int, ...], why: str
) -> None:
    ranks = Ranks()
    with hooked(value, ranks) as hook:
        assert made(shape, names) == shape
        assert why in hook.refusal()
    assert ranks.words == [""]


def test_ranks_that_disagree_change_nothing() -> None:
    with hooked({"tp": 4, "dp_shard": 1}, Ranks(agree=False)) as hook:
        assert made((2, 2), ("fsdp", "tp")) == (2, 2)
        assert made((2, 2), ("fsdp", "tp")) == (2, 2)
    assert hook.refusal() == "the ranks do not make the same mesh"


def test_another_mesh_besides_is_refused() -> None:
    with hooked({"tp": 4, "dp_shard": 1}) as hook:
        made((2, 2), ("fsdp", "tp"))
        assert made((2, 1, 2), ("fsdp", "ep", "tp")) == (2, 1, 2)
    assert hook.refusal() == (
        "the script makes several meshes, fsdp=2,tp=2 and fsdp=2,ep=1,tp=2; the first was changed before that was known"
    )


def test_a_script_without_a_mesh_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with hooked({"tp": 4, "dp_shard": 1}) as hook:
        pass
    assert hook.refusal() == "the program makes no device mesh of several named axes"
    monkeypatch.delattr(device_mesh, "init_device_mesh")
    with hooked({"tp": 4}) as hook:
        assert hook.refusal() == "this torch has no device mesh"


def test_an_illegal_call_is_left_to_torch() -> None:
    with hooked({"tp": 4, "dp_shard": 1}):
        with pytest.raises(TypeError, match="mesh_shape"):
            device_mesh.init_device_mesh("cpu")
        with pytest.raises(RuntimeError, match="same length"):
            made((4,), ("fsdp", "tp"))
        with pytest.raises((TypeError, ValueError)):
            by_ranks([[0, 1], 2])


def test_backends_of_its_own_keep_their_order() -> None:
    with hooked({"tp": 2, "dp_shard": 2, "order": "tp,dp_shard"}) as hook:
        made((2, 2), ("fsdp", "tp"), backend_override={"tp": "fake"})
    assert hook.refusal() == "the order of a mesh with backends of its own cannot be changed"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"tp": 2, "dp_shard": 2, "order": "dp_shard,tp"}, ""),
        ({"tp": 1, "dp_shard": 4}, "the script makes dp_shard=2,tp=2, and the space file states dp_shard=4,tp=1"),
        (
            {"tp": 2, "dp_shard": 2, "order": "tp,dp_shard"},
            "the ranks of the script's mesh are in the order dp_shard, tp, and the space file lists tp, dp_shard",
        ),
    ],
)
def test_a_check_compares_the_scripts_mesh_with_the_file(value: dict[str, Value], why: str) -> None:
    ranks = Ranks()
    with hooked(value, ranks, only_checks=True) as hook:
        assert made((2, 2), ("fsdp", "tp")) == (2, 2)
    assert (hook.refusal(), ranks.words) == (why, [])


def test_the_places_of_a_contract_are_one_hook() -> None:
    requested: dict[str, Value] = {"mesh.tp": 1, "mesh.dp_shard": 4}
    hooks = installed(requested, {"mesh.order": "dp_shard,tp"}, peers=Ranks(), guard=lambda call: call)
    assert made((2, 2), ("fsdp", "tp")) == (4, 1)
    assert hook_facts("mesh", hooks["mesh"]) == {}
    hooks["mesh"].release()
