"""Facts of a node that is told to the readers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch

from torchx_cubicml.recorder.host import hardware
from torchx_cubicml.recorder.host.hardware import cpu_name, driver_version, hardware_facts

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_unknown_facts_of_a_device_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "cpu_name", lambda: "")
    monkeypatch.setattr(hardware, "driver_version", lambda: "")
    monkeypatch.setattr(hardware, "host_memory_gib", dict)
    properties = SimpleNamespace(total_memory=1.5555 * 2**30, major=8, minor=6)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", {3: properties}.__getitem__)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delattr(torch.cuda.nccl, "version")
    monkeypatch.delattr(torch.version, "cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    facts = hardware_facts("cuda")
    assert facts == {
        "visible_devices": "0,1,2,3",
        "n_cpus": facts["n_cpus"],
        "n_threads": torch.get_num_threads(),
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
