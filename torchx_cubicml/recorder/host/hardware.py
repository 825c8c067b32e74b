"""Hardware facts of the process: processors, devices, and the versions of driver, CUDA and NCCL."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.host_memory import host_memory_gib
from torchx_cubicml.recorder.host.memory import peak_reserved_gib
from torchx_cubicml.settings import visible_devices

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

_GIB = 1 << 30
_MODEL = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)
_DRIVER = re.compile(r"(?:Kernel Module.*?)\s(\d+\.\d+(?:\.\d+)?)\s")
_PROCESSORS = Path("/proc/cpuinfo")
_NVIDIA = Path("/proc/driver/nvidia/version")


def hardware_facts(kind: str, *, ranks: int | None = 1) -> dict[str, Value]:
    """Return the known facts of this node's processors, memory and, for a model on CUDA, of its devices.

    Args:
        kind: of device that the model is on, such as ``cpu`` or ``cuda``.
        ranks: processes of the job on this node, which share the memory of a model on the processors; ``None`` where
            unknown.
    """
    from torch import get_num_threads

    memory = {name: round(value, 2) for name, value in host_memory_gib().items()}
    known: dict[str, Value | None] = {
        "cpu": cpu_name() or None,
        "n_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "n_threads": get_num_threads(),
        "backend": _backend() or None,
        "host_memory_gib": memory.get("host"),
        "host_memory_limit_gib": memory.get("limit"),
    }
    if kind == "cpu" and memory and ranks and peak_reserved_gib() is None:  # else the peak is that of a device
        known["device_memory_gib"] = round(min(memory.values()) / ranks, 2)
    if kind == "cuda":
        known.update(_cuda_facts())
    return {name: value for name, value in known.items() if value is not None}


def cpu_name(path: Path = _PROCESSORS) -> str:
    """Return the model name of this machine's processor; empty if the kernel does not report it."""
    return _first_match(_MODEL, path)


def driver_version(path: Path = _NVIDIA) -> str:
    """Return the version of NVIDIA's driver; empty without one."""
    return _first_match(_DRIVER, path)


def _cuda_facts() -> dict[str, Value | None]:
    from torch import cuda, version

    properties = cuda.get_device_properties(cuda.current_device())
    return {
        "devices_per_node": cuda.device_count(),
        "device_memory_gib": round(properties.total_memory / _GIB, 2),
        "compute_capability": f"{properties.major}.{properties.minor}",
        "cuda_version": getattr(version, "cuda", None),
        "nccl_version": _nccl_version() or None,
        "driver_version": driver_version() or None,
        "visible_devices": visible_devices(),
    }


def _nccl_version() -> str:
    """Return the version of the NCCL that torch was built with; empty if it was built without."""
    from torch.cuda import nccl

    try:
        version: object = nccl.version()  # type: ignore[no-untyped-call]  # of torch
    except (AttributeError, RuntimeError):
        return ""
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def _backend() -> str:
    """Return the backend of collectives, such as ``nccl``; empty if the program has initialised none."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return ""
    return str(distributed.get_backend())


def _first_match(pattern: re.Pattern[str], path: Path) -> str:
    try:
        found = pattern.search(path.read_text())
    except (OSError, UnicodeDecodeError):
        return ""
    return found[1].strip() if found is not None else ""
