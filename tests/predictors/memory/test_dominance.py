from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.predictors.memory.dominance import Contradiction, DominanceRules, at_least
from torchx_cubicml.predictors.memory.order import MemoryOrder

ROW = {"program": "a.py", "sharding_strategy": ("FULL_SHARD", "NO_SHARD"), "micro_batch_size": 8}
NAMES = ("program", "sharding_strategy", "micro_batch_size")
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
WORDS = dict(zip("FSN", STRATEGIES, strict=True))


def rules_of(*outcomes: tuple[dict[str, object], bool], names: tuple[str, ...] = NAMES) -> DominanceRules:
    order = MemoryOrder.of_names(names)
    return DominanceRules.of([(row, fits, f"t{at}") for at, (row, fits) in enumerate(outcomes)], order=order)


def verdict(asked: dict[str, object], *outcomes: tuple[int, bool]) -> float:
    rules = rules_of(*(({**ROW, "micro_batch_size": batch}, fits) for batch, fits in outcomes))
    return float(rules.verdicts([{**ROW, **asked}])[0])


@pytest.mark.parametrize(
    ("batch", "expected"), [(2, 1.0), (4, 1.0), (8, math.nan), (16, 0.0), (32, 0.0)], ids=lambda value: f"{value}"
)
def test_known_outcomes_decide_larger_and_smaller_batches(batch: int, expected: float) -> None:
    assert verdict({"micro_batch_size": batch}, (4, True), (16, False)) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    "other", [{"program": "b.py"}, {"sharding_strategy": ("NO_SHARD", "FULL_SHARD")}], ids=["workload", "layers"]
)
def test_other_workloads_and_incomparable_configs_are_unknown(other: dict[str, object]) -> None:
    assert math.isnan(verdict({**other, "micro_batch_size": 64}, (4, True), (16, False)))


def test_a_failure_outweighs_a_success_of_the_same_config() -> None:
    assert verdict({"micro_batch_size": 8}, (8, False), (8, True)) == 0.0
    assert verdict({"micro_batch_size": 16}, (8, False), (8, True)) == 0.0


def test_rows_that_lack_a_name_are_compared_with_each_other() -> None:
    bare = {"program": "a.py", "micro_batch_size": 8}
    rules = rules_of((bare, False))
    assert math.isnan(rules.verdicts([ROW])[0])
    assert rules.verdicts([{**bare, "micro_batch_size": 16}])[0] == 0.0


def test_a_config_without_an_order_is_compared_with_itself() -> None:
    rules = rules_of(({"tp_degree": 1}, False), ({"tp_degree": 2}, True), names=("tp_degree",))
    assert rules.verdicts([{"tp_degree": 1}, {"tp_degree": 2}, {"tp_degree": 4}]) == pytest.approx(
        [0.0, 1.0, math.nan], nan_ok=True
    )


def test_rows_without_names_are_unknown() -> None:
    assert math.isnan(rules_of((ROW, False), names=()).verdicts([ROW])[0])


def layers(word: str, batch: int) -> dict[str, object]:
    return {"sharding_strategy": tuple(WORDS[letter] for letter in word), "micro_batch_size": batch}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (layers("NNFF", 20), 0.0),
        (layers("SSSF", 20), 0.0),
        (layers("SSFF", 24), 0.0),
        (layers("SSFF", 19), math.nan),
        (layers("NFNN", 24), math.nan),  # its second layer is sharded more
        ({"sharding_strategy": "SHARD_GRAD_OP", "micro_batch_size": 20}, 0.0),
        ({"sharding_strategy": "FULL_SHARD", "micro_batch_size": 20}, math.nan),
        ({"sharding_strategy": "FULL_SHARD", "micro_batch_size": 8}, 1.0),
        (layers("FFFF", 4), 1.0),
        (layers("FFFS", 4), math.nan),
        (layers("SSFFF", 20), math.nan),  # another model
    ],
    ids=str,
)
def test_layers_are_compared_one_by_one(asked: dict[str, object], expected: float) -> None:
    rules = rules_of((layers("SSFF", 20), False), (layers("FFFF", 8), True))
    assert rules.verdicts([asked])[0] == pytest.approx(expected, nan_ok=True)


def test_one_value_for_all_layers_bounds_values_per_layer() -> None:
    rules = rules_of(
        ({"sharding_strategy": "SHARD_GRAD_OP", "micro_batch_size": 16}, False),
        ({"sharding_strategy": "SHARD_GRAD_OP", "micro_batch_size": 4}, True),
    )
    asked = [layers("SSNS", 16), layers("SSFS", 16), layers("SSFS", 4), layers("SSNS", 4)]
    assert rules.verdicts(asked) == pytest.approx([0.0, math.nan, 1.0, math.nan], nan_ok=True)


def test_the_users_own_config_is_excluded_by_itself_alone() -> None:
    own = {"program": "a.py", "micro_batch_size": 8}
    order = MemoryOrder(
        parameters=("program", "micro_batch_size"), respects={"micro_batch_size": "micro_batch_size"}, own=own
    )
    below, itself = (
        DominanceRules.of([({**own, "micro_batch_size": size}, False, "t")], order=order) for size in (4, 8)
    )
    asked = [own, {**own, "micro_batch_size": 16}]
    assert below.verdicts(asked) == pytest.approx([math.nan, 0.0], nan_ok=True)
    assert itself.verdicts(asked).tolist() == [0.0, 0.0]


def test_a_launch_against_the_rule_lifts_it_for_its_parameter() -> None:
    low, middle, high = ({**ROW, "micro_batch_size": size} for size in (4, 8, 16))
    more = {**ROW, "sharding_strategy": "NO_SHARD"}
    rules = rules_of((low, False), (middle, True))
    assert rules.contradictions == (Contradiction(ran="t1", failed="t0", parameters=("micro_batch_size",)),)
    asked = [low, middle, high, {**more, "micro_batch_size": 4}, {**more, "micro_batch_size": 8}]
    assert rules.verdicts(asked) == pytest.approx([0.0, 1.0, math.nan, 0.0, math.nan], nan_ok=True)


def test_of_several_explanations_the_simplest_is_taken() -> None:
    rules = rules_of((layers("FF", 4), False), (layers("FF", 8), True), (layers("SS", 8), True))
    assert [each.parameters for each in rules.contradictions] == [("micro_batch_size",)]
    both = rules_of((layers("FF", 4), False), (layers("SS", 8), True))
    assert [each.parameters for each in both.contradictions] == [("micro_batch_size", "sharding_strategy")]
    assert np.isnan(both.verdicts([layers("NN", 4), layers("FF", 8)])).all()


def test_a_feared_failure_excludes_what_needs_as_much() -> None:
    rules = rules_of(({**ROW, "micro_batch_size": 2}, True))
    feared = rules.fearing([{**ROW, "micro_batch_size": 8}]).fearing([{**ROW, "micro_batch_size": 4}])
    asked = [{**ROW, "micro_batch_size": size} for size in (1, 3, 4, 16)]
    assert feared.verdicts(asked) == pytest.approx([1.0, math.nan, 0.0, 0.0], nan_ok=True)
    assert rules.verdicts(asked) == pytest.approx([1.0, math.nan, math.nan, math.nan], nan_ok=True)


ACCUMULATED = ("micro_batch_size", "gradient_accumulation_steps")


@pytest.mark.parametrize(
    ("sharded", "batch", "steps", "expected"),
    [
        (False, 8, 1, True),  # half as many rounds of twice the batch
        (False, 4, 4, True),
        (False, 8, 2, True),
        (False, 4, 1, False),  # a pipeline keeps fewer of them
        (True, 8, 1, False),  # gradients are not kept between micro batches
        (True, 8, 2, True),
    ],
)
def test_rounds_of_a_larger_batch_need_as_much(sharded: bool, batch: int, steps: int, expected: bool) -> None:
    names = (*ACCUMULATED, "zero_stage") if sharded else ACCUMULATED
    rows = [
        {"micro_batch_size": b, "gradient_accumulation_steps": s, "zero_stage": 3} for b, s in ((batch, steps), (4, 2))
    ]
    found = at_least(rows[:1], rows[1], order=MemoryOrder.of_names(names))
    assert found.tolist() == [expected]


def accumulated(batch: int, steps: int) -> dict[str, object]:
    return {"micro_batch_size": batch, "gradient_accumulation_steps": steps}


@pytest.mark.parametrize(
    ("ran", "failed", "blamed"),
    [
        ((8, 1), (4, 1), ["micro_batch_size"]),
        ((8, 2), (4, 3), ["micro_batch_size"]),
        ((4, 2), (4, 1), ["gradient_accumulation_steps"]),
        ((8, 2), (4, 1), ["gradient_accumulation_steps", "micro_batch_size"]),
    ],
)
def test_a_contradiction_blames_what_is_larger_of_batch_and_steps(
    ran: tuple[int, int], failed: tuple[int, int], blamed: list[str]
) -> None:
    rules = rules_of((accumulated(*failed), False), (accumulated(*ran), True), names=ACCUMULATED)
    assert [list(each.parameters) for each in rules.contradictions] == [blamed]


def test_steps_keep_their_order_beside_a_micro_batch_without_one() -> None:
    rules = rules_of((accumulated(4, 2), False), (accumulated(8, 2), True), names=ACCUMULATED)
    asked = [accumulated(*each) for each in ((4, 1), (4, 4), (8, 1), (8, 4), (2, 1), (16, 4))]
    assert rules.verdicts(asked) == pytest.approx([math.nan, 0.0, 1.0, math.nan, math.nan, math.nan], nan_ok=True)


CONFIGS = [layers("".join(word), batch) for word in product("FSN", repeat=2) for batch in (1, 2, 4)]
NEEDS = st.tuples(st.integers(0, 9), *[st.integers(0, 9)] * 2, st.integers(0, 30))


def need(config: dict[str, object], weights: tuple[int, ...]) -> int:
    """A made-up law under which nothing takes less memory with less sharding or a larger batch."""
    per_batch, *per_layer, _ = weights
    strategies = config["sharding_strategy"]
    sharding = sum(w * STRATEGIES.index(name) for w, name in zip(per_layer, strategies, strict=True))
    return per_batch * config["micro_batch_size"] + sharding


def slow_at_least(config: dict[str, object], other: dict[str, object]) -> bool:
    pairs = zip(config["sharding_strategy"], other["sharding_strategy"], strict=True)
    return config["micro_batch_size"] >= other["micro_batch_size"] and all(
        STRATEGIES.index(a) >= STRATEGIES.index(b) for a, b in pairs
    )


@settings(max_examples=60)
@given(st.sampled_from(CONFIGS), st.sampled_from(CONFIGS), st.sampled_from(CONFIGS))
def test_the_order_is_a_partial_order(a: dict[str, object], b: dict[str, object], c: dict[str, object]) -> None:
    order = MemoryOrder.of_names(NAMES)
    a_b, b_c, a_c, b_a = (bool(at_least([x], y, order=order)[0]) for x, y in ((a, b), (b, c), (a, c), (b, a)))
    assert a_b == slow_at_least(a, b)
    assert a_c or not (a_b and b_c)
    assert a == b or not (a_b and b_a)


@settings(max_examples=60)
@given(weights=NEEDS, tried=st.lists(st.sampled_from(CONFIGS), min_size=1, max_size=8))
def test_no_verdict_is_wrong_under_a_monotone_law(weights: tuple[int, ...], tried: list[dict[str, object]]) -> None:
    limit = weights[-1]
    rules = rules_of(*((config, need(config, weights) <= limit) for config in tried))
    assert not rules.contradictions
    for config, found in zip(CONFIGS, rules.verdicts(CONFIGS).tolist(), strict=True):
        assert math.isnan(found) or found == float(need(config, weights) <= limit)
        barred = any(need(t, weights) > limit and slow_at_least(config, t) for t in tried)
        fits = any(need(t, weights) <= limit and slow_at_least(t, config) for t in tried)
        assert (found == 0.0, found == 1.0) == (barred, fits)


@settings(max_examples=60)
@given(outcomes=st.lists(st.tuples(st.sampled_from(CONFIGS), st.booleans()), min_size=1, max_size=8))
def test_what_ran_is_never_excluded(outcomes: list[tuple[dict[str, object], bool]]) -> None:
    rules = rules_of(*outcomes)
    lost = [config for config, fits in outcomes if not fits]
    for config, fits in outcomes:
        if fits and config not in lost:
            assert rules.verdicts([config])[0] == 1.0
