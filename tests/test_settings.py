from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchx_cubicml import settings
from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.contract import CONTRACT_VARIABLE

UNDER_TORCHRUN = {
    CONTRACT_VARIABLE: "abc",
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "TORCHX_JOB_ID": "slurm://torchx/12",
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "0",
    "SLURM_TASK_PID": "345",
    "SLURM_RESTART_COUNT": "1",
    "SLURM_CLUSTER_NAME": "east",
    "SLURM_TMPDIR": "/local/12",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_ERROR_FILE": "/tmp/x/none_abcd1234/attempt_2/1/error.json",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def test_a_job_learns_its_place() -> None:
    assert settings.read_job_environment(UNDER_TORCHRUN) == settings.JobEnvironment(
        contract="abc",
        rank=3,
        local_rank=1,
        world_size=4,
        nnodes=2,
        torchx_job_id="slurm://torchx/12",
        scheduler_job_id="slurm-12",
        attempt=(1, 2),
        store_address=("node1", 29500),
        cluster="east",
        run_id="none",
        run_folder="/tmp/x/none_abcd1234",
        stderr_file="/tmp/x/none_abcd1234/attempt_2/1/stderr.log",
        is_batch_job=True,
        step="12.0",
        step_process=345,
        temporary=("/local/12",),
    )


def test_a_batch_script_is_a_step_of_its_own() -> None:
    job = settings.read_job_environment({"SLURM_JOB_ID": "12", "SLURM_TASK_PID": "345"})
    assert (job.step, job.step_process) == ("12.batch", 345)
    outside = settings.read_job_environment({"SLURM_TASK_PID": "345"})
    assert (outside.step, outside.step_process) == ("", 0)


@pytest.mark.parametrize(("number", "restarts"), [("1", 0), ("3", 2), ("0", 0), ("", 0)])
def test_attempts_of_aws_batch_count_from_one(number: str, restarts: int) -> None:
    assert settings.read_job_environment({"AWS_BATCH_JOB_ATTEMPT": number}).attempt == (restarts, 0)


def test_a_job_of_a_cluster_knows_its_temporary_folders() -> None:
    given = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "TMPDIR": "/fast", "SLURM_TMPDIR": "", "LOCAL_SCRATCH": "/scratch2"}
    job = settings.read_job_environment(given)
    assert (job.is_batch_job, job.temporary) == (True, ("/fast", "/scratch2"))
    assert not settings.read_job_environment({}).is_batch_job


@pytest.mark.parametrize("name", ["TORCHELASTIC_USE_AGENT_STORE", "MASTER_ADDR", "MASTER_PORT"])
def test_a_store_outside_the_agent_is_ignored(name: str) -> None:
    without = {key: value for key, value in UNDER_TORCHRUN.items() if key != name}
    assert settings.read_job_environment(without).store_address is None


def test_a_process_without_a_launcher_is_alone() -> None:
    job = settings.read_job_environment({})
    assert (job.rank, job.world_size, job.nnodes, job.attempt, job.store_address) == (0, 1, 1, (0, 0), None)


@pytest.mark.parametrize("text", ["", "-1", "one", "1.5", "²", "٣", "9" * 5000], ids=lambda text: text[:4] or "empty")
def test_an_illegal_count_means_its_default(text: str) -> None:
    assert settings.read_job_environment({"RANK": text, "WORLD_SIZE": text}).world_size == 1


def test_an_option_is_read_by_its_name_and_an_empty_one_is_unset() -> None:
    environment = {"TORCHX_CUBICML_STORE": "s3://team/x", "TORCHX_CUBICML_SPACE": ""}
    assert settings.option("store", environment) == "s3://team/x"
    assert settings.option("space", environment) is None
    assert settings.option("mode", environment) is None


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHX_CUBICML_STORE", "/data/cubicml")
    assert settings.option("store") == "/data/cubicml"


def test_a_child_gets_the_environment_with_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "yes")
    child = settings.child_environment({"NEW": "1"})
    assert (child["KEPT"], child["NEW"]) == ("yes", "1")
    assert "NEW" not in os.environ


def test_the_default_store_is_in_the_home_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings.default_store_url() == str(tmp_path / ".torchx-cubicml")


def test_without_a_home_directory_a_store_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    with pytest.raises(StoreError, match="set TORCHX_CUBICML_STORE"):
        settings.default_store_url()


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, (0, 0, 1, 1, 0)),
        ({"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "CROSS_SIZE": "2", "CROSS_RANK": "1"}, (5, 1, 8, 2, 1)),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, (1, 0, 2, 1, 0)),
        (
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_MCA_orte_num_nodes": "2",
            },
            (3, 1, 4, 2, 0),
        ),
        (
            {
                "SLURM_PROCID": "3",
                "SLURM_LOCALID": "1",
                "SLURM_STEP_NUM_TASKS": "4",
                "SLURM_STEP_NUM_NODES": "2",
                "SLURM_NODEID": "1",
            },
            (3, 1, 4, 2, 1),
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 0, 1, 1, 0)),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2", "NODE_RANK": "0"}, (1, 1, 2, 1, 0)),
    ],
    ids=["none", "deepspeed", "torchrun in a step", "mpirun", "srun", "a batch script", "lightning"],
)
def test_ranks_come_from_the_launcher_that_has_set_them(
    variables: dict[str, str], place: tuple[int, int, int, int, int]
) -> None:
    job = settings.read_job_environment(variables)
    assert (job.rank, job.local_rank, job.world_size, job.nnodes, job.node) == place


def test_the_config_file_of_accelerate_is_where_accelerate_looks(tmp_path: Path) -> None:
    assert settings.accelerate_config_file({"HF_HOME": str(tmp_path)}) is None
    path = tmp_path / "huggingface" / "accelerate" / "default_config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("")
    assert settings.accelerate_config_file({"XDG_CACHE_HOME": str(tmp_path)}) == path


_AFTER_IMPORTS = """
import os
from torchx_cubicml import settings
import sklearn.ensemble
name = "KMP_DUPLICATE_LIB_OK"
inside = os.environ.get(name)
with settings.environment_for_children():
    seen = os.environ.get(name)
restored = os.environ.get(name)
child = settings.child_environment({}).get(name)
settings.forget_variables_of_libraries()
print(inside, seen, restored, child, os.environ.get(name))
"""


@pytest.mark.parametrize(
    ("own", "values"), [(None, "True None True None None"), ("FALSE", "FALSE FALSE FALSE FALSE FALSE")]
)
def test_a_job_inherits_nothing_that_our_libraries_have_set(own: str | None, values: str) -> None:
    environment = {name: text for name, text in os.environ.items() if not name.startswith("KMP_")}
    environment |= {} if own is None else {"KMP_DUPLICATE_LIB_OK": own}
    done = subprocess.run(
        [sys.executable, "-c", _AFTER_IMPORTS], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == values


@pytest.mark.parametrize(
    ("environment", "world_size", "expected"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, 8, 4),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "6", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, 6, 3),
        ({}, 1, 1),
        ({}, 4, 4),  # which this process has started
        ({"RANK": "0", "WORLD_SIZE": "8"}, 8, None),  # pods of an operator, as many ranks in each as nobody tells
    ],
    ids=["torchrun", "Open MPI", "one process", "ranks of its own", "no count"],
)
def test_the_ranks_of_a_node_are_those_that_the_launcher_tells(
    environment: dict[str, str], world_size: int, expected: int | None
) -> None:
    assert settings.ranks_of_node(world_size, environment) == expected
