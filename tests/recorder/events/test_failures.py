from __future__ import annotations

import ctypes
import errno
import gc
import sys
import weakref

import pytest

from torchx_cubicml.recorder.events.failures import (
    at_time_limit,
    reason_of,
    state_of,
    state_of_exit,
    watch_memory_failures,
)
from torchx_cubicml.records.trial import State


class OutOfMemoryError(RuntimeError):
    """Named as torch's own."""


class TooLargeError(OutOfMemoryError):
    """Derived from it, as by a trainer."""


class SIGTERMException(SystemExit):
    """Named as Lightning's own."""


def chained(error: BaseException, cause: BaseException | None = None) -> BaseException:
    error.__cause__, error.__context__ = cause, cause or ValueError()
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), State.OUT_OF_MEMORY),
        (TooLargeError("batch of 64"), State.OUT_OF_MEMORY),
        (RuntimeError("CUDA error: out of memory"), State.OUT_OF_MEMORY),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "), State.OUT_OF_MEMORY),
        (KeyError("out_of_memory"), State.USER_ERROR),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"), State.USER_ERROR),
        (RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory: you tried"), State.OUT_OF_MEMORY),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), State.OUT_OF_MEMORY),
        (MemoryError(), State.OUT_OF_MEMORY),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), State.OUT_OF_MEMORY),
        (chained(TypeError("wrapped"), OutOfMemoryError("x")), State.OUT_OF_MEMORY),
        (ExceptionGroup("many", [ValueError(), ExceptionGroup("more", [MemoryError()])]), State.OUT_OF_MEMORY),
        (RuntimeError("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)"), State.TIMEOUT),
        (RuntimeError("[gloo/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation"), State.TIMEOUT),
        (TimeoutError(), State.TIMEOUT),
        (RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]"), State.INFRASTRUCTURE),
        (
            RuntimeError("NCCL error in: ProcessGroupNCCL.cpp, ncclSystemError: System call failed"),
            State.INFRASTRUCTURE,
        ),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), State.INFRASTRUCTURE),
        (
            RuntimeError(
                "[PG ID 0 PG GUID 0(default_pg) Rank 0] Watchdog caught collective operation timeout: WorkNCCL("
                "SeqNum=2, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600026 milliseconds"
                " before timing out."
            ),
            State.TIMEOUT,
        ),
        (
            RuntimeError(
                "NCCL communicator was aborted on rank 1. Original reason for failure was: [Rank 1] Watchdog caught"
                " collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLGATHER)"
            ),
            State.TIMEOUT,
        ),
        (
            RuntimeError(
                "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, remote process exited or"
                " there was a network error, NCCL version 2.19.3\nncclRemoteError: A call failed possibly due to a"
                " network error or a remote process exiting prematurely."
            ),
            State.INFRASTRUCTURE,
        ),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated."), State.INFRASTRUCTURE),
        (RuntimeError("this node is being preempted"), State.INFRASTRUCTURE),
        (chained(SIGTERMException()), State.INFRASTRUCTURE),
        (ConnectionResetError(), State.INFRASTRUCTURE),
        (KeyboardInterrupt(), State.STOPPED_EARLY),
        (ValueError("timeout must be positive, and out of memory is no word for it"), State.USER_ERROR),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), State.USER_ERROR),
        (NotImplementedError("connection closed"), State.USER_ERROR),
        (FileNotFoundError("data.bin"), State.USER_ERROR),
    ],
    ids=lambda value: str(value)[:30] or type(value).__name__,
)
def test_state_of_an_exception(error: BaseException, expected: State) -> None:
    assert state_of(error) is expected


def test_a_real_host_allocation_that_fails() -> None:
    import torch

    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert state_of(caught.value) is State.OUT_OF_MEMORY


@pytest.mark.parametrize(("signal_name", "expected"), [("SIGKILL", State.UNKNOWN), (None, State.USER_ERROR)])
def test_a_signal_that_ends_a_rank_of_the_program_is_no_error_of_it(signal_name: str | None, expected: State) -> None:
    from torch.multiprocessing import ProcessExitedException

    error = ProcessExitedException("process 1 ended", 1, 7, exit_code=1, signal_name=signal_name)
    assert state_of(error) is expected


def test_an_endless_chain_ends() -> None:
    first, second = ValueError(), TypeError()
    first.__context__, second.__context__ = second, first
    assert state_of(first) is State.USER_ERROR


def test_the_reason_is_the_exception_alone_with_secrets_masked() -> None:
    error = chained(RuntimeError("first line\nlogin with password=hunter2 failed"))
    assert reason_of(error) == "RuntimeError: first line\nlogin with password=*** failed"


def test_a_long_reason_is_cut_at_its_beginning() -> None:
    reason = reason_of(ValueError("\n".join(f"line {index}" for index in range(100))))
    assert reason.splitlines()[-1] == "line 99"
    assert len(reason.splitlines()) == 8
    assert len(reason_of(ValueError("x" * 10_000))) == 2000


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (None, (State.COMPLETED, "")),
        (0, (State.COMPLETED, "")),
        (3, (State.USER_ERROR, "exit status 3")),
        (True, (State.USER_ERROR, "exit status 1")),
        ("bad --token=abc", (State.USER_ERROR, "bad --token=***")),
    ],
    ids=str,
)
def test_state_of_exit(code: object, expected: tuple[State, str]) -> None:
    assert state_of_exit(code) == expected


@pytest.mark.parametrize("code", [143, -15])
def test_an_exit_on_sigterm_is_no_user_error(code: int) -> None:
    state, reason = state_of_exit(code)
    assert state is State.INFRASTRUCTURE
    assert "SIGTERM" in reason


def test_the_reason_names_what_the_state_comes_from() -> None:
    error = ValueError("no batch")
    reason = "ValueError: no batch\nafter MemoryError: password=***"
    assert reason_of(chained(error, MemoryError("password=hunter2"))) == reason
    assert reason_of(chained(error, KeyError("x"))) == "ValueError: no batch"
    assert len(reason_of(chained(ValueError("a" * 5000), MemoryError("b" * 5000)))) <= 2000


@pytest.mark.parametrize(
    ("ends_at", "now", "is_timeout"),
    [
        (0, 0, False),
        (0, 5, False),
        (1, 1, True),
        (100, 99.9, False),
        (100, 100, True),
        (100, 400, True),
        (100, 401, False),
    ],
)
def test_an_end_at_the_time_limit_is_a_timeout(ends_at: float, now: float, is_timeout: bool) -> None:
    found = at_time_limit(State.INFRASTRUCTURE, "why", ends_at=ends_at, now=now)
    expected = (State.TIMEOUT, "why, at the scheduler's time limit") if is_timeout else (State.INFRASTRUCTURE, "why")
    assert found == expected
    assert at_time_limit(State.USER_ERROR, "why", ends_at=ends_at, now=now) == (State.USER_ERROR, "why")


@pytest.mark.parametrize(("length", "state"), [(32, State.OUT_OF_MEMORY), (33, State.USER_ERROR)])
def test_a_chain_is_followed_for_32_errors(length: int, state: State) -> None:
    first: BaseException = MemoryError()
    for _ in range(length - 1):
        later = ValueError()
        later.__context__ = first
        first = later
    assert state_of(first) is state


def test_two_long_reasons_share_the_room() -> None:
    error = ValueError("a" * 5000)
    error.__cause__ = MemoryError("b" * 5000)
    assert reason_of(error) == "a" * 1000 + "\nafter " + "b" * 990
    assert state_of_exit("x" * 3000 + "y") == (State.USER_ERROR, "x" * 1999 + "y")


@pytest.mark.parametrize(
    ("causes", "state"),
    [
        ([KeyboardInterrupt(), ValueError()], State.STOPPED_EARLY),
        ([KeyboardInterrupt(), ConnectionError()], State.INFRASTRUCTURE),
        ([ConnectionError(), TimeoutError()], State.TIMEOUT),
        ([TimeoutError(), MemoryError()], State.OUT_OF_MEMORY),
    ],
)
def test_the_most_specific_of_several_errors_counts(causes: list[BaseException], state: State) -> None:
    for errors in (causes, causes[::-1]):
        assert state_of(BaseExceptionGroup("several", errors)) is state


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (RecursionError("timed out"), State.USER_ERROR),
        (NotImplementedError("timed out"), State.USER_ERROR),
        (type("SignalException", (Exception,), {})(), State.INFRASTRUCTURE),
        (type("PreemptionError", (ValueError,), {})(), State.INFRASTRUCTURE),
        (BrokenPipeError(), State.INFRASTRUCTURE),
        (TimeoutError(12, "Cannot allocate memory"), State.OUT_OF_MEMORY),
        (Exception("timed out"), State.USER_ERROR),
    ],
)
def test_classes_of_errors(error: BaseException, state: State) -> None:
    assert state_of(error) is state


def test_a_group_hides_no_cause_of_a_member() -> None:
    member = ValueError()
    member.__cause__ = MemoryError()
    assert state_of(ExceptionGroup("many", [KeyError(), member])) is State.OUT_OF_MEMORY


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the texts of the memory failures that are raised in this test."""
    import torch

    found: list[str] = []
    # The class is restored, and the callback of Python 3.12 is not registered for the tests that follow.
    monkeypatch.setattr(torch.OutOfMemoryError, "__init__", torch.OutOfMemoryError.__init__)
    monkeypatch.delattr(sys, "monitoring", raising=False)
    watch_memory_failures(lambda error: found.append(str(error)))
    return found


def test_a_failure_of_torchs_class_is_seen_although_it_is_caught(seen: list[str]) -> None:
    import torch

    class Own(torch.OutOfMemoryError):
        """A trainer's own."""

    kind = torch.cuda.OutOfMemoryError
    for raised in (torch.OutOfMemoryError("by hand"), Own("own"), RuntimeError("of no interest")):
        with pytest.raises(RuntimeError):
            raise raised
    with pytest.raises(kind, match="from C"):  # as torch's C++ code raises it
        ctypes.pythonapi.PyErr_SetString(ctypes.py_object(kind), b"from C")
    assert seen == ["by hand", "own", "from C"]
    assert repr(kind("a", 2)) == "OutOfMemoryError('a', 2)"


def test_a_caught_failure_keeps_nothing_alive(seen: list[str]) -> None:
    import torch

    def fail() -> None:
        tensor = torch.ones(2)
        held.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError("too large")

    held: list[weakref.ref[torch.Tensor]] = []
    with pytest.raises(torch.OutOfMemoryError):
        fail()
    gc.collect()
    assert seen
    assert held[0]() is None


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python shows errors of every type from 3.12 on")
def test_caught_failures_of_every_type_are_seen() -> None:
    found: list[str] = []
    monitoring = getattr(sys, "monitoring")  # noqa: B009 - absent from older Pythons
    watch_memory_failures(lambda error: found.append(str(error)))
    (tool,) = (number for number in (4, 3) if monitoring.get_tool(number) == "torchx-cubicml")
    try:
        for raised in (
            RuntimeError("CUDA out of memory"),
            MemoryError("m"),
            KeyError("out_of_memory"),
            ValueError("v"),
        ):
            with pytest.raises(type(raised)):
                raise raised
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)
    assert set(found) == {"CUDA out of memory", "m"}
