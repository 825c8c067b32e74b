"""Classification of failures: trial state and reason from an exception, an exit status or a time limit."""

from __future__ import annotations

import errno
import re
import sys
import traceback
from typing import TYPE_CHECKING

from torchx_cubicml.records.memory_failure import OUT_OF_MEMORY
from torchx_cubicml.records.redaction import mask
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MAX_CHAIN = 32
_MAX_LINES = 8
_MAX_REASON = 2000
# Searched in RuntimeErrors only: a user's own ValueError may use any words.
_STATE_PATTERNS = (
    (State.OUT_OF_MEMORY, OUT_OF_MEMORY),
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
_EXTERNAL_ENDS = frozenset({"SignalException", "SIGTERMException", "PreemptionError"})  # of torchrun, Lightning, ...
_RANK_EXITED = "ProcessExitedException"  # of torch.multiprocessing
_KILL_DELAY_S = 300.0  # after the time limit, grace period of the site included
_SIGTERM = 15
_STATES_BY_SPECIFICITY = (
    State.OUT_OF_MEMORY,
    State.TIMEOUT,
    State.INFRASTRUCTURE,
    State.STOPPED_EARLY,
    State.USER_ERROR,
)


def state_of(error: BaseException) -> State:
    """Return the state of a training that ended by ``error``, from the most specific cause in its chain."""
    if getattr(error, "signal_name", None) is not None and type(error).__name__ == _RANK_EXITED:
        return State.UNKNOWN  # a signal ended a rank that the program has started
    return _state_of_one(_deciding_cause(error))


def reason_of(error: BaseException) -> str:
    """Return the last lines of an exception and of its deciding cause, masked and without tracebacks."""
    cause = _deciding_cause(error)
    lines = _last_lines(error, _MAX_REASON)
    if cause is error:
        return lines
    return f"{lines[-_MAX_REASON // 2 :]}\nafter {_last_lines(cause, _MAX_REASON // 2 - 10)}"


def state_of_exit(code: object) -> tuple[State, str]:
    """Return state and reason of a program that ended by ``SystemExit``.

    >>> state_of_exit(3)
    (<State.USER_ERROR: 'user_error'>, 'exit status 3')
    """
    if code is None or code == 0:
        return State.COMPLETED, ""
    if code in {128 + _SIGTERM, -_SIGTERM}:
        return State.INFRASTRUCTURE, f"exit status {code}: ended by SIGTERM, as in a preemption"
    if isinstance(code, int):
        return State.USER_ERROR, f"exit status {int(code)}"
    return State.USER_ERROR, mask(str(code))[-_MAX_REASON:]


def watch_memory_failures(note: Callable[[BaseException], None]) -> None:
    """Pass each error for want of memory to ``note``, whether or not the program catches it; one may be passed twice.

    Python 3.11 shows those of torch's own class alone. Later ones show all, by ``sys.monitoring``, which costs nothing
    where no exception is raised.

    Args:
        note: is called while the error is raised, in any thread; it must not raise.
    """
    kind = sys.modules["torch"].cuda.OutOfMemoryError  # of every device; raised by torch's C++ code, too
    construct = kind.__init__

    def init(self: BaseException, *args: object) -> None:
        construct(self, *args)
        note(self)

    def raised(_code: object, _offset: object, error: BaseException) -> None:
        if isinstance(error, (RuntimeError, MemoryError, OSError)) and _state_of_one(error) is State.OUT_OF_MEMORY:
            note(error)

    kind.__init__ = init
    monitoring = getattr(sys, "monitoring", None)
    tool = next((number for number in (4, 3) if monitoring and monitoring.get_tool(number) is None), None)
    if monitoring is not None and tool is not None:  # debuggers and profilers have the other numbers
        monitoring.use_tool_id(tool, "torchx-cubicml")
        monitoring.register_callback(tool, monitoring.events.RAISE, raised)
        monitoring.set_events(tool, monitoring.events.RAISE)


def at_time_limit(state: State, reason: str, *, ends_at: float, now: float) -> tuple[State, str]:
    """Return state and reason of an end; turn an infrastructure failure at the scheduler's time limit into a timeout.

    Args:
        state: state as classified by the process.
        reason: likewise.
        ends_at: time at which the scheduler ends the job, in seconds since 1970; 0 where unknown.
        now: current time, in seconds since 1970.

    >>> at_time_limit(State.INFRASTRUCTURE, "ended by SIGTERM", ends_at=100, now=101)
    (<State.TIMEOUT: 'timeout'>, "ended by SIGTERM, at the scheduler's time limit")
    """
    # Long after the limit, it must have been extended, and the cause is another.
    if state is not State.INFRASTRUCTURE or not 0 < ends_at <= now <= ends_at + _KILL_DELAY_S:
        return state, reason
    return State.TIMEOUT, f"{reason}, at the scheduler's time limit"


def state_from_message(text: str) -> State | None:
    """Return the state that matches the text of a runtime error; ``None`` without a match."""
    return next((state for state, pattern in _STATE_PATTERNS if pattern.search(text)), None)


def _deciding_cause(error: BaseException) -> BaseException:
    return min(_chain(error), key=lambda error_in_chain: _STATES_BY_SPECIFICITY.index(_state_of_one(error_in_chain)))


def _last_lines(error: BaseException, most: int) -> str:
    text = "".join(traceback.format_exception_only(error))
    lines = [line for line in mask(text).splitlines() if line.strip()]
    return "\n".join(lines[-_MAX_LINES:])[-most:]


def _state_of_one(error: BaseException) -> State:
    if isinstance(error, MemoryError) or any(each.__name__ == "OutOfMemoryError" for each in type(error).__mro__):
        return State.OUT_OF_MEMORY
    if type(error).__name__ in _EXTERNAL_ENDS:
        return State.INFRASTRUCTURE
    if isinstance(error, KeyboardInterrupt):
        return State.STOPPED_EARLY
    if isinstance(error, OSError):
        return _state_of_os_error(error)
    if isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError | RecursionError):
        return state_from_message(_text(error)) or State.USER_ERROR
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
    except Exception:  # noqa: BLE001 - the user's class may raise anything
        return ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes and contexts, and the members of groups, breadth first."""
    queue: list[BaseException | None] = [error]
    seen: set[int] = set()
    while queue and len(seen) < _MAX_CHAIN:
        error_in_chain = queue.pop(0)
        if error_in_chain is None or id(error_in_chain) in seen:
            continue
        seen.add(id(error_in_chain))
        yield error_in_chain
        queue += [error_in_chain.__cause__, error_in_chain.__context__]
        if isinstance(error_in_chain, BaseExceptionGroup):
            queue += error_in_chain.exceptions
