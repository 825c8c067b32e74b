"""Tunes in rounds by one predictor: what is launched, from which trials, and what is recorded of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.tune.plans import next_launch
from torchx_cubicml.advisor import ProposalMethod, Study
from torchx_cubicml.errors import SpaceError
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.records.suggestion import promised_round
from torchx_cubicml.records.trial import Origin, State, Trial
from torchx_cubicml.tuner import Budget, Prepared, TuneRequest, prepare
from torchx_cubicml.tuner.round_proposer import RoundProposer

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.records.suggestion import Suggestion
    from torchx_cubicml.records.values import Config

SPACE = """
[parameters]
batch = { flag = "--batch", choices = [1, 2, 4, 8, 16] }
workers = { flag = "--workers", choices = [0, 1, 2, 4] }
kernel = { flag = "--kernel", choices = ["a", "b", "c"] }
"""
RANDOM, PER_ROUND = 4, 3


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    space = tmp_path / "space.toml"
    space.write_text(SPACE)
    arguments = ("-j", "1x2", "--script", "train.py", "--", "--batch", "1", "--workers", "0", "--kernel", "a")
    method = ProposalMethod(acquisition="mean", searcher="reinforce", predictor="roofline", random_launches=RANDOM)
    return prepare(
        TuneRequest(
            component="dist.ddp",
            component_args=arguments,
            space=str(space),
            store=str(tmp_path / "store"),
            scheduler="local_cwd",
            budget=Budget(launches=15),
            repeats=2,
            parallel=PER_ROUND,
            rounds=True,
            method=method,
        )
    )


def speed(config: Config) -> float:
    return 100.0 * float(str(config["batch"])) ** 0.5 + 30.0 * float(str(config["workers"]))


def ran(prepared: Prepared, config: Config, promise: dict[str, object], number: int) -> Trial:
    trial = Trial.completed(workload=prepared.workload, config=config, tokens_per_second=speed(config))
    times = f"2026-01-01T00:{number:02}:00+00:00", f"2026-01-01T00:{number:02}:30+00:00"
    return replace(
        trial, trial_id=f"t{number}", origin=Origin.TUNE, suggestion=promise, started_at=times[0], ended_at=times[1]
    )


def tuned(prepared: Prepared, launches: int, *, restarts: bool = False) -> list[tuple[str, Trial]]:
    """Return the purpose and the trial of each launch; ``restarts`` makes the proposer anew before each."""
    proposer = RoundProposer.serving(prepared)
    done: list[tuple[str, Trial]] = []
    for number in range(launches):
        advisor = RoundProposer.serving(prepared) if restarts else proposer
        planned = next_launch(prepared, [trial for _, trial in done], launches_left=15 - number, advisor=advisor)
        assert planned is not None
        purpose, suggestion = planned
        done.append((purpose, ran(prepared, suggestion.config, suggestion.promise(), number)))
    return done


def test_random_launches_come_first_and_then_rounds(prepared: Prepared) -> None:
    done = tuned(prepared, RANDOM + 2 * PER_ROUND)
    assert done[0][0] == "baseline"
    numbers = [promised_round(trial.suggestion) for _, trial in done]
    assert numbers == [None] * RANDOM + [1] * PER_ROUND + [2] * PER_ROUND
    assert len({config_key(trial.config) for _, trial in done}) == len(done)


def test_a_round_stands_in_the_order_of_its_predictions(prepared: Prepared) -> None:
    done = tuned(prepared, RANDOM + PER_ROUND)
    predicted = [float(str(trial.suggestion["throughput"])) for _, trial in done[RANDOM:] if trial.suggestion]
    assert predicted == sorted(predicted, reverse=True)


def test_a_resumed_tune_goes_on_with_its_round(prepared: Prepared) -> None:
    configs = [[trial.config for _, trial in tuned(prepared, 9, restarts=restarts)] for restarts in (False, True)]
    assert configs[0] == configs[1]


def test_a_launch_of_the_round_teaches_the_next_round_alone(prepared: Prepared) -> None:
    done = [trial for _, trial in tuned(prepared, RANDOM + 1)]
    failed = replace(done[-1], state=State.OUT_OF_MEMORY, measurement=None)
    following = []
    for trials in (done, [*done[:-1], failed]):
        planned = next_launch(prepared, trials, launches_left=10, advisor=RoundProposer.serving(prepared))
        assert planned is not None
        following.append(planned[1].config)
    assert following[0] == following[1]


def test_a_second_tune_counts_its_own_rounds_and_learns_from_the_first(prepared: Prepared) -> None:
    """The first tune ended within its round 1: no launch of the second one belongs to that round."""
    first = [trial for _, trial in tuned(prepared, RANDOM + 1)]
    known = frozenset(trial.trial_id for trial in first)
    trials = list(first)
    for number in range(len(first), len(first) + PER_ROUND + 1):
        planned = next_launch(prepared, trials, launches_left=15, known=known, advisor=RoundProposer.serving(prepared))
        assert planned is not None
        suggestion = planned[1]
        trials.append(ran(prepared, suggestion.config, suggestion.promise(), number))
    own = [trial for trial in trials if trial.trial_id not in known]
    assert [promised_round(trial.suggestion) for trial in own] == [1] * PER_ROUND + [2]
    assert not {config_key(trial.config) for trial in own} & {config_key(trial.config) for trial in first}


def test_without_rounds_each_launch_is_one(prepared: Prepared) -> None:
    alone = replace(prepared, request=replace(prepared.request, rounds=False))
    numbers = [promised_round(trial.suggestion) for _, trial in tuned(alone, RANDOM + 3)]
    assert numbers[RANDOM:] == [1, 2, 3]


def test_a_round_that_runs_out_of_configs_is_followed_by_the_next(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_two(self: Study, *, count: int, method: ProposalMethod, round_number: int) -> list[Suggestion]:
        return search(self, count=min(count, 2), method=method, round_number=round_number)

    search = Study.search_by_predictor
    monkeypatch.setattr(Study, "search_by_predictor", of_two)
    numbers = [promised_round(trial.suggestion) for _, trial in tuned(prepared, RANDOM + 4, restarts=True)]
    assert numbers[RANDOM:] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"predictor": "oracle"}, "unknown predictor 'oracle'; choose from"),
        ({"random_launches": -1}, "random_launches must be >= 0, got -1"),
    ],
)
def test_an_illegal_method_is_refused(given: dict[str, object], text: str) -> None:
    with pytest.raises(SpaceError, match=text):
        ProposalMethod(**given)  # type: ignore[arg-type]  # illegal on purpose
