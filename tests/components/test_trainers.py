"""The components of trainers: their requests, and real launches of stand-ins that take the documented flags."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from torchx.specs import AppDef
from torchx.specs.finder import ComponentValidationException

from torchx_cubicml.components.trainers.megatron_lm import pretrain_gpt
from torchx_cubicml.components.trainers.torchtitan import train
from torchx_cubicml.launch import Launch, read_config
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, decode_contract
from torchx_cubicml.records.trial import Origin, State, Trial
from torchx_cubicml.space.toml import load_space
from torchx_cubicml.store import TrialStore

pytestmark = pytest.mark.filterwarnings("ignore:.Deprecated. dist:UserWarning")  # in newer TorchX

ROOT = Path(__file__).parents[2]
JOBS = Path(__file__).parents[1] / "jobs"
MAIN = "import sys; from torchx.cli.main import main; main(sys.argv[1:])"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A component, its trainer's arguments, and what history makes of them."""

    component: str
    program: str
    trainer: str
    args: str
    fastest: str  # the arguments that history knows to be fastest
    shown: dict[str, object]  # what the stand-in then got
    measured: tuple[str, float | None, float | None]  # source, tokens and samples per second


TITAN = Case(
    component="components/trainers/torchtitan.py:train",
    program="-m torchtitan.train",
    trainer="torchtitan",
    args="--module llama3 --config llama3_debugmodel --training.steps 10 --training.local_batch_size 2 "
    "--training.global_batch_size 16 --training.seq_len 128 --parallelism.tensor_parallel_degree 1 "
    "--parallelism.pipeline_parallel_degree 1 --parallelism.context_parallel_degree 1 "
    "--parallelism.data_parallel_replicate_degree 1 --parallelism.data_parallel_shard_degree -1",
    fastest="--training.local_batch_size 8",
    shown={"training.local_batch_size": "8", "training.global_batch_size": "16", "module": "llama3"},
    measured=("torchtitan", 2 * 1006.5, None),
)
MEGATRON = Case(
    component="components/trainers/megatron_lm.py:pretrain_gpt",
    program="pretrain_gpt.py",
    trainer="megatron-lm",
    args="--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 "
    "--micro-batch-size 2 --global-batch-size 16 --train-iters 10 --bf16",
    fastest="--micro-batch-size 8",
    shown={"micro_batch_size": 8, "global_batch_size": 16, "bf16": True, "connections": "1"},
    measured=("Megatron-LM", None, 16 / 0.2),
)
CASES = [pytest.param(case, id=case.trainer) for case in (TITAN, MEGATRON)]


def prepare(folder: Path, case: Case) -> None:
    """Give a folder a space file and a store that knows a micro batch of 8 to be by far the fastest."""
    (folder / "space.toml").write_text(f'trainer = "{case.trainer}"\n[parameters]\nmicro_batch_size = [1, 2, 4, 8]\n')
    launch = Launch(
        program=case.program.removeprefix("-m "),
        is_module=case.program.startswith("-m "),
        script_args=tuple(shlex.split(case.args)),
        world_size=2,
    )
    workload, _ = read_config(launch, load_space(folder / "space.toml"))
    trials = TrialStore(str(folder / "store"))
    for batch in (1, 2, 4, 8):
        for speed in (1000.0, 1001.0):
            config = {"micro_batch_size": batch, "gradient_accumulation_steps": 8 // batch}
            rate = 9 * speed if batch == 8 else speed
            trials.add(Trial.completed(workload=workload, config=config, tokens_per_second=rate))


@pytest.mark.parametrize(
    ("component", "program"), [(train, "-m torchtitan.train"), (pretrain_gpt, "pretrain_gpt.py")], ids=["titan", "lm"]
)
def test_options_that_are_not_given_are_torchx_own(
    component: object, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").write_text("[component:dist.ddp]\nj = 1x7\n[component:dist.torchrun]\nj = 1x7\n")
    monkeypatch.setenv("TORCHXCONFIG", str(tmp_path / "config"))
    plain, sized = component("--a", "b", store="s"), component("--a", "b", j="2x3", env={"A": "b"}, store="s")
    assert isinstance(plain, AppDef)
    for app, nodes, processes in ((plain, 1, 7), (sized, 2, 3)):
        (role,) = app.roles
        assert (
            f"--nproc_per_node {processes} --tee 3 --role '' -- -mtorchx_cubicml.recorder {program} --a b;"
            in role.args[1]
        )
        contract = decode_contract(role.env[CONTRACT_VARIABLE])
        assert contract.workload == {"program": program, "world_size": nodes * processes}
        assert contract.store == str(tmp_path / "s")
    assert sized.roles[0].env["A"] == "b"
    off = component("--a", "b", mode="off")
    assert CONTRACT_VARIABLE not in off.roles[0].env
    with pytest.raises(ComponentValidationException, match="Invalid format for -j"):
        component(j="1y2", store="s")


def test_megatrons_variable_is_the_users_to_set() -> None:
    (role,) = pretrain_gpt("--a", env={"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, mode="off").roles
    assert role.env["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"
    assert pretrain_gpt("--a", mode="off").roles[0].env["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


@pytest.mark.launch
@pytest.mark.parametrize("case", CASES)
def test_a_trainer_starts_with_the_best_known_config(tmp_path: Path, case: Case) -> None:
    prepare(tmp_path, case)
    for name in ("torchtitan", "pretrain_gpt.py"):
        (tmp_path / name).symlink_to(JOBS / name)
    shown = tmp_path / "shown.json"
    words = ["run", "--wait", "-s", "local_cwd", "-cfg", f"log_dir={tmp_path / 'logs'}", f"{ROOT / case.component}"]
    words += ["-j", "1x2", "--env", f"SHOWN={shown}", "--space", "space.toml", "--store", "store", "--"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *words, *shlex.split(case.args)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "torchx-cubicml: arguments rewritten" in done.stderr
    started = json.loads(shown.read_text())
    assert started == {**started, **case.shown}
    (trial,) = [trial for trial in TrialStore(str(tmp_path / "store")) if trial.origin is Origin.REWRITE]
    assert (trial.state, trial.config["micro_batch_size"]) == (State.COMPLETED, 8)
    measured = trial.measurement
    assert measured is not None
    source, *rates = case.measured
    assert measured.source == source
    assert [measured.tokens_per_second, measured.samples_per_second] == [
        pytest.approx(rate, rel=4e-3) if rate else None
        for rate in rates  # of the lines, at least and at most
    ]
    assert (measured.warmup_steps, measured.steps_counted) == (2, 8)
