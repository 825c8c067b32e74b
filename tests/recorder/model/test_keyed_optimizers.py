from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from torchx_cubicml.recorder.model.keyed_optimizers import KeyedOptimizers, is_sharded_tensor


class KeyedOptimizer(SGD):
    """Known by its name, as TorchRec's own."""


class Combined(KeyedOptimizer):
    pass


def make(kind: type[SGD] = Combined) -> SGD:
    return kind([nn.Parameter(torch.zeros(1))], lr=0.1)


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> KeyedOptimizers:
    monkeypatch.setattr(KeyedOptimizer, "__module__", "torchrec.optim.keyed")
    return KeyedOptimizers()


def counted(keyed: KeyedOptimizers, *optimizers: Optimizer) -> list[bool]:
    return [not (keyed[type(each)] and keyed.skips(each)) for each in optimizers]


def test_classes_are_told_by_their_bases(keyed: KeyedOptimizers) -> None:
    assert (keyed[Combined], keyed[Combined], keyed[SGD]) == (True, True, False)


def test_a_class_of_another_library_is_no_keyed_one() -> None:
    assert not KeyedOptimizers()[Combined]


def test_beside_another_optimizer_none_counts(keyed: KeyedOptimizers) -> None:
    inner, dense, outer = make(), make(SGD), make()
    for _ in range(6):
        assert counted(keyed, inner, dense, outer) == [False, True, False]


def test_alone_the_outermost_counts_from_its_third_step(keyed: KeyedOptimizers) -> None:
    first, second, outer = make(), make(), make()
    rounds = [counted(keyed, first, second, outer) for _ in range(4)]
    assert rounds == [[False] * 3, [False] * 3, [False, False, True], [False, False, True]]
    assert [counted(KeyedOptimizers(), outer)[0] for _ in range(2)] == [False, False]


def test_a_single_one_counts_from_its_third_step(keyed: KeyedOptimizers) -> None:
    alone = make()
    assert [counted(keyed, alone)[0] for _ in range(4)] == [False, False, True, True]


def test_new_ones_are_learnt_anew(keyed: KeyedOptimizers) -> None:
    first = [make(), make()]
    for _ in range(3):
        counted(keyed, *first)
    first.clear()
    gc.collect()
    later = make(), make()
    assert [counted(keyed, *later) for _ in range(3)] == [[False, False], [False, False], [False, True]]


def test_views_of_all_shards_are_told_by_their_class() -> None:
    kind = type("ShardedTensor", (torch.Tensor,), {})
    assert is_sharded_tensor(torch.zeros(1).as_subclass(kind))
    assert not is_sharded_tensor(nn.Parameter(torch.zeros(1)))
