"""What is recorded on a CUDA device: run by ``pytest -m cuda`` where there is one; elsewhere they skip and say so."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from torchx_cubicml.recorder.events.failures import state_of
from torchx_cubicml.recorder.host.hardware import hardware_facts
from torchx_cubicml.recorder.host.memory import allocator_retries, peak_memory_gib, peak_reserved_gib
from torchx_cubicml.recorder.model.facts import read_optimizer
from torchx_cubicml.recorder.model.kernels import attention_kernel
from torchx_cubicml.recorder.steps.deferred_hooks import DeferredForwardHook, StepBuffer, make_step_hook
from torchx_cubicml.recorder.steps.pauses import Pauses
from torchx_cubicml.recorder.steps.step_clock import CudaClock, StepEnd
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.store import TrialStore

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

JOB = Path(__file__).parent / "jobs" / "train_cuda.py"
GIB = 1 << 30


def launch(folder: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], Trial]:
    environment = {**os.environ, "TORCHX_CUBICML_STORE": str(folder / "store")}
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "1")
    done = subprocess.run(
        [sys.executable, *torchrun, "-m", "torchx_cubicml.recorder", "--", str(JOB), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    (trial,) = TrialStore(str(folder / "store"))
    return done, trial


def job_output(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return what the job itself has measured."""
    return json.loads(done.stdout.splitlines()[-1])


def test_events_time_the_device_and_not_the_host() -> None:
    clock = CudaClock()
    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    product = torch.empty_like(matrix)
    torch.mm(matrix, matrix, out=product)  # its first call prepares the library, on the host
    torch.cuda.synchronize()
    own = [torch.cuda.Event(enable_timing=True) for _ in range(8)]
    host = time.perf_counter()
    for event in own:
        for _ in range(40):
            torch.mm(matrix, matrix, out=product)
        clock.tick(StepEnd(clock.now(), samples=1))
        event.record()
    host = time.perf_counter() - host
    torch.cuda.synchronize()
    steps = list(clock.steps())
    device = [before.elapsed_time(after) / 1000 for before, after in itertools.pairwise(own)]
    assert [step.seconds for step in steps] == pytest.approx(device, rel=0.05, abs=1e-4)
    assert sum(device) > 0.5 * host  # else the work was too little to say anything


def test_an_event_is_read_only_once_the_device_has_come_there() -> None:
    clock = CudaClock()
    torch.cuda._sleep(1)
    clock.tick(StepEnd(clock.now()))
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # cycles: most of a second
    clock.tick(StepEnd(clock.now()))
    assert list(clock.steps()) == []
    assert not torch.cuda.current_stream().query()  # nothing has waited
    torch.cuda.synchronize()
    assert len(list(clock.steps())) == 1


def test_no_event_gets_into_a_captured_graph() -> None:
    clock = CudaClock()
    x = torch.ones(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert clock.now() is None
        clock.tick(StepEnd(clock.now()))
        x.mul_(1.0)
    graph.replay()
    torch.cuda.synchronize()
    assert list(clock.steps()) == []


def test_hooks_of_a_settled_step_cost_little() -> None:
    def bare(hook: object) -> object:
        return hook

    clock, notes, leading = CudaClock(), StepBuffer(Pauses(bare)), object()
    notes.open(lambda: leading, clock.now, strangers=0)
    model, inputs = nn.Linear(8, 8, device="cuda"), (torch.zeros(4, 8, device="cuda"),)
    step, forward = make_step_hook(notes, print, bare), DeferredForwardHook(notes, (0,), bare)
    fastest = float("inf")
    for _ in range(20):
        notes.left = 1000
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(200):
            forward(model, inputs, {})
            step(leading, (), {})
        fastest = min(fastest, (time.perf_counter() - began) / 200)
        for noted in notes.take():
            clock.tick(StepEnd(noted.end, began=noted.began))
        torch.cuda.synchronize()
        list(clock.steps())
    print(f"hooks of a settled step on CUDA: {1e6 * fastest:.1f} us")
    assert fastest < 100e-6  # the bound of 20 us is the benchmarks' to hold; this one is for any machine


def test_memory_is_the_devices() -> None:
    torch.cuda.reset_peak_memory_stats()
    before = peak_memory_gib()
    held = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    assert peak_memory_gib() - before == pytest.approx(1.0, abs=0.05)
    assert peak_reserved_gib() >= 1.0
    assert isinstance(allocator_retries(), int)
    del held


def test_the_device_is_named() -> None:
    facts = hardware_facts("cuda")
    properties = torch.cuda.get_device_properties(0)
    assert facts["device_memory_gib"] == round(properties.total_memory / GIB, 2)
    assert facts["devices_per_node"] == torch.cuda.device_count()
    assert facts["cuda_version"] == torch.version.cuda
    assert facts["driver_version"].count(".") in {1, 2}
    assert facts["nccl_version"].startswith("2.")


@pytest.mark.parametrize(
    ("backend", "kernel"),
    [
        (SDPBackend.FLASH_ATTENTION, "sdpa_flash"),
        (SDPBackend.EFFICIENT_ATTENTION, "sdpa_efficient"),
        (SDPBackend.CUDNN_ATTENTION, "sdpa_cudnn"),
        (SDPBackend.MATH, "math"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_kernel_of_attention_shows(backend: SDPBackend, kernel: str) -> None:
    q = torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    try:
        with sdpa_kernel(backend):
            output = functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    except RuntimeError as error:
        pytest.skip(f"this device has no such kernel: {error}")
    assert attention_kernel(output.sum().grad_fn, 1) == kernel


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_shows() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.randn(2, 4, 128, 64, device="cuda", requires_grad=True)
    assert attention_kernel(flex_attention(q, q, q).sum().grad_fn, 1) == "flex_attention"


def test_an_optimizer_on_a_device_is_foreach_by_default() -> None:
    weights = [nn.Parameter(torch.zeros(2, device="cuda"))]
    assert read_optimizer(torch.optim.AdamW(weights))["optimizer_foreach"] is True
    assert read_optimizer(torch.optim.AdamW(weights, fused=True)) == {"optimizer": "AdamW", "optimizer_fused": True}


def test_more_than_the_device_holds_is_out_of_memory() -> None:
    with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    assert state_of(caught.value) is State.OUT_OF_MEMORY
    wrapped = RuntimeError("step 7 failed")
    wrapped.__cause__ = caught.value
    assert state_of(wrapped) is State.OUT_OF_MEMORY


@pytest.mark.launch
@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_a_training_in_mixed_precision(how: str, tmp_path: Path) -> None:
    done, trial = launch(tmp_path, how)
    assert done.returncode == 0, done.stderr
    own = job_output(done)
    assert trial.state is State.COMPLETED
    assert trial.observed == {
        **trial.observed,
        "device": torch.cuda.get_device_name(),
        "precision": "bf16",
        "compile": how == "compiled",
        "n_params": own["n_params"],
        "micro_batch_size": 8,
        "seq_len": 256,
        "gradient_accumulation_steps": 1,
        "optimizer": "AdamW",
        "optimizer_fused": True,
        "max_grad_norm": 1.0,
        "sharding_strategy": "DDP",
        "backend": "nccl",
    }
    if how == "eager":
        assert trial.observed["attention_kernel"].startswith("sdpa_")
        assert trial.observed["activation_checkpointing"] == "none"
    else:
        assert trial.observed["compile_mode"] == "default"
    measured = trial.measurement
    assert measured is not None
    counted = own["step_s"][-measured.steps_counted :]
    assert measured.step_time_s[1] == pytest.approx(median(counted), rel=0.1)
    assert measured.tokens_per_second == pytest.approx(8 * 256 / mean(counted), rel=0.1)
    assert measured.peak_memory_gib == pytest.approx(own["peak_gib"], rel=0.02)
    assert measured.peak_reserved_gib >= measured.peak_memory_gib
    assert measured.allocator_retries == 0


@pytest.mark.launch
def test_a_training_that_outgrows_the_device(tmp_path: Path) -> None:
    done, trial = launch(tmp_path, "outgrow")
    assert done.returncode != 0
    assert trial.state is State.OUT_OF_MEMORY
    assert "CUDA out of memory" in trial.reason
    assert trial.observed["n_params"] > 0
    assert trial.measurement is not None  # of the steps before
