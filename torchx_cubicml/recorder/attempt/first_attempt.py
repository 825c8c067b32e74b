"""First attempt of a rewritten launch, and its replacement by the typed command if it fails early.

The process of the launcher makes a ``FirstAttempt``, runs the rewritten command, and calls ``start_as_typed`` if that
fails. The contract of the second attempt is in the variable ``SECOND_ATTEMPT_VARIABLE``, or among the notes of ranks
that have rewritten the command. Several nodes agree first (``nodes``).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

from torchx_cubicml.host_memory import count_oom_kills
from torchx_cubicml.recorder.attempt.early_failure import NodeReport, early_failure
from torchx_cubicml.recorder.attempt.failure_watch import FailureWatch
from torchx_cubicml.recorder.attempt.new_paths import movable, move_aside
from torchx_cubicml.recorder.attempt.nodes import NodeAgreement, listening_ports
from torchx_cubicml.recorder.attempt.notes import RankProcess, read_attempt
from torchx_cubicml.recorder.attempt.rendezvous import KEPT_OUTSIDE
from torchx_cubicml.recorder.process.console import warn
from torchx_cubicml.records.contract import (
    CONTRACT_VARIABLE,
    SECOND_ATTEMPT_VARIABLE,
    Contract,
    decode_contract,
    encode_contract,
)
from torchx_cubicml.settings import ATTEMPT_VARIABLE, child_environment, export, option

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

_MAX_REASON = 400
_MOST_SHOWN = 3
_DESCRIPTORS = (Path("/proc/self/fd"), Path("/dev/fd"))  # on Linux; on macOS


def begin_attempt() -> FirstAttempt | None:
    """Return the first attempt of this process; warn and return ``None`` if it cannot have a second one."""
    try:
        return FirstAttempt.begin()
    except Exception as error:  # noqa: BLE001 - a failure of ours must not stop the launch
        warn(f"if the rewritten command fails, it will not be started again as you typed it: {error}")
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstAttempt:
    """State of this process before its launcher runs the rewritten command.

    Args:
        second: encoded contract of the launch as typed; empty where only the job knows it.
        watch: watch for failures on other nodes.
        folder: folder for the notes of the ranks.
        environment: environment variables of this process.
        descriptors: its open file descriptors.
        oom_kills: kills of the kernel in its control group, as memory ran out; ``None`` if unknown.
        began: start on the monotonic clock, in seconds.
    """

    second: str
    watch: FailureWatch
    folder: Path
    environment: Mapping[str, str]
    descriptors: frozenset[int]
    oom_kills: int | None
    began: float

    @classmethod
    def begin(cls) -> Self:
        """Note the state of this process, and give the ranks a folder for their notes.

        Raises:
            ContractError: the contract of the second attempt is damaged.
            OSError: the folder cannot be made.
        """
        second = option("second_attempt") or ""
        if second:
            decode_contract(second)
        environment = child_environment({})
        folder = Path(tempfile.mkdtemp(prefix="torchx-cubicml-attempt-"))
        export({ATTEMPT_VARIABLE: str(folder)})
        return cls(
            second=second,
            watch=FailureWatch(str(folder)),
            folder=folder,
            environment=environment,
            descriptors=open_descriptors(),
            oom_kills=count_oom_kills(),
            began=time.monotonic(),
        )

    def forget(self) -> None:
        """Remove the folder of the notes."""
        self.watch.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_as_typed(
        self,
        typed: Sequence[str],
        *,
        exit_codes: Mapping[int, int] | None = None,
        ended_by: int = 0,
        hosts_rendezvous: Callable[[Collection[int]], bool] = lambda _ports: True,
    ) -> None:
        """Replace this process with the typed command if the attempt failed early; else return.

        Args:
            typed: words of this process's launcher with the typed arguments, behind those that start its Python.
            exit_codes: rank -> exit code, of the ranks that failed; ``None`` where only their own notes tell.
            ended_by: number of a signal that may have ended a rank, where it is unknown which; 0 without.
            hosts_rendezvous: whether this process hosts its rendezvous, if it listens on the given TCP ports.
        """
        self.watch.stop()
        try:
            attempt = read_attempt(str(self.folder))
            second = self.second or attempt.second
            if not second or not attempt.processes:
                return
            kills = count_oom_kills()
            report = NodeReport.of(
                attempt,
                attempt.failed_ranks if exit_codes is None else exit_codes,
                ended_by=ended_by,
                seconds=time.monotonic() - self.began,
                host_killed_processes=self.oom_kills is not None and (kills or 0) > self.oom_kills,
            )
            opened = open_descriptors() - self.descriptors
            ports = listening_ports(opened)
            report = replace(report, hosts_rendezvous=hosts_rendezvous(ports))
            failure, nodes = _agreed_failure(report, attempt.processes[0])
            if not failure:
                return
            warn(f"the rewritten command {failure}; starting again as you typed it")
            moved, left = move_aside(movable(attempt.new_paths), time.strftime(".failed-%Y%m%d-%H%M%S"))
            tell_of_paths(moved, left)
            self.forget()
            if nodes is not None:
                nodes.hand_over(is_host=bool(ports))
            self._become(typed, decode_contract(second), opened=opened, reason=f"the rewritten command {failure}")
        except Exception as error:  # noqa: BLE001 - the job's own failure follows
            reason = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            warn(f"could not start again as you typed it: {reason}")

    def _become(self, typed: Sequence[str], second: Contract, *, opened: Iterable[int], reason: str) -> NoReturn:
        changes = second.as_typed.env if second.as_typed is not None else {}
        contract = replace(second, as_typed=None, refused=reason[:_MAX_REASON])
        environment = {**self.environment, **{name: text for name, text in changes.items() if text is not None}}
        environment[CONTRACT_VARIABLE] = encode_contract(contract)
        for name in (SECOND_ATTEMPT_VARIABLE, *(name for name, text in changes.items() if text is None)):
            environment.pop(name, None)
        for descriptor in opened:
            with suppress(OSError):
                os.set_inheritable(descriptor, False)
        # The options of Python stay; "-m" is followed by the name of this module.
        head = sys.orig_argv[1 : sys.orig_argv.index("-m")]
        sys.stdout.flush()
        sys.stderr.flush()
        argv = [sys.executable, *head, *typed]
        os.execve(sys.executable, argv, environment)  # noqa: S606 - a shell would intercept signals


def _agreed_failure(report: NodeReport, process: RankProcess) -> tuple[str, NodeAgreement | None]:
    """Return the early failure of all nodes, empty if it is none, and the agreement; ``None`` for it on one node.

    Raises:
        OSError: this node failed early, and cannot agree with the others, or the rendezvous stays closed.
    """
    own = early_failure([report])
    if process.nnodes == 1:
        if own and not report.hosts_rendezvous:
            raise ConnectionError(KEPT_OUTSIDE)
        return own, None
    try:
        nodes = NodeAgreement(process)
    except ConnectionError:
        if own:
            raise
        return "", None
    return nodes.agree(report), nodes


def open_descriptors() -> frozenset[int]:
    """Return the open file descriptors of this process; empty where the system does not list them."""
    folder = next((each for each in _DESCRIPTORS if each.is_dir()), None)
    listed = [int(file.name) for file in folder.iterdir()] if folder is not None else []
    return frozenset(filter(_is_open, listed))


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:  # that of the listing itself
        return False
    return True


def tell_of_paths(moved: Mapping[str, str], left: Sequence[str]) -> None:
    """Warn of what was moved aside, old path -> new path, and of what was left."""
    if moved:
        shown = [f"{_short(old)} -> {_short(new)}" for old, new in list(moved.items())[:_MOST_SHOWN]]
        more = f" and {len(moved) - _MOST_SHOWN} more" if len(moved) > _MOST_SHOWN else ""
        warn(f"moved aside what the failed command had made: {', '.join(shown)}{more}")
    if left:
        warn(f"could not move aside what the failed command had made: {', '.join(map(_short, left[:_MOST_SHOWN]))}")


def _short(path: str) -> str:
    folder = f"{Path.cwd()}/"
    return path.removeprefix(folder)
