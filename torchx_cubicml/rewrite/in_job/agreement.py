"""The child process of one rank: rank 0's works the decision out, and all of them agree on it or on none.

What counts is one key in the TCPStore that torchrun's agents keep for the job, written once: by rank 0 with its
decision, when every rank has come with the same command; or by whoever waits in vain, with nothing. Every rank does as
that key says, so that no two run different arguments. A rank that has not come cannot be told, and then nobody is
rewritten.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn, Protocol, Self

from torchx_cubicml.recorder.process.own_child import COMES, COUNTED_ON, FAILS
from torchx_cubicml.recorder.ranks.tcp_store import connected
from torchx_cubicml.records.trial import new_id
from torchx_cubicml.rewrite.in_job.answer import Answer, deadline_s
from torchx_cubicml.rewrite.in_job.ballot import NOTHING, Ballot
from torchx_cubicml.settings import child_environment, option, read_job_environment
from torchx_cubicml.store.time_limit import within

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.launch import Launch
    from torchx_cubicml.launch.place_config import Rewritten
    from torchx_cubicml.rewrite.rewriter import Options
    from torchx_cubicml.settings import JobEnvironment

_LONGER_S = 3.0  # the others wait, so that rank 0 can say why nothing was decided


class Decides(Protocol):
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
        answer = answer_of(job, question, Deciding(Command.read(job, question)), comes=lambda: tell(COMES))
    except Exception as error:  # noqa: BLE001 - a store of the job that is gone must not stop the job
        why = f"the ranks cannot agree: {type(error).__name__}: {error}"
        if told or COUNTED_ON in sys.argv[1:]:
            tell(f"{FAILS}{why}")
            os._exit(1)
        answer = Answer() if job.rank else Answer().because(why)
    tell(answer.to_json())
    os._exit(0)  # whatever hangs in a thread


def answer_of(
    job: JobEnvironment, question: str, deciding: Deciding, *, comes: Callable[[], None] = lambda: None
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
    ballot = Ballot(store, job, question)
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
        why_not = ballot.obstacle(until=end) if wanted.args is not None else ""
        verdict = ballot.decide(f"{NOTHING}{why_not}" if why_not else wanted.to_json())
    agreed = _read(verdict)
    return agreed if agreed is not None else deciding.typed(verdict.removeprefix(NOTHING), until=end)


class Command:
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

    def _answer(self, rewritten: Rewritten) -> Answer:
        from torchx_cubicml.records.contract import encode_contract

        contract, typed, wanted = rewritten.contract, self._launch, rewritten.launch
        return Answer(
            args=wanted.script_args if rewritten.suggestion is not None else None,
            env={name: value for name, value in wanted.env.items() if typed.env.get(name) != value},
            contract=encode_contract(replace(contract, trial_id=self._trial_id)) if contract is not None else "",
            lines=rewritten.lines,
        )


class Deciding:
    """A decision in the making, in a thread that may hang as long as it likes."""

    def __init__(self, command: Decides) -> None:
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
