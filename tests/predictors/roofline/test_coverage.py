"""What is told of trials that the roofline formulas do not cover."""

from __future__ import annotations

import pytest

from torchx_cubicml.predictors.roofline.coverage import estimated_roofline_facts, missing_roofline_facts
from torchx_cubicml.records.trial import Trial

FACTS = {"n_layers": 32, "d_model": 4096, "seq_len": 2048, "micro_batch_size": 2, "world_size": 8}
RECOMMENDER = {
    "n_embedding_tables": 2,
    "embedding_dim": 64,
    "layer_n_params": (1000, 2000),
    "sharding_strategy": "FULL_SHARD",
    "micro_batch_size": 2,
    "world_size": 8,
}


def trial(facts: dict[str, object], *without: str, **more: object) -> Trial:
    workload = {name: value for name, value in {**facts, **more}.items() if name not in without}
    return Trial.completed(workload=workload, config={}, tokens_per_second=1.0)


CURE = "give --map COLUMN=NAME or --fact NAME=VALUE"


@pytest.mark.parametrize(
    "trials",
    [
        [],
        [trial(FACTS)],
        [trial(FACTS, "world_size", nnodes=2, nproc_per_node=4)],
        [trial(RECOMMENDER)],
        [trial(FACTS), trial(RECOMMENDER)],
    ],
    ids=["none", "all facts", "nodes", "recommender", "both"],
)
def test_nothing_is_told_where_all_trials_are_covered(trials: list[Trial]) -> None:
    assert missing_roofline_facts(trials) == ""


@pytest.mark.parametrize("name", FACTS)
def test_a_fact_that_is_missing_is_named(name: str) -> None:
    found = missing_roofline_facts([trial(FACTS), trial(FACTS, name), trial(FACTS, **{name: "a word"})])
    assert found == (f"the roofline formulas cover 1 of 3 trials; the others lack {name} (2): {CURE}")


def test_missing_facts_are_counted_the_most_frequent_first() -> None:
    trials = [trial(FACTS, "seq_len"), trial(FACTS, "seq_len", "d_model"), trial(RECOMMENDER)]
    assert missing_roofline_facts(trials) == (
        f"the roofline formulas cover 1 of 3 trials; the others lack seq_len (2), d_model (1): {CURE}"
    )


def test_degrees_that_do_not_divide_the_ranks_are_told() -> None:
    assert "the others lack degrees that divide world_size: give" in missing_roofline_facts(
        [trial(FACTS, tp_degree=16)]
    )


def test_the_number_of_parameters_stands_for_the_width_alone() -> None:
    assert missing_roofline_facts([trial(FACTS, "d_model", n_params=10**9)]) == ""
    found = missing_roofline_facts([trial(FACTS, "n_layers", n_params=10**9)])
    assert "the others lack n_layers (1): give" in found


TOLD = {"attention_kernel": "flash", "zero_stage": 0, "vocab_size": 50_000}


@pytest.mark.parametrize(
    ("lacking", "names"),
    [
        ((), ""),
        (("attention_kernel",), "attention_kernel (1)"),
        (("zero_stage",), "zero_stage or sharding_strategy (1)"),
        (("attention_kernel", "vocab_size"), "attention_kernel (1), vocab_size (1)"),
    ],
)
def test_facts_that_are_estimated_are_named(lacking: tuple[str, ...], names: str) -> None:
    found = estimated_roofline_facts([trial({**FACTS, **TOLD}), trial({**FACTS, **TOLD}, *lacking)])
    assert found == (f"the roofline formulas estimate what trials do not state: {names}" if names else "")


def test_nothing_is_estimated_for_trials_without_formulas() -> None:
    assert estimated_roofline_facts([trial(FACTS, "seq_len"), trial(RECOMMENDER)]) == ""
    assert estimated_roofline_facts([]) == ""
