"""Doubt about tables and dense layers that a command leaves open or only suggests."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from torchx_cubicml.advisor.command_explanation.doubtful_tables import doubtful_tables
from torchx_cubicml.launch.command_facts.command_facts import CommandFacts

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

TABLES: dict[str, Value] = {"embedding_rows": (10, 20), "embedding_dims": (4, 4)}


def probabilities(facts: dict[str, Value], *assumed: str, unknown: tuple[str, ...] = ()) -> dict[str, float]:
    known = CommandFacts(facts=facts, sources={}, assumed=frozenset(assumed), unknown=unknown)
    total: defaultdict[str, float] = defaultdict(float)
    for fact, value, probability in doubtful_tables(known):
        assert value != facts.get(fact)
        total[fact] += probability
    return dict(total)


def test_what_is_certain_leaves_no_doubt() -> None:
    certain = {**TABLES, "embedding_sharding": ("row_wise",) * 2, "layer_n_params": (100,), "embedding_pooling": (1.0,)}
    assert probabilities(certain) == {}
    assert probabilities({"n_layers": 3}) == {}


def test_the_planner_an_unknown_dense_part_and_assumed_facts_leave_some() -> None:
    planner = {**TABLES, "embedding_sharding": ("planner",) * 2}
    doubt = probabilities(planner, unknown=("embedding_pooling",))
    assert set(doubt) == {"embedding_sharding", "embedding_pooling", "layer_n_params"}
    assert all(0.0 < probability <= 1.0 for probability in doubt.values())
    assumed = probabilities({**planner, "layer_n_params": (100, 8)}, "layer_n_params")
    assert 0.0 < assumed["layer_n_params"] < doubt["layer_n_params"]


def test_a_plan_that_a_launch_has_shown_leaves_none() -> None:
    shown = {**TABLES, "embedding_sharding": ("planner",) * 2, "embedding_plan": ("row_wise",) * 2}
    assert "embedding_sharding" not in probabilities({**shown, "layer_n_params": (100,)})
