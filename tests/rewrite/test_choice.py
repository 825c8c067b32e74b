from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from typing import TYPE_CHECKING

import pytest

from tests.spaces import BATCH_SIZES
from torchx_cubicml import advisor
from torchx_cubicml.advisor.posterior import Posterior
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.history.history import History
from torchx_cubicml.history.passes import OF_LAUNCH, passed
from torchx_cubicml.records.trial import Origin, State, Trial
from torchx_cubicml.rewrite.choice import (
    Choice,
    advise,
    apply_rules,
    explore,
    is_informative,
)
from torchx_cubicml.rewrite.rules import explores, held
from torchx_cubicml.space import RewriteRules, SearchSpace
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Config, Value

SPACE = parse_space(
    BATCH_SIZES
    + """
    [parameters.precision]
    choices = ["fp32", "bf16"]
    flag = "--precision"
    """,
    where="space.toml",
)
WORKLOAD: dict[str, Value] = {"program": "train.py", "world_size": 2}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def choose(case: History, *, now: datetime) -> Choice | None:
    """What `decide` does between reading the trials and keeping what came of them."""
    found, note = explore(case, now=now)
    if found is None:
        suggestion = advise(case)
        found = apply_rules(case, suggestion) if suggestion is not None else None
    return replace(found, note=note) if found is not None else None


def config(batch: int, precision: str) -> dict[str, Value]:
    return {"micro_batch_size": batch, "gradient_accumulation_steps": 16 // batch, "precision": precision}


CURRENT = config(2, "fp32")
TRIALS = [
    Trial.completed(
        workload=WORKLOAD,
        config=config(batch, precision),
        tokens_per_second=1000.0 * batch * (3 if precision == "bf16" else 1),
    )
    for batch, precision in product([1, 2, 4, 8], ["fp32", "bf16"])
]


def chosen(space: SearchSpace = SPACE, trials: list[Trial] = TRIALS, current: Config = CURRENT) -> Choice:
    choice = choose(History(space=space, held=held(space), workload=WORKLOAD, current=current, trials=trials), now=NOW)
    assert choice is not None
    return choice


def permitting(space: SearchSpace, name: str) -> SearchSpace:
    kept = [replace(item, changes_training=item.name == name) for item in space.parameters]
    return replace(space, parameters=tuple(kept))


def exploring(*, budget: float = 100.0, share: float = 1.0) -> SearchSpace:
    return replace(SPACE, rewrite=RewriteRules(explore=share, explore_budget_device_hours=budget))


def test_what_a_hook_cannot_set_is_told() -> None:
    hook = """
    [parameters.activation_checkpointing]
    choices = ["none", "full"]
    hook = "activation_checkpointing"
    """
    space = parse_space(BATCH_SIZES + hook, where="space.toml")
    current = {"micro_batch_size": 2, "gradient_accumulation_steps": 8, "activation_checkpointing": "none"}
    run = Trial.completed(workload=WORKLOAD, config=current, tokens_per_second=1000.0)
    refused = replace(run, observed={"activation_checkpointing_hook": "refused: the model is compiled as a whole"})
    line = "activation_checkpointing kept as typed: its hook cannot set it: the model is compiled as a whole"
    for trial, lines in ((run, ()), (refused, (line,))):
        case = History(space=space, held=held(space), workload=WORKLOAD, current=current, trials=[trial])
        assert passed(case, *OF_LAUNCH).notes == lines


def test_no_measurement_chooses_no_config() -> None:
    case = History(
        space=SPACE, held=held(SPACE), workload={**WORKLOAD, "program": "other.py"}, current=CURRENT, trials=TRIALS
    )
    assert choose(case, now=NOW) is None


def test_precision_stays_although_another_is_three_times_as_fast() -> None:
    choice = chosen()
    assert choice.config == config(8, "fp32")
    assert (choice.origin, choice.rejection_reason) == (Origin.REWRITE, "")


def test_precision_changes_where_the_space_file_permits_it() -> None:
    assert chosen(permitting(SPACE, "precision")).config == config(8, "bf16")


def test_frozen_parameters_stay_and_others_change() -> None:
    rules = RewriteRules(freeze=("micro_batch_size",))
    choice = chosen(replace(permitting(SPACE, "precision"), rewrite=rules))
    assert choice.config == config(2, "bf16")


def test_all_frozen_runs_the_users_config() -> None:
    choice = chosen(replace(SPACE, rewrite=RewriteRules(freeze=("micro_batch_size",))))
    assert choice.config == CURRENT
    assert choice.rejection_reason == "no recorded launch suggests a faster config that this launch may run"


def test_a_gain_under_the_limit_changes_nothing() -> None:
    choice = chosen(replace(SPACE, rewrite=RewriteRules(min_gain=50.0)))
    assert choice.rejection_reason.endswith("is below min_gain, 5000.0%")


def test_the_fastest_config_of_the_same_batch_is_chosen() -> None:
    text = "[parameters.micro_batch_size]\nchoices = [1, 2, 4]\nflag = '-b'\n"
    text += "[parameters.gradient_accumulation_steps]\nchoices = [1, 2, 4]\nflag = '-a'\n"
    space = parse_space(text, where="space.toml")
    trials = [
        Trial.completed(
            workload=WORKLOAD,
            config={"micro_batch_size": batch, "gradient_accumulation_steps": accumulate},
            tokens_per_second=1000.0 * batch / accumulate**0.1,
        )
        for batch, accumulate in product([1, 2, 4], repeat=2)
    ]
    current: Config = {"micro_batch_size": 1, "gradient_accumulation_steps": 2}
    assert chosen(space, trials, current).config == {"micro_batch_size": 2, "gradient_accumulation_steps": 1}
    free = permitting(space, "micro_batch_size")
    assert chosen(free, trials, current).config["micro_batch_size"] == 4


def test_exploring_tries_what_was_never_run_and_keeps_the_guards() -> None:
    known = [trial for trial in TRIALS if trial.config["micro_batch_size"] in {2, 8}]
    choice = chosen(exploring(), known)
    assert choice.origin is Origin.EXPLORE
    assert choice.config == config(4, "fp32")
    assert "explores" in choice.note
    assert "0 of 100 device hours used" in choice.note
    assert chosen(exploring(), known) == choice


def test_exploring_risks_no_more_memory_than_the_user_allows() -> None:
    known = [trial for trial in TRIALS if trial.config["micro_batch_size"] in {1, 2}]
    careful = chosen(exploring(), known)
    assert careful.origin is Origin.REWRITE
    assert careful.note == "this launch is due to explore, but no untried config reaches min_fit"
    rules = replace(exploring().rewrite, min_fit=0.5)
    bold = chosen(replace(SPACE, rewrite=rules), known)
    assert (bold.origin, bold.config["micro_batch_size"]) == (Origin.EXPLORE, 4)


def test_exploring_keeps_the_global_batch_size() -> None:
    text = "[parameters.micro_batch_size]\nchoices = [1, 2, 4]\nflag = '-b'\n"
    text += "[parameters.gradient_accumulation_steps]\nchoices = [1, 2, 4]\nflag = '-a'\n"
    text += "[rewrite]\nexplore = 1\nexplore_budget_gpu_hours = 1\nmin_fit = 0.1\n"
    current: Config = {"micro_batch_size": 2, "gradient_accumulation_steps": 2}
    known = [Trial.completed(workload=WORKLOAD, config=current, tokens_per_second=1.0)]
    choice = chosen(parse_space(text, where="space.toml"), known, current)
    assert choice.origin is Origin.EXPLORE
    assert choice.config in (
        {"micro_batch_size": 1, "gradient_accumulation_steps": 4},
        {"micro_batch_size": 4, "gradient_accumulation_steps": 1},
    )


def test_a_fully_tried_space_runs_its_best() -> None:
    assert chosen(exploring()).origin is Origin.REWRITE


@pytest.mark.parametrize("share", [0.0, 0.05], ids=["never asked for", "not drawn"])
def test_most_launches_do_not_explore(share: float) -> None:
    known = TRIALS[:6]
    assert not explores(exploring(share=share), workload=WORKLOAD, n_trials=len(known))
    choice = chosen(exploring(share=share), known)
    assert (choice.origin, choice.note) == (Origin.REWRITE, "")


@pytest.mark.parametrize("hours", [1.0, 0.6], ids=["spent", "another would not fit"])
def test_the_budget_ends_exploring(hours: float) -> None:
    ended = f"2025-12-31T00:{int(60 * hours / 2) % 60:02}:00+00:00"
    spent = replace(TRIALS[0], origin=Origin.EXPLORE, started_at="2025-12-31T00:00:00+00:00", ended_at=ended)
    choice = chosen(exploring(budget=1.0), [spent, *TRIALS[1:6]])
    assert choice.origin is Origin.REWRITE
    assert choice.note.startswith("this launch is due to explore, but could exceed the exploration budget")


def test_a_suggestion_that_moves_what_is_held_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = advisor.incumbent

    def stray(*args: object, **kwargs: object) -> advisor.Suggestion:
        found = real(*args, **kwargs)
        assert found is not None
        return replace(found, config=config(8, "bf16"))

    monkeypatch.setattr(advisor, "incumbent", stray)
    with pytest.raises((LaunchError, ValueError), match="precision"):
        chosen()


def test_a_faster_batch_that_is_pinned_is_explained() -> None:
    space = parse_space("[parameters.micro_batch_size]\nchoices = [1, 2, 4]\nflag = '-b'\n", where="space.toml")
    trials = [
        Trial.completed(workload=WORKLOAD, config={"micro_batch_size": batch}, tokens_per_second=1000.0 * batch)
        for batch in (1, 2, 4)
    ]
    found = chosen(space, trials, {"micro_batch_size": 1})
    assert found.suggestion.config == {"micro_batch_size": 4}
    assert "changes the global batch size by a factor of 4" in found.rejection_reason


def test_a_program_is_measured_by_its_own_launches() -> None:
    measured = TRIALS[0]
    elsewhere = replace(measured, workload={**WORKLOAD, "program": "other.py"})
    failed = replace(measured, measurement=None, state=State.USER_ERROR)
    case = History(space=SPACE, held=held(SPACE), workload=WORKLOAD, current=CURRENT)
    found = {
        name: replace(case, trials=trials).is_measured
        for name, trials in {
            "none": [],
            "own": [measured],
            "elsewhere": [elsewhere],
            "failed": [failed],
            "both": [elsewhere, failed],
            "one of three": [elsewhere, failed, measured],
        }.items()
    }
    assert found == {
        "none": False,
        "own": True,
        "elsewhere": False,
        "failed": False,
        "both": False,
        "one of three": True,
    }
    assert advise(replace(case, trials=[elsewhere, failed])) is None


def test_a_trial_says_something_once_it_ended_or_was_measured() -> None:
    measured = TRIALS[0]
    unmeasured = replace(measured, measurement=None)
    running = replace(measured, state=State.RUNNING)
    assert is_informative(measured)
    assert is_informative(unmeasured)
    assert is_informative(running)
    assert not is_informative(replace(running, measurement=None))


@pytest.mark.parametrize("predictor", ["", "boosting"])
def test_the_chosen_predictor_is_asked(monkeypatch: pytest.MonkeyPatch, predictor: str) -> None:
    asked = []
    real = Posterior.of

    def spied(*args: object, predictor: str, **kwargs: object) -> object:
        asked.append(predictor)
        return real(*args, predictor=predictor, **kwargs)

    monkeypatch.setattr(Posterior, "of", spied)
    case = History(space=SPACE, held=held(SPACE), workload=WORKLOAD, current=CURRENT, trials=TRIALS)
    advise(replace(case, predictor=predictor) if predictor else case)
    assert set(asked) == {predictor}
