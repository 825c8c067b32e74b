from __future__ import annotations

import numpy as np
import pytest

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.predictors.features.columns import Columns
from torchx_cubicml.predictors.features.rows import FactRows, VectorColumns, encode_rows
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.encoding import config_at, distinct_rows, drawn_rows, legal_rows, vectors_of
from torchx_cubicml.space.expression import parse_expression

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")


def expression(text: str) -> object:
    return parse_expression(text, where="here")


def space_of(*constraints: str, groups: int | None = None) -> SearchSpace:
    """One parameter of every kind: per layer, numbers, words, switches, derived, conditional."""
    return SearchSpace(
        parameters=(
            Parameter(name="sharding_strategy", choices=STRATEGIES, per_layer="n_layers", groups=groups),
            Parameter(name="depths", choices=(1, 2, 4), per_layer=3),
            Parameter(name="micro_batch_size", choices=(1, 2, 4, 8, 16)),
            Parameter(name="tp_degree", choices=(1, 2, 4)),
            Parameter(name="compile", choices=(False, True)),
            Parameter(name="kernel", choices=("flash", "eager")),
            Parameter(name="async_tp", choices=(False, True), when=expression("tp_degree > 1"), default=False),
            Parameter(
                name="gradient_accumulation_steps",
                derive=expression("global_batch_size / (micro_batch_size * dp_degree)"),
            ),
        ),
        constraints=tuple(expression(text) for text in constraints),
    ).bind(workload={"world_size": 8, "n_layers": 7, "global_batch_size": 128}, current={})


SPACES = pytest.mark.parametrize(
    "space",
    [
        space_of(),
        space_of("micro_batch_size * tp_degree <= 16"),
        space_of("micro_batch_size <= 8 or compile", groups=3),
        space_of("max(depths) <= 2 * tp_degree"),
    ],
    ids=["free", "tied", "groups", "layers tied"],
)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def anywhere(space: SearchSpace, count: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers([len(dimension.choices) for dimension in space.dimensions], size=(count, len(space.dimensions)))


@SPACES
def test_a_row_is_legal_where_it_is_the_row_of_a_config(space: SearchSpace, rng: np.random.Generator) -> None:
    rows = anywhere(space, 300, rng)
    legal = legal_rows(space, rows)
    configs = [space.decode(row.tolist()) for row in rows]
    found = [
        config is not None and space.encode(config) == tuple(row) for config, row in zip(configs, rows, strict=True)
    ]
    assert legal.tolist() == found
    assert 0 < legal.sum() < len(legal)


@SPACES
def test_rows_become_the_features_of_their_configs(space: SearchSpace, rng: np.random.Generator) -> None:
    facts = {"world_size": 8, "program": "a.py", "device": "other"}
    seen = [{**facts, "device": "H100", **config} for config in space.sample(40, rng=rng)]
    columns = Columns.from_rows(seen)
    rows = drawn_rows(space, 60, rng=rng)
    wanted = columns.encode([{**facts, **config_at(space, row)} for row in rows])
    np.testing.assert_array_equal(VectorColumns(space, columns, facts=facts).encode(rows), wanted)


def test_unseen_values_are_missing(rng: np.random.Generator) -> None:
    space = space_of()
    columns = Columns.from_rows([{"kernel": "triton", "sharding_strategy": ("NO_SHARD",) * 9, "depths": 3}])
    rows = drawn_rows(space, 20, rng=rng)
    wanted = columns.encode([config_at(space, row) for row in rows])
    np.testing.assert_array_equal(VectorColumns(space, columns, facts={}).encode(rows), wanted)


def test_an_override_replaces_every_choice(rng: np.random.Generator) -> None:
    space = space_of()
    columns = Columns.from_rows([{"micro_batch_size": 4}, {"micro_batch_size": 3}])
    encoder = VectorColumns(space, columns, facts={}, instead={"micro_batch_size": 3})
    assert encoder.encode(drawn_rows(space, 5, rng=rng)).tolist() == [[3.0]] * 5


@SPACES
def test_draws_are_legal_and_configs_come_back_as_rows(space: SearchSpace, rng: np.random.Generator) -> None:
    rows = drawn_rows(space, 50, rng=rng)
    assert legal_rows(space, rows).all()
    np.testing.assert_array_equal(vectors_of(space, [config_at(space, row) for row in rows]), rows)


def test_an_empty_table_is_legal() -> None:
    space = space_of("micro_batch_size * tp_degree <= 16")
    none = vectors_of(space, [])
    assert legal_rows(space, none).tolist() == []
    columns = Columns.from_rows([{"compile": True}])
    assert VectorColumns(space, columns, facts={}).encode(none).shape == (0, 1)


def test_an_illegal_row_has_no_config() -> None:
    space = space_of("micro_batch_size <= 8")
    worst = np.array([len(dimension.choices) - 1 for dimension in space.dimensions])
    with pytest.raises(SpaceError, match="not a legal config"):
        config_at(space, worst)


def test_distinct_rows_of_a_hundred_columns(rng: np.random.Generator) -> None:
    table = rng.integers(3, size=(50, 100))[rng.integers(50, size=400)]
    first, which = distinct_rows(table)
    assert len(first) == len(np.unique(table, axis=0))
    np.testing.assert_array_equal(table[first][which], table)


@SPACES
def test_rows_of_facts_at_vectors_are_those_of_their_configs(space: SearchSpace, rng: np.random.Generator) -> None:
    source = FactRows(space, facts={"device": "H100", "kernel": "none"}, instead={"compile": True})
    vectors = drawn_rows(space, 20, rng=rng)
    rows, plain = source.at(vectors), [source.of(config_at(space, vector)) for vector in vectors]
    assert list(rows) == plain
    assert list(rows[3:7]) == plain[3:7]
    columns = Columns.from_rows(plain)
    np.testing.assert_array_equal(encode_rows(columns, rows), encode_rows(columns, plain))
