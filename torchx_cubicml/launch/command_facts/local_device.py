"""Device and memory of this machine, on which a local launch runs; read from files of the operating system."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.host_memory import usable_gib_per_process
from torchx_cubicml.launch.command_facts.stated_settings import Setting

if TYPE_CHECKING:
    from torchx_cubicml.launch.launch import Launch

_LOCAL = frozenset({"local_cwd", "local_docker"})
_GPUS = Path("/proc/driver/nvidia/gpus")
_DEVICES = (Path("/dev/kfd"), Path("/dev/accel"))  # of accelerators whose kind no file here tells


def local_device(launch: Launch, gpus: Path = _GPUS) -> dict[str, Setting]:
    """Return the device of a launch on this machine as a setting; nothing for another machine, or if it is not known.

    >>> from torchx_cubicml.launch.launch import Launch
    >>> local_device(Launch(program="x.py", scheduler="kubernetes"))
    {}
    """
    if launch.scheduler not in _LOCAL:
        return {}
    try:
        texts = [each.read_text(encoding="utf-8") for each in sorted(gpus.glob("*/information"))]
    except OSError:
        return {}
    models = {found[1].strip() for text in texts if (found := re.search(r"^Model:(.*)$", text, re.MULTILINE))}
    if texts:
        return {"device": Setting(value=models.pop(), source="this machine")} if len(models) == 1 else {}
    if any(each.exists() for each in _DEVICES):
        return {}
    return {"device": Setting(value="cpu", source="this machine")}


def host_gib_per_process(launch: Launch) -> float | None:
    """Return the memory of this machine in GiB for each process of a local launch; ``None`` where it is not known."""
    if launch.scheduler not in _LOCAL or not launch.nproc_per_node:
        return None
    return usable_gib_per_process(launch.nproc_per_node)
