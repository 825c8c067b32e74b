"""Names of trials and facts at the start, from variables alone."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.recorder.process.assignment import Assignment, known_at_start, read_assignment, trial_id_of
from torchx_cubicml.recorder.process.run_program import Program
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, Contract, encode_contract
from torchx_cubicml.settings import read_job_environment

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = Program(name="team.train", is_module=True)
FOLDER = {"TORCHELASTIC_RUN_ID": "my+run", "TORCHELASTIC_ERROR_FILE": "/tmp/x/my+run_ab_d1234/attempt_0/0/error.json"}


def read(**variables: str) -> Assignment:
    return read_assignment(PROGRAM, variables)


def test_defaults_of_an_unknown_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = read(WORLD_SIZE="3")
    assert found.write_deadline_s == 10.0
    assert Assignment(job=found.job, contract=found.contract, declared=True, trial_id="").write_deadline_s == 10.0
    assert found.contract.workload == {"program": "-m team.train", "world_size": 3}


@pytest.mark.parametrize(("rank", "leads"), [("0", True), ("1", False)])
def test_the_first_rank_leads(rank: str, leads: bool) -> None:
    found = read(RANK=rank)
    assert found.leads is leads
    assert bool(found.trial_id) is leads


@pytest.mark.parametrize(
    ("job_id", "expected"),
    [
        ("slurm://torchx/a b//c", "slurm-c"),
        ("slurm://7", "slurm-7"),
        ("://torchx/7", ""),
        ("slurm:/torchx/7", ""),
        ("k8s://torchx/a b?c_d.e", "k8s-a-b-c_d.e"),
        ("s://x/" + "n" * 300, "s-" + "n" * 198),
    ],
)
def test_the_scheduler_and_its_job_name_a_trial(job_id: str, expected: str) -> None:
    assert trial_id_of(read_job_environment({"TORCHX_JOB_ID": job_id})) == expected


def test_the_scheduler_names_before_the_contract_and_the_run() -> None:
    run = {"TORCHELASTIC_RUN_ID": "1f0b2f6e-7d1c-4a53-9e0e-0d6a53c5a7b1"}
    contract = {CONTRACT_VARIABLE: encode_contract(Contract(store="/s", trial_id="t-9"))}
    assert read(TORCHX_JOB_ID="slurm://torchx/7", **contract, **run).trial_id == "slurm-7"
    assert read(**contract, **run, RANK="1").trial_id == "t-9"
    assert read(**{**run, "TORCHELASTIC_RUN_ID": run["TORCHELASTIC_RUN_ID"] + "0"}, RANK="1").trial_id == ""


def test_a_random_folder_names_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    first = read(**FOLDER).trial_id
    assert re.fullmatch(r"trial-[0-9a-f]{16}", first)
    assert read(**FOLDER).trial_id == first
    for folder in ("my+run_ab_d12345", "my+run_ab_D1234", "myyrun_ab_d1234", "other_ab_d1234"):
        file = f"/tmp/x/{folder}/attempt_0/0/error.json"
        both = [read(**{**FOLDER, "TORCHELASTIC_ERROR_FILE": file}).trial_id for _ in range(2)]
        assert both[0] != both[1]  # at random
    assert read(**FOLDER, WORLD_SIZE="2").trial_id != first
    elsewhere = {**FOLDER, "TORCHELASTIC_ERROR_FILE": FOLDER["TORCHELASTIC_ERROR_FILE"].replace("/tmp/x", "/tmp/y")}
    assert read(**elsewhere).trial_id != first
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="another"))
    assert read(**FOLDER).trial_id != first
    assert read(**FOLDER, RANK="1").trial_id == ""


def test_facts_at_the_start() -> None:
    found = read(WORLD_SIZE="4", GROUP_WORLD_SIZE="2")
    facts = {"world_size": 4, "nnodes": 2, "host": os.uname().nodename, "python_version": sys.version.split(" ")[0]}
    assert known_at_start(found) == facts
    refused = replace(found, contract=Contract(store="/s", refused="no way", scheduler="lsf"))
    assert known_at_start(refused) == {**facts, "runs_as_typed": "no way", "scheduler": "lsf"}


@pytest.mark.parametrize(
    ("variables", "scheduler", "expected"),
    [
        ({"TORCHX_JOB_ID": "slurm://torchx/7", "SLURM_JOB_ID": "9"}, "", ("slurm", "slurm://torchx/7")),
        ({"TORCHX_JOB_ID": "slurm://torchx/7", "SLURM_JOB_ID": "9"}, "lsf", ("lsf", "slurm://torchx/7")),
        ({"SLURM_JOB_ID": "9"}, "", ("slurm", "slurm-9")),
        ({}, "", (None, None)),
    ],
)
def test_the_job_is_a_fact(variables: dict[str, str], scheduler: str, expected: tuple[str | None, str | None]) -> None:
    found = read(**variables)
    facts = known_at_start(replace(found, contract=Contract(store="/s", scheduler=scheduler)))
    assert (facts.get("scheduler"), facts.get("job_id")) == expected
