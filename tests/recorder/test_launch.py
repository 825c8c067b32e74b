from __future__ import annotations

import base64
import json
import os
import re
import socket
import time
import zlib
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import pytest

from tests.forked_programs import ForkedProgram
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, Contract, encode_contract
from torchx_cubicml.records.crowding import as_reported
from torchx_cubicml.records.event import Event
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.store import TrialStore

pytestmark = pytest.mark.launch

JOBS = Path(__file__).parents[1] / "jobs"
OURS = ("torchx-cubicml: ", "CUBICML_TRIAL ")
FACTS = Path(__file__).parents[2] / "docs" / "recorded-facts.md"


@dataclass
class Running:
    """A launch under way."""

    process: ForkedProgram
    store: Path

    def end(self) -> Ended:
        stdout, stderr = self.process.communicate(timeout=600)
        return Ended(self.process.returncode, stdout, stderr, self.store, time.time())


@dataclass
class Ended:
    """A launch that is over."""

    code: int
    stdout: str
    stderr: str
    store: Path
    time: float

    def trial(self) -> Trial:
        (trial,) = TrialStore(str(self.store))
        assert {*trial.observed} <= {*re.findall(r"`(\w+)`", FACTS.read_text())}, "every fact is documented"
        return trial

    def printed_trial(self) -> dict[str, object]:
        (line,) = [line for line in self.stderr.splitlines() if line.startswith("CUBICML_TRIAL ")]
        return json.loads(line.partition(" ")[2])

    def warnings(self) -> list[str]:
        return [line for line in self.stderr.splitlines() if line.startswith("torchx-cubicml: warning: ")]

    def lines_of_the_job(self) -> list[str]:
        """Return what the job itself wrote to stderr, and torchrun's own table of failures."""
        lines = [line for line in self.stderr.splitlines() if not line.startswith(OURS)]
        agent = next((index for index, line in enumerate(lines) if re.match(r"[WEI]\d{4} ", line)), len(lines))
        table = [line for line in lines[agent:] if re.match(r"  (rank|exitcode|error_file|traceback) ", line)]
        return lines[:agent] + [re.sub(r"(pid:|PID|/tmp\S+) ?\d*", r"\1", line) for line in table]

    def wall_s(self) -> float:
        return float(re.search(r"wall ([\d.]+)", self.stdout)[1])


def start(
    job: str, *arguments: str, folder: Path, recorded: bool = True, processes: int = 2, **changes: str
) -> Running:
    folder.mkdir(exist_ok=True)
    store = folder / "store"
    environment = {**os.environ, "TORCHX_CUBICML_STORE": str(store), "OMP_NUM_THREADS": "1", **changes}
    recorder = ("-m", "torchx_cubicml.recorder", "--") if recorded else ()
    words = ("--standalone", "--nproc_per_node", str(processes), *recorder, str(JOBS / job), *arguments)
    return Running(ForkedProgram("torchrun", *words, env=environment, cwd=folder), store)


def check_throughput(ended: Ended, *, samples: int, steps: int, tokens: int | None = None) -> None:
    """Check the measurement against what the job says: samples of the whole job per step, and its wall time."""
    measured = ended.trial().measurement
    assert measured is not None
    step_s = measured.mean_step_time_s
    assert measured.samples_per_second == pytest.approx(samples / step_s)
    assert measured.tokens_per_second == (pytest.approx(tokens / step_s) if tokens else None)
    # The wall time holds the slow first steps too, so that the steady state is at least as fast as the whole.
    assert 0.07 * ended.wall_s() / steps < step_s < 1.5 * ended.wall_s() / steps
    assert measured.steps_counted + measured.warmup_steps == steps
    assert 0.05 < measured.peak_memory_gib < 4


def test_ddp(tmp_path: Path) -> None:
    ended = start("train_ddp.py", folder=tmp_path, TORCHX_CUBICML_PRINT_TRIAL="1").end()
    assert ended.code == 0, ended.stderr
    assert ended.warnings() == []
    trial = ended.trial()
    assert trial.state is State.COMPLETED
    project = trial.workload["project"]  # a clone has the name of its remote besides
    assert isinstance(project, tuple)
    assert "torchx-cubicml:tests/jobs" in project
    assert trial.workload == {"program": str(JOBS / "train_ddp.py"), "world_size": 2, "project": project}
    assert trial.observed == {
        **trial.observed,
        "world_size": 2,
        "nnodes": 1,
        "sharding_strategy": "DDP",
        "dp_degree": 2,
        "n_params": 3 * (32 * 32 + 32) + 32 * 4 + 4,
        "n_layers": 3,
        "micro_batch_size": 6,
        "gradient_accumulation_steps": 2,
        "global_batch_size": 24,
        "precision": "fp32",
        "activation_checkpointing": "none",
        "compile": False,
        "device": "cpu",
    }
    assert "seq_len" not in trial.observed
    check_throughput(ended, samples=24, steps=20)
    event = Event.from_json(ended.printed_trial())
    assert event.observed == trial.observed
    reported = as_reported(trial).measurement  # others beside the launch widen its error, where it is read
    assert event.measurement is not None
    assert reported is not None
    assert replace(event.measurement, relative_error=None) == replace(reported, relative_error=None)
    assert event.measurement.relative_error == pytest.approx(reported.relative_error, rel=1e-6)


def test_fsdp1_with_a_strategy_per_layer(tmp_path: Path) -> None:
    ended = start("train_fsdp1.py", folder=tmp_path).end()
    assert ended.code == 0, ended.stderr
    observed = ended.trial().observed
    assert observed == {
        **observed,
        "sharding_strategy": ("FULL_SHARD", "NO_SHARD", "SHARD_GRAD_OP"),
        "root_sharding_strategy": "SHARD_GRAD_OP",
        "dp_degree": 2,
        "n_params": 50 * 24 + 3 * (2 * 24 + 24 * 96 + 96 + 96 * 24 + 24) + 24 * 50 + 50,
        "n_trainable_params": observed["n_params"] - 50,
        "n_layers": 3,
        "micro_batch_size": 2,
        "seq_len": 16,
        "gradient_accumulation_steps": 3,
        "global_batch_size": 12,
        "precision": "bf16",
        "activation_checkpointing": "selective",
        "checkpointed_modules": 1,
        "optimizer": "AdamW",
        "optimizer_fused": True,
        "param_dtype": "bf16",
        "reduce_dtype": "fp32",
        "cpu_offload": False,
        "max_grad_norm": 0.5,
        "backend": "gloo",
    }
    check_throughput(ended, samples=12, tokens=12 * 16, steps=14)


def test_fsdp1_by_a_policy_that_shards_nothing(tmp_path: Path) -> None:
    both = [
        start("train_auto_wrapped.py", folder=tmp_path / str(recorded), recorded=recorded) for recorded in (False, True)
    ]
    plain, ended = (running.end() for running in both)
    assert (ended.code, ended.warnings()) == (0, []), ended.stderr
    counts = [re.search(r"collectives (\d+)", each.stdout)[1] for each in (plain, ended)]
    assert int(counts[0]) == int(counts[1]) > 50  # none is ours
    observed = ended.trial().observed
    assert observed == {
        **observed,
        "sharding_strategy": ("NO_SHARD", "NO_SHARD", "NO_SHARD"),
        "root_sharding_strategy": "NO_SHARD",
        "dp_replicate_degree": 2,
        "dp_shard_degree": 1,
        "n_params": 40 * 16 + 3 * (16 * 48 + 48 + 16 * 16 + 16 + 16 * 64 + 64 + 64 * 16 + 16) + 16 * 40 + 40,
        "n_layers": 3,
        "n_heads": 4,
        "vocab_size": 40,
        "micro_batch_size": 2,
        "seq_len": 8,
        "gradient_accumulation_steps": 2,
        "global_batch_size": 8,
        "attention_kernel": "sdpa_flash",
        "activation_checkpointing": "none",
        "checkpointed_modules": 0,
        "optimizer_fused": False,
        "optimizer_foreach": True,
        "max_grad_norm": 1.5,
        "float8_modules": 0,
    }
    assert "param_dtype" not in observed
    check_throughput(ended, samples=8, tokens=8 * 8, steps=12)


def test_fsdp_across_groups_that_share_a_sequence_or_a_layer(tmp_path: Path) -> None:
    ended = start("train_fsdp_tp.py", folder=tmp_path, processes=4).end()
    assert (ended.code, ended.warnings()) == (0, []), ended.stderr
    observed = ended.trial().observed
    assert observed == {
        **observed,
        "mesh_axes": ("dp", "tp"),
        "mesh_sizes": (2, 2),
        "dp_degree": 2,
        "dp_shard_degree": 2,
        "tp_degree": 2,
        "pp_degree": 1,
        "vocab_size": 32,
        "d_model": 16,
        "d_ff": 64,
        "n_layers": 3,
        "micro_batch_size": 3,
        "seq_len": 8,
        "sharding_strategy": ("FULL_SHARD", "FULL_SHARD", "SHARD_GRAD_OP"),
        "n_params": 32 * 16 + 3 * (2 * 16 + 16 * 64 + 64 + 64 * 16 + 16) + 16 * 32 + 32,
        "precision": "bf16",
        "param_dtype": "bf16",
        "reduce_dtype": "fp32",
        "cpu_offload": False,
        "activation_checkpointing": "selective",
        "checkpointed_modules": 2,
        "max_grad_value": 2.0,
        "global_batch_size": 6,
    }
    assert {"layers.*.up.weight Shard(0)", "layers.*.down.weight Shard(1)", "layers.*.norm.weight Replicate"} < set(
        observed["tp_plan"].split("; ")
    )
    # The two ranks of a group work on one batch: it counts once.
    check_throughput(ended, samples=6, tokens=6 * 8, steps=10)


def test_a_sequence_in_parts_counts_once(tmp_path: Path) -> None:
    ended = start("train_context_parallel.py", folder=tmp_path).end()
    assert (ended.code, ended.warnings()) == (0, []), ended.stderr
    observed = ended.trial().observed
    assert observed == {
        **observed,
        "mesh_axes": ("dp_shard", "cp"),
        "cp_degree": 2,
        "dp_degree": 1,
        "dp_shard_degree": 1,
        "sharding_strategy": ("FULL_SHARD", "FULL_SHARD"),
        "n_params": 32 * 16 + 2 * (16 * 16 + 16 + 16 * 32 + 32 + 16 * 16 + 16) + 16 * 32 + 32,
        "micro_batch_size": 2,
        "global_batch_size": 2,
        "attention_kernel": "math",
    }
    # How much of the sequence a rank's tokens are is not told.
    assert "seq_len" not in observed
    check_throughput(ended, samples=2, steps=10)


@pytest.mark.parametrize(("mode", "planets"), [("distributed", 2), ("local", 1)], ids=["distributed", "local"])
def test_experts_shared_over_an_axis_with_a_free_name(mode: str, planets: int, tmp_path: Path) -> None:
    ended = start("train_experts.py", mode, folder=tmp_path, processes=2 * planets).end()
    assert (ended.code, ended.warnings()) == (0, []), ended.stderr
    observed = ended.trial().observed
    assert observed == {
        **observed,
        "mesh": f"planets={planets},moons=2",
        "tp_degree": 1,
        "ep_degree": 2,
        "dp_degree": 2 * planets,
        "n_experts": 4,
        "n_active_experts": 2,
        "capacity_factor": 1.5,
        "n_params": 32 * 16 + 2 * (4 * 16 + 4 * 2 * 16 * 24) + 2 * 16 + 16 * 32 + 32,
        "global_batch_size": 4 * planets,
    }
    assert observed.get("expert_tp_degree") == (1 if mode == "distributed" else None)
    check_throughput(ended, samples=4 * planets, tokens=4 * planets * 8, steps=10)


def test_a_script_without_steps_has_no_throughput(tmp_path: Path) -> None:
    ended = start("never_steps.py", folder=tmp_path, processes=1).end()
    assert (ended.code, ended.warnings()) == (0, []), ended.stderr
    trial = ended.trial()
    assert (trial.state, trial.measurement) == (State.COMPLETED, None)
    assert (trial.observed["sharding_strategy"], trial.observed["n_params"]) == ("DDP", 300 * 300 + 300 + 300 * 2 + 2)
    invented = {"optimizer", "micro_batch_size", "gradient_accumulation_steps", "global_batch_size"}
    assert not invented & set(trial.observed)


def test_fsdp2_resharding_in_some_layers(tmp_path: Path) -> None:
    ended = start("train_fsdp2.py", folder=tmp_path).end()
    assert ended.code == 0, ended.stderr
    observed = ended.trial().observed
    assert observed == {
        **observed,
        "sharding_strategy": ("FULL_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"),
        "root_sharding_strategy": "SHARD_GRAD_OP",
        "dp_degree": 2,
        "n_params": 40 * 16 + 3 * (16 * 32 + 32 + 32 * 16 + 16) + 16 * 40 + 40,
        "n_layers": 3,
        "micro_batch_size": 3,
        "seq_len": 8,
        "gradient_accumulation_steps": 1,
        "precision": "bf16",
        "activation_checkpointing": "full",
    }
    check_throughput(ended, samples=6, tokens=6 * 8, steps=12)


@pytest.mark.parametrize(
    ("how", "rank", "state", "reason"),
    [
        ("raise", "1", State.USER_ERROR, "ValueError: cannot go on: api_key=***"),
        ("exit3", "0", State.USER_ERROR, "exit status 3"),
        ("out_of_memory", "1", State.OUT_OF_MEMORY, "MemoryError"),
        ("SIGKILL", "0", State.UNKNOWN, "sent no end event"),
        ("SIGABRT", "0", State.TIMEOUT, "Watchdog caught collective operation timeout"),
        ("SIGTERM", "1", State.INFRASTRUCTURE, "ended by SIGTERM"),
        ("os_exit7", "0", State.USER_ERROR, "exit status 7"),
    ],
)
def test_a_recorded_launch_ends_as_before(how: str, rank: str, state: State, reason: str, tmp_path: Path) -> None:
    # TorchX names its jobs, so that a rank knows its trial without asking.
    kept = {"PET_REDIRECTS": "2", "PET_LOG_DIR": str(tmp_path / "logs")} if how == "SIGABRT" else {}
    settings = {"TORCHX_JOB_ID": "local_cwd://torchx/ends-1", **kept}
    both = [start("ends.py", how, rank, folder=tmp_path, recorded=recorded, **settings) for recorded in (False, True)]
    plain, ended = (running.end() for running in both)
    assert ended.code == plain.code != 0
    assert sorted(ended.stdout.splitlines()) == sorted(plain.stdout.splitlines())
    assert ended.lines_of_the_job() == plain.lines_of_the_job()
    end = time.monotonic() + 100
    while not ended.trial().state.ended:
        assert time.monotonic() < end, "nobody tells that it has ended"
        time.sleep(0.1)
    trial = ended.trial()
    assert (trial.trial_id, trial.state) == ("local_cwd-ends-1", state)
    assert reason in trial.reason
    assert "sk-live" not in "".join(path.read_text() for path in ended.store.rglob("*.json"))


def test_the_error_file_is_the_scripts_own(tmp_path: Path) -> None:
    files = {}
    for recorded in (False, True):
        folder = tmp_path / str(recorded)
        folder.mkdir()
        files[recorded] = folder / "error.json"
    both = [
        start(
            "ends_recorded.py",
            folder=files[recorded].parent,
            recorded=recorded,
            TORCHELASTIC_ERROR_FILE=str(files[recorded]),
        )
        for recorded in (False, True)
    ]
    plain, ended = (running.end() for running in both)
    assert ended.code == plain.code == 1
    messages = [json.loads(files[recorded].read_text())["message"] for recorded in (False, True)]
    messages = [json.dumps(message) if isinstance(message, dict) else message for message in messages]
    assert re.sub(r'"timestamp": "\d+"', "", messages[0]) == re.sub(r'"timestamp": "\d+"', "", messages[1])
    # Rank 1 has asked rank 0 for the name of the trial.
    assert (ended.trial().state, ended.trial().attempts) == (State.OUT_OF_MEMORY, 1)


def test_a_hook_that_raises_leaves_the_training_alone(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "from torchx_cubicml.recorder.steps.training import Training\n"
        "def fail(self, optimizer):\n    raise RuntimeError('injected')\n"
        "Training.step = fail\n"
    )
    ended = start("train_ddp.py", folder=tmp_path, processes=1, PYTHONPATH=str(tmp_path)).end()
    assert ended.code == 0
    assert ended.wall_s() > 0
    (warning,) = ended.warnings()
    assert "RuntimeError: injected" in warning
    assert "Traceback" not in ended.stderr
    assert (ended.trial().state, ended.trial().measurement) == (State.COMPLETED, None)


def test_a_store_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = start("prints.py", folder=tmp_path, TORCHX_CUBICML_STORE=str(tmp_path / "file" / "store")).end()
    assert ended.code == 0
    assert ended.stdout.startswith("done ")
    start_warning, end_warning = ended.warnings()
    place = tmp_path / "file" / "store"
    assert f"this launch will not be recorded: cannot write to store {place}" in start_warning
    assert f"this launch was not recorded: cannot write to store {place}" in end_warning


def test_a_store_that_accepts_and_never_answers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"ftp://127.0.0.1:{silent.getsockname()[1]}/store"
        settings = {"TORCHX_CUBICML_STORE": url, "TORCHX_CUBICML_WRITE_DEADLINE_S": "2"}
        ended = start("prints.py", folder=tmp_path, **settings).end()
    assert ended.code == 0
    assert ended.time - float(ended.stdout.split()[1]) < 2 + 60  # the store never answers
    (warning,) = ended.warnings()
    assert "did not answer" in warning


def test_a_contract_of_another_version(tmp_path: Path) -> None:
    payload = zlib.compress(json.dumps({"version": 999, "store": str(tmp_path / "store")}).encode())
    contract = {CONTRACT_VARIABLE: base64.urlsafe_b64encode(payload).decode()}
    ended = start("prints.py", folder=tmp_path, **contract).end()
    assert ended.code == 0
    assert ended.stdout.startswith("done ")
    (warning,) = ended.warnings()
    assert "version 999" in warning
    assert not ended.store.exists()


def test_a_profiling_launch_ends_at_its_step(tmp_path: Path) -> None:
    contract = Contract(store=str(tmp_path / "store"), workload={"program": "train.py"}, launch_id="l-1", step_limit=9)
    checkpoint = tmp_path / "checkpoint"
    ended = start(
        "train_forever.py", str(checkpoint), folder=tmp_path, **{CONTRACT_VARIABLE: encode_contract(contract)}
    ).end()
    assert ended.code == 0, ended.stderr
    assert not checkpoint.exists()
    assert sorted(ended.stdout.splitlines()) == sorted(
        f"rank {rank} took step {step}" for rank in (0, 1) for step in range(1, 9)
    )
    trial = ended.trial()
    assert (trial.state, trial.reason, trial.launch_id) == (State.COMPLETED, "step limit", "l-1")
    assert (trial.observed["sharding_strategy"], trial.observed["dp_degree"]) == ("NONE", 2)
    assert trial.measurement is not None
    assert trial.measurement.steps_counted + trial.measurement.warmup_steps == 9
    assert "CUBICML_TRIAL" not in ended.stderr
    assert ended.warnings() == []


def test_a_pipeline_adds_up_its_stages(tmp_path: Path) -> None:
    ended = start("train_pipeline.py", folder=tmp_path).end()
    assert (ended.code, ended.warnings()) == (0, []), ended.stderr
    observed = ended.trial().observed
    assert observed == {
        **observed,
        "pp_degree": 2,
        "pp_stages": 2,
        "pp_schedule": "ScheduleGPipe",
        "pp_microbatches": 4,
        "dp_degree": 1,
        "n_params": 32 * 16 + 3 * (16 * 16 + 16) + 16 * 32 + 32,
        "n_layers": 3,
        "sharding_strategy": "NONE",
        "micro_batch_size": 2,
        "seq_len": 6,
        "gradient_accumulation_steps": 4,
        "global_batch_size": 8,
    }
    check_throughput(ended, samples=8, tokens=8 * 6, steps=12)


def test_interleaved_stages_add_up_over_ranks(tmp_path: Path) -> None:
    ended = start("train_pipeline.py", "interleaved", folder=tmp_path).end()
    assert (ended.code, ended.warnings()) == (0, []), ended.stderr
    observed = ended.trial().observed
    assert observed == {
        **observed,
        "pp_degree": 2,
        "pp_stages": 4,
        "pp_schedule": "ScheduleInterleaved1F1B",
        "n_params": 32 * 16 + 4 * (16 * 16 + 16) + 16 * 32 + 32,
        "n_layers": 4,
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "global_batch_size": 8,
    }
    check_throughput(ended, samples=8, tokens=8 * 6, steps=12)


def test_compiled_with_checkpoints_and_not_as_requested(tmp_path: Path) -> None:
    contract = Contract(store=str(tmp_path / "store"), config={"sharding_strategy": "FULL_SHARD"})
    settings = {CONTRACT_VARIABLE: encode_contract(contract)}
    ended = start("train_compiled.py", str(tmp_path), folder=tmp_path, processes=1, **settings).end()
    assert (ended.code, ended.warnings()) == (0, []), ended.stderr
    trial = ended.trial()
    assert trial.config == {"sharding_strategy": "FULL_SHARD"}
    assert trial.observed == {
        **trial.observed,
        "sharding_strategy": "DDP",
        "compile": True,
        "micro_batch_size": 6,
        "gradient_accumulation_steps": 1,
        "optimizer": "AdamW",
        "n_params": 8 * 8 + 8 + 8 * 2 + 2,
    }
    measured = trial.measurement
    assert measured.steps_counted + measured.warmup_steps == 16
    assert measured.compile_s > 0.0
    overheads_s = measured.startup_s + measured.compile_s + measured.warmup_s
    took = datetime.fromisoformat(trial.ended_at) - datetime.fromisoformat(trial.started_at)
    assert overheads_s + measured.steps_counted * measured.mean_step_time_s <= took.total_seconds() + 0.002  # rounded


def test_printed_throughput_counts_without_visible_steps(tmp_path: Path) -> None:
    both = [
        start("train_unhooked.py", folder=tmp_path / str(recorded), recorded=recorded) for recorded in (False, True)
    ]
    plain, ended = (running.end() for running in both)
    assert (ended.code, ended.warnings()) == (0, []), ended.stderr
    assert sorted(ended.stdout.splitlines()) == sorted(plain.stdout.splitlines())
    measured = ended.trial().measurement
    assert measured is not None
    assert (measured.source, measured.steps_counted + measured.warmup_steps) == ("Megatron-LM", 8)
    assert measured.samples_per_second == pytest.approx(32 / 0.2055, rel=0.02)
    assert measured.tokens_per_second is None


def test_attempts_of_one_launch_are_one_trial(tmp_path: Path) -> None:
    ended = start("restarts.py", folder=tmp_path, PET_MAX_RESTARTS="1").end()
    assert (ended.code, ended.stdout) == (0, "done\ndone\n"), ended.stderr
    trial = ended.trial()
    assert (trial.state, trial.attempts) == (State.COMPLETED, 2)
    first = [event for event in TrialStore(str(ended.store)).events() if event.attempt == (0, 0)]
    assert State.USER_ERROR in {event.state for event in first if event.writer == "rank1"}
