"""Features of choice vectors, which are those of the configs at them."""

from __future__ import annotations

import numpy as np
import pytest

from torchx_cubicml.predictors.features.columns import Columns
from torchx_cubicml.predictors.features.rows import FactRows, VectorColumns, encode_rows
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.encoding import config_at, drawn_rows
from torchx_cubicml.space.expression import parse_expression

WORKLOAD = {"world_size": 8, "n_layers": 5}
FACTS = {"device": "H100", "tp": "hidden by the choice", "batch": 7}


@pytest.fixture
def space() -> SearchSpace:
    """Of a parameter of each kind: per layer, a number, derived, conditional."""
    return SearchSpace(
        parameters=(
            Parameter(name="kernel", choices=("x", "y", "z"), per_layer="n_layers", groups=2),
            Parameter(name="depth", choices=(1, 2), per_layer=3),
            Parameter(name="tp", choices=(1, 2, 4)),
            Parameter(name="offload", choices=(False, True), when=parse_expression("tp > 1", where=""), default=False),
            Parameter(name="batch", derive=parse_expression("world_size / tp", where="")),
        )
    ).bind(workload=WORKLOAD, current={})


@pytest.fixture
def vectors(space: SearchSpace) -> np.ndarray:
    return drawn_rows(space, 50, rng=np.random.default_rng(0))


def test_features_at_vectors_are_those_of_the_configs(space: SearchSpace, vectors: np.ndarray) -> None:
    rows = [{**FACTS, **config_at(space, vector)} for vector in vectors]
    columns = Columns.from_rows([*rows[:10], {"unknown": 1.0, "device": "A100"}, {"unknown": 2.0}])
    features = VectorColumns(space, columns, facts=FACTS).encode(vectors)
    np.testing.assert_array_equal(features, columns.encode(rows))
    assert np.isnan(features[:, columns.names.index("unknown")]).all()
    assert set(features[:, columns.names.index("batch")].tolist()) == {8.0, 4.0, 2.0}


@pytest.mark.parametrize(
    "instead", [{"tp": 4}, {"kernel": "z", "batch": 1}, {"device": "A100"}, {"depth": (2, 2, 1), "offload": True}]
)
def test_what_stands_in_for_a_choice_is_encoded(
    space: SearchSpace, vectors: np.ndarray, instead: dict[str, object]
) -> None:
    rows = [{**FACTS, **config_at(space, vector), **instead} for vector in vectors]
    columns = Columns.from_rows([*rows[:10], *({**row, "device": "A100", "tp": 4} for row in rows[:2])])
    source = FactRows(space, facts=FACTS, instead=instead)
    assert [source.of(config_at(space, vector)) for vector in vectors] == rows
    np.testing.assert_array_equal(encode_rows(columns, source.at(vectors)), columns.encode(rows))


def test_rows_at_vectors_are_a_sequence(space: SearchSpace, vectors: np.ndarray) -> None:
    source = FactRows(space, facts=FACTS, instead={})
    rows = source.at(vectors)
    plain = [{**FACTS, **config_at(space, vector)} for vector in vectors]
    assert len(rows) == 50
    assert rows[3] == plain[3]
    assert list(rows) == list(rows) == plain
    assert list(rows[3:7]) == plain[3:7]
    assert list(source.at(vectors[:0])) == []
    assert source.config_at(vectors[0]) == config_at(space, vectors[0])


def test_each_table_of_columns_has_its_own_encoder(space: SearchSpace, vectors: np.ndarray) -> None:
    source = FactRows(space, facts=FACTS, instead={})
    rows = source.at(vectors)
    tables = Columns.from_rows([{"tp": 1}, {"tp": 2}]), Columns.from_rows([{"batch": 1}, {"batch": 2}])
    for columns in (*tables, *tables):
        assert source.encoder(columns) is source.encoder(columns)
        np.testing.assert_array_equal(encode_rows(columns, rows), columns.encode(list(rows)))
    assert encode_rows(tables[0], source.at(vectors[:0])).shape == (0, 1)
    np.testing.assert_array_equal(encode_rows(tables[0], [{"tp": 2}, {}]), [[2.0], [np.nan]])
