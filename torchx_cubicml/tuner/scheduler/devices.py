"""Devices of this host that a local job may use: those that ``nvidia-smi`` lists, within ``CUDA_VISIBLE_DEVICES``."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_LIST = ("nvidia-smi", "-L")
_TIMEOUT_S = 20.0
_GPU = re.compile(r"GPU (\d+):")
_PART = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")
_IDENTIFIER = re.compile(r"(GPU|MIG)-[\w/-]+")


def list_devices() -> tuple[str, ...] | None:
    """Return the devices that ``nvidia-smi`` lists; ``None`` if it is missing or does not answer."""
    try:
        done = subprocess.run(_LIST, capture_output=True, text=True, errors="replace", check=False, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_devices(done.stdout) if done.returncode == 0 else None


def parse_devices(text: str) -> tuple[str, ...]:
    """Return the devices in the output of ``nvidia-smi -L``: numbers of GPUs, and the parts of a GPU that is divided.

    >>> lines = ["GPU 0: H200 (UUID: GPU-1f)", "GPU 1: A30 (UUID: GPU-2e)", "  MIG 1g.6gb Device 0: (UUID: MIG-3d)"]
    >>> parse_devices(chr(10).join(lines))
    ('0', 'MIG-3d')
    """
    found: list[str] = []
    for line in text.splitlines():
        gpu, part = _GPU.match(line), _PART.match(line)
        if gpu is not None:
            found.append(gpu[1])
        elif part is not None:
            if found and found[-1].isdigit():
                found.pop()  # the GPU that the parts belong to
            found.append(part[1])
    return tuple(found)


def usable_devices(visible: str | None, listed: Sequence[str] | None) -> tuple[str, ...]:
    """Return the devices that a job may use, as words for ``CUDA_VISIBLE_DEVICES``.

    As in CUDA, a device that does not exist hides those after it.

    Args:
        visible: the user's ``CUDA_VISIBLE_DEVICES``; ``None`` where unset.
        listed: devices of this host; ``None`` where unknown.

    >>> usable_devices(None, ("0", "1")), usable_devices("3,1,7,2", ("0", "1", "2", "3")), usable_devices("", ("0",))
    (('0', '1'), ('3', '1'), ())
    """
    if visible is None:
        return tuple(listed or ())
    found: list[str] = []
    for word in map(str.strip, visible.split(",")):
        is_number = word.isascii() and word.isdigit() and (listed is None or int(word) < len(listed))
        if word in found or not (is_number or _IDENTIFIER.fullmatch(word)):
            break
        found.append(word)
    return tuple(found)
