"""Energy counters of this machine: of an NVIDIA GPU by NVML, of processor packages by Linux's powercap (RAPL).

Both only ever grow, up to where they wrap, so that two readings give the energy between them. Neither is required:
where a counter is absent or not readable, there is no power. AMD's GPUs are left out: torch hands on the power of a
whole socket, in another unit than it documents (``torch.cuda.power_draw``).
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

GPUS, PACKAGES = "GPUs", "CPU packages"
_POWERCAP = Path("/sys/class/powercap")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PACKAGE = re.compile(r"intel-rapl:\d+")  # AMD's processors, too, have this name; a zone within has a second number
_MICRO, _MILLI = 1e-6, 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyCounter:
    """One energy counter.

    Args:
        key: unique among the counters of a job; equal for the same counter read by two processes.
        read: returns joules; may raise anything.
        range_j: joules at which it begins again at 0; infinite where it does not.
    """

    key: str
    read: Callable[[], float]
    range_j: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyCounters:
    """Counters that one process reads for its job.

    Args:
        kind: what they cover: ``GPUS`` or ``PACKAGES``, never a mixture, so that launches compare.
        counters: at least one.
    """

    kind: str
    counters: tuple[EnergyCounter, ...]


def find_counters(*, local_rank: int, powercap: Path = _POWERCAP) -> EnergyCounters | None:
    """Return the counters of this process: its GPUs, or without one, on the first rank of a node, the packages.

    Args:
        local_rank: of this process on its node.
        powercap: the kernel's folder of power zones.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        gpus = _gpu_counters(torch)
        return EnergyCounters(kind=GPUS, counters=gpus) if gpus else None
    counters = package_counters(powercap) if local_rank == 0 else ()
    return EnergyCounters(kind=PACKAGES, counters=counters) if counters else None


def package_counters(powercap: Path = _POWERCAP, *, boot: Path = _BOOT) -> tuple[EnergyCounter, ...]:
    """Return the counter of each processor package; empty unless all of them can be read.

    Zones of parts of a package, and of the whole platform (``psys``), are left out: their energy would count twice.

    Args:
        powercap: the kernel's folder of power zones.
        boot: file that tells machines apart.
    """
    try:
        zones = [each for each in sorted(powercap.iterdir()) if _PACKAGE.fullmatch(each.name)]
        packages = [zone for zone in zones if (zone / "name").read_text().startswith("package")]
        machine = boot.read_text().strip()
        counters = tuple(_package_counter(zone, machine) for zone in packages)
        for counter in counters:
            counter.read()
    except (OSError, ValueError):
        return ()
    return counters


def _package_counter(zone: Path, machine: str) -> EnergyCounter:
    return EnergyCounter(
        key=f"{machine}/{zone.name}",
        read=partial(_joules, zone / "energy_uj"),
        range_j=_joules(zone / "max_energy_range_uj"),
    )


def _joules(file: Path) -> float:
    return int(file.read_text()) * _MICRO


def _gpu_counters(torch: object) -> tuple[EnergyCounter, ...]:
    """Return the counters of this process's GPUs: the current one, and those on which torch holds memory.

    Empty where NVML is not loaded or does not know one of them. torch imports pynvml where that is installed; nothing
    is imported here.
    """
    nvml, cuda = sys.modules.get("pynvml"), getattr(torch, "cuda", None)
    if nvml is None or cuda is None:
        return ()
    try:
        current = cuda.current_device()
        used = [gpu for gpu in range(cuda.device_count()) if gpu == current or cuda.memory_reserved(gpu)]
        nvml.nvmlInit()
        counters = tuple(_gpu_counter(nvml, f"GPU-{cuda.get_device_properties(gpu).uuid}") for gpu in used)
        for counter in counters:
            counter.read()
    except Exception:  # noqa: BLE001 - a driver, a version or a partition (MIG) that does not count energy
        return ()
    return counters


def _gpu_counter(nvml: ModuleType, identity: str) -> EnergyCounter:
    handle = nvml.nvmlDeviceGetHandleByUUID(identity)
    return EnergyCounter(key=identity, read=partial(_gpu_joules, nvml, handle))


def _gpu_joules(nvml: ModuleType, handle: object) -> float:
    total: float = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    return total * _MILLI
