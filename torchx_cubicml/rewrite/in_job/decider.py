"""Agreement of the nodes of a job on one config, over the TCPStore of their rendezvous."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn, Protocol, Self

from torchx_cubicml.recorder.process.child import COMES, COUNTED_ON, FAILS
from torchx_cubicml.recorder.ranks.tcp_store import connected
from torchx_cubicml.records.trial import new_id
from torchx_cubicml.rewrite.in_job.rank import Answer, deadline_s
from torchx_cubicml.settings import child_environment, option, read_job_environment
from torchx_cubicml.store.deadline import within

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._C._distributed_c10d import TCPStore

    from torchx_cubicml.launch import Launch
    from torchx_cubicml.launch.place_config import RewrittenLaunch
    from torchx_cubicml.rewrite.rewriter import Options
    from torchx_cubicml.settings import JobEnvironment


NOTHING = "nothing: "  # begins the verdict that nobody is rewritten; the reason follows
_PAUSE_S = 0.05


class Agreement:
    """The one key that counts, in the store of a job.

    Args:
        store: of the job's agents.
        job: says who is voting.
        question: the command; only ranks with the same one can agree.
    """

    def __init__(self, store: TCPStore, job: JobEnvironment, question: str) -> None:
        self._store = store
        self._size = job.world_size
        prefix = "torchx_cubicml/decision/"
        came = f"{prefix}{job.attempt[0]}.{job.attempt[1]}"
        self._verdict = f"{prefix}verdict"
        self._alike = f"{came}/{hashlib.sha256(question.encode()).hexdigest()}"
        self._came = f"{came}/all"
        self._own = f"{came}/rank{job.rank}"

    @property
    def verdict(self) -> str:
        """What was decided, such as before a restart; empty where nothing is yet."""
        return bytes(self._store.get(self._verdict)).decode() if self._store.check([self._verdict]) else ""

    def come(self) -> None:
        """Say that this rank will do what is decided; said again, it counts once."""
        if self._store.add(self._own, 1) == 1:
            self._store.add(self._alike, 1)
            self._store.add(self._came, 1)

    def obstacle(self, *, until: float) -> str:
        """Wait until every rank has come, and return why they cannot agree, in words; empty where they can."""
        while (came := self._store.add(self._came, 0)) < self._size:
            if time.monotonic() > until:
                return f"only {came} of {self._size} ranks came in time"
            time.sleep(_PAUSE_S)
        return "" if self._store.add(self._alike, 0) >= self._size else "not all ranks were started alike"

    def decide(self, verdict: str) -> str:
        """Write the verdict where none is written, and return the one that counts."""
        return bytes(self._store.compare_set(self._verdict, "", verdict)).decode()

    def wait(self, *, until: float) -> str:
        """Return the verdict, which is nothing where none came in time."""
        while not (verdict := self.verdict):
            if time.monotonic() > until:
                return self.decide(f"{NOTHING}a rank has waited too long")
            time.sleep(_PAUSE_S)
        return verdict


_LONGER_S = 3.0  # the others wait, so that rank 0 can say why nothing was decided


class Decider(Protocol):
    """Works out what is to be run; called once each, ``typed`` first, in a thread."""

    def typed(self) -> Answer:
        """Return what records the command and changes nothing."""

    def wanted(self) -> Answer:
        """Return what all ranks are to run."""


def main() -> NoReturn:
    """Read a command from standard input, and write the answer for this rank to standard output.

    A failure after this rank has come, in this process or in one before, is an exit status: whoever asks, asks another.
    """
    question = sys.stdin.read()
    job = read_job_environment()
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        sys.stdout.write(text)
        sys.stdout.flush()

    try:
        answer = answer_of(job, question, PendingDecision(JobCommand.read(job, question)), comes=lambda: tell(COMES))
    except Exception as error:  # noqa: BLE001 - a store of the job that is gone must not stop the job
        why = f"the ranks cannot agree: {type(error).__name__}: {error}"
        if told or COUNTED_ON in sys.argv[1:]:
            tell(f"{FAILS}{why}")
            os._exit(1)
        answer = Answer() if job.rank else Answer().because(why)
    tell(answer.to_json())
    os._exit(0)  # whatever hangs in a thread


def answer_of(
    job: JobEnvironment, question: str, deciding: PendingDecision, *, comes: Callable[[], None] = lambda: None
) -> Answer:
    """Return what this rank is to do.

    Args:
        job: says who and where this rank is.
        question: the command of this rank.
        deciding: makes the decision, on rank 0.
        comes: called before the other ranks can count on this one.
    """
    end = time.monotonic() + deadline_s()
    if job.rank == 0:
        deciding.start()
    # A host that drops what it is sent costs torch several times what it is given.
    store = within(deadline_s(), lambda: connected(job, within_s=deadline_s()), what="connecting to torchrun's store")
    ballot = Agreement(store, job, question)
    verdict = ballot.verdict
    if job.rank:
        if not verdict:
            comes()
            ballot.come()
            verdict = ballot.wait(until=end + _LONGER_S)
        return replace(_read(verdict) or Answer(), lines=())
    if not verdict:
        comes()
        ballot.come()
        wanted = deciding.wanted(until=end)
        rejection_reason = ballot.obstacle(until=end) if wanted.args is not None else ""
        verdict = ballot.decide(f"{NOTHING}{rejection_reason}" if rejection_reason else wanted.to_json())
    agreed = _read(verdict)
    return agreed if agreed is not None else deciding.typed(verdict.removeprefix(NOTHING), until=end)


class JobCommand:
    """The command of rank 0, and what it is to be recorded and rewritten with.

    Args:
        launch: as typed.
        options: of the user.
    """

    def __init__(self, launch: Launch, options: Options) -> None:
        self._launch = launch
        self._options = options
        self._trial_id = new_id("trial")

    @classmethod
    def read(cls, job: JobEnvironment, question: str) -> Self:
        """Return the command that a rank was started with, with the options that ``cubicrun`` has passed on."""
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
        )
        given = {name: option(name) or "" for name in ("space", "store", "mode")}
        return cls(launch, Options(**given, flags="--cubicml-"))

    def typed(self) -> Answer:
        """Return what records the command and changes nothing."""
        from torchx_cubicml.rewrite.rewriter import rewrite

        return self._answer(rewrite(self._launch, replace(self._options, mode="record")))

    def wanted(self) -> Answer:
        """Return what all ranks are to run: rewritten where that promises a gain."""
        from torchx_cubicml.rewrite.rewriter import rewrite

        return self._answer(rewrite(self._launch, self._options))

    def _answer(self, rewritten: RewrittenLaunch) -> Answer:
        from torchx_cubicml.records.contract import encode_contract

        contract, typed, wanted = rewritten.contract, self._launch, rewritten.launch
        return Answer(
            args=wanted.script_args if rewritten.suggestion is not None else None,
            env={name: value for name, value in wanted.env.items() if typed.env.get(name) != value},
            contract=encode_contract(replace(contract, trial_id=self._trial_id)) if contract is not None else "",
            lines=rewritten.lines,
        )


class PendingDecision:
    """A decision in the making, in a thread that may hang as long as it likes."""

    def __init__(self, command: Decider) -> None:
        self._command = command
        self._typed = Answer()
        self._wanted: Answer | None = None
        self._typed_is_made = threading.Event()
        self._error = "the decision took too long"
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wanted(self, *, until: float) -> Answer:
        """Return the decision, by which nothing changes where it failed or is not made in time."""
        self._thread.join(max(until - time.monotonic(), 0.0))
        return self._wanted or self._typed.because(self._error)

    def typed(self, reason: str, *, until: float) -> Answer:
        """Return what changes nothing, and says why."""
        self._typed_is_made.wait(max(until - time.monotonic(), 0.0))
        return self._typed.because(reason)

    def _run(self) -> None:
        try:
            self._typed = self._command.typed()
            self._typed_is_made.set()
            self._wanted = self._command.wanted()
        except Exception as error:  # noqa: BLE001 - told by who waits
            self._error = f"{type(error).__name__}: {error}"


def _read(verdict: str) -> Answer | None:
    return None if verdict.startswith(NOTHING) else Answer.from_json(json.loads(verdict))
