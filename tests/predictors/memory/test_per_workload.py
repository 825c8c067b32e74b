from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.predictors.features.history import TrainingTable
from torchx_cubicml.predictors.memory.order import MemoryOrder
from torchx_cubicml.predictors.memory.per_workload import WorkloadFeasibility
from torchx_cubicml.predictors.memory.usage_posterior import device_memory_gib
from torchx_cubicml.records.trial import State, Trial

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

WORKLOAD = {"program": "a.py", "world_size": 8}
NAMES = {"F": "FULL_SHARD", "S": "SHARD_GRAD_OP", "N": "NO_SHARD"}
LAYERS, ROOM = 8, 25.0
TUNED = {"micro_batch_size": tuple(range(1, 17)), "sharding_strategy": tuple(NAMES.values()), "cache": (0.1, 0.5)}


def config(word: str, batch: int, cache: float = 0.1) -> dict[str, object]:
    strategies = tuple(NAMES[letter] for letter in word)
    return {"sharding_strategy": strategies, "micro_batch_size": batch, "cache": cache}


def need(word: str, batch: int, cache: float = 0.1) -> float:
    return batch + 2 * word.count("S") + 5 * word.count("N") + 20 * cache


def outcome(word: str, batch: int, cache: float = 0.1) -> Trial:
    if need(word, batch, cache) > ROOM:
        return Trial.infeasible(workload=WORKLOAD, config=config(word, batch, cache))
    return Trial.completed(workload=WORKLOAD, config=config(word, batch, cache), tokens_per_second=1.0)


def chances(trials: list[Trial], *configs: dict[str, object], **given: object) -> list[float]:
    history = TrainingTable.from_trials(trials, objective="tokens_per_second", choices=TUNED)
    wall = WorkloadFeasibility(tuned=TUNED, **given).fit(history)
    rows = [{**WORKLOAD, **each} for each in configs]
    return wall.probability(history.columns.encode(rows), rows).tolist()


def test_hungrier_configs_fit_less_after_one_outcome() -> None:
    little, more, most = chances(
        [outcome("FFFFFFFF", 8)], config("FFFFFFFF", 8), config("SSSSSSSS", 8), config("NNNNNNNN", 16)
    )
    assert little > more > most


def test_outcomes_move_the_wall() -> None:
    asked = config("SSSSFFFF", 12)
    alone = [outcome("FFFFFFFF", 8)]
    (before,) = chances(alone, asked)
    (after,) = chances([*alone, outcome("SSSSFFFF", 14), outcome("SSSSSFFF", 12)], asked)
    assert after > max(before, 0.7)


def test_it_finds_where_the_wall_runs() -> None:
    rng = np.random.default_rng(0)
    drawn = [
        ("".join(rng.choice(list("FSN"), LAYERS, p=rng.dirichlet(np.ones(3)))), int(rng.integers(1, 17)), cache)
        for cache in (0.1, 0.5) * 60
    ]
    trials = [outcome(*each) for each in drawn]
    fitted = chances(trials[:60], *(config(*each) for each in drawn[60:]))
    right = [
        (chance > 0.5) == (trial.measurement is not None) for chance, trial in zip(fitted, trials[60:], strict=True)
    ]
    assert np.mean(right) > 0.85


def test_hard_limits_come_first() -> None:
    trials = [outcome("FFFFFFFF", 8), outcome("NNNNNNNN", 8)]
    compare = ["program", "sharding_strategy", "micro_batch_size", "cache"]
    asked = [config("FFFFFFFF", 4), config("NNNNNNNN", 12), config("NNNNNNNN", 8)]
    surely, *never = chances(trials, *asked, order=MemoryOrder.of_names(compare))
    assert surely >= 0.99
    assert never == [0.0, 0.0]


def test_a_failure_of_unknown_cause_lowers_and_never_excludes() -> None:
    trials = [outcome("FFFFFFFF", 8), outcome("SSFFFFFF", 8)]
    failed = Trial(trial_id="f", workload=WORKLOAD, config=config("SSFFFFFF", 10), state=State.UNKNOWN)
    (before,), (after,) = (chances(each, config("SSFFFFFF", 10)) for each in (trials, [*trials, failed]))
    assert 0.0 < after < before


def test_parameters_of_unknown_appetite_are_learned_too() -> None:
    def ran(kind: str, fits: bool) -> Trial:
        given = {"workload": WORKLOAD, "config": {"kind": kind}}
        return Trial.completed(**given, tokens_per_second=1.0) if fits else Trial.infeasible(**given)

    history = TrainingTable.from_trials([ran("a", True), ran("b", False)] * 2, objective="tokens_per_second")
    rows = [{**WORKLOAD, "kind": kind} for kind in "ab"]
    good, bad = WorkloadFeasibility().fit(history).probability(history.columns.encode(rows), rows)
    assert good > 0.6
    assert bad < 0.4
    assert good > bad + 0.3


def test_one_outcome_informs_hungrier_and_smaller_configs() -> None:
    trials = [outcome("SSSSSSSS", 6), outcome("NNFFSSSS", 14)]
    fits = chances(trials, config("SFSSFSFS", 6), config("SSSSSSSS", 5), config("NNNFSSSS", 14), config("NNFFSSSN", 16))
    assert min(fits[:2]) > 0.8
    assert max(fits[2:]) < 0.35


def test_recorded_peaks_say_where_the_wall_runs() -> None:
    rng = np.random.default_rng(1)
    drawn = [
        ("".join(rng.choice(list("FSN"), LAYERS, p=rng.dirichlet(np.ones(3)))), int(rng.integers(1, 17)))
        for _ in range(212)
    ]
    trials = [outcome(*each) for each in drawn[:12]]
    needed = {trial.trial_id: float(need(*each)) for trial, each in zip(trials, drawn[:12], strict=True)}
    history = TrainingTable.from_trials(trials, objective="tokens_per_second", choices=TUNED)
    peaks = np.array([needed[trial_id] for trial_id in history.trial_ids])
    rows = [{**WORKLOAD, **config(*each)} for each in drawn[12:]]
    fits = np.array([need(*each) <= ROOM for each in drawn[12:]], dtype=np.float64)
    with_peaks, without_peaks = (
        WorkloadFeasibility(tuned=TUNED)
        .fit(replace(history, peak_memory_gib=each))
        .probability(history.columns.encode(rows), rows)
        for each in (peaks, None)
    )
    assert np.square(with_peaks - fits).mean() < 0.9 * np.square(without_peaks - fits).mean()
    assert np.square(with_peaks - fits).mean() < 0.1


def test_exact_peaks_make_the_wall_steep_and_rough_ones_do_not() -> None:
    rng = np.random.default_rng(1)
    drawn = [("".join(rng.choice(list("FSN"), LAYERS)), int(rng.integers(1, 9))) for _ in range(60)]
    history = TrainingTable.from_trials(
        [outcome(*each) for each in drawn], objective="tokens_per_second", choices=TUNED
    )
    needed = np.array(
        [need("".join(name[0] for name in row["sharding_strategy"]), row["micro_batch_size"]) for row in history.rows]
    )
    exact, rough = (
        WorkloadFeasibility(tuned=TUNED).fit(
            replace(history, peak_memory_gib=needed * np.exp(rng.normal(0.0, spread, len(needed))))
        )
        for spread in (0.002, 0.1)
    )
    assert exact.steepness_ > 2 * rough.steepness_


def test_crowding_rises_over_the_last_tenth_before_the_wall() -> None:
    rng = np.random.default_rng(1)
    drawn = [("".join(rng.choice(list("FSN"), LAYERS)), int(rng.integers(1, 17))) for _ in range(90)]
    history = TrainingTable.from_trials(
        [outcome(*each) for each in drawn], objective="tokens_per_second", choices=TUNED
    )
    words = ["".join(name[0] for name in row["sharding_strategy"]) for row in history.rows]
    needed = [need(word, row["micro_batch_size"]) for word, row in zip(words, history.rows, strict=True)]
    wall = WorkloadFeasibility(tuned=TUNED).fit(replace(history, peak_memory_gib=np.array(needed)))
    assert wall.has_peaks_
    assert not WorkloadFeasibility(tuned=TUNED).fit(history).has_peaks_
    asked = [config("FFFFFFFF", batch) for batch in (4, 16)] + [config("SSSSFFFF", batch) for batch in (13, 14, 15)]
    empty, roomy, *nearer = wall.memory_pressure(history.columns.encode(asked))[:, 0]
    assert empty == roomy == 0.0
    assert nearer == sorted(nearer)
    assert nearer[0] < 0.75 < nearer[-1]


def test_device_memory_places_the_wall_before_any_failure() -> None:
    def peak(trial: Trial, device: float | None) -> Trial:
        measured = replace(trial.measurement, peak_memory_gib=need("FFFFFFFF", trial.config["micro_batch_size"]))
        return replace(trial, measurement=measured, observed={} if device is None else {"device_memory_gib": device})

    ran = [outcome("FFFFFFFF", batch) for batch in (2, 4, 6, 8)]
    (unknown,), (small,), (large,) = (
        chances([peak(trial, device) for trial in ran], config("FFFFFFFF", 16)) for device in (None, 14.0, 80.0)
    )
    assert small < 0.2 < unknown < 0.9 < large


MIXED = {"batch": (8, 16, 32, 64, 128), "decode": ("a", "b", "c"), "workers": (1, 2, 4), "pin": (False, True)}


def mixed(seed: int) -> dict[str, object]:
    rng = np.random.default_rng(seed)
    return {name: choices[int(rng.integers(len(choices)))] for name, choices in MIXED.items()}


def wall_of(configs: list[dict[str, object]], *, largest: int) -> tuple[WorkloadFeasibility, TrainingTable]:
    """Of launches that run out of memory with a batch above ``largest``, whatever the rest is."""
    trials = [
        Trial.infeasible(workload=WORKLOAD, config=each)
        if each["batch"] > largest
        else Trial.completed(workload=WORKLOAD, config=each, tokens_per_second=1.0)
        for each in configs
    ]
    history = TrainingTable.from_trials(trials, objective="tokens_per_second", choices=MIXED)
    return WorkloadFeasibility(tuned=MIXED).fit(history), history


def asked_of(wall: WorkloadFeasibility, history: TrainingTable, *configs: dict[str, object]) -> list[float]:
    rows = [{**WORKLOAD, **each} for each in configs]
    return wall.probability(history.columns.encode(rows), rows).tolist()


def test_the_parameter_that_fills_the_memory_is_found() -> None:
    known, fresh = [mixed(seed) for seed in range(30)], [mixed(seed) for seed in range(30, 90)]
    wall, history = wall_of(known, largest=64)
    found = np.array(asked_of(wall, history, *fresh))
    large = np.array([each["batch"] > 64 for each in fresh])
    assert found[large].max() < found[~large].min()
    assert found[large].mean() < 0.35
    assert found[~large].mean() > 0.8


def test_a_supposed_failure_makes_similar_configs_risky() -> None:
    wall, history = wall_of([mixed(seed) for seed in range(12) if mixed(seed)["batch"] < 128], largest=128)
    first, like = ({"batch": 128, "decode": name, "workers": 2, "pin": False} for name in "ab")
    modest = {**like, "batch": 8}
    feared = wall.fantasize_failures(history.columns.encode([{**WORKLOAD, **first}]), [{**WORKLOAD, **first}])
    before, after = (asked_of(each, history, first, like, modest) for each in (wall, feared))
    assert after[0] < 0.7 * before[0]
    assert after[1] < 0.9 * before[1]
    assert after[2] > 0.9 * before[2]
    assert asked_of(wall, history, first, like, modest) == before  # the wall itself stays


@pytest.mark.parametrize("odd", [0, -1, -4, 5e-324, 2**64, 1e308], ids=str)
def test_odd_batches_and_devices_give_a_probability(odd: float) -> None:
    trials = [
        replace(outcome("FFFFFFFF", 8), config={**config("FFFFFFFF", 8), "micro_batch_size": size})
        for size in (odd, 0, -4, 0)
    ]
    trials = [replace(trial, observed={"device_memory_gib": odd}) for trial in trials]
    for probability in chances(trials, config("FFFFFFFF", 8), config("FFFFFFFF", 0)):
        assert 0.0 <= probability <= 1.0


def test_shares_of_a_host_that_differ_tell_no_capacity() -> None:
    def rows(device: str, *sizes: float) -> list[dict[str, Value]]:
        return [{"device": device, "device_memory_gib": size} for size in sizes]

    assert device_memory_gib(rows("cpu", 31.4, 31.4)) == 31.4
    assert device_memory_gib(rows("cpu", 31.4, 7.85)) is None
    assert device_memory_gib(rows("NVIDIA H100 80GB HBM3", 79.1, 39.4)) == 39.4
    assert device_memory_gib([{"device": "cpu"}]) is None
