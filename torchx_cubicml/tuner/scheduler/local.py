"""Jobs of a local scheduler that outlived the process that started them, found by their environment.

TorchX's local schedulers can query only jobs that they started themselves. All processes of a launch have its contract
in their environment, and the folder of its logs shows that it was started, even if it has ended since. Only Linux shows
the environments of processes as files; elsewhere nothing is said of a job.
"""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.errors import ContractError
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, decode_contract
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState
from torchx_cubicml.tuner.scheduler.scheduler_query import SchedulerQuery

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_NAME = f"{CONTRACT_VARIABLE}=".encode()
_PROC = Path("/proc")
_GRACE_S = 10.0
_POLL_S = 0.1


class LocalQuery(SchedulerQuery):
    """Query of local jobs; an app id is the launch id itself. See ``SchedulerQuery``.

    Args:
        logs: folder that contains a folder of logs per launch, named by its id; empty if logs are kept elsewhere.
        proc: the kernel's folder of processes; ``None`` for that of Linux.
    """

    is_local = True
    believed = frozenset(JobPhase)  # of a job of this process

    def __init__(self, logs: str = "", *, proc: Path | None = None) -> None:
        self._logs = Path(logs) if logs else None
        self._proc = proc or _PROC
        self._launch_ids: dict[bytes, str] = {}

    @property
    def sees_processes(self) -> bool:
        """Return whether this system shows the environments of processes, at least of this one."""
        try:
            return bool((self._proc / str(os.getpid()) / "environ").read_bytes())
        except OSError:
            return False

    @property
    def can_look(self) -> bool:
        """Return whether processes are seen."""
        return self.sees_processes

    @property
    def can_find(self) -> bool:
        """Return whether processes or logs are seen."""
        return self._logs is not None or self.sees_processes

    def marked_options(self, options: Mapping[str, object], launch_id: str) -> Mapping[str, object]:
        """Return the options with a folder of logs for the launch."""
        return {**options, "log_dir": f"{self._logs}/{launch_id}"} if self._logs is not None else options

    def look(self, app_id: str) -> JobState | None:
        """Return ``RUNNING`` if a process of the launch is alive, else an end of unknown kind (``UNWATCHED``).

        It is ``None`` where processes are not seen: a launch must not count as ended while it lives.
        """
        if not self.sees_processes:
            return None
        if self._processes().get(app_id):
            return JobState(phase=JobPhase.RUNNING)
        return JobState(phase=JobPhase.ENDED, end=JobEnd.UNWATCHED)

    def find(self, launch_ids: Collection[str]) -> Mapping[str, str]:
        """Return the launches that have a process or logs."""
        running = self._processes()
        return {name: name for name in launch_ids if name in running or self._has_logs(name)}

    def cancel(self, app_id: str) -> bool:
        """Send SIGTERM to the processes, as TorchX does, and SIGKILL to those that do not end."""
        if not self.sees_processes:
            return False
        for number, grace_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
            for pid in self._processes().get(app_id, ()):
                with suppress(OSError):
                    os.kill(pid, number)
            end = time.monotonic() + grace_s
            while self._processes().get(app_id) and time.monotonic() < end:
                time.sleep(_POLL_S)
        return not self._processes().get(app_id)

    def _has_logs(self, launch_id: str) -> bool:
        # <logs>/<launch id>/<session>/<app id> is created just before the first process.
        return self._logs is not None and any((self._logs / launch_id).glob("*/*"))

    def _processes(self) -> dict[str, list[int]]:
        """Return launch id -> ids of its processes, without those that only write events to the store."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for folder in self._proc.glob("[0-9]*"):
            launch_id = self._launch_of(folder)
            if launch_id:
                found[launch_id].append(int(folder.name))
        return dict(found)

    def _launch_of(self, folder: Path) -> str:
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            value = next((item.removeprefix(_NAME) for item in variables if item.startswith(_NAME)), b"")
            if not value or b"torchx_cubicml.recorder.events.writer" in (folder / "cmdline").read_bytes():
                return ""
        except OSError:  # the process has ended, or belongs to another user
            return ""
        if value not in self._launch_ids:
            try:
                self._launch_ids[value] = decode_contract(value.decode(errors="replace")).launch_id
            except ContractError:
                self._launch_ids[value] = ""
        return self._launch_ids[value]
