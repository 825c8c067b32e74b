from __future__ import annotations

import os
from typing import ClassVar

import pytest

from torchx_cubicml.errors import ContractError
from torchx_cubicml.recorder.process.assignment import WRITE_DEADLINE_S, known_at_start, read_assignment, trial_id_of
from torchx_cubicml.recorder.process.run_program import Program
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, Contract, encode_contract
from torchx_cubicml.settings import default_store_url, read_job_environment

PROGRAM = Program(name="train.py", arguments=("--steps", "3"))
TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}


def test_a_launch_without_a_contract_is_recorded() -> None:
    found = read_assignment(PROGRAM, {})
    assert not found.declared
    assert found.leads
    assert found.contract.store == default_store_url()
    assert found.contract.workload == {"program": "train.py", "world_size": 1}
    assert found.trial_id.startswith("trial-")
    assert read_assignment(PROGRAM, {}).trial_id != found.trial_id


def test_the_store_can_be_named_by_the_environment() -> None:
    assert read_assignment(PROGRAM, {"TORCHX_CUBICML_STORE": "s3://team/x"}).contract.store == "s3://team/x"


def test_a_launch_without_a_contract_keeps_its_command_on_demand() -> None:
    for text, kept in (("yes", ()), ("no", None)):
        assignment = read_assignment(Program(name="train.py"), {"TORCHX_CUBICML_KEEP_COMMAND": text})
        assert assignment.contract.kept_variables == kept


def test_the_launchers_contract_is_taken() -> None:
    contract = Contract(store="/s", workload={"program": "train.py"}, config={"a": 1}, launch_id="launch-1")
    found = read_assignment(PROGRAM, {CONTRACT_VARIABLE: encode_contract(contract)})
    assert found.declared
    assert found.contract == contract


def test_a_contract_of_another_kind_is_refused() -> None:
    with pytest.raises(ContractError, match="damaged"):
        read_assignment(PROGRAM, {CONTRACT_VARIABLE: "AAAA"})


@pytest.mark.parametrize(
    ("job_id", "expected"),
    [
        ("local_cwd://torchx/train-w0x3k1", "local_cwd-train-w0x3k1"),
        ("kubernetes://torchx/team:train-1", "kubernetes-team-train-1"),
        ("slurm://torchx/1234", "slurm-1234"),
        ("", ""),
        ("nonsense", ""),
        ("slurm://torchx/", ""),
    ],
)
def test_trial_id_of_a_job(job_id: str, expected: str) -> None:
    assert trial_id_of(read_job_environment({"TORCHX_JOB_ID": job_id})) == expected


def test_other_ranks_derive_the_id_or_have_none() -> None:
    assert read_assignment(PROGRAM, TORCHRUN).trial_id == ""
    job = {**TORCHRUN, "TORCHX_JOB_ID": "slurm://torchx/7"}
    assert read_assignment(PROGRAM, job).trial_id == "slurm-7"


def test_a_jobs_number_counts_within_its_cluster() -> None:
    job = read_job_environment({"TORCHX_JOB_ID": "slurm://torchx/7", "SLURM_CLUSTER_NAME": "a b"})
    assert trial_id_of(job) == "slurm-a-b-7"
    unnamed = read_job_environment({"TORCHX_JOB_ID": "slurm://torchx/7", "SLURM_SUBMIT_HOST": "login1.east"})
    assert trial_id_of(unnamed) == "slurm-login1.east-7"


def test_a_random_torchrun_name_serves_as_id() -> None:
    run_id = "1f0b2f6e-7d1c-4a53-9e0e-0d6a53c5a7b1"
    standalone = {**TORCHRUN, "TORCHELASTIC_RUN_ID": run_id}
    assert read_assignment(PROGRAM, standalone).trial_id == f"torchrun-{run_id}"
    contract = {CONTRACT_VARIABLE: encode_contract(Contract(store="/s", trial_id="trial-1"))}
    assert read_assignment(PROGRAM, {**standalone, **contract}).trial_id == "trial-1"
    for chosen in ("none", "my-training"):
        assert read_assignment(PROGRAM, {**TORCHRUN, "TORCHELASTIC_RUN_ID": chosen}).trial_id == ""


def test_attempts_of_one_torchrun_agent_are_one_trial() -> None:
    def trial_id(folder: str, attempt: int, **changes: str) -> str:
        file = f"{folder}/attempt_{attempt}/0/error.json"
        return read_assignment(PROGRAM, {**rank_0, "TORCHELASTIC_ERROR_FILE": file, **changes}).trial_id

    rank_0 = {**TORCHRUN, "RANK": "0", "TORCHELASTIC_RUN_ID": "none"}
    first = trial_id("/tmp/x/none_abcd1234", 0)
    assert first.startswith("trial-")
    assert trial_id("/tmp/x/none_abcd1234", 1) == first
    assert trial_id("/tmp/x/none_abcd1235", 0) != first
    assert trial_id("/tmp/x/none_abcd1234", 1, WORLD_SIZE="2") != first
    assert trial_id("/logs/mine", 0) != trial_id("/logs/mine", 0)


class TestTaskOfSlurm:
    """A launch whose first process was started by Slurm itself."""

    TASK: ClassVar[dict[str, str]] = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_CLUSTER_NAME": "east"}

    def trial_id(self, program: Program = PROGRAM, **changes: str) -> str:
        return read_assignment(program, {**self.TASK, "SLURM_TASK_PID": str(os.getpid()), **changes}).trial_id

    def test_a_requeued_job_is_the_same_launch(self) -> None:
        first = self.trial_id()
        assert first.startswith("trial-")
        assert self.trial_id(SLURM_RESTART_COUNT="1") == first

    def test_another_launch_has_another_id(self) -> None:
        contract = encode_contract(Contract(store="/s", config={"a": 1}))
        others = [
            self.trial_id(SLURM_JOB_ID="8"),
            self.trial_id(SLURM_STEP_ID="1"),
            self.trial_id(SLURM_CLUSTER_NAME="west"),
            self.trial_id(Program(name="train.py", arguments=("--steps", "4"))),
            self.trial_id(Program(name="other.py", arguments=PROGRAM.arguments)),
            self.trial_id(**{CONTRACT_VARIABLE: contract}),
        ]
        assert len({self.trial_id(), *others}) == 7

    def test_torchruns_agent_is_the_first_process_of_its_ranks(self) -> None:
        rank_0 = {**TORCHRUN, "RANK": "0", "TORCHELASTIC_RUN_ID": "none", "SLURM_TASK_PID": str(os.getppid())}
        assert self.trial_id(**rank_0) == self.trial_id(**rank_0)
        assert self.trial_id(**{**rank_0, "RANK": "1"}) == ""  # it asks rank 0
        assert self.trial_id(**{**rank_0, "SLURM_TASK_PID": str(os.getpid())}) != self.trial_id(**rank_0)

    def test_a_process_of_a_script_is_one_of_several(self) -> None:
        assert self.trial_id(SLURM_TASK_PID="1") != self.trial_id(SLURM_TASK_PID="1")


@pytest.mark.parametrize(
    ("scheduler", "retry", "attempts"),
    [
        ("slurm", {"SLURM_RESTART_COUNT": "1"}, [(0, 0), (1, 0)]),
        ("slurm", {"TORCHELASTIC_RESTART_COUNT": "1"}, [(0, 0), (0, 1)]),
        ("kubernetes", {"TORCHELASTIC_RESTART_COUNT": "2"}, [(0, 0), (0, 2)]),
        ("aws_batch", {"AWS_BATCH_JOB_ATTEMPT": "2"}, [(0, 0), (1, 0)]),
    ],
    ids=["requeued", "restarted", "restarted in a pod", "tried again"],
)
def test_retries_are_attempts_of_one_trial(
    scheduler: str, retry: dict[str, str], attempts: list[tuple[int, int]]
) -> None:
    job = {**TORCHRUN, "TORCHX_JOB_ID": f"{scheduler}://torchx/train-1"}
    both = [read_assignment(PROGRAM, {**job, **changes}) for changes in ({}, retry)]
    assert {found.trial_id for found in both} == {f"{scheduler}-train-1"}
    assert [found.job.attempt for found in both] == attempts


def test_facts_known_at_start() -> None:
    facts = known_at_start(read_assignment(PROGRAM, {**TORCHRUN, "TORCHX_JOB_ID": "slurm://torchx/7"}))
    assert facts["world_size"] == 4
    assert facts["nnodes"] == 2
    assert facts["scheduler"] == "slurm"
    assert "scheduler" not in known_at_start(read_assignment(PROGRAM, {}))
    assert known_at_start(read_assignment(PROGRAM, {"SLURM_JOB_ID": "9"}))["scheduler"] == "slurm"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2.5", 2.5),
        ("", WRITE_DEADLINE_S),
        ("soon", WRITE_DEADLINE_S),
        ("-1", WRITE_DEADLINE_S),
        ("nan", WRITE_DEADLINE_S),
    ],
)
def test_write_deadline(text: str, expected: float) -> None:
    assert read_assignment(PROGRAM, {"TORCHX_CUBICML_WRITE_DEADLINE_S": text}).write_deadline_s == expected


def test_arguments_are_recorded_unless_too_long_or_no_text() -> None:
    def recorded(*arguments: str) -> tuple[str, ...] | None:
        program = read_assignment(Program(name="train.py", arguments=arguments), {}).program
        return None if program is None else program.arguments

    assert recorded("--name", "a\nb", "") == ("--name", "a\nb", "")
    assert recorded("x" * 2048, "y" * 2047) is not None
    assert recorded("x" * 2048, "y" * 2048) is None
    assert recorded("\udcff") is None
