"""Failures that another launch would repeat: what they set aside, and when they end a tune."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.tune.cluster import SimulatedCluster
from tests.tune.draws import go, prepare_in, stored
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch import read_config
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial, new_id
from torchx_cubicml.space import Binding, Parameter, SearchSpace
from torchx_cubicml.space.expression import parse_expression
from torchx_cubicml.tuner import Budget, Notice, TuneResult
from torchx_cubicml.tuner.certain_failures import CertainFailures, certain_failures
from torchx_cubicml.tuner.launch_state import explained_exit
from torchx_cubicml.tuner.proposer import StudyProposer

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.records.values import Config
    from torchx_cubicml.tuner import Prepared, Step

SPACE = SearchSpace(
    parameters=(
        Parameter(name="a", choices=(1, 2, 3), binding=Binding(kind="flag", name="--a-size", aliases=("--a_size=",))),
        Parameter(name="b", choices=(1, 2, 3), binding=Binding(kind="flag", name="--b")),
        Parameter(name="c", derive=parse_expression("b * 2", where="c"), binding=Binding(kind="flag", name="--cc")),
    )
)
OWN: Config = {"a": 1, "b": 1, "c": 2}
NAMELESS = "ValueError: it does not work"


def config(a: int, b: int) -> Config:
    return {"a": a, "b": b, "c": 2 * b}


def failed(a: int, b: int, reason: str = NAMELESS) -> Trial:
    return Trial(trial_id=new_id("t"), workload={}, config=config(a, b), state=State.USER_ERROR, reason=reason)


def ran(a: int, b: int, state: State = State.COMPLETED) -> Trial:
    measured = Measurement(samples_per_second=1.0) if state is State.COMPLETED else None
    return Trial(trial_id=new_id("t"), workload={}, config=config(a, b), state=state, measurement=measured)


def found(*own: Trial, before: tuple[Trial, ...] = ()) -> CertainFailures:
    return certain_failures(SPACE, OWN, (ran(1, 1), *own), before)


@pytest.mark.parametrize(
    "reason",
    [
        "ValueError: Unknown config key: a_size",
        "exit status 2: train.py: error: unrecognized arguments: --lr 3 --a-size 2",
        "exit status 2: Error: No such option: --a-size (Possible options: --size)",
        "TypeError: Config.__init__() got an unexpected keyword argument 'a_size'",
        "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--a-size', '2']",
        "exit status 1: FATAL Flags parsing error: Unknown command line flag 'a_size'",
        "hydra.errors.ConfigCompositionException: Could not override 'a_size'.\nKey 'a_size' is not in struct",
    ],
)
def test_an_unknown_flag_is_set_aside_at_once(reason: str) -> None:
    failures = found(failed(2, 2, reason))
    assert list(failures.set_aside) == ["a"]
    assert failures.configs == {config_key(config(2, 2))}
    assert failures.repeated is None


@pytest.mark.parametrize(
    "reason",
    [
        "exit status 2: train.py: error: argument --a-size: invalid choice: 2 (choose from 1, 3)",
        "ValueError: unknown value for option --a-size",
        "ValueError: unrecognized arguments: --other 2",
        "ValueError: Unknown config key: a_size_of_b",
        "ValueError: Unknown attention option 'flash3' for a_size",
        "ValueError: unknown a_size setting: fp8",
        "error: Unknown optimizer option 'lion' in --a-size",
        "RuntimeError: unknown flag in a_size backend",
        "TypeError: forward() got an unexpected keyword argument 'mask' with a_size",
        "ValueError: unknown option 'a_size' for --mode",
        "exit status 2: Error: No such option: --size Did you mean --a-size?",
        "exit status 2: train.py: error: unrecognized arguments: --mode a_size",
        NAMELESS,
    ],
)
def test_an_error_of_a_value_sets_nothing_aside_at_once(reason: str) -> None:
    assert found(failed(2, 1, reason)) == CertainFailures()


def test_a_flag_that_ran_before_is_known() -> None:
    reason = "ValueError: Unknown config key: a_size"
    assert found(failed(2, 1, reason), before=(ran(3, 1),)).set_aside == {}
    assert found(failed(2, 1, reason), before=(ran(3, 1, State.OUT_OF_MEMORY),)).set_aside == {}
    assert list(found(failed(2, 1, reason), before=(ran(3, 1, State.TIMEOUT),)).set_aside) == ["a"]


def test_the_same_failure_twice_sets_the_shared_parameter_aside() -> None:
    first, second = failed(2, 1, "error 17 in /tmp/x: no"), failed(3, 2, "error 18 in /var/y/z: no")
    failures = found(first, second)
    assert failures.set_aside == {"a": second}
    assert failures.configs == {config_key(first.config), config_key(second.config)}
    assert found(first) == CertainFailures()
    assert found(first, replace(second, reason="another error")) == CertainFailures()
    for state in (State.UNKNOWN, State.OUT_OF_MEMORY, State.TIMEOUT, State.INFRASTRUCTURE, State.STOPPED_EARLY):
        assert found(replace(first, state=state), replace(second, state=state)) == CertainFailures()


def test_what_fails_after_a_step_is_not_certain() -> None:
    late = [
        replace(failed(2, 1), observed={"optimizer": "AdamW"}),
        replace(failed(2, 2), observed={"optimizer": "SGD"}),
    ]
    assert found(*late) == CertainFailures()


def test_derived_values_are_no_cause() -> None:
    assert list(found(failed(1, 2), failed(1, 3)).set_aside) == ["b"]


def test_two_equal_failures_without_one_cause_end_a_tune() -> None:
    last = failed(3, 3)
    assert found(failed(2, 2), last).repeated == last
    both = found(failed(2, 2), last, before=(ran(1, 1),))
    assert both.repeated == last
    assert found(ran(2, 1), failed(2, 2), failed(3, 3)).repeated is None
    assert list(found(ran(2, 1), failed(2, 2), failed(3, 3)).set_aside) == ["b"]


def test_a_value_that_failed_twice_is_set_aside_while_other_values_run() -> None:
    first, second = failed(2, 2, "error 17: no"), failed(2, 3, "error 18: no")
    failures = found(ran(3, 1), ran(1, 2), first, ran(1, 3), second)
    assert failures == CertainFailures(
        values={("a", 2): second}, configs=frozenset({config_key(first.config), config_key(second.config)})
    )
    assert failures.value_texts() == {"a = 2": second}
    left = failures.held(SPACE, OWN).bind(workload={}, current=OWN)
    assert sorted({each["a"] for each in left.configs()}) == [1, 3]
    late = failed(2, 1, "error 19: no")  # in flight when the value was set aside
    assert found(ran(3, 1), ran(1, 2), first, ran(1, 3), second, late).configs == {
        config_key(each.config) for each in (first, second, late)
    }


def test_a_value_needs_two_equal_failures_that_nothing_else_explains() -> None:
    others = ran(3, 1), ran(1, 2), ran(1, 3)
    assert found(*others, failed(2, 2)) == CertainFailures()
    assert found(*others, failed(2, 2), failed(2, 3, "another error")).values == {}
    assert found(*others, failed(2, 2), failed(2, 3), ran(2, 1)).values == {}, "the value ran"
    assert found(*others, failed(3, 2), failed(2, 3)).values == {}, "no value is shared"
    # Value 2 of both never ran, and each failure has both.
    both = failed(2, 2), replace(failed(2, 2), config={**config(2, 2), "d": 5})
    assert found(ran(3, 1), ran(1, 3), *both).values == {}
    assert list(found(ran(3, 1), ran(1, 3), *both, failed(2, 3)).values) == [("a", 2)]
    # No other value of the parameter ran: the parameter itself is set aside.
    assert list(found(ran(1, 2), failed(2, 2), failed(2, 1)).set_aside) == ["a"]


def test_the_last_value_stays() -> None:
    space = SearchSpace(parameters=(replace(SPACE.parameters[0], choices=(2,)), *SPACE.parameters[1:]))
    failures = CertainFailures(values={("a", 2): failed(2, 1)})
    assert failures.held(space, OWN).parameters[0].choices == (1,)


def test_the_space_keeps_the_own_value() -> None:
    space = found(failed(2, 1), failed(3, 1)).held(SPACE, OWN).bind(workload={}, current=OWN)
    assert [each["a"] for each in space.configs()] == [1, 1, 1]
    derived = found(failed(1, 2, "unrecognized arguments: --cc 4"))
    assert list(derived.set_aside) == ["c"]
    assert [each["b"] for each in derived.held(SPACE, OWN).bind(workload={}, current=OWN).configs()] == [1, 1, 1]
    assert CertainFailures().held(SPACE, OWN) is SPACE


def test_a_bare_exit_status_is_explained_by_the_last_line_of_a_worker() -> None:
    trial = failed(2, 1, "exit status 2")
    lines = ["[0]:usage: x", "[0]:x: error: --password=hunter2 is bad", '[0]:CUBICML_TRIAL {"a":1}', "[0]:", "launcher"]
    assert explained_exit(trial, lines) == "exit status 2: x: error: --password=*** is bad"
    assert explained_exit(trial, ["launcher"]) == ""
    assert explained_exit(failed(2, 1, NAMELESS), lines) == ""
    assert explained_exit(replace(trial, state=State.UNKNOWN), lines) == ""


THREE = """
objective = "samples_per_second"
[parameters.micro_batch_size]
choices = [1, 2, 3]
flag = "--batch_size"
changes_training = true
[parameters.width]
choices = [1, 2, 3]
flag = "--width"
"""


def tuned(folder: Path, cluster: SimulatedCluster, launches: int = 16) -> tuple[Prepared, list[Step]]:
    prepared = prepare_in(folder)
    (folder / "space.toml").write_text(THREE)
    from torchx_cubicml.space.toml import load_space

    space = load_space(folder / "space.toml")
    _, current = read_config(prepared.component.launch, space)
    request = replace(prepared.request, budget=Budget(launches=launches), parallel=1)
    prepared = replace(prepared, request=request, space=space, current=current)
    return prepared, go(prepared, cluster, StudyProposer.serving(prepared))


@pytest.mark.parametrize(("reason", "times"), [("ValueError: Unknown config key: width", 1), (NAMELESS, 2)])
def test_a_tune_keeps_an_unknown_flag_as_typed(tmp_path: Path, reason: str, times: int) -> None:
    cluster = SimulatedCluster(fates=("done",), error=lambda config: reason if config["width"] != 1 else "")
    prepared, steps = tuned(tmp_path, cluster)
    result = steps[-1]
    assert isinstance(result, TuneResult)
    trials = stored(prepared)
    assert sum(trial.state is State.USER_ERROR for trial in trials) <= times
    assert result.set_aside == {"width": reason}
    assert result.compares
    assert {each.name: each.alternatives for each in result.sensitivities}.get("width", ()) == ()
    notices = [step.text for step in steps if isinstance(step, Notice)]
    assert notices == ["width stays as in your command: each launch that changed it failed"]


def test_a_tune_tries_a_value_that_fails_twice_no_more(tmp_path: Path) -> None:
    reason = "ValueError: no kernel for this size"
    cluster = SimulatedCluster(fates=("done",), error=lambda config: reason if config["width"] == 3 else "")
    prepared, steps = tuned(tmp_path, cluster)
    result = steps[-1]
    assert isinstance(result, TuneResult)
    assert sum(trial.state is State.USER_ERROR for trial in stored(prepared)) == 2
    assert (result.set_aside, result.values_set_aside) == ({}, {"width = 3": reason})
    notices = [step.text for step in steps if isinstance(step, Notice)]
    assert notices == ["width = 3 is not tried again: each launch with it failed"]


def test_a_program_that_takes_no_other_config_ends_a_tune(tmp_path: Path) -> None:
    cluster = SimulatedCluster(
        fates=("done",), error=lambda config: NAMELESS if config != {"micro_batch_size": 1, "width": 1} else ""
    )
    with pytest.raises(LaunchError, match="two launches failed in the same way before their first step: ValueError"):
        tuned(tmp_path, cluster)
