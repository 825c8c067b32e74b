from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.recorder.model import recommenders as stand_ins
from tests.recorder.model.recommenders import Interaction, KeyedJaggedTensor, SequenceTable, Table, torchrec
from torchx_cubicml.recorder.model.batch import find_batch
from torchx_cubicml.recorder.model.pooling import PoolingObserver

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["torchrec"]


def unguarded(hook: Callable[..., object]) -> Callable[..., None]:
    def call(*args: object) -> None:
        hook(*args)

    return call


def observed() -> tuple[Interaction, PoolingObserver]:
    bags = stand_ins.EmbeddingBagCollection(
        Table(name="ads", feature_names=("a", "b")), Table(name="pages", feature_names=("b",))
    )
    model = Interaction(bags, stand_ins.EmbeddingCollection(SequenceTable(name="clicks", feature_names=("c",))))
    return model, PoolingObserver(model, unguarded)


BATCH = KeyedJaggedTensor(["a", "b", "c"], [1, 0, 3, 1, 5, 0])  # of two samples


@pytest.mark.usefixtures("torchrec")
class TestPoolingObserver:
    def test_rows_of_all_features_of_a_table_count(self) -> None:
        model, observer = observed()
        assert observer.facts() == {}
        model(BATCH)
        assert observer.facts() == {"embedding_pooling": (2.5, 2.0, 2.5)}

    def test_the_mean_is_over_samples_of_all_forwards(self) -> None:
        model, observer = observed()
        model(BATCH)
        more = [0] * 6 + [9] * 6 + [4] * 3 + [1] * 3 + [0] * 6
        model(KeyedJaggedTensor(["c", "other", "b", "a"], more))  # of six samples, with a key of no table
        assert observer.facts() == {"embedding_pooling": (2.5, 2.375, 0.625)}

    def test_forwards_without_training_do_not_count(self) -> None:
        model, observer = observed()
        with torch.no_grad():
            model(BATCH)
        model.eval()
        model(BATCH)
        assert observer.facts() == {}

    def test_hooks_are_removed_after_enough_forwards(self) -> None:
        model, observer = observed()
        for _ in range(32):
            model(BATCH)
        assert not any(module._forward_pre_hooks for module in model.modules())
        model(KeyedJaggedTensor(["a", "b", "c"], [9] * 6))
        assert observer.facts() == {"embedding_pooling": (2.5, 2.0, 2.5)}

    def test_release_removes_the_hooks(self) -> None:
        model, observer = observed()
        observer.release()
        observer.release()
        assert not any(module._forward_pre_hooks for module in model.modules())

    def test_unknown_samples_leave_the_fact_out(self) -> None:
        for batch in (KeyedJaggedTensor(["a"], [1, 2]), KeyedJaggedTensor(["a", "b", "c"], [1] * 3)):
            batch.is_variable = batch.stride() == 1
            model, observer = observed()
            model(batch)
            assert observer.facts() == {}
            assert not model.sparse[0]._forward_pre_hooks

    def test_very_many_tables_are_not_watched(self) -> None:
        tables = [Table(name=f"t{index}", num_embeddings=1) for index in range(1001)]
        model = stand_ins.EmbeddingBagCollection(*tables)
        PoolingObserver(model, unguarded)
        assert not model._forward_pre_hooks

    @pytest.mark.parametrize("by_offsets", [False, True])
    def test_a_jagged_batch_tells_its_samples(self, by_offsets: bool) -> None:
        batch = find_batch((KeyedJaggedTensor(["a", "b"], [1, 2, 3, 4, 5, 6], by_offsets=by_offsets),), {})
        assert batch is not None
        assert batch.read((KeyedJaggedTensor(["a", "b"], [1] * 10, by_offsets=by_offsets),), {}) == (5, None)
        assert batch.agreeing(7, (BATCH,), {}) == batch
        mixed = find_batch((BATCH, torch.zeros(3, 2)), {})
        assert mixed is not None
        assert mixed.path == (1,)

    def test_a_jagged_batch_without_common_samples_is_none(self) -> None:
        batch = KeyedJaggedTensor(["a"], [1, 2])
        batch.is_variable = True
        assert find_batch((batch,), {}) is None
        assert find_batch((KeyedJaggedTensor([], []),), {}) is None
