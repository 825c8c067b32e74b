"""Carries events from the training process to the child process that owns the store, and never waits on the way.

The child is nobody's to wait for: a program that waits for all of its children does not meet it. It reads from a
socket, not from a pipe, for a broken pipe could end a program that has asked for the signal's default.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.events.crash_trace import CrashTrace
from torchx_cubicml.recorder.process.child import own_command, own_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

DONE = b"done\n"  # the writer's last word; its other lines each tell of a problem
_NEVER_WAIT = getattr(socket, "MSG_DONTWAIT", 0) | getattr(socket, "MSG_NOSIGNAL", 0)
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
_DETACHED = 'exec 3<&0; "$@" <&3 3<&- >/dev/null 2>&1 &'  # the shell leaves at once, its child stays
LAST_WORDS_FILE = 4  # in the child
_MAX_WAITING_BYTES = 1 << 20


class EventSender:
    """One child process and the socket to it.

    Args:
        store: URL of the store.
        deadline_s: seconds that ``close`` may take; the child, too, gives up after them.
        stderr: file in which torchrun keeps what this process writes there; empty without.
        ends_at: when the scheduler ends the job, seconds since 1970; 0 where unknown.

    Raises:
        OSError: the child process cannot be started.
    """

    def __init__(self, store: str, *, deadline_s: float, stderr: str = "", ends_at: int = 0) -> None:
        self._deadline_s = deadline_s
        self._waiting = b""
        self._answers = b""
        self._died = False
        self._dropped = 0
        self._socket, theirs = socket.socketpair()
        self._last_words = CrashTrace()
        self._last_words.listen()
        try:
            _start_writer(theirs, self._last_words.file)
        finally:
            theirs.close()
        # The store's URL goes this way because everybody may read a command line, and it can hold a password.
        self.send(
            {
                "store": store,
                "deadline_s": 0.9 * deadline_s,
                "stderr": stderr,
                "has_last_words": self._last_words.file is not None,
                "ends_at": ends_at,
            }
        )

    def send(self, message: Mapping[str, object]) -> None:
        """Hand over one JSON object now, or keep it until the next; past a megabyte it is dropped."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if len(self._waiting) + len(line) > _MAX_WAITING_BYTES:
            self._dropped += 1
            return
        self._waiting += line
        try:
            while self._waiting:
                sent = self._socket.send(self._waiting, _NEVER_WAIT)
                self._waiting = self._waiting[sent:]
        except OSError:
            return  # full: later. Broken: `problem` tells.

    def problem(self) -> str:
        """Return what went wrong up to now in one sentence, as far as the child has told; never wait for it."""
        try:
            while answer := self._socket.recv(65536, _NEVER_WAIT):
                self._answers += answer
            self._died = True
        except BlockingIOError:
            pass
        except OSError:
            self._died = True
        return self._told()

    def close(self) -> str:
        """Wait until the child has written everything or the deadline has passed, and return what went wrong."""
        end = time.monotonic() + self._deadline_s
        try:
            self._within(end)
            self._socket.sendall(self._waiting, _NO_SIGNAL)
            self._socket.shutdown(socket.SHUT_WR)
            while answer := self._receive(end):
                self._answers += answer
            self._died = not self._answers.endswith(DONE)
        except TimeoutError:
            self._answers += f"the store did not answer within {self._deadline_s:g} s\n".encode()
        except OSError:
            self._died = True
        finally:
            self._socket.close()
        return self._told()

    def abandon(self) -> None:
        """Let go of the socket in a forked child, so that the writer notices when the training process ends."""
        self._socket.close()
        self._last_words.forget()

    def _receive(self, end: float) -> bytes:
        self._within(end)
        return self._socket.recv(65536)

    def _within(self, end: float) -> None:
        self._socket.settimeout(max(end - time.monotonic(), 0.001))

    def _told(self) -> str:
        lines = self._answers.removesuffix(DONE).decode(errors="replace").splitlines()
        if lines:
            return lines[0]
        if self._died:
            return "the process that writes to the store has died"
        return f"the store is too slow: {self._dropped} events were dropped" if self._dropped else ""


def _start_writer(theirs: socket.socket, last_words: int | None) -> None:
    files = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)]
    if last_words is not None:
        files.append((os.POSIX_SPAWN_DUP2, last_words, LAST_WORDS_FILE))
    shell = os.posix_spawn(
        "/bin/sh",
        ("sh", "-c", _DETACHED, "sh", *own_command("torchx_cubicml.recorder.events.writer")),
        own_environment(),
        file_actions=files,
        setsid=True,
    )
    os.waitpid(shell, 0)
