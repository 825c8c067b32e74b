"""Decision whether a rewritten launch failed early, by its own config, so that it is to be started as typed."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from torchx_cubicml.recorder.attempt.notes import GOES_ON_AS_TYPED
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from torchx_cubicml.recorder.attempt.notes import Attempt

EARLY_S = 300.0  # after the first steps, a launch that has run for longer has done work that a new start would lose
UNSEEN_S = 1800.0  # without measured steps: loading may take long, and steps of some programs cannot be seen
OUT_OF_MEMORY = "ran out of memory"
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})  # NCCL's watchdog sends SIGABRT


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """Failure of a launch as one node sees it.

    Args:
        failure: failure of the node's ranks that is of the config, in words; empty for any other end.
        stepped: whether optimizer steps were measured there.
        saved: whether a checkpoint was saved there.
        seconds: duration of the launch.
        hosts_rendezvous: whether the node hosts the rendezvous of the launch.
    """

    failure: str
    stepped: bool
    saved: bool
    seconds: float
    hosts_rendezvous: bool = True

    @classmethod
    def of(
        cls,
        attempt: Attempt,
        exit_codes: Mapping[int, int],
        *,
        seconds: float,
        host_killed_processes: bool,
        ended_by: int = 0,
    ) -> Self:
        """Return the report of a node.

        The failure is of the config if a rank went on with a training of another config, ran out of memory, ended by an
        error of the program, or crashed. A lost host or a signal from outside is neither.

        Args:
            attempt: notes of its ranks.
            exit_codes: rank -> exit code, of those that failed; a negative one is the number of a signal.
            seconds: duration of the launch.
            host_killed_processes: whether the kernel killed processes of the launch, as memory ran out.
            ended_by: number of a signal that may have ended a rank, where it is unknown which; 0 without.
        """
        states = {attempt.ends[rank] for rank in exit_codes if rank in attempt.ends}
        signals = {-code for code in exit_codes.values() if code < 0} | {ended_by}
        failure = attempt.goes_on or _failure(states, signals, host_killed_processes=host_killed_processes)
        return cls(failure=failure, stepped=attempt.stepped, saved=attempt.saved, seconds=seconds)


def early_failure(reports: Sequence[NodeReport]) -> str:
    """Return the early failure of a launch, to be read after "the rewritten command"; empty if it is none.

    Early is before a checkpoint, and within ``EARLY_S``, or within ``UNSEEN_S`` where no steps were measured; or where
    the launch ended to go on as typed.

    Args:
        reports: one of each node.

    >>> early_failure([NodeReport(failure="failed", stepped=False, saved=False, seconds=20.0)])
    'failed before its first measured steps'
    """
    failures = [report.failure for report in reports if report.failure]
    seconds, stepped = max(report.seconds for report in reports), any(report.stepped for report in reports)
    is_late = seconds > (EARLY_S if stepped else UNSEEN_S) or any(report.saved for report in reports)
    if not failures or (is_late and GOES_ON_AS_TYPED not in failures):
        return ""
    failure = OUT_OF_MEMORY if OUT_OF_MEMORY in failures else failures[0]
    when = f"after {seconds:.0f} s, before a checkpoint" if stepped else "before its first measured steps"
    return f"{failure} {when}"


def _failure(states: Collection[State], signals: Collection[int], *, host_killed_processes: bool) -> str:
    if State.OUT_OF_MEMORY in states or (host_killed_processes and signal.SIGKILL in signals):
        return OUT_OF_MEMORY
    if State.USER_ERROR in states:
        return "failed"
    crash = next((number for number in sorted(signals) if number in _CRASHES), None)
    return "" if crash is None else f"was ended by {signal.Signals(crash).name}"
