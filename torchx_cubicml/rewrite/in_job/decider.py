"""Decision of rank 0 for all ranks of a job: over the TCPStore they agree on one config, or on none.

``recorder/ranks/agreement`` has the verdict that is written once. Here rank 0 writes it, after every rank has joined
with the same command.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn, Protocol, Self

from torchx_cubicml.recorder.process.child import answer_as_child
from torchx_cubicml.recorder.ranks.agreement import Verdict
from torchx_cubicml.recorder.ranks.tcp_store import connected
from torchx_cubicml.records.trial import new_id
from torchx_cubicml.rewrite.in_job.rank import Answer, deadline_s
from torchx_cubicml.settings import KEEP_COMMAND, child_environment, is_on, option, read_job_environment
from torchx_cubicml.store.deadline import within
from torchx_cubicml.store.obstacle import write_obstacle

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._C._distributed_c10d import TCPStore

    from torchx_cubicml.launch import Launch
    from torchx_cubicml.launch.place_config import RewrittenLaunch
    from torchx_cubicml.rewrite.rewriter import Options
    from torchx_cubicml.settings import JobEnvironment


NOTHING = "nothing: "  # prefix of the verdict that no rank is rewritten; the reason follows
_TIMED_OUT = f"{NOTHING}a rank timed out waiting for the decision"
_PAUSE_S = 0.05


class Agreement:
    """Agreement of all ranks on one verdict, kept under a key in the job's TCPStore.

    Args:
        store: TCPStore of the job's agents.
        job: environment of this rank.
        question: the command; only ranks with the same one can agree.

    ``verdict`` may be from before a restart.
    """

    def __init__(self, store: TCPStore, job: JobEnvironment, question: str) -> None:
        self._store = store
        self._size = job.world_size
        prefix = "torchx_cubicml/decision/"
        self.verdict = Verdict(store, f"{prefix}verdict")
        self._rank = job.rank
        self._rank_prefix = f"{prefix}{job.attempt[0]}.{job.attempt[1]}/rank"
        self._command = hashlib.sha256(question.encode()).hexdigest()

    def join(self) -> None:
        """Join the agreement: this rank will follow the verdict. The call is idempotent, and one operation."""
        self._store.set(self._key(self._rank), self._command)

    def obstacle(self, *, until: float) -> str:
        """Wait until every rank has joined, and return the reason why they cannot agree; empty if they can."""
        ranks = range(self._size)
        for rank in ranks:
            while not self._store.check([self._key(rank)]):
                if time.monotonic() > until:
                    joined = sum(self._store.check([self._key(each)]) for each in ranks)
                    return f"only {joined} of {self._size} ranks joined in time"
                time.sleep(_PAUSE_S)
        commands = set(self._store.multi_get([self._key(rank) for rank in ranks]))
        return "" if commands == {self._command.encode()} else "the ranks were started with different commands"

    def _key(self, rank: int) -> str:
        return f"{self._rank_prefix}{rank}"


_LONGER_S = 3.0  # further wait of the other ranks, so that rank 0 can give the reason if nothing was decided


class Decider(Protocol):
    """Decider on a command. Each method is called once, ``typed`` first, in a thread."""

    def typed(self) -> Answer:
        """Return the answer that records the command and changes nothing."""

    def wanted(self) -> Answer:
        """Return the answer that all ranks should follow."""


def main() -> NoReturn:
    """Read a command from standard input, and write the answer for this rank to standard output."""
    question = sys.stdin.read()
    job = read_job_environment()

    def alone(why: str) -> str:
        return (Answer() if job.rank else Answer().because(f"the ranks cannot agree: {why}")).to_json()

    def agree(on_join: Callable[[], None]) -> str:
        return answer_of(job, question, PendingDecision(JobCommand.read(job, question)), comes=on_join).to_json()

    answer_as_child(agree, alone)


def answer_of(
    job: JobEnvironment, question: str, deciding: PendingDecision, *, comes: Callable[[], None] = lambda: None
) -> Answer:
    """Agree with the other ranks, and return the answer for this rank.

    Args:
        job: environment of this rank.
        question: the command of this rank.
        deciding: the decision, made on rank 0.
        comes: callback before this rank joins, after which the other ranks can count on it.
    """
    end = time.monotonic() + deadline_s()
    if job.rank == 0:
        deciding.start()
    # If a host drops packets, torch takes several times its timeout.
    store = within(deadline_s(), lambda: connected(job, within_s=deadline_s()), what="connecting to torchrun's store")
    agreement = Agreement(store, job, question)
    verdict = agreement.verdict.value
    if job.rank:
        if not verdict:
            comes()
            agreement.join()
            verdict = agreement.verdict.wait(until=end + _LONGER_S, otherwise=_TIMED_OUT, pause_s=_PAUSE_S)
        return replace(_decode(verdict) or Answer(), lines=())
    if not verdict:
        comes()
        agreement.join()
        proposal = deciding.wanted(until=end)
        obstacle = agreement.obstacle(until=end) if proposal.args is not None else ""
        verdict = agreement.verdict.decide(f"{NOTHING}{obstacle}" if obstacle else proposal.to_json())
    agreed = _decode(verdict)
    return agreed if agreed is not None else deciding.typed(verdict.removeprefix(NOTHING), until=end)


class JobCommand:
    """Command of rank 0, recorded and rewritten with the user's options.

    Args:
        launch: launch as typed.
        options: options of the user.
    """

    def __init__(self, launch: Launch, options: Options) -> None:
        self._launch = launch
        self._options = options
        self._trial_id = new_id("trial")

    @classmethod
    def read(cls, job: JobEnvironment, question: str) -> Self:
        """Read the command that a rank was started with, with the options that ``cubicrun`` has passed on."""
        from torchx_cubicml.launch import Launch
        from torchx_cubicml.rewrite.rewriter import Options

        words = json.loads(question)
        launch = Launch(
            program=str(words["program"]),
            is_module=bool(words["is_module"]),
            script_args=tuple(map(str, words["args"])),
            env=child_environment({}),
            world_size=job.world_size,
            nnodes=job.nnodes,
            nproc_per_node=job.world_size // job.nnodes,
            can_have_second_attempt=True,
        )
        given = {name: option(name) or "" for name in ("space", "store", "mode")}
        keeps = is_on(option(KEEP_COMMAND))
        return cls(launch, Options(**given, keeps_command=keeps, flags="--cubicml-"))

    def typed(self) -> Answer:
        """Return the answer that records the command and changes nothing."""
        from torchx_cubicml.rewrite.rewriter import rewrite

        return self._answer(rewrite(self._launch, replace(self._options, mode="record"), find_obstacle=write_obstacle))

    def wanted(self) -> Answer:
        """Return the answer that all ranks should follow: rewritten if a gain is predicted."""
        from torchx_cubicml.rewrite.rewriter import rewrite

        return self._answer(rewrite(self._launch, self._options, find_obstacle=write_obstacle))

    def _answer(self, rewritten: RewrittenLaunch) -> Answer:
        from torchx_cubicml.records.contract import encode_contract

        contract, typed, launch = rewritten.contract, self._launch, rewritten.launch
        second = rewritten.second_attempt
        return Answer(
            args=launch.script_args if rewritten.suggestion is not None else None,
            env={name: value for name, value in launch.env.items() if typed.env.get(name) != value},
            contract=encode_contract(replace(contract, trial_id=self._trial_id)) if contract is not None else "",
            second=encode_contract(replace(second, trial_id=self._trial_id)) if second is not None else "",
            lines=rewritten.lines,
        )


class PendingDecision:
    """Decision made in a daemon thread, which may hang without blocking the caller."""

    def __init__(self, command: Decider) -> None:
        self._command = command
        self._typed = Answer()
        self._wanted: Answer | None = None
        self._typed_is_ready = threading.Event()
        self._error = "the decision took too long"
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wanted(self, *, until: float) -> Answer:
        """Wait for the decision; return the command as typed if it fails or takes too long."""
        self._thread.join(max(until - time.monotonic(), 0.0))
        return self._wanted or self._typed.because(self._error)

    def typed(self, reason: str, *, until: float) -> Answer:
        """Wait for the answer that changes nothing, and add the reason to its lines."""
        self._typed_is_ready.wait(max(until - time.monotonic(), 0.0))
        return self._typed.because(reason)

    def _run(self) -> None:
        try:
            self._typed = self._command.typed()
            self._typed_is_ready.set()
            self._wanted = self._command.wanted()
        except Exception as error:  # noqa: BLE001 - the waiting caller reports it
            self._error = f"{type(error).__name__}: {error}"


def _decode(verdict: str) -> Answer | None:
    """Return the answer of a verdict; ``None`` if no rank is rewritten."""
    return None if verdict.startswith(NOTHING) else Answer.from_json(json.loads(verdict))
