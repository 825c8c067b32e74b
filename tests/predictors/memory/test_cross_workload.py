from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from torchx_cubicml.predictors.features.history import TrainingTable
from torchx_cubicml.predictors.memory.cross_workload import CrossWorkloadFeasibility
from torchx_cubicml.predictors.memory.order import MemoryOrder
from torchx_cubicml.records.trial import Trial

WORKLOAD = {"program": "a.py", "world_size": 2}
FAILURES = ("unknown", "user_error", "infrastructure", "timeout")


def trial(batch: int, outcome: str, *, strategy: str = "FULL_SHARD") -> Trial:
    config = {"micro_batch_size": batch, "sharding_strategy": strategy}
    if outcome == "ran":
        return Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=100.0 * batch)
    return Trial.infeasible(workload=WORKLOAD, config=config, reason=outcome)


def chances(
    trials: list[Trial], batches: list[int], *, compare: bool = True, strategy: str = "FULL_SHARD"
) -> list[float]:
    history = TrainingTable.from_trials(trials, objective="tokens_per_second")
    names = ("program", "world_size", "micro_batch_size", "sharding_strategy") if compare else ()
    fitted = CrossWorkloadFeasibility(order=MemoryOrder.of_names(names)).fit(history, rng=np.random.default_rng(0))
    rows = [{**WORKLOAD, "micro_batch_size": batch, "sharding_strategy": strategy} for batch in batches]
    return fitted.probability(history.columns.encode(rows), rows).tolist()


def test_the_tables_of_the_fullest_rank_count_by_their_sharding() -> None:
    job = {"world_size": 8, "micro_batch_size": 512, "device": "NVIDIA H100 80GB HBM3"}
    tables = {"embedding_rows": (150_000_000, 1000), "embedding_dims": (128, 128)}  # the first takes 77 GB
    words = [("row_wise", "table_wise"), ("table_wise", "row_wise")]
    trials = [
        Trial.completed(workload={**job, **tables}, config={"embedding_sharding": words[0]}, samples_per_second=9.0)
    ]
    history = TrainingTable.from_trials(trials, objective="samples_per_second")
    fitted = CrossWorkloadFeasibility().fit(history, rng=np.random.default_rng(0))
    rows = [{**job, **tables, "embedding_sharding": each} for each in words]
    by_rows, by_tables = fitted.probability(history.columns.encode(rows), rows).tolist()
    assert by_rows > 0.9
    assert by_tables < by_rows - 0.1


def test_an_unknown_config_probably_fits() -> None:
    assert chances([], [4]) == pytest.approx([0.95], abs=0.02)


def test_more_appetite_than_anything_that_ran_is_less_sure() -> None:
    at, beyond, far_beyond = chances([trial(4, "ran")], [4, 16, 256])
    assert at > 0.9
    assert at > beyond > far_beyond > 0.05


def test_a_recorded_out_of_memory_is_never_feasible() -> None:
    known = [trial(batch, "ran") for batch in (1, 2, 16, 32)] + [trial(8, "out_of_memory")]
    assert chances(known, [8])[0] == 0.0


def test_limits_go_before_what_is_learned() -> None:
    small, large = chances([trial(8, "ran"), trial(16, "out_of_memory")], [4, 64])
    assert small >= 0.99
    assert large == 0.0


def test_between_the_limits_the_chance_falls() -> None:
    trials = [trial(2, "ran"), trial(128, "out_of_memory")]
    between = chances(trials, [4, 16, 64])
    assert between == sorted(between, reverse=True)
    assert 0.0 < between[-1] < between[0] < 0.99


def test_less_sharding_is_less_sure_after_an_out_of_memory() -> None:
    trials = [trial(batch, "ran") for batch in (2, 4, 8)] + [trial(8, "out_of_memory", strategy="NO_SHARD")]
    assert chances(trials, [16], strategy="NO_SHARD")[0] == 0.0
    assert chances(trials, [4], strategy="NO_SHARD")[0] < chances(trials, [4])[0]


@pytest.mark.parametrize("cause", FAILURES)
def test_a_failure_of_unknown_cause_lowers_and_never_excludes(cause: str) -> None:
    ran = [trial(batch, "ran") for batch in (2, 4, 8)]
    before, after = chances(ran, [32])[0], chances([*ran, *[trial(32, cause)] * 3], [32])[0]
    assert 0.0 < after < before


def test_many_outcomes_are_learned() -> None:
    rng = np.random.default_rng(0)
    batches = (2 ** rng.integers(0, 8, 200)).tolist()
    # The wall lies at 16; without names to compare by, nothing but learning can find it.
    trials = [trial(batch, "ran" if batch <= 16 else "out_of_memory") for batch in batches]
    low, high = chances(trials, [8, 64], compare=False)
    assert low > 0.9
    assert high < 0.1


def test_a_larger_micro_batch_is_never_likelier_to_fit() -> None:
    rng = np.random.default_rng(1)
    batches = (2 ** rng.integers(0, 8, 200)).tolist()
    trials = [trial(batch, "ran" if (batch <= 16) == (rng.random() < 0.8) else "out_of_memory") for batch in batches]
    probabilities = chances(trials, [2**power for power in range(8)], compare=False)
    assert all(after <= before + 1e-9 for before, after in pairwise(probabilities))


def test_the_order_of_trials_is_free() -> None:
    trials = [trial(2**power, "ran" if power < 3 else "unknown") for power in range(6)]
    assert chances(trials, [4, 32]) == chances(trials[::-1], [4, 32])


GPT = {"n_layers": 24, "d_model": 2048, "seq_len": 1024, "vocab_size": 50_000, "device": "NVIDIA A100-SXM4-80GB"}


def gpt(width: int, batch: int, *, wall_gib: float = 60.0) -> Trial:
    """Return a trial that runs while a made-up law of memory stays under the wall."""
    facts = {**GPT, "d_model": width, "world_size": 8}
    need = 16e-9 * 12 * 24 * width**2 + 9e-6 * 1024 * batch * width
    if need < wall_gib:
        return Trial.completed(workload=facts, config={"micro_batch_size": batch}, tokens_per_second=1.0 * batch)
    return Trial.infeasible(workload=facts, config={"micro_batch_size": batch})


def test_the_memory_formula_covers_an_unseen_model() -> None:
    known = [gpt(width, batch) for width in (1024, 1536, 2048) for batch in (1, 2, 4, 8, 16, 32)]
    history = TrainingTable.from_trials(known, objective="tokens_per_second")
    fitted = CrossWorkloadFeasibility().fit(history, rng=np.random.default_rng(0))
    asked = [gpt(3072, batch) for batch in (1, 2, 32)]
    rows = [{**trial.workload, **trial.config} for trial in asked]
    small, middle, large = fitted.probability(history.columns.encode(rows), rows).tolist()
    assert small > middle > large
    assert large < 0.1


def test_a_measured_peak_says_how_much_more_fits() -> None:
    def chance(peak_gib: float) -> float:
        facts, config = {**GPT, "world_size": 8}, {"micro_batch_size": 4}
        ran = Trial.completed(workload=facts, config=config, tokens_per_second=1.0, peak_memory_gib=peak_gib)
        history = TrainingTable.from_trials([ran], objective="tokens_per_second")
        rows = [{**facts, "micro_batch_size": 8}]
        fitted = CrossWorkloadFeasibility().fit(history, rng=np.random.default_rng(0))
        return float(fitted.probability(history.columns.encode(rows), rows)[0])

    assert chance(30.0) > chance(70.0)


def test_a_row_may_name_a_layout_that_no_outcome_has() -> None:
    history = TrainingTable.from_trials(
        [trial(batch, "ran" if batch <= 8 else "out_of_memory") for batch in [1, 2, 4, 8, 16, 32, 64, 128] * 6],
        objective="tokens_per_second",
    )
    fitted = CrossWorkloadFeasibility().fit(history, rng=np.random.default_rng(0))
    rows = [{**GPT, **WORKLOAD, "micro_batch_size": batch} for batch in (1, 128)]
    assert np.isfinite(fitted.probability(history.columns.encode(rows), rows)).all()


@pytest.mark.parametrize(
    ("n_ran", "n_lost", "trees"), [(19, 40, False), (20, 40, True), (40, 19, False), (40, 20, True)]
)
def test_trees_need_twenty_outcomes_of_each_kind(n_ran: int, n_lost: int, trees: bool) -> None:
    trials = [trial(1 + place % 4, "ran") for place in range(n_ran)]
    trials += [trial(32 + place % 4, "out_of_memory") for place in range(n_lost)]
    history = TrainingTable.from_trials(trials, objective="tokens_per_second")
    fitted = CrossWorkloadFeasibility().fit(history, rng=np.random.default_rng(0))
    assert (fitted.trees_ is not None) is trees


def test_a_history_may_lack_all_peaks() -> None:
    history = TrainingTable.from_trials([trial(4, "ran"), trial(64, "out_of_memory")], objective="tokens_per_second")
    rows = [{**WORKLOAD, "micro_batch_size": batch, "sharding_strategy": "FULL_SHARD"} for batch in (2, 16)]
    without, bare = (
        CrossWorkloadFeasibility()
        .fit(each, rng=np.random.default_rng(0))
        .probability(history.columns.encode(rows), rows)
        .tolist()
        for each in (history, replace(history, peak_memory_gib=None))
    )
    assert without == bare
