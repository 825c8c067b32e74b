from __future__ import annotations

import signal

import pytest

from torchx_cubicml.recorder.attempt.early_failure import EARLY_S, UNSEEN_S, NodeReport, early_failure
from torchx_cubicml.recorder.attempt.notes import GOES_ON_AS_TYPED, Attempt
from torchx_cubicml.records.trial import State

OOM = {0: State.OUT_OF_MEMORY}
ERROR = {1: State.USER_ERROR}


def failure(attempt: Attempt, codes: dict[int, int], *, seconds: float = 20.0, killed: bool = False) -> str:
    return early_failure([NodeReport.of(attempt, codes, seconds=seconds, host_killed_processes=killed)])


@pytest.mark.parametrize(
    ("attempt", "codes", "killed", "said"),
    [
        (Attempt(ends=OOM), {0: 1}, False, "ran out of memory"),
        (Attempt(ends=OOM | ERROR), {0: 1, 1: 1}, False, "ran out of memory"),
        (Attempt(ends=ERROR), {1: 2, 0: -15}, False, "failed"),
        (Attempt(), {0: -9, 1: -15}, True, "ran out of memory"),
        (Attempt(), {0: -15, 1: -11}, False, "was ended by SIGSEGV"),
        (Attempt(), {0: -signal.SIGBUS}, True, "was ended by SIGBUS"),
        (Attempt(goes_on="goes on"), {0: 1, 1: -15}, False, "goes on"),
    ],
)
def test_what_the_config_can_be_blamed_for_is_an_early_failure(
    attempt: Attempt, codes: dict[int, int], killed: bool, said: str
) -> None:
    assert failure(attempt, codes, killed=killed) == f"{said} before its first measured steps"
    assert failure(attempt, codes, killed=killed, seconds=UNSEEN_S), "loading may take long"


@pytest.mark.parametrize(
    ("attempt", "codes"),
    [
        (Attempt(), {0: -9}),  # killed, but not for memory
        (Attempt(), {0: -15, 1: -15}),
        (Attempt(), {0: -signal.SIGABRT}),  # as by NCCL's watchdog after a timeout
        (Attempt(), {0: 1}),  # no rank said why
        (Attempt(ends={0: State.INFRASTRUCTURE}), {0: 1}),
        (Attempt(ends={0: State.STOPPED_EARLY}), {0: 1}),
        (Attempt(ends={0: State.TIMEOUT}), {0: 1}),
        (Attempt(ends=OOM), {1: 1}),  # rank 0 did not fail in this attempt
    ],
)
def test_what_comes_from_outside_is_none(attempt: Attempt, codes: dict[int, int]) -> None:
    assert failure(attempt, codes) == ""


@pytest.mark.parametrize(
    ("ends", "ended_by", "said"),
    [
        (ERROR, signal.SIGHUP, "failed before its first measured steps"),  # rank 1 exits with -1, which reads so
        ({}, signal.SIGSEGV, "was ended by SIGSEGV before its first measured steps"),
        ({}, signal.SIGHUP, ""),
        ({1: State.INFRASTRUCTURE}, signal.SIGTERM, ""),
    ],
)
def test_a_signal_counts_beside_what_the_ranks_noted(ends: dict[int, State], ended_by: int, said: str) -> None:
    attempt = Attempt(ends=ends)
    codes = attempt.failed_ranks
    report = NodeReport.of(attempt, codes, ended_by=ended_by, seconds=20.0, host_killed_processes=False)
    assert early_failure([report]) == said


def test_work_that_a_new_start_would_lose_is_kept() -> None:
    assert failure(Attempt(stepped=True, ends=OOM), {0: 1}, seconds=EARLY_S) == (
        "ran out of memory after 300 s, before a checkpoint"
    )
    assert failure(Attempt(stepped=True, ends=OOM), {0: 1}, seconds=EARLY_S + 1) == ""
    assert failure(Attempt(stepped=True, saved=True, ends=OOM), {0: 1}) == ""
    assert failure(Attempt(saved=True, ends=OOM), {0: 1}) == "", "steps cannot be seen in every program"
    assert failure(Attempt(ends=OOM), {0: 1}, seconds=UNSEEN_S + 1) == ""


def test_a_launch_that_ends_to_go_on_as_typed_is_never_late() -> None:
    attempt = Attempt(goes_on=GOES_ON_AS_TYPED, saved=True)
    assert failure(attempt, {0: 1}, seconds=2 * UNSEEN_S).startswith(GOES_ON_AS_TYPED), (
        "a checkpoint may load for hours"
    )
