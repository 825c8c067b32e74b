"""How a batch is chosen: every acquisition, every searcher, and what is under way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.advisor import ProposalMethod, suggest
from torchx_cubicml.advisor.acquisition import ACQUISITIONS
from torchx_cubicml.advisor.posterior import Posterior
from torchx_cubicml.errors import SpaceError
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.searchers import SEARCHERS, searcher_named
from torchx_cubicml.searchers.reinforce import Reinforce
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.encoding import vectors_of
from torchx_cubicml.space.expression import parse_expression

if TYPE_CHECKING:
    from torchx_cubicml.records.suggestion import Suggestion

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
WORKLOAD = {"program": "train.py", "world_size": 2, "n_layers": 4}
CURRENT = {"sharding_strategy": ("FULL_SHARD",) * 4, "micro_batch_size": 2}
SPACE = SearchSpace(
    parameters=(
        Parameter(name="sharding_strategy", choices=STRATEGIES, per_layer="n_layers"),
        Parameter(name="micro_batch_size", choices=(1, 2, 4, 8, 16)),
    )
)


def launched(config: dict[str, object]) -> Trial:
    steps = [STRATEGIES.index(name) for name in config["sharding_strategy"]]
    if config["micro_batch_size"] + 3 * sum(steps) > 24:
        return Trial.infeasible(workload=WORKLOAD, config=config)
    speed = config["micro_batch_size"] ** 0.3 * (1.0 + 0.1 * np.dot(steps, (3, 1, 1, 0)))
    return Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=1000.0 * float(speed))


def asked(trials: list[Trial], *, count: int = 3, seed: int = 0, **given: object) -> list[Suggestion]:
    return suggest(SPACE, workload=WORKLOAD, current=CURRENT, trials=trials, count=count, seed=seed, **given)


@pytest.fixture(scope="module")
def ten() -> list[Trial]:
    trials: list[Trial] = []
    while len(trials) < 10:
        trials += [launched(found.config) for found in asked(trials, count=5)]
    return trials


METHODS = [ProposalMethod(acquisition=name) for name in ACQUISITIONS] + [
    ProposalMethod(searcher=name) for name in SEARCHERS
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.acquisition}-{method.searcher}")
@pytest.mark.parametrize("known", [1, 10])
def test_every_method_gives_new_distinct_repeatable_configs(
    method: ProposalMethod, known: int, ten: list[Trial]
) -> None:
    found = asked(ten[:known], count=12, method=method)
    keys = [config_key(suggestion.config) for suggestion in found]
    assert len(set(keys)) == 12
    assert not set(keys) & {config_key(trial.config) for trial in ten[:known]}
    assert found == asked(ten[:known], count=12, method=method)


@pytest.mark.parametrize("given", [{"acquisition": "hope"}, {"searcher": "luck"}], ids=["acquisition", "searcher"])
def test_an_unknown_method_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(SpaceError, match=r"unknown (acquisition 'hope'|searcher 'luck'); choose from "):
        ProposalMethod(**given)
    with pytest.raises(SpaceError, match="unknown searcher"):
        searcher_named("luck")


@pytest.mark.parametrize("known", [0, 10])
def test_a_pending_config_is_not_suggested_again(known: int, ten: list[Trial]) -> None:
    pending = [suggestion.config for suggestion in asked(ten[:known], count=2)]
    found = asked(ten[:known], count=4, pending=pending)
    assert not [suggestion for suggestion in found if suggestion.config in pending]
    planned = [
        Trial(trial_id=f"p{number}", workload=WORKLOAD, config=config, state=State.PLANNED)
        for number, config in enumerate(pending)
    ]
    assert [suggestion.config for suggestion in asked([*ten[:known], *planned], count=4)] == [
        suggestion.config for suggestion in found
    ]


def test_a_pending_config_lowers_the_worth_of_its_neighbours(ten: list[Trial]) -> None:
    (first,) = asked(ten, count=1)
    posterior = Posterior.of(
        SPACE.bind(workload=WORKLOAD, current=CURRENT),
        workload=WORKLOAD,
        current=CURRENT,
        trials=ten,
        rng=np.random.default_rng(0),
    )
    after = posterior.fantasize([first.config])
    assert after.forecast([first.config]).spread[0] < 0.7 * posterior.forecast([first.config]).spread[0]


def test_thompson_draws_differ_as_much_as_is_believed(ten: list[Trial]) -> None:
    posterior = Posterior.of(
        SPACE.bind(workload=WORKLOAD, current=CURRENT),
        workload=WORKLOAD,
        current=CURRENT,
        trials=ten,
        rng=np.random.default_rng(0),
    )
    asked_for = [{"sharding_strategy": ("NO_SHARD",) + ("FULL_SHARD",) * 3, "micro_batch_size": 16}]
    at = vectors_of(posterior.space, asked_for)
    draws = [posterior.sample_function(np.random.default_rng(seed))(at) for seed in range(60)]
    believed = posterior.forecast(asked_for)
    values = np.array([draw.logarithm[0] for draw in draws])
    # What is told at the anchors leaves little open: draws scatter nearly as widely as what is believed.
    assert 0.4 * believed.spread[0] < values.std() < 1.4 * believed.spread[0]
    assert abs(values.mean() - believed.logarithm[0]) < 4.0 * believed.spread[0] / np.sqrt(60)


@pytest.mark.parametrize("current", [CURRENT, {}], ids=["own config", "none"])
def test_the_best_of_similar_workloads_comes_second(current: dict[str, object]) -> None:
    other = {**WORKLOAD, "program": "other.py"}
    drawn = SPACE.bind(workload=other, current=CURRENT).sample(60, rng=np.random.default_rng(1))
    elsewhere = [replace(launched(config), workload=other) for config in drawn]
    found = suggest(SPACE, workload=WORKLOAD, current=current, trials=elsewhere, count=4)
    own = int(bool(current))
    assert [suggestion.config == CURRENT for suggestion in found[: own + 1]] == [True, False][1 - own :]
    speeds = [trial.measurement.tokens_per_second for trial in map(launched, drawn) if trial.measurement]
    first = launched(found[own].config)
    assert first.measurement is not None
    assert first.measurement.tokens_per_second > np.quantile(speeds, 0.8)


PLAIN = SearchSpace(
    parameters=tuple(Parameter(name=f"p{place}", choices=(1, 2, 4)) for place in range(6)),
    objective="tokens_per_second",
)


@pytest.mark.parametrize(
    ("n_measured", "n_failed", "drawn"),
    [(1, 0, True), (4, 0, True), (5, 0, False), (2, 3, True), (3, 2, False), (2, 10, False)],
)
def test_plain_parameters_are_drawn_at_random_first(n_measured: int, n_failed: int, drawn: bool) -> None:
    workload = {"program": "train.py", "world_size": 2}
    current = {f"p{place}": 1 for place in range(6)}
    space = PLAIN.bind(workload=workload, current=current)
    rng = np.random.default_rng(5)
    configs = [current, *space.sample(n_measured + n_failed - 1, rng=rng)]
    trials = [
        Trial.completed(workload=workload, config=config, tokens_per_second=1000.0 + sum(config.values()))
        if place < n_measured
        else Trial.infeasible(workload=workload, config=config)
        for place, config in enumerate(configs)
    ]
    (found,) = suggest(space, workload=workload, current=current, trials=trials)
    assert ("drawn at random" in found.reason) == drawn


def test_a_config_lost_to_a_machine_is_suggested_again_once() -> None:
    space = SearchSpace(parameters=(Parameter(name="a", choices=(1, 2, 4, 8)),))
    workload = {"program": "train.py", "world_size": 2}
    ran = [Trial.completed(workload=workload, config={"a": a}, tokens_per_second=100.0 * a) for a in (1, 2, 4)]
    broken = Trial(trial_id="b", workload=workload, config={"a": 8}, state=State.INFRASTRUCTURE)
    found = suggest(space, workload=workload, current={"a": 1}, trials=[*ran, broken], count=3)
    assert [suggestion.config for suggestion in found] == [{"a": 8}]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.acquisition}-{method.searcher}")
def test_the_order_of_the_trials_changes_nothing(method: ProposalMethod, ten: list[Trial]) -> None:
    assert asked(ten[::-1], method=method) == asked(ten, method=method)


def test_the_tops_of_one_round_of_reinforce_are_a_batch(ten: list[Trial], monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[int] = []
    search = Reinforce.search

    def counted(*args: object, count: int, **options: object) -> list[object]:
        searches.append(count)
        return search(*args, count=count, **options)

    monkeypatch.setattr(Reinforce, "search", counted)
    found = asked(ten, count=5, method=ProposalMethod(searcher="reinforce"))
    assert len(searches) == 1
    assert len({config_key(suggestion.config) for suggestion in found}) == 5


def test_listing_a_too_large_space_is_refused() -> None:
    workload = {**WORKLOAD, "n_layers": 40}
    current = {**CURRENT, "sharding_strategy": ("FULL_SHARD",) * 40}
    with pytest.raises(SpaceError, match="limited to 1000000"):
        suggest(SPACE, workload=workload, current=current, trials=[], method=ProposalMethod(searcher="exhaustive"))


def test_a_user_config_needs_no_derived_values() -> None:
    parameters = (
        Parameter(name="micro_batch_size", choices=(1, 2, 4)),
        Parameter(name="rounds", derive=parse_expression("8 / micro_batch_size", where="derive")),
    )
    found = suggest(
        SearchSpace(parameters=parameters), workload=WORKLOAD, current={"micro_batch_size": 2}, trials=[], count=2
    )
    assert found[0].config == {"micro_batch_size": 2, "rounds": 4}
    assert "your config" in found[0].reason


@pytest.mark.parametrize("current", [{"rounds": 8}, {"rounds": 7}, {}], ids=["legal", "illegal", "left out"])
@pytest.mark.parametrize("n_others", [0, 30])
def test_a_space_of_one_config_suggests_it(current: dict[str, int], n_others: int) -> None:
    parameters = (Parameter(name="rounds", derive=parse_expression("world_size * 4", where="derive")),)
    others = [
        Trial.completed(
            workload={"program": "train.py", "world_size": 4, "n": n}, config={"rounds": 16}, tokens_per_second=9.0 + n
        )
        for n in range(n_others)
    ]
    found = suggest(SearchSpace(parameters=parameters), workload=WORKLOAD, current=current, trials=others, count=3)
    assert [suggestion.config for suggestion in found] == [{"rounds": 8}]
    assert not found[0].reason.endswith(": ")


TRANSFORMER = {
    "n_layers": 4,
    "d_model": 512,
    "n_heads": 8,
    "vocab_size": 1000,
    "seq_len": 128,
    "device": "NVIDIA H100",
}


@pytest.mark.parametrize("facts", [{}, TRANSFORMER], ids=["formulas do not cover it", "formulas cover it"])
@pytest.mark.parametrize("count", [2, 40])
def test_trials_without_a_config_still_allow_a_batch(facts: dict[str, object], count: int) -> None:
    """What a launch without the switch observes says nothing of it, so there is no measured config to start from."""
    parameters = (
        Parameter(name="activation_checkpointing", choices=("none", "full"), per_layer=4, groups=2),
        Parameter(name="fused", choices=(False, True)),
    )
    current = {"activation_checkpointing": ("none",) * 4, "fused": False}
    switch = {"activation_checkpointing": ("full",) * 4}
    trials = [
        Trial(
            trial_id=f"t{place}",
            workload=WORKLOAD,
            config={},
            observed={**facts, "micro_batch_size": 2, **observed},
            state=State.COMPLETED,
            measurement=Measurement(tokens_per_second=100.0 + place),
        )
        for place, observed in enumerate([{"fused": False}, {"fused": False}, switch])
    ]
    workload = {**WORKLOAD, **facts}
    found = suggest(SearchSpace(parameters=parameters), workload=workload, current=current, trials=trials, count=count)
    assert min(count, 7) <= len(found) <= 8  # one needs as much memory as another that may not fit
    assert len({config_key(suggestion.config) for suggestion in found}) == len(found)
