"""What ``cubicrun`` makes of config files and sizes, where history knows a better config."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.cubicrun import plan_launch
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, Contract, FilePatch, decode_contract
from torchx_cubicml.records.trial import Origin, Trial
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.records.values import Value

FILE = '{"train_micro_batch_size_per_gpu": 2}'
BATCH = """
[parameters.micro_batch_size]
choices = [1, 2, 4, 8]
file = "--deepspeed_config"
key = "train_micro_batch_size_per_gpu"
[parameters.gradient_accumulation_steps]
derive = "global_batch_size / (micro_batch_size * dp_degree)"
flag = "--accumulate"
"""
IN_FLAG = BATCH.replace(
    'file = "--deepspeed_config"\nkey = "train_micro_batch_size_per_gpu"', 'flag = "--b"\ndefault = 2'
)
SIZE = '[parameters.nproc_per_node]\nchoices = [1, 2]\ntorchrun = "--nproc_per_node"\n'
ARGS = ["train.py", "--deepspeed_config", "ds.json", "--accumulate", "8", "a b"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "ds.json").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHX_CUBICML_STORE", str(tmp_path / "store"))
    for name in ("TORCHX_CUBICML_SPACE", "TORCHX_CUBICML_MODE", "TORCHX_JOB_ID", "PYTHON_EXEC", CONTRACT_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def fill(folder: Path, *, nprocs: tuple[int, ...], workload: dict[str, Value]) -> None:
    """Fill a store that knows 8 samples to be fastest, and two processes twice as fast as one."""
    trials = TrialStore(str(folder / "store"))
    for nproc in nprocs:
        for batch in (1, 2, 4, 8):
            config: dict[str, Value] = {"micro_batch_size": batch, "gradient_accumulation_steps": 16 // batch // nproc}
            sizes: dict[str, Value] = {"nproc_per_node": nproc, "world_size": nproc} if len(nprocs) > 1 else {}
            rate = (9000.0 if batch == 8 else 1000.0 + batch) * nproc
            known = {"program": "train.py", **workload}
            trials.add(Trial.completed(workload=known, config={**config, **sizes}, tokens_per_second=rate))


def plan(folder: Path, space: str, *options: str) -> tuple[list[str], Contract, str]:
    (folder / "space.toml").write_text(space)
    made = plan_launch({"space": "space.toml"}, [*options, *ARGS])
    return list(made.args), decode_contract(made.env[CONTRACT_VARIABLE]), "\n".join(made.lines)


def test_a_config_file_is_rewritten_in_the_job_alone(folder: Path) -> None:
    fill(folder, nprocs=(1,), workload={"world_size": 1})
    args, contract, stderr = plan(folder, BATCH, "--nproc_per_node", "1")
    assert args[args.index("train.py") :] == ["train.py", "--deepspeed_config", "ds.json", "--accumulate", "2", "a b"]
    (patch,) = contract.files
    assert patch == FilePatch(
        path="ds.json",
        argument=1,
        digest=hashlib.sha256(FILE.encode()).hexdigest(),
        values=((("train_micro_batch_size_per_gpu",), 8),),
    )
    assert contract.origin is Origin.REWRITE
    assert contract.as_typed is not None
    assert contract.as_typed.args == tuple(ARGS[1:])
    assert contract.typed().config == {"micro_batch_size": 2, "gradient_accumulation_steps": 8}
    assert "2 -> 8  (train_micro_batch_size_per_gpu in --deepspeed_config)" in stderr
    assert (folder / "ds.json").read_text() == FILE


def test_a_size_is_rewritten_and_the_global_batch_kept(folder: Path) -> None:
    fill(folder, nprocs=(1, 2), workload={"nnodes": 1})
    args, contract, stderr = plan(folder, IN_FLAG + SIZE, "--nproc_per_node", "1")
    assert args[:2] == ["--nproc_per_node", "2"], stderr
    assert args[-4:] == ["1", "a b", "--b", "8"]
    assert contract.workload == {"program": "train.py", "nnodes": 1}
    assert contract.config["world_size"] == 2
    assert "1 -> 2  (nproc_per_node)" in stderr


def test_files_and_a_size_are_not_rewritten_together(folder: Path) -> None:
    fill(folder, nprocs=(1, 2), workload={"nnodes": 1})
    args, contract, stderr = plan(folder, BATCH + SIZE, "--nproc_per_node", "1")
    assert args[:2] == ["--nproc_per_node", "1"]
    assert args[-len(ARGS) :] == ARGS
    assert (contract.files, contract.origin) == ((), Origin.USER)
    assert "changes both config files and the job size, which a job cannot undo" in stderr


def test_a_missing_file_is_reported_in_one_line(folder: Path) -> None:
    (folder / "ds.json").unlink()
    args, contract, stderr = plan(folder, BATCH, "--nproc_per_node", "1")
    assert args[-len(ARGS) :] == ARGS
    assert (contract.files, contract.config) == ((), {})
    assert "keeping your arguments: ds.json cannot be read here" in stderr
