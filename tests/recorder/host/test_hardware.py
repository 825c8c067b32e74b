"""What the small readers of facts tell: hardware, optimizers, compilation, eight-bit modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.optim import optimizer as torchs_optimizer

from torchx_cubicml.recorder.host import hardware
from torchx_cubicml.recorder.host.hardware import cpu_name, driver_version, hardware_facts
from torchx_cubicml.recorder.model.facts import read_optimizer
from torchx_cubicml.recorder.model.kernels import compile_facts
from torchx_cubicml.recorder.model.size import count_float8_modules

if TYPE_CHECKING:
    from pathlib import Path


def test_the_driver_and_the_processor_are_read_from_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder)\n"
        "GCC version:  gcc version 11.4.0\n"
    )
    assert driver_version(tmp_path / "version") == "570.86.15"
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core Processor\n")
    assert cpu_name(tmp_path / "cpuinfo") == "AMD EPYC 9654 96-Core Processor"
    assert driver_version(tmp_path / "absent") == cpu_name(tmp_path / "version") == ""


def test_an_older_wording_of_the_driver_is_read(tmp_path: Path) -> None:
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
    )
    assert driver_version(tmp_path / "version") == "535.183.01"


def test_a_model_on_the_processor_has_no_facts_of_a_gpu_and_a_share_of_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "host_memory_gib", lambda: {"host": 62.8035, "limit": 24.0})
    facts = hardware_facts("cpu", ranks=3)
    assert (facts["host_memory_gib"], facts["host_memory_limit_gib"]) == (62.8, 24.0)
    assert facts["device_memory_gib"] == 8.0
    monkeypatch.setattr(hardware, "host_memory_gib", dict)
    facts = hardware_facts("cpu")
    assert facts["n_cpus"] >= 1
    assert facts["n_threads"] == torch.get_num_threads()
    assert not {"cuda_version", "device_memory_gib", "nccl_version", "backend"} & set(facts)


class Properties:
    total_memory = 80 * 2**30
    major, minor = 9, 0


@pytest.mark.parametrize(
    ("reported", "version"), [((2, 27, 3), "2.27.3"), (2703, "2703"), (RuntimeError("built without NCCL"), None)]
)
def test_the_facts_of_a_device(monkeypatch: pytest.MonkeyPatch, reported: object, version: str | None) -> None:
    def say() -> object:
        if isinstance(reported, Exception):
            raise reported
        return reported

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda.nccl, "version", say)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(hardware, "driver_version", lambda: "570.86.15")
    facts = hardware_facts("cuda")
    assert facts.get("nccl_version") == version
    assert facts == {
        **facts,
        "devices_per_node": 8,
        "device_memory_gib": 80.0,
        "compute_capability": "9.0",
        "cuda_version": "12.8",
        "driver_version": "570.86.15",
    }


WEIGHTS = [nn.Parameter(torch.zeros(2))]


@pytest.mark.parametrize(
    ("optimizer", "facts"),
    [
        (
            torch.optim.AdamW(WEIGHTS, fused=True),
            {"optimizer": "AdamW", "optimizer_fused": True},
        ),
        (
            torch.optim.AdamW(WEIGHTS, foreach=True),
            {"optimizer": "AdamW", "optimizer_fused": False, "optimizer_foreach": True},
        ),
        (
            torch.optim.SGD(WEIGHTS, lr=0.1),
            {"optimizer": "SGD", "optimizer_fused": False, "optimizer_foreach": False},  # by default on a processor
        ),
        (torch.optim.LBFGS(WEIGHTS), {"optimizer": "LBFGS"}),
    ],
    ids=["fused", "foreach", "default", "neither"],
)
def test_the_implementation_of_an_optimizer(optimizer: torch.optim.Optimizer, facts: dict[str, object]) -> None:
    assert read_optimizer(optimizer) == facts


def test_an_unknown_optimizer_implementation_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torchs_optimizer, "_default_to_fused_or_foreach")  # pins the name
    assert read_optimizer(torch.optim.SGD(WEIGHTS, lr=0.1)) == {"optimizer": "SGD", "optimizer_fused": False}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, where it loads inductor
@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
@pytest.mark.parametrize("in_place", [False, True], ids=["wrapped", "in place"])
def test_the_mode_of_compilation(mode: str, in_place: bool) -> None:
    part = nn.Linear(2, 2)
    if in_place:
        part.compile(mode=mode)
    else:
        part = torch.compile(part, mode=mode)
    assert compile_facts(nn.Sequential(part, nn.Linear(2, 1))) == {"compile": True, "compile_mode": mode}


def test_a_compiler_other_than_inductor_has_no_mode() -> None:
    assert compile_facts(torch.compile(nn.Linear(2, 2), backend="eager")) == {"compile": True}


class Float8Linear(nn.Linear):
    """Called as in torchao."""


class Float8Tensor(torch.Tensor):
    """Called as in torchao."""


def test_modules_in_eight_bits_are_known_by_class_or_weights() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Float8Linear(2, 2), nn.Linear(2, 2, bias=False))
    assert count_float8_modules(model) == 1
    model[2].weight = nn.Parameter(torch.zeros(2, 2).as_subclass(Float8Tensor), requires_grad=False)
    assert count_float8_modules(model) == 2


def test_modules_that_decide_at_each_call_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformer_engine", torch)
    assert count_float8_modules(nn.Linear(2, 2)) is None
