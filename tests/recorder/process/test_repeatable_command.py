from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.recorder.process.assignment import Assignment
from torchx_cubicml.recorder.process.repeatable_command import repeatable_command
from torchx_cubicml.recorder.process.run_program import Program
from torchx_cubicml.records.contract import Contract, FilePatch
from torchx_cubicml.settings import read_job_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

TORCHRUN = {"WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}


def assignment(env: Mapping[str, str], program: Program, **fields: object) -> Assignment:
    contract = replace(Contract(store="/s", kept_variables=("DEPTH",)), **fields)  # type: ignore[arg-type]
    return Assignment(job=read_job_environment(env), contract=contract, declared=True, trial_id="t", program=program)


@pytest.mark.parametrize(
    ("env", "program", "words"),
    [
        (TORCHRUN, Program(name="train.py", arguments=("--lr", "1")),
         "torchrun --nnodes 2 --nproc_per_node 4 train.py --lr 1"),
        ({**TORCHRUN, "GROUP_WORLD_SIZE": "1"}, Program(name="team.train", is_module=True),
         "torchrun --standalone --nproc_per_node 8 -m team.train"),
        ({}, Program(name="train.py"), "python train.py"),
    ],
)  # fmt: skip
def test_the_words_are_those_that_a_user_types(env: Mapping[str, str], program: Program, words: str) -> None:
    command = repeatable_command(assignment(env, program))
    assert command == {"words": words.split(), "variables": ["DEPTH"], "hooks": {}, "files": {}}


def test_copies_of_config_files_are_named_as_the_user_did() -> None:
    files = (
        FilePatch(path="conf/ds.json", argument=1, values=((("zero", "stage"), 3),)),
        FilePatch(path="a.yaml", argument=2, values=((("lr",), 0.1),)),
        FilePatch(path="b.yaml", variable="CONFIG"),
    )
    program = Program(name="t.py", arguments=("--ds", "/tmp/copy/ds.json", "--config=/tmp/copy/a.yaml"))
    command = repeatable_command(assignment({}, program, files=files, hooks={"fsdp": "NO_SHARD"}))
    assert command is not None
    assert command["words"] == ["python", "t.py", "--ds", "conf/ds.json", "--config=a.yaml"]
    assert command["files"] == {"conf/ds.json zero.stage": 3, "a.yaml lr": 0.1}
    assert command["hooks"] == {"fsdp": "NO_SHARD"}


def test_a_command_that_is_not_kept_leaves_no_word() -> None:
    assert repeatable_command(assignment({}, Program(name="t.py"), kept_variables=None)) is None
