from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.errors import LaunchError, StoreError
from torchx_cubicml.launch import Launch, patches_of
from torchx_cubicml.launch.place_config import RewrittenLaunch, place_config, second_attempt, with_files
from torchx_cubicml.records.contract import Contract, TypedCommand
from torchx_cubicml.records.suggestion import Suggestion
from torchx_cubicml.records.trial import Origin
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from pathlib import Path

SPACE = parse_space(
    """
objective = "samples_per_second"
[workload]
n = { flag = "--n" }
[parameters.a]
choices = [1, 2]
flag = "--a"
[parameters.proto]
choices = ["LL", "Simple"]
env = "PROTO"
default = "LL"
[tune.args]
"--out" = "{scratch}/{launch_id}"
""",
    where="s.toml",
)
LAUNCH = Launch(program="t.py", script_args=("--n", "3", "--a", "1"), env={"B": "1"}, world_size=2, scheduler="slurm")
SUGGESTION = Suggestion(
    config={"a": 2}, throughput=2.0, low=1.0, high=3.0, probability_to_fit=0.9, reason="why", n_trials=4
)


def test_a_placed_config_is_in_command_and_contract() -> None:
    config = {"a": 2, "proto": "Simple"}
    placed = place_config(
        LAUNCH, SPACE, config, store="/tmp/s", origin=Origin.TUNE, launch_id="l-1", suggestion=SUGGESTION, step_limit=7
    )
    assert placed == RewrittenLaunch(
        launch=replace(LAUNCH, script_args=("--n", "3", "--a", "2"), env={"B": "1", "PROTO": "Simple"}),
        contract=Contract(
            store="/tmp/s",
            workload={"program": "t.py", "world_size": 2, "n": 3},
            config=config,
            objective="samples_per_second",
            origin=Origin.TUNE,
            launch_id="l-1",
            scheduler="slurm",
            suggestion=SUGGESTION.promise(),
            step_limit=7,
        ),
        suggestion=SUGGESTION,
    )


def test_an_ordinary_launch_has_no_limit_and_no_scratch() -> None:
    placed = place_config(LAUNCH, SPACE, {"a": 2}, store="/tmp/s", origin=Origin.USER)
    assert placed.launch.script_args == ("--n", "3", "--a", "2")
    assert placed.contract is not None
    assert (placed.contract.launch_id, placed.contract.step_limit, placed.contract.suggestion) == ("", None, None)
    assert (placed.suggestion, placed.lines) == (None, ())


def test_a_command_is_kept_on_demand_with_the_variables_of_the_space() -> None:
    space = replace(parse_space('[parameters.a]\nchoices = [1, 2]\nenv = "A"\n', where="x"), digest="ab")
    launch = replace(LAUNCH, env={"A": "1", "NCCL_ALGO": "Ring", "B": "1"})
    for keeps, kept in ((True, ("A", "NCCL_ALGO")), (False, None)):
        placed = place_config(launch, space, {"a": 2}, store="/tmp/s", origin=Origin.USER, keeps_command=keeps)
        assert placed.contract is not None
        assert placed.contract.kept_variables == kept
        assert placed.contract.provenance == {"space": "ab"}


def test_a_profiling_launch_writes_to_its_scratch_folder() -> None:
    placed = place_config(
        LAUNCH, SPACE, {"a": 2}, store="/tmp/s", origin=Origin.TUNE, launch_id="l-1", scratch="/tmp/x"
    )
    assert placed.launch.script_args == ("--n", "3", "--a", "2", "--out", "/tmp/x/l-1")


def test_a_store_that_no_job_reaches_is_refused() -> None:
    with pytest.raises(StoreError, match="exists only in this process"):
        place_config(LAUNCH, SPACE, {"a": 2}, store="memory://s", origin=Origin.TUNE)


def test_a_command_that_may_not_change_is_refused() -> None:
    with pytest.raises(LaunchError, match="cannot be changed: elastic"):
        place_config(replace(LAUNCH, why_not_rewritten="elastic"), SPACE, {}, store="/tmp/s", origin=Origin.TUNE)


def test_messages_are_added_as_lines() -> None:
    launch = RewrittenLaunch(launch=LAUNCH, lines=("first",)).with_lines("second", "third")
    assert launch.lines == ("first", "torchx-cubicml: second", "torchx-cubicml: third")


def test_a_job_can_undo_what_files_change(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"k": 1}')
    typed = replace(LAUNCH, script_args=("--c", str(tmp_path / "c.json")), env={"B": "1", "C": "2"}, nnodes=1)
    files = {"--c": {("k",): 2}}
    wanted = replace(typed, files=files, env={"B": "1", "C": "3", "D": "4"}, nnodes=2, world_size=4, nproc_per_node=2)
    own = {"a": 1, "nnodes": 1, "world_size": 2}
    contract = Contract(store="/tmp/s", config={"a": 2})
    assert with_files(contract, typed=typed, wanted=replace(wanted, files={}), own=own) == contract
    made = with_files(contract, typed=typed, wanted=wanted, own=own)
    assert made.files == patches_of(wanted) != ()
    assert made.as_typed == TypedCommand(
        args=typed.script_args, env={"C": "2", "D": None}, config={"a": 1, "nnodes": 2, "world_size": 4}
    )


def test_a_file_of_the_tuner_is_undone_too(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"k": 1}')
    space = parse_space('[parameters.a]\nchoices = [1, 2]\nfile = "--c"\nkey = "k"\n', where="s.toml")
    typed = Launch(program="t.py", script_args=("--c", str(tmp_path / "c.json")), world_size=1)
    placed = place_config(typed, space, {"a": 2}, store="/tmp/s", origin=Origin.TUNE)
    assert placed.contract is not None
    assert placed.contract.files == patches_of(placed.launch) != ()
    assert placed.contract.as_typed == TypedCommand(args=typed.script_args, config={"a": 1})


def test_a_second_attempt_has_the_typed_command_on_the_same_nodes() -> None:
    contract = Contract(store="/tmp/s", config={"a": 1})
    typed = replace(LAUNCH, nnodes=1, nproc_per_node=2, can_have_second_attempt=True)
    wanted = replace(typed, env={"B": "2", "C": "3"}, nproc_per_node=4)
    second = second_attempt(contract, typed=typed, wanted=wanted)
    changes = TypedCommand(env={"B": "1", "C": None})
    assert second == replace(contract, as_typed=changes, is_second_attempt=True)
    assert second_attempt(contract, typed=typed, wanted=replace(wanted, nnodes=2)) is None
    assert second_attempt(contract, typed=replace(typed, can_have_second_attempt=False), wanted=wanted) is None
