"""Non-blocking sender of events from the training process to the writer process, which owns the store.

The writer is detached: a program that waits for all of its children does not wait for it. It reads from a socket, not
from a pipe, because a broken pipe could end a program that restored the default action of SIGPIPE.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.events.crash_trace import CrashTrace
from torchx_cubicml.recorder.process.child import child_command, child_process_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

DONE = b"done\n"  # last line of the writer
WRITTEN = b"written\n"  # line of the writer after the first event in the store
OUTCOME = b"outcome: "  # begins its line once the end is in the store; each other line is a problem
_NON_BLOCKING = getattr(socket, "MSG_DONTWAIT", 0) | getattr(socket, "MSG_NOSIGNAL", 0)
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
_DETACHED = 'exec 3<&0; "$@" <&3 3<&- >/dev/null 2>&1 &'  # the shell exits at once, its child stays
CRASH_TRACE_FD = 4  # file descriptor in the writer process
_MAX_BUFFER_BYTES = 1 << 20


class EventSender:
    """One writer process and the socket to it.

    Args:
        store: URL of the store.
        deadline_s: maximum seconds of ``close``; the writer uses 0.9 of it for its own deadline.
        stderr: file in which torchrun keeps the stderr of this process; empty without.
        ends_at: time at which the scheduler ends the job, in seconds since 1970; 0 where unknown.
        command: JSON object of the ``RecordedCommand``; ``None`` where it is not recorded.
        pid: process of this host from which all others of the job descend, or with whose rendezvous they run.
        world_size: processes of the job that are no descendants of ``pid``, and itself.

    Raises:
        OSError: the writer process cannot be started.
    """

    def __init__(  # noqa: PLR0913 - each names one part of the training process
        self,
        store: str,
        *,
        deadline_s: float,
        stderr: str = "",
        ends_at: int = 0,
        command: Mapping[str, object] | None = None,
        pid: int = 0,
        world_size: int = 1,
    ) -> None:
        self._deadline_s = deadline_s
        self._buffer = b""
        self._answers = b""
        self._has_died = False
        self._dropped = 0
        self._socket, writer_end = socket.socketpair()
        self._crash_trace = CrashTrace()
        self._crash_trace.listen()
        try:
            _start_writer(writer_end, self._crash_trace.file)
        finally:
            writer_end.close()
        # URL and command go over the socket: they may hold a password, and command lines are public.
        self.send(
            {
                "store": store,
                "deadline_s": 0.9 * deadline_s,
                "stderr": stderr,
                "has_last_words": self._crash_trace.file is not None,
                "ends_at": ends_at,
                "command": command,
                "pid": pid or os.getpid(),
                "world_size": world_size,
            }
        )

    def send(self, message: Mapping[str, object]) -> None:
        """Send one JSON object, or buffer it until the next call; drop it once 1 MiB is buffered."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if len(self._buffer) + len(line) > _MAX_BUFFER_BYTES:
            self._dropped += 1
            return
        self._buffer += line
        try:
            while self._buffer:
                sent = self._socket.send(self._buffer, _NON_BLOCKING)
                self._buffer = self._buffer[sent:]
        except OSError:
            return  # full: sent later. Broken: `problem` reports it.

    @property
    def has_written(self) -> bool:
        """True if an event is known to be in the store."""
        return b"\n" + WRITTEN in b"\n" + self._answers

    @property
    def outcome(self) -> str:
        """Outcome by the end event in the store, in words; empty before it is known to be there."""
        lines = [line for line in self._answers.split(b"\n")[:-1] if line.startswith(OUTCOME)]
        return lines[0].removeprefix(OUTCOME).decode(errors="replace") if lines else ""

    def problem(self) -> str:
        """Return the first problem that the writer has reported so far, in one sentence. Never waits."""
        try:
            while answer := self._socket.recv(65536, _NON_BLOCKING):
                self._answers += answer
            self._has_died = True
        except BlockingIOError:
            pass
        except OSError:
            self._has_died = True
        return self._first_problem()

    def close(self) -> str:
        """Wait until the writer has written everything, up to the deadline; return the first problem."""
        end = time.monotonic() + self._deadline_s
        try:
            self._set_timeout(end)
            self._socket.sendall(self._buffer, _NO_SIGNAL)
            self._socket.shutdown(socket.SHUT_WR)
            while answer := self._receive(end):
                self._answers += answer
            self._has_died = not self._answers.endswith(DONE)
        except TimeoutError:
            self._answers += f"the store did not answer within {self._deadline_s:g} s\n".encode()
        except OSError:
            self._has_died = True
        finally:
            self._socket.close()
        return self._first_problem()

    def abandon(self) -> None:
        """Close the socket in a forked child, so that the writer notices when the training process ends."""
        self._socket.close()
        self._crash_trace.forget()

    def _receive(self, end: float) -> bytes:
        self._set_timeout(end)
        return self._socket.recv(65536)

    def _set_timeout(self, end: float) -> None:
        self._socket.settimeout(max(end - time.monotonic(), 0.001))

    def _first_problem(self) -> str:
        lines = self._answers.removesuffix(DONE).splitlines(keepends=True)
        problems = [line.decode(errors="replace").strip() for line in lines if not _is_news(line)]
        if problems:
            return problems[0]
        if self._has_died:
            return "the process that writes to the store died"
        return f"the store is too slow: {self._dropped} events were dropped" if self._dropped else ""


def _is_news(line: bytes) -> bool:
    """Return whether a line of the writer, or the part of it received so far, is no problem."""
    return line.startswith(OUTCOME) or OUTCOME.startswith(line) or WRITTEN.startswith(line)


def _start_writer(writer_end: socket.socket, trace_file: int | None) -> None:
    files = [(os.POSIX_SPAWN_DUP2, writer_end.fileno(), 0)]
    if trace_file is not None:
        files.append((os.POSIX_SPAWN_DUP2, trace_file, CRASH_TRACE_FD))
    shell = os.posix_spawn(
        "/bin/sh",
        ("sh", "-c", _DETACHED, "sh", *child_command("torchx_cubicml.recorder.events.writer")),
        child_process_environment(),
        file_actions=files,
        setsid=True,
    )
    os.waitpid(shell, 0)
