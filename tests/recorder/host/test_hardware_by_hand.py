"""Facts of a node that is told to the readers."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch

from torchx_cubicml.recorder.host import hardware
from torchx_cubicml.recorder.host.hardware import cpu_name, driver_version, hardware_facts

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("is_available", "is_initialized", "backend"), [(True, True, "gloo"), (True, False, None), (False, True, None)]
)
def test_the_backend_is_that_of_the_program(
    is_available: bool, is_initialized: bool, backend: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = SimpleNamespace(
        is_available=lambda: is_available, is_initialized=lambda: is_initialized, get_backend=lambda: "gloo"
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    assert hardware_facts("cpu").get("backend") == backend
    monkeypatch.delitem(sys.modules, "torch.distributed")
    assert "backend" not in hardware_facts("cpu")


def test_processors_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "cpu_name", lambda: "a processor")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 4, 6} if process == 0 else set(), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    facts = hardware_facts("cpu")
    assert (facts["cpu"], facts["n_cpus"]) == ("a processor", 3)
    monkeypatch.delattr(os, "sched_getaffinity")
    assert hardware_facts("cpu")["n_cpus"] == 64


def test_unknown_facts_of_a_device_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "cpu_name", lambda: "")
    monkeypatch.setattr(hardware, "driver_version", lambda: "")
    properties = SimpleNamespace(total_memory=1.5555 * 2**30, major=8, minor=6)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", {3: properties}.__getitem__)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delattr(torch.cuda.nccl, "version")
    monkeypatch.delattr(torch.version, "cuda")
    facts = hardware_facts("cuda")
    assert facts == {
        "n_cpus": facts["n_cpus"],
        "devices_per_node": 4,
        "device_memory_gib": 1.56,
        "compute_capability": "8.6",
        **({"backend": facts["backend"]} if "backend" in facts else {}),
    }


def test_files_that_cannot_be_read_tell_nothing(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"model name : \xff\xfe")
    assert cpu_name(tmp_path / "bytes") == cpu_name(tmp_path) == driver_version(tmp_path / "bytes") == ""
    (tmp_path / "second").write_text("my model name: no\nmodel name :  Grace \n")
    assert cpu_name(tmp_path / "second") == "Grace"
