"""What outcomes prove about memory, in suggestions: nothing that cannot fit, and the user's own config all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.advisor import Study, suggest
from torchx_cubicml.advisor.batch import BASELINE_REASON
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.space import Parameter, SearchSpace

WORKLOAD = {"program": "train.py", "world_size": 8}
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
SIZES = (1, 2, 4, 8, 16, 32)


def of_layers(n_layers: int | None) -> SearchSpace:
    return SearchSpace(
        parameters=(
            Parameter(name="micro_batch_size", choices=SIZES),
            Parameter(name="sharding_strategy", choices=STRATEGIES, per_layer=n_layers),
            Parameter(name="prefetch", choices=(1, 2)),
        )
    )


SPACE = of_layers(None)


def config(size: int, strategy: str | tuple[str, ...] = "FULL_SHARD", prefetch: int = 1) -> dict[str, object]:
    return {"micro_batch_size": size, "sharding_strategy": strategy, "prefetch": prefetch}


CURRENT = config(4)


def ran(of: dict[str, object]) -> Trial:
    return Trial.completed(workload=WORKLOAD, config=of, tokens_per_second=100.0 + of["micro_batch_size"])


def lost(of: dict[str, object]) -> Trial:
    return Trial.infeasible(workload=WORKLOAD, config=of)


def fits(trials: list[Trial], *configs: dict[str, object], space: SearchSpace = SPACE) -> list[float]:
    study = Study.of(space, workload=WORKLOAD, current=CURRENT, trials=trials)
    return study.posterior.forecast(configs).fits.tolist()


def layers_of(strategy: str | tuple[str, ...], n_layers: int) -> tuple[str, ...]:
    return strategy if isinstance(strategy, tuple) else (strategy,) * n_layers


def needs_as_much(of: dict[str, object], other: dict[str, object], n_layers: int) -> bool:
    pairs = zip(
        layers_of(of["sharding_strategy"], n_layers), layers_of(other["sharding_strategy"], n_layers), strict=True
    )
    return (
        of["prefetch"] == other["prefetch"]
        and of["micro_batch_size"] >= other["micro_batch_size"]
        and all(STRATEGIES.index(a) >= STRATEGIES.index(b) for a, b in pairs)
    )


@pytest.mark.parametrize("n_ran", [0, 1, 3])
def test_one_failure_excludes_all_that_need_as_much(n_ran: int) -> None:
    known = [ran(config(size)) for size in (4, 2, 1)[:n_ran]]
    found = fits([*known, lost(config(16))], *(config(size, name) for size in (16, 32) for name in STRATEGIES))
    assert found == [0.0] * 6
    assert 0.0 not in fits([*known, lost(config(16))], config(8, "NO_SHARD"), config(16, prefetch=2))


def test_a_crowded_device_proves_nothing_and_the_config_comes_again() -> None:
    crowded = replace(lost(config(16)), observed={"devices_per_node": 8, "other_device_share": 0.5})
    assert min(fits([ran(CURRENT), crowded], config(16), config(32))) > 0.0
    for trials, decided in (([crowded], False), ([crowded, replace(crowded, trial_id="again")], True)):
        study = Study.of(SPACE, workload=WORKLOAD, current=CURRENT, trials=trials)
        assert study.posterior.is_decided(config(16)) is decided


def test_the_users_own_config_comes_first_whatever_is_thought_of_it() -> None:
    barred = [lost(config(2)), *(lost(config(1, "SHARD_GRAD_OP", prefetch)) for prefetch in (1, 2))]
    tried = [ran(config(1, prefetch=prefetch)) for prefetch in (1, 2)]
    enough = [*tried, *barred, *(lost(config(size, "SHARD_GRAD_OP")) for size in (2, 4, 8, 16))]
    for trials in (barred, [*tried, *barred], enough):
        first = suggest(SPACE, workload=WORKLOAD, current=CURRENT, trials=trials, count=3)[0]
        assert (first.config, first.reason.startswith(BASELINE_REASON)) == (CURRENT, True)
        assert 0.0 < first.probability_to_fit < 1.0
        assert "a config that needs no more memory ran out of it: micro_batch_size 2 instead of 4" in first.reason


def test_a_launch_against_the_rule_is_told() -> None:
    trials = [lost(config(4)), ran(config(8)), ran(config(2))]
    assert fits(trials, config(16))[0] > 0.0 == fits(trials, config(4))[0]
    for suggestion in suggest(SPACE, workload=WORKLOAD, current=CURRENT, trials=trials, count=2):
        assert "memory is predicted without the order of micro_batch_size: " in suggestion.reason


OUTCOMES = st.lists(
    st.tuples(st.sampled_from(SIZES), st.lists(st.sampled_from(STRATEGIES), min_size=3, max_size=3), st.booleans()),
    min_size=1,
    max_size=6,
)


@settings(max_examples=12)
@given(drawn=OUTCOMES, by_layer=st.booleans(), count=st.integers(1, 6))
def test_no_suggestion_needs_as_much_as_what_ran_out(
    drawn: list[tuple[int, list[str], bool]], by_layer: bool, count: int
) -> None:
    n_layers = 3 if by_layer else 1
    space, own = of_layers(3 if by_layer else None), {**CURRENT}
    own["sharding_strategy"] = ("FULL_SHARD",) * 3 if by_layer else "FULL_SHARD"
    trials = []
    for size, names, fitted in drawn:
        each = config(size, tuple(names) if by_layer else names[0])
        against = [t for t in trials if t.state is State.OUT_OF_MEMORY and needs_as_much(each, t.config, n_layers)]
        above = [t for t in trials if t.measurement is not None and needs_as_much(t.config, each, n_layers)]
        trials.append(ran(each) if (fitted and not against) or above else lost(each))
    failed = [trial.config for trial in trials if trial.state is State.OUT_OF_MEMORY]
    found = suggest(space, workload=WORKLOAD, current=own, trials=trials, count=count)
    assert found
    for suggestion in found:
        if config_key(suggestion.config) != config_key(own):
            assert not any(needs_as_much(suggestion.config, each, n_layers) for each in failed)
    for place, one in enumerate(found):
        for other in found[place + 1 :] if one.probability_to_fit < 0.8 else ():
            assert not needs_as_much(other.config, one.config, n_layers)
