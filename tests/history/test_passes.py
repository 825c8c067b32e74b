"""Passes that make a history: what each command leaves out, and what it is told."""

from __future__ import annotations

from dataclasses import replace

from torchx_cubicml.history.history import History
from torchx_cubicml.history.passes import (
    OF_LAUNCH,
    OF_SUGGESTIONS,
    OF_TUNE,
    comparable,
    keeping_batch,
    passed,
    with_stated_configs,
)
from torchx_cubicml.launch import Launch
from torchx_cubicml.launch.config_io import present_command, program_command
from torchx_cubicml.records.trial import Origin, State, Trial
from torchx_cubicml.space.toml import parse_space

WORKLOAD = {"program": "train.py", "world_size": 2}
SPACE = parse_space(
    """
    [parameters.micro_batch_size]
    choices = [1, 2, 4]
    flag = "--batch"
    was = "bs"

    [parameters.gradient_accumulation_steps]
    choices = [1, 2, 4]
    flag = "--accumulate"
    """,
    where="space.toml",
)
CURRENT = {"micro_batch_size": 2, "gradient_accumulation_steps": 1}
RAN = replace(
    Trial.completed(workload=WORKLOAD, config={"bs": 2, "gradient_accumulation_steps": 1}, tokens_per_second=9.0),
    arguments=("--batch", "2", "--accumulate", "1", "--depth", "8"),
)


def history_of(*trials: Trial, depth: str = "8") -> History:
    command = present_command(Launch(program="train.py", script_args=("--batch", "2", "--depth", depth)), SPACE)
    return History(space=SPACE, workload=WORKLOAD, current=CURRENT, trials=trials, command=command)


def test_each_list_of_passes_migrates() -> None:
    for passes in (OF_LAUNCH, OF_SUGGESTIONS, OF_TUNE):
        (found,) = passed(history_of(RAN), *passes).trials
        assert found.config == CURRENT


def test_launches_of_perhaps_other_work_keep_a_launch_as_typed_and_are_no_grounds_for_proposals() -> None:
    launched = passed(history_of(RAN, depth="9"), *OF_LAUNCH)
    assert "no recorded launch had this value of --depth" in launched.unseen
    assert len(launched.trials) == 1
    for passes in (OF_SUGGESTIONS, OF_TUNE):
        assert passed(history_of(RAN, depth="9"), *passes).trials == []


def test_launches_of_another_project_are_told_by_each_command() -> None:
    elsewhere = replace(RAN, workload={**WORKLOAD, "project": "a:src"})
    history = history_of(elsewhere)
    history = replace(history, workload={**WORKLOAD, "project": "b:src"})
    for passes in (OF_LAUNCH, OF_SUGGESTIONS, OF_TUNE):
        (note,) = passed(history, *passes).notes
        assert note.startswith("1 launch of train.py left out: of another project or folder")


def test_what_does_not_compare_is_left_out_and_lost_launches_are_expired() -> None:
    old = replace(RAN, observed={"device": "A100"}, started_at="", ended_at="2026-01-01T00:00:00+00:00")
    new = replace(RAN, observed={"device": "H100"}, started_at="", ended_at="2026-03-01T00:00:00+00:00")
    lost = replace(RAN, state=State.RUNNING, measurement=None, started_at="2026-01-02T00:00:00+00:00", ended_at="")
    found = comparable(history_of(old, lost, new))
    assert found.notes == ("1 launch left out: the latest had device H100, not A100",)
    assert [trial.state for trial in found.trials] == [State.INFRASTRUCTURE, State.COMPLETED]


def test_the_batch_of_the_command_constrains_the_space() -> None:
    space = keeping_batch(history_of()).space.bind(workload=WORKLOAD, current=CURRENT)
    assert {tuple(config.values()) for config in space.configs()} == {(1, 2), (2, 1)}


def test_a_launch_without_a_config_has_that_of_its_arguments_as_the_latest_typed_one_reads_them() -> None:
    bare = replace(RAN, config={}, arguments=("--batch", "4"), workload=WORKLOAD)
    typed = replace(
        RAN, trial_id="typed", origin=Origin.USER, config=CURRENT, workload={**WORKLOAD, "project": "p:src"}
    )
    later = {"ended_at": "2030-01-01T00:00:00+00:00", "workload": {**WORKLOAD, "project": "q:src"}}
    tuned = replace(typed, trial_id="tuned", origin=Origin.TUNE, **later)
    command = program_command(None, SPACE)
    history = History(space=SPACE, workload={}, current={}, trials=[bare, typed, tuned], command=command)
    stated, *others = with_stated_configs(history).trials
    assert stated.config == {"micro_batch_size": 4}
    assert stated.workload["project"] == "p:src"
    assert others == [typed, tuned]
