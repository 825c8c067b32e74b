"""Store of a tune in which launches end in every way that a launch can end, and some do not end."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.browser.stores.tuned import OWN, TUNE, Launcher
from torchx_cubicml import State, TrialStore
from torchx_cubicml.facts.hook_registry import REFUSED, hook_fact

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml import Trial

ENDS: tuple[tuple[State, str], ...] = (
    (State.OUT_OF_MEMORY, "CUDA out of memory. Tried to allocate 14.00 GiB"),
    (State.OUT_OF_MEMORY, "exit status 137: killed, as by the kernel where host memory is full"),
    (State.TIMEOUT, "cancelled after running for 1800 s (--trial-timeout)"),
    (State.TIMEOUT, "cancelled after 3600 s in the queue (--queue-timeout): Resources"),
    (State.TIMEOUT, "NCCL watchdog: collective ALLREDUCE timed out after 600000 ms"),
    (State.STOPPED_EARLY, "slower than the best so far beyond doubt"),
    (State.INFRASTRUCTURE, "was preempted"),
    (State.INFRASTRUCTURE, "was cancelled"),
    (State.INFRASTRUCTURE, "node gpu-17 was lost"),
    (State.INFRASTRUCTURE, "exit status -15: ended by SIGTERM, as in a preemption"),
    (State.USER_ERROR, "ValueError: batch size 3 does not divide 128\n  File train_gpt.py, line 97, in main"),
    (State.USER_ERROR, "exit status 2: unrecognized arguments: --sharding"),
    (State.UNKNOWN, "the job is gone, and wrote nothing more"),
    (State.UNKNOWN, ""),
    (State.COMPLETED, "no throughput: fewer than 3 steps after warm-up"),
    (State.RUNNING, ""),
    (State.PLANNED, ""),
)
_WITHOUT_THROUGHPUT = frozenset(State) - {State.STOPPED_EARLY}
MEASURED = 12
LAUNCHES = MEASURED + len(ENDS) + 3


def fill(url: Path) -> tuple[str, ...]:
    """Fill a store."""
    store, launcher = TrialStore(str(url)), Launcher(random.Random(2))
    for number in range(MEASURED):
        config: dict[str, Any] = {**OWN, "micro_batch_size": 2 ** (number % 4), "compile": number % 2 == 0}
        store.add(launcher.launch(config, tune=TUNE))
    for state, reason in ENDS:
        store.add(_ended(launcher.launch({**OWN, "micro_batch_size": 8}, tune=TUNE), state, reason))
    refused = launcher.launch(OWN, tune=TUNE)
    why = f"{REFUSED}the program wraps no module with fully_shard"
    store.add(replace(refused, observed={**refused.observed, hook_fact("fsdp"): why}))
    store.add(replace(launcher.launch(OWN, tune=TUNE), attempts=4, reason="restarted 3 times by torchrun"))
    running = launcher.launch(OWN, tune=TUNE)
    store.add(replace(running, state=State.RUNNING, ended_at=""))
    return ()


def _ended(trial: Trial, state: State, reason: str) -> Trial:
    is_measured = state not in _WITHOUT_THROUGHPUT
    return replace(
        trial,
        state=state,
        reason=reason,
        measurement=trial.measurement if is_measured else None,
        ended_at=trial.ended_at if state.ended else "",
    )
