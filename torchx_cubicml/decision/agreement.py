"""The child process of one rank: rank 0's works the decision out, and all of them agree on it or on none.

What counts is one key in the TCPStore that torchrun's agents keep for the job, written once: by rank 0 with its
decision, when every rank has come with the same command; or by whoever waits in vain, with nothing. Every rank does as
that key says, so that no two run different arguments. A rank that has not come cannot be told, and then nobody is
rewritten.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn, Self

from torchx_cubicml.settings import child_environment, option, read_job_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from torchx_cubicml.contract import Contract
    from torchx_cubicml.launch import Launch
    from torchx_cubicml.settings import JobEnvironment

DEADLINE_S = 20.0  # for rank 0 to read the store (5 s), to decide, and for all ranks to come
_LONGER_S = 3.0  # the others wait, so that rank 0 can say why nothing was decided
_PAUSE_S = 0.05
_NOTHING = "nothing"  # followed by the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a rank is to do.

    Args:
        args: arguments of the program; ``None`` for those that were typed.
        env: environment variables that are set besides.
        contract: encoded contract of the launch; empty where there is none.
        lines: what this rank tells on stderr.
    """

    args: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    contract: str = ""
    lines: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, payload: Mapping[str, object]) -> Self:
        """Return the answer that ``to_json`` wrote.

        Raises:
            ValueError: it did not.
        """
        args, env, contract, lines = (payload.get(name) for name in ("args", "env", "contract", "lines"))
        if not (isinstance(env, dict) and isinstance(contract, str) and isinstance(lines, list)):
            raise ValueError("the answer is damaged")
        return cls(
            args=tuple(map(str, args)) if isinstance(args, list) else None,
            env={str(name): str(value) for name, value in env.items()},
            contract=contract,
            lines=tuple(map(str, lines)),
        )

    def to_json(self) -> str:
        """Return JSON on one line."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What rank 0 has worked out: for all ranks, and for itself where they do not agree."""

    agreed: Answer
    typed: Answer


class Ballot:
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

    @property
    def verdict(self) -> str:
        """What was decided, such as before a restart; empty where nothing is yet."""
        return bytes(self._store.get(self._verdict)).decode() if self._store.check([self._verdict]) else ""

    def come(self) -> None:
        """Say that this rank will do what is decided."""
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
                return self.decide(f"{_NOTHING}: a rank has waited too long")
            time.sleep(_PAUSE_S)
        return verdict


def deadline_s() -> float:
    """Return the seconds within which a decision counts."""
    try:
        seconds = float(option("decision_deadline_s") or DEADLINE_S)
    except ValueError:
        return DEADLINE_S
    return seconds if 0 < seconds < 3600 else DEADLINE_S


def main() -> NoReturn:
    """Read a command from standard input, and write the answer for this rank to standard output."""
    question = sys.stdin.read()
    job = read_job_environment()
    try:
        answer = answer_of(job, question, lambda: decide(job, json.loads(question)))
    except Exception as error:  # noqa: BLE001 - a store of the job that is gone must not stop the job
        line = _told(f"arguments stay as typed: the ranks cannot agree: {type(error).__name__}: {error}")
        answer = Answer(lines=() if job.rank else (line,))
    sys.stdout.write(answer.to_json())
    sys.stdout.flush()
    os._exit(0)  # whatever hangs in a thread


def answer_of(job: JobEnvironment, question: str, work: Callable[[], Decision]) -> Answer:
    """Return what this rank is to do.

    Args:
        job: says who and where this rank is.
        question: the command of this rank.
        work: makes the decision, on rank 0.
    """
    end = time.monotonic() + deadline_s()
    if job.rank:
        ballot = Ballot(_connected(job), job, question)
        verdict = ballot.verdict
        if not verdict:
            ballot.come()
            verdict = ballot.wait(until=end + _LONGER_S)
        return replace(_read(verdict) or Answer(), lines=())
    working = _Working(work)
    ballot = Ballot(_connected(job), job, question)
    verdict = ballot.verdict
    if verdict:
        return _read(verdict) or replace(working.result(end).typed, lines=())
    ballot.come()
    decision = working.result(end)
    why_not = ballot.obstacle(until=end) if decision.agreed.args is not None else ""
    verdict = ballot.decide(f"{_NOTHING}: {why_not}" if why_not else decision.agreed.to_json())
    agreed = _read(verdict)
    if agreed is not None:
        return agreed
    reason = verdict.removeprefix(f"{_NOTHING}: ")
    return replace(decision.typed, lines=(*decision.typed.lines, _told(f"arguments stay as typed: {reason}")))


def decide(job: JobEnvironment, command: Mapping[str, object]) -> Decision:
    """Work out what all ranks are to run."""
    from torchx_cubicml.launch import Launch
    from torchx_cubicml.rewriter import Options, rewrite
    from torchx_cubicml.trial import new_id

    args = command["args"]
    launch = Launch(
        program=str(command["program"]),
        is_module=bool(command["is_module"]),
        script_args=tuple(map(str, args)) if isinstance(args, list) else (),
        env=child_environment({}),
        world_size=job.world_size,
        nnodes=job.nnodes,
        nproc_per_node=job.world_size // job.nnodes,
    )
    options = Options(
        space=option("space") or "", store=option("store") or "", mode=option("mode") or "", flags="--cubicml-"
    )
    trial_id = new_id("trial")
    rewritten = rewrite(launch, options)
    if rewritten.suggestion is None:
        typed = _answer(launch, launch, rewritten.contract, trial_id, rewritten.lines)
        return Decision(agreed=typed, typed=typed)
    as_typed = rewrite(launch, replace(options, mode="record"))
    return Decision(
        agreed=_answer(launch, rewritten.launch, rewritten.contract, trial_id, rewritten.lines),
        typed=_answer(launch, launch, as_typed.contract, trial_id, as_typed.lines),
    )


class _Working:
    """A decision in the making, in a thread that may hang as long as it likes."""

    def __init__(self, work: Callable[[], Decision]) -> None:
        self._made: list[Decision] = []
        self._error = ""
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def result(self, end: float) -> Decision:
        """Return the decision, by which nothing changes where it failed or is not made before ``end``."""
        self._thread.join(max(end - time.monotonic(), 0.0))
        if self._made:
            return self._made[0]
        line = _told(f"arguments stay as typed: {self._error or 'the decision took too long'}")
        nothing = Answer(lines=(line,))
        return Decision(agreed=nothing, typed=nothing)

    def _run(self, work: Callable[[], Decision]) -> None:
        try:
            self._made.append(work())
        except Exception as error:  # noqa: BLE001 - told by who waits
            self._error = f"{type(error).__name__}: {error}"


def _answer(typed: Launch, wanted: Launch, contract: Contract | None, trial_id: str, lines: tuple[str, ...]) -> Answer:
    from torchx_cubicml.contract import encode_contract

    return Answer(
        args=wanted.script_args if wanted is not typed else None,
        env={name: value for name, value in wanted.env.items() if typed.env.get(name) != value},
        contract=encode_contract(replace(contract, trial_id=trial_id)) if contract is not None else "",
        lines=lines,
    )


def _connected(job: JobEnvironment) -> TCPStore:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    if job.store_address is None:
        raise ConnectionError("torchrun has set no MASTER_ADDR and MASTER_PORT")
    host, port = job.store_address
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=deadline_s()), wait_for_workers=False)


def _read(verdict: str) -> Answer | None:
    return None if verdict.startswith(_NOTHING) else Answer.from_json(json.loads(verdict))


def _told(text: str) -> str:
    from torchx_cubicml.telling import told

    return told(text)


if __name__ == "__main__":
    main()
