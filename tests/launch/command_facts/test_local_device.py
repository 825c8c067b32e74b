"""Device of a local launch, as files of the operating system tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.launch.command_facts.local_device import host_gib_per_process, local_device
from torchx_cubicml.launch.launch import Launch

if TYPE_CHECKING:
    from pathlib import Path

LOCAL = Launch(program="train.py", scheduler="local_cwd", nproc_per_node=2)


def gpus(folder: Path, *models: str) -> Path:
    for number, model in enumerate(models):
        inner = folder / f"0000:0{number}:00.0"
        inner.mkdir()
        (inner / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 12\n")
    return folder


def test_equal_devices_are_named(tmp_path: Path) -> None:
    found = local_device(LOCAL, gpus(tmp_path, "NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"))
    assert (found["device"].value, found["device"].source) == ("NVIDIA H100 80GB HBM3", "this machine")


def test_different_devices_are_not(tmp_path: Path) -> None:
    assert local_device(LOCAL, gpus(tmp_path, "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB")) == {}


def test_memory_of_this_machine_is_shared_by_its_processes() -> None:
    one, two = (Launch(program="x", scheduler="local_cwd", nproc_per_node=count) for count in (1, 2))
    whole = host_gib_per_process(one)
    assert whole is not None
    assert host_gib_per_process(two) == whole / 2
    assert host_gib_per_process(Launch(program="x", scheduler="kubernetes", nproc_per_node=1)) is None
