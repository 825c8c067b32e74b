"""The mesh hook around a stand-in for ``init_device_mesh``; ``test_mesh_hook_launches.py`` has real ones."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
import torch

from torchx_cubicml.recorder.apply.hooks import hook_facts, installed
from torchx_cubicml.recorder.apply.mesh_hook import MeshHook

if TYPE_CHECKING:
    from torchx_cubicml.records.trial import Value


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


class Mesh:
    """Stand-in for a mesh."""

    def __init__(self, names: tuple[str, ...] | None, shape: tuple[int, ...]) -> None:
        self.mesh_dim_names, self.shape = names, shape

    def get_coordinate(self) -> list[int]:
        return [0] * len(self.shape)


@pytest.fixture
def device_mesh(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a stand-in for torch's module of device meshes."""
    module = ModuleType("torch.distributed.device_mesh")

    def init_device_mesh(
        device_type: str,
        mesh_shape: tuple[int, ...],
        *,
        mesh_dim_names: tuple[str, ...] | None = None,
        backend_override: object = None,
    ) -> object:
        return Mesh(mesh_dim_names, mesh_shape)

    module.init_device_mesh = init_device_mesh
    monkeypatch.setitem(sys.modules, "torch.distributed.device_mesh", module)
    monkeypatch.setattr(torch.distributed, "device_mesh", module, raising=False)
    return module


def hooked(value: dict[str, Value], ranks: Ranks | None = None, *, only_checks: bool = False) -> MeshHook:
    hook = MeshHook(value, peers=ranks or Ranks(), guard=lambda call: call, only_checks=only_checks)
    hook.install()
    return hook


def made(device_mesh: ModuleType, shape: tuple[int, ...], names: tuple[str, ...] | None, **more: object) -> object:
    return device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=names, **more).shape


def test_the_axes_get_the_sizes_under_the_names_of_the_script(device_mesh: ModuleType) -> None:
    original, ranks = device_mesh.init_device_mesh, Ranks()
    hook = hooked({"tp": 4, "dp_shard": 1}, ranks)
    assert inspect.signature(device_mesh.init_device_mesh) == inspect.signature(original)
    assert made(device_mesh, (2, 2), ("fsdp", "model")) == (1, 4)
    assert made(device_mesh, (2, 2), ("fsdp", "model")) == (1, 4)
    assert made(device_mesh, (4,), ("world",)) == (4,)
    assert made(device_mesh, (2, 2), None) == (2, 2)
    assert len(ranks.words) == 1
    taken = device_mesh.init_device_mesh
    hook.release()
    assert taken("cpu", (2, 2), mesh_dim_names=("fsdp", "model")).shape == (2, 2)
    assert (hook.refusal(), hook.illegal_values()) == ("", ())
    assert device_mesh.init_device_mesh is original


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
        ({"tp": 2, "dp_shard": 1}, ("dp_shard", "tp"), (1, 2), "mesh dp_shard=1,tp=2 is not of all 4 processes"),
    ],
)
def test_a_mesh_that_does_not_fit_stays_as_it_is(
    value: dict[str, Value], names: tuple[str, ...], shape: tuple[int, ...], why: str, device_mesh: ModuleType
) -> None:
    ranks = Ranks()
    hook = hooked(value, ranks)
    assert made(device_mesh, shape, names) == shape
    assert why in hook.refusal()
    assert ranks.words == [""]


def test_ranks_that_disagree_change_nothing(device_mesh: ModuleType) -> None:
    hook = hooked({"tp": 4, "dp_shard": 1}, Ranks(agree=False))
    assert made(device_mesh, (2, 2), ("fsdp", "tp")) == (2, 2)
    assert made(device_mesh, (2, 2), ("fsdp", "tp")) == (2, 2)
    assert hook.refusal() == "the ranks do not make the same mesh"


def test_another_mesh_besides_is_refused(device_mesh: ModuleType) -> None:
    hook = hooked({"tp": 4, "dp_shard": 1})
    made(device_mesh, (2, 2), ("fsdp", "tp"))
    assert made(device_mesh, (2, 1, 2), ("fsdp", "ep", "tp")) == (2, 1, 2)
    assert hook.refusal() == (
        "the script makes several meshes, fsdp=2,tp=2 and fsdp=2,ep=1,tp=2; the first was changed before that was known"
    )


def test_a_script_without_a_mesh_is_refused(device_mesh: ModuleType) -> None:
    hook = hooked({"tp": 4, "dp_shard": 1})
    hook.release()
    assert hook.refusal() == "the program makes no device mesh of several named axes by init_device_mesh"
    del device_mesh.init_device_mesh
    assert hooked({"tp": 4}).refusal() == "this torch has no device mesh"


def test_an_illegal_call_is_left_to_torch(device_mesh: ModuleType) -> None:
    hooked({"tp": 4, "dp_shard": 1})
    with pytest.raises(TypeError, match="mesh_shape"):
        device_mesh.init_device_mesh("cpu")
    assert made(device_mesh, (4,), ("fsdp", "tp")) == (4,)


def test_backends_of_its_own_keep_their_order(device_mesh: ModuleType) -> None:
    hook = hooked({"tp": 2, "dp_shard": 2, "order": "tp,dp_shard"})
    made(device_mesh, (2, 2), ("fsdp", "tp"), backend_override={"tp": "gloo"})
    assert hook.refusal() == "the order of a mesh with backends of its own cannot be changed"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"tp": 2, "dp_shard": 2, "order": "dp_shard,tp"}, ""),
        ({"tp": 1, "dp_shard": 4}, "the script makes dp_shard=2,tp=2, and the space file states dp_shard=4,tp=1"),
        (
            {"tp": 2, "dp_shard": 2, "order": "tp,dp_shard"},
            "the script makes dp_shard=2,tp=2, and the space file lists tp, dp_shard",
        ),
    ],
)
def test_a_check_compares_the_scripts_mesh_with_the_file(
    value: dict[str, Value], why: str, device_mesh: ModuleType
) -> None:
    ranks = Ranks()
    hook = hooked(value, ranks, only_checks=True)
    assert made(device_mesh, (2, 2), ("fsdp", "tp")) == (2, 2)
    assert (hook.refusal(), ranks.words) == (why, [])


def test_the_places_of_a_contract_are_one_hook(device_mesh: ModuleType) -> None:
    requested: dict[str, Value] = {"mesh.tp": 1, "mesh.dp_shard": 4}
    hooks = installed(requested, {"mesh.order": "dp_shard,tp"}, peers=Ranks(), guard=lambda call: call)
    assert made(device_mesh, (2, 2), ("fsdp", "tp")) == (4, 1)
    assert hook_facts("mesh", hooks["mesh"]) == {}
