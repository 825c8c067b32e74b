"""Watch for failures that other nodes announce; it ends the ranks of this node."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.attempt.nodes import NodeAgreement
from torchx_cubicml.recorder.attempt.notes import read_processes

if TYPE_CHECKING:
    from collections.abc import Collection

_PERIOD_S = 1.0
_TERMINATION_S = 10.0  # between SIGTERM and SIGKILL


class FailureWatch:
    """Thread that ends the ranks of this node when another node announces that the launch failed.

    torchrun then ends, too. Without this, the ranks may wait for the lost ones until a timeout of their collectives.

    Args:
        folder: folder of the attempt.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._is_over.set()

    def _watch(self) -> None:
        agreement: NodeAgreement | None = None
        while not self._is_over.wait(_PERIOD_S):
            processes = read_processes(self._folder)
            if not processes:
                continue
            if processes[0].nnodes == 1 or processes[0].store is None:
                return
            with suppress(RuntimeError, OSError):  # the store may be up later
                agreement = agreement or NodeAgreement(processes[0])
                if agreement.has_failed:
                    self._end([process.pid for process in processes])
                    return

    def _end(self, ranks: Collection[int]) -> None:
        _signal(ranks, signal.SIGTERM)
        if not self._is_over.wait(_TERMINATION_S):
            _signal(ranks, signal.SIGKILL)


def _signal(ranks: Collection[int], number: signal.Signals) -> None:
    for pid in ranks:
        if _is_own_child(pid):
            os.kill(pid, number)


def _is_own_child(pid: int) -> bool:
    """Return whether a process was started by this one, and not yet replaced by another of the same number."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # its end stays for torchrun to collect
    except (OSError, AttributeError):  # another's process; macOS has it since Python 3.13
        return False
    return True
