"""Load of this host beside the job's own: processor time of other processes, and other processes on its devices.

The writer process reads it, so that the training waits for nothing. The processes of the job on this host are the one
that leads, those of the same rendezvous (``MASTER_ADDR`` and ``MASTER_PORT``), and their descendants. What the host
does not show is left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.records.event import EventKind

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torchx_cubicml.records.event import Event
    from torchx_cubicml.records.values import Value

_PROC = Path("/proc")
_SHORTEST_S = 1.0  # window; in a shorter one the clock ticks of the kernel are too coarse
_QUERY = ("nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits")
_QUERY_S = 3.0  # longest answer that is waited for
_RENDEZVOUS = (b"MASTER_ADDR=", b"MASTER_PORT=")
_PROCESSOR = re.compile(r"^cpu\d+ ", re.MULTILINE)
_TICKS_PER_S = float(os.sysconf("SC_CLK_TCK")) if hasattr(os, "sysconf") else 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimes:
    """Processor seconds of this host since it started.

    Args:
        at: time of the reading, in seconds of a clock that never goes back.
        busy: of processes, and of other virtual machines on the same processors (``steal``).
        idle: of processors without work.
        processors: number of processors of the host.
    """

    at: float
    busy: float
    idle: float
    processors: int


def read_host_times(proc: Path = _PROC) -> HostTimes | None:
    """Return the processor times of this host; ``None`` where the kernel does not report them."""
    try:
        text = (proc / "stat").read_text()
        user, nice, system, idle, iowait, _, _, steal = (int(word) for word in text.split("\n")[0].split()[1:9])
    except (OSError, ValueError):
        return None
    processors = len(_PROCESSOR.findall(text))
    if not processors:
        return None
    busy = (user + nice + system + steal) / _TICKS_PER_S
    return HostTimes(at=time.monotonic(), busy=busy, idle=(idle + iowait) / _TICKS_PER_S, processors=processors)


class JobProcesses:
    """Processes of one job on this host, with the processor time that they have used.

    Args:
        leader: process id of the one that leads.
        world_size: processes of the job that ``leader`` belongs to.
        helper: process id of one that works for the job but is no descendant.
    """

    def __init__(self, leader: int, *, world_size: int, helper: int = 0, proc: Path = _PROC) -> None:
        self._proc = proc
        self._roots = {leader, helper}
        self._rendezvous = self._rendezvous_of(leader)
        self.is_known = bool(self._rendezvous) or world_size == 1
        self._belongs: dict[tuple[int, int], bool] = {}  # id and start of a process -> whether it has the rendezvous
        self._alive: dict[tuple[int, int], tuple[int, float]] = {}  # parent and seconds of each at the last reading
        self._seconds_of_ended = 0.0
        self.ids: frozenset[int] = frozenset()

    def seconds(self) -> float:
        """Return the processor seconds of the job's processes, those that have ended included; update ``ids``."""
        found = dict(filter(None, map(self._read, self._proc.glob("[0-9]*"))))
        children = defaultdict(list)
        for process, (parent, _) in found.items():
            children[parent].append(process)
        own = {process for process in found if process[0] in self._roots or self._has_rendezvous(process)}
        waiting = list(own)
        while waiting:
            for child in children[waiting.pop()[0]]:
                if child not in own:
                    own.add(child)
                    waiting.append(child)
        self.ids = frozenset(number for number, _ in own)
        # The time of an ended process is in its parent's, if the parent is of the job, too.
        ended = (entry for process, entry in self._alive.items() if process not in own)
        self._seconds_of_ended += sum(seconds for parent, seconds in ended if parent not in self.ids)
        self._alive = {process: found[process] for process in own}
        return self._seconds_of_ended + sum(seconds for _, seconds in self._alive.values())

    def _read(self, folder: Path) -> tuple[tuple[int, int], tuple[int, float]] | None:
        """Return id and start of a process, and its parent and seconds with those of its ended children."""
        try:
            # The name of a process is in parentheses and may hold anything.
            words = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            parent, start, seconds = int(words[1]), int(words[19]), sum(map(int, words[11:15])) / _TICKS_PER_S
        except (OSError, ValueError, IndexError):
            return None
        return (int(folder.name), start), (parent, seconds)

    def _has_rendezvous(self, process: tuple[int, int]) -> bool:
        if not self._rendezvous:
            return False
        if process not in self._belongs:
            self._belongs[process] = self._rendezvous_of(process[0]) == self._rendezvous
        return self._belongs[process]

    def _rendezvous_of(self, process: int) -> tuple[bytes, ...]:
        try:
            variables = (self._proc / str(process) / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended, or belongs to another user
            return ()
        found = tuple(item for name in _RENDEZVOUS for item in variables if item.startswith(name))
        return found if len(found) == len(_RENDEZVOUS) else ()


class HostLoad:
    """Load of this host beside a job, over the time since its first measured event.

    Args:
        leader: process id of the one that leads.
        world_size: processes of the job.
    """

    def __init__(self, leader: int, *, world_size: int) -> None:
        self._job = JobProcesses(leader, world_size=world_size, helper=os.getpid())
        self._first: tuple[HostTimes, float] | None = None
        self._asks_devices = True
        self._of_devices: dict[str, Value] = {}

    def facts(self, event: Event) -> dict[str, Value]:
        """Return the facts known by now; called for each event in turn."""
        if event.kind not in {EventKind.MEASURED, EventKind.ENDED} or not self._job.is_known:
            return {}
        seconds, now = self._job.seconds(), read_host_times()
        if now is None:
            return {}
        self._first = self._first or (now, seconds)
        is_on_devices = event.kind is EventKind.MEASURED and "devices_per_node" in event.observed
        if is_on_devices and not _is_on_part(event):
            self._ask_devices()
        return load_facts(self._first, (now, seconds)) | self._of_devices

    def _ask_devices(self) -> None:
        if not self._asks_devices:
            return
        self._asks_devices = False  # again only after an answer
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(_QUERY, capture_output=True, text=True, check=True, timeout=_QUERY_S)
            self._asks_devices = True
            for name, value in device_facts(done.stdout, self._job.ids).items():
                self._of_devices[name] = max(value, self._of_devices.get(name, value))


def _is_on_part(event: Event) -> bool:
    """Return whether a job runs on a part of a device (MIG); ``nvidia-smi`` names the device of a process, no part."""
    return any("MIG" in str(event.observed.get(name)) for name in ("device", "visible_devices"))


def load_facts(first: tuple[HostTimes, float], last: tuple[HostTimes, float]) -> dict[str, Value]:
    """Return the processors that others kept busy, and those that were idle, on average between two readings.

    Args:
        first: times of the host, and processor seconds of the job.
        last: the same, later.

    >>> first = HostTimes(at=0.0, busy=5.0, idle=5.0, processors=4), 1.0
    >>> load_facts(first, (HostTimes(at=10.0, busy=35.0, idle=15.0, processors=4), 21.0))
    {'host_cpus': 4, 'other_busy_cpus': 1.0, 'idle_cpus': 1.0}
    """
    (before, own_before), (after, own_after) = first, last
    elapsed_s = after.at - before.at
    if elapsed_s < _SHORTEST_S:
        return {}
    others = max(0.0, after.busy - before.busy - max(0.0, own_after - own_before)) / elapsed_s
    idle = max(0.0, after.idle - before.idle) / elapsed_s
    return {"host_cpus": after.processors, "other_busy_cpus": round(others, 3), "idle_cpus": round(idle, 3)}


def device_facts(text: str, own: Collection[int]) -> Mapping[str, float]:
    """Return the number of other processes on the devices of a job, and the largest share of memory that they hold.

    Empty if no device of the job is known, as in a container that does not show the processes of its host.

    Args:
        text: answer of ``nvidia-smi`` to ``_QUERY``: device, process and MiB on each line.
        own: process ids of the job.

    >>> dict(device_facts(chr(10).join(["GPU-1, 7, 3000", "GPU-1, 9, 1000", "GPU-2, 5, 70000"]), own={7, 8}))
    {'other_device_processes': 1, 'other_device_share': 0.25}
    """
    on_device: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 3 and words[1].isdigit():
            on_device[words[0]].append((int(words[1]), float(words[2]) if words[2].isdigit() else 0.0))
    shared = [entries for entries in on_device.values() if any(process in own for process, _ in entries)]
    if not shared:
        return {}
    others = [[entry for entry in entries if entry[0] not in own] for entries in shared]
    shares = [_memory_share(some, entries) for some, entries in zip(others, shared, strict=True)]
    return {
        "other_device_processes": len({process for some in others for process, _ in some}),
        "other_device_share": round(max(shares), 3),
    }


def _memory_share(some: Collection[tuple[int, float]], entries: Collection[tuple[int, float]]) -> float:
    """Return the share of memory of some processes on a device; if the memory is unknown, their share in number."""
    total = sum(mib for _, mib in entries)
    return sum(mib for _, mib in some) / total if total else len(some) / len(entries)
