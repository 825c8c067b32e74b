"""What an exception says about how a training ended."""

from __future__ import annotations

import errno
import re
import traceback
from typing import TYPE_CHECKING

from torchx_cubicml.records.redaction import mask
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_CHAIN = 32
_MAX_LINES = 8
_MAX_REASON = 2000
# Each is looked for in errors of the run time alone: a user's own ValueError may use any words.
_TOLD_IN_WORDS = (
    (
        State.OUT_OF_MEMORY,
        re.compile(
            r"out of memory|DefaultCPUAllocator: (?:can't allocate|not enough) memory|CUBLAS_STATUS_ALLOC_FAILED"
            r"|CUDNN_STATUS_ALLOC_FAILED",
            re.IGNORECASE,
        ),
    ),
    (
        State.TIMEOUT,
        re.compile(r"timed out|time ?out|watchdog caught", re.IGNORECASE),
    ),
    (
        State.INFRASTRUCTURE,
        re.compile(
            r"NCCL error|ncclSystemError|ncclRemoteError|ncclInternalError|ncclUnhandledCudaError"
            r"|connection (?:was )?(?:closed|reset|refused|aborted)|connectFullMesh|gloo/transport|broken pipe"
            r"|failed to (?:connect|recv)|socket .*(?:closed|failed)|uncorrectable ECC|CUDA error: (?:device|hardware)"
            r"|no CUDA-capable device|GPU has fallen off the bus|DistStoreError|\bpreempt(?:ed|ion)\b"
            r"|received (?:signal 15|SIGTERM)|killed by signal: Terminated",
            re.IGNORECASE,
        ),
    ),
)
_ENDED_FROM_OUTSIDE = frozenset(
    {"SignalException", "SIGTERMException", "PreemptionError"}
)  # of torchrun, Lightning, ...
_KILLED_WITHIN_S = 300.0  # of the time limit, with what a site gives jobs to end
_SIGTERM = 15
_SPECIFIC_FIRST = (State.OUT_OF_MEMORY, State.TIMEOUT, State.INFRASTRUCTURE, State.STOPPED_EARLY, State.USER_ERROR)


def state_of(error: BaseException) -> State:
    """Return the state of a training that ended by ``error``: the most specific cause found in its chain."""
    return _state_of_one(_deciding(error))


def reason_of(error: BaseException) -> str:
    """Return the last lines of an exception and of what its state comes from, masked and without their tracebacks."""
    cause = _deciding(error)
    told = _last_lines(error, _MAX_REASON)
    if cause is error:
        return told
    return f"{told[-_MAX_REASON // 2 :]}\nafter {_last_lines(cause, _MAX_REASON // 2 - 10)}"


def state_of_exit(code: object) -> tuple[State, str]:
    """Return state and reason of a program that ended by ``SystemExit``.

    >>> state_of_exit(3)
    (<State.USER_ERROR: 'user_error'>, 'exit status 3')
    """
    if code is None or code == 0:
        return State.COMPLETED, ""
    if code in {128 + _SIGTERM, -_SIGTERM}:
        return State.INFRASTRUCTURE, f"exit status {code}: asked to end by SIGTERM, as by a preemption"
    if isinstance(code, int):
        return State.USER_ERROR, f"exit status {int(code)}"
    return State.USER_ERROR, mask(str(code))[-_MAX_REASON:]


def at_time_limit(state: State, reason: str, *, ends_at: float, now: float) -> tuple[State, str]:
    """Return the state and reason of an end, a timeout where something from outside came at the scheduler's time limit.

    Args:
        state: by what the process has seen.
        reason: likewise.
        ends_at: when the scheduler ends the job, seconds since 1970; 0 where unknown.
        now: likewise.

    >>> at_time_limit(State.INFRASTRUCTURE, "ended by SIGTERM", ends_at=100, now=101)
    (<State.TIMEOUT: 'timeout'>, "ended by SIGTERM, at the scheduler's time limit")
    """
    # Long after it, the limit was extended, and what came is something else.
    if state is not State.INFRASTRUCTURE or not 0 < ends_at <= now <= ends_at + _KILLED_WITHIN_S:
        return state, reason
    return State.TIMEOUT, f"{reason}, at the scheduler's time limit"


def state_in_words(text: str) -> State | None:
    """Return the state that an error of the run time tells of in its words; ``None`` where it tells of none."""
    return next((state for state, pattern in _TOLD_IN_WORDS if pattern.search(text)), None)


def _deciding(error: BaseException) -> BaseException:
    return min(_chain(error), key=lambda link: _SPECIFIC_FIRST.index(_state_of_one(link)))


def _last_lines(error: BaseException, most: int) -> str:
    text = "".join(traceback.format_exception_only(error))
    lines = [line for line in mask(text).splitlines() if line.strip()]
    return "\n".join(lines[-_MAX_LINES:])[-most:]


def _state_of_one(error: BaseException) -> State:
    if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
        return State.OUT_OF_MEMORY
    if type(error).__name__ in _ENDED_FROM_OUTSIDE:
        return State.INFRASTRUCTURE
    if isinstance(error, KeyboardInterrupt):
        return State.STOPPED_EARLY
    if isinstance(error, OSError):
        return _state_of_os_error(error)
    if isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError | RecursionError):
        return state_in_words(_text(error)) or State.USER_ERROR
    return State.USER_ERROR


def _state_of_os_error(error: OSError) -> State:
    if error.errno == errno.ENOMEM:
        return State.OUT_OF_MEMORY
    if isinstance(error, TimeoutError):
        return State.TIMEOUT
    return State.INFRASTRUCTURE if isinstance(error, ConnectionError) else State.USER_ERROR


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - it is the user's class, and may do anything
        return ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, what it came from, and the members of groups."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting and len(seen) < _MAX_CHAIN:
        link = waiting.pop(0)
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        waiting += [link.__cause__, link.__context__]
        if isinstance(link, BaseExceptionGroup):
            waiting += link.exceptions
