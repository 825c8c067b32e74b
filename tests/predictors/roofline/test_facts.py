from __future__ import annotations

import numpy as np
import pytest

from torchx_cubicml.predictors.features.columns import Columns
from torchx_cubicml.predictors.roofline.facts import Decoder, Facts

ROWS = [
    {"n_layers": 4, "precision": "bf16", "sharding_strategy": "NO_SHARD", "compile": True, "device": "H100"},
    {"n_layers": 8, "precision": "fp8", "sharding_strategy": ("FULL_SHARD", "NO_SHARD") * 2, "compile": False},
    {"n_layers": 8, "sharding_strategy": ("FULL_SHARD",) * 4, "device": "A100", "seq_len": 512},
]


def decoded(rows: list[dict[str, object]] = ROWS) -> Facts:
    columns = Columns.from_rows(ROWS)
    return Decoder(columns, ROWS).facts(columns.encode(rows))


@pytest.mark.parametrize("facts", [Facts.from_rows(ROWS), decoded()], ids=["from rows", "from encoded columns"])
class TestFacts:
    def test_numbers_are_read_and_missing_ones_take_the_default(self, facts: Facts) -> None:
        assert facts.number("n_layers").tolist() == [4.0, 8.0, 8.0]
        assert facts.number("seq_len", 7.0).tolist() == [7.0, 7.0, 512.0]
        assert facts.number("tp_degree", 1.0).tolist() == [1.0, 1.0, 1.0]

    def test_a_word_per_layer_is_a_share_of_the_layers(self, facts: Facts) -> None:
        assert facts.share("sharding_strategy", ["FULL_SHARD"]).tolist() == [0.0, 0.5, 1.0]
        assert facts.share("sharding_strategy", ["NO_SHARD", "FULL_SHARD"]).tolist() == [1.0, 1.0, 1.0]

    def test_words_and_booleans_are_distinct(self, facts: Facts) -> None:
        assert facts.share("compile", ["True"]).tolist() == [1.0, 0.0, 0.0]
        assert facts.share("device", ["A100"]).tolist() == [0.0, 0.0, 1.0]

    def test_missing_facts_are_not_known(self, facts: Facts) -> None:
        assert facts.known("precision").tolist() == [True, True, False]
        assert not facts.known("pp_schedule").any()


def test_a_category_that_was_never_seen_is_unknown() -> None:
    facts = decoded([{"precision": "int4", "n_layers": 2}])
    assert not facts.known("precision").any()
    assert np.isnan(facts.number("seq_len")).all()


@pytest.mark.parametrize("value", [0, -1, 5e-324, 1e300, 2**64, True, "many", (4, 4)], ids=str)
def test_other_values_than_counts_and_sizes_are_not_known(value: object) -> None:
    assert Facts.from_rows([{"n_layers": value}]).number("n_layers", 7.0).tolist() == [7.0]


def test_a_word_is_known_in_any_spelling() -> None:
    facts = Facts.from_rows([{"activation_checkpointing": word} for word in ("every_layer", "Selective", "off", "odd")])
    assert facts.share("activation_checkpointing", ["full"]).tolist() == [1.0, 0.0, 0.0, 0.0]
    assert facts.share("activation_checkpointing", ["selective", "none"]).tolist() == [0.0, 1.0, 1.0, 0.0]


def test_a_number_of_zero_is_told_although_it_counts_nothing() -> None:
    facts = Facts.from_rows([{"zero_stage": 0}, {"zero_stage": 3}, {}, {"zero_stage": -1}, {"zero_stage": "three"}])
    assert facts.told("zero_stage").tolist() == [True, True, False, False, False]
    assert np.isnan(facts.number("zero_stage")).tolist() == [True, False, True, True, True]
    assert not Facts(n=2, numbers={}, shares={}).told("zero_stage").any()
