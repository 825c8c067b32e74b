"""Recording session of one process: installs the hooks, reports the events, and disables hooks after a failure."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from torchx_cubicml.errors import CubicMLError
from torchx_cubicml.facts.hook_registry import hook_of, hook_spec
from torchx_cubicml.recorder.attempt.new_paths import watch_new_paths
from torchx_cubicml.recorder.attempt.notes import GOES_ON_AS_TYPED, AttemptNotes
from torchx_cubicml.recorder.events.failures import reason_of, state_of, state_of_exit, watch_memory_failures
from torchx_cubicml.recorder.events.reporter import Reporter
from torchx_cubicml.recorder.host.job_energy import JobEnergy
from torchx_cubicml.recorder.host.memory import peak_memory_gib
from torchx_cubicml.recorder.logs.logged_measurement import (
    STEPS,
    decode_measurement,
    disagreement,
    encode_measurement,
    has_throughput,
    merged,
)
from torchx_cubicml.recorder.logs.stream import LogLines
from torchx_cubicml.recorder.model.pipeline import combine_stages
from torchx_cubicml.recorder.process.assignment import known_at_start, read_assignment, trial_id_of
from torchx_cubicml.recorder.process.console import notice, warn
from torchx_cubicml.recorder.steps.measure_api import measure
from torchx_cubicml.recorder.steps.torch_hooks import on_every_step, once_imported, once_torch_is_imported
from torchx_cubicml.records.contract import decode_contract
from torchx_cubicml.records.trial import Origin, State
from torchx_cubicml.records.workload import LOAD_FAILED
from torchx_cubicml.settings import read_job_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.optim import Optimizer

    from torchx_cubicml.recorder.apply.hooks import Hook
    from torchx_cubicml.recorder.attempt.typed_start import TypedStart
    from torchx_cubicml.recorder.process.assignment import Assignment
    from torchx_cubicml.recorder.process.run_program import Program
    from torchx_cubicml.recorder.ranks.peers import Peers, RankWork
    from torchx_cubicml.recorder.steps.checkpoint_calls import Checkpoints
    from torchx_cubicml.recorder.steps.training import Training
    from torchx_cubicml.records.measurement import Measurement
    from torchx_cubicml.records.values import Value

_QUERY_S = 3.0  # limit of a query to another rank while this process is about to end
_SHORT_QUERY_S = 0.5  # limit of a query for a value that was posted long before, if at all
_MEET_S = 10.0
_POLL_S = 0.02
STEP_LIMIT = "step limit"
_REPLACED = "replaced by os.exec: what followed was not recorded"
_NEVER_MATCHED = "the pattern of [log] in the space file never matched an output line with a number above zero"


def open_session(program: Program) -> Session | None:
    """Return a started session that records this process; warn once and return ``None`` if the contract is invalid.

    Raises:
        OSError: the process that writes to the store cannot be started.
    """
    try:
        assignment = read_assignment(program)
    except CubicMLError as error:
        if read_job_environment().rank == 0:
            warn(f"this launch is not recorded: {error}")
        return None
    session = Session(assignment)
    try:
        session.begin()
    except Exception:
        session.lose_sight()
        raise
    return session


class Session:
    """Recording of one process, from before the program runs until after it has ended.

    Rank 0 reports the whole launch. The other ranks count steps too, but report only their own failure. After a failure
    of the recorder itself, all hooks are disabled; the end of the program is still reported.

    Args:
        assignment: the launch to record and the store to write to.
    """

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._pid = os.getpid()
        self._is_disabled = self._has_ended = self._is_closed = False
        self._is_traced: Callable[[], bool] = bool  # no
        self._training: Training | None = None
        self._peers: Peers | None = None
        self._reporter: Reporter | None = None
        self._unhook: Callable[[], None] | None = None
        self._step_limit = assignment.contract.step_limit or 0
        self._lines: LogLines | None = None
        self._log_doubt = ""  # why a launch with a declared pattern has no throughput
        self._energy = JobEnergy(assignment.job)
        self._hooks: dict[str, Hook] = {}
        self._hook_facts: dict[str, Value] = {}
        job = assignment.job
        is_rewritten = assignment.contract.origin in {Origin.REWRITE, Origin.EXPLORE}
        self._began: float | None = None
        self._attempt = AttemptNotes(job.attempt_folder, job.rank) if job.attempt_folder and is_rewritten else None
        self._typed_start: TypedStart | None = None
        self._may_be_anew = is_rewritten and assignment.leads  # it has not loaded the checkpoint of an earlier training
        if is_rewritten and assignment.contract.as_typed is not None:
            from torchx_cubicml.recorder.attempt.typed_start import TypedStart

            self._typed_start = TypedStart.of(assignment)
        self._has_started_processes = False
        self._checkpoints: Checkpoints | None = None  # from the import of torch on

    def begin(self, *, closes_at_exit: bool = True) -> None:
        """Report the start of the program, and install the hooks as soon as it imports torch.

        Args:
            closes_at_exit: whether ``close`` is called when Python exits; else the caller calls it.
        """
        if self._assignment.leads and self._assignment.starter is None:
            self._open_reporter()
        self._began = time.perf_counter()  # time before is the queue's
        if self._assignment.starter is not None:
            self._began -= self._assignment.starter.age_s()
        if self._attempt is not None:
            self._attempt.began(self._assignment.job)
            watch_new_paths(self._attempt.new_paths_file)
        os.register_at_fork(after_in_child=self._disable_in_fork)
        if closes_at_exit:
            atexit.register(self.close)
        for name in ("_exit", "execv", "execve"):
            setattr(os, name, self._leaving(name, getattr(os, name)))
        measure.listen(self.guarded(self._on_record_step))
        # Trainers print on the first rank, or on the last one, where a pipeline computes its loss.
        if self._assignment.job.rank in {0, self._assignment.job.world_size - 1}:
            self.guarded(self._read_log_lines)()
        once_torch_is_imported(self.guarded(self._on_torch))

    @property
    def assignment(self) -> Assignment:
        """Recording assignment of this process."""
        return self._assignment

    def note_started_process(self) -> None:
        """Note that the program starts a process that may be a rank."""
        self._has_started_processes = True

    def lose_sight(self) -> None:
        """Note that checkpoints are no longer seen, so that a rewritten launch is not started again without them."""
        if self._attempt is not None:
            self._attempt.saved()

    def completed(self) -> None:
        """Record that the program completed."""
        self._end(lambda: (State.COMPLETED, ""))

    def exited(self, exit_: SystemExit) -> None:
        """Record that the program ended by ``SystemExit``."""
        memory_ran_out = bool(exit_.code) and state_of(exit_) is State.OUT_OF_MEMORY  # and the program told it itself
        self._end(lambda: (state_of(exit_), reason_of(exit_)) if memory_ran_out else state_of_exit(exit_.code))

    def failed(self, error: BaseException) -> None:
        """Record that the program ended by an exception."""
        self._end(lambda: (state_of(error), reason_of(error)))

    def guarded(self, hook: Callable[..., object]) -> Callable[..., None]:
        """Wrap ``hook`` so that it never raises: the first failure of any hook is reported and disables all hooks."""

        def call(*args: object, **kwargs: object) -> None:
            # This test comes first, so that a compiler that traces a hook finds nothing in it.
            if self._is_traced() or self._is_disabled:
                return
            try:
                hook(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - a recorder failure must not reach the training
                self._give_up(error)

        return call

    def _leaving(self, name: str, leave: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        """Return ``os._exit``, or an exec, that records the end first; it is pickled by its name, as the original."""

        @wraps(leave)
        def call(*args: Any, **named: Any) -> NoReturn:
            target: Any = args[0] if args else named.get("path", named.get("status"))
            with contextlib.suppress(Exception):
                if not self._is_closed and (name == "_exit" or _can_run(target)):
                    self._end(lambda: state_of_exit(target) if name == "_exit" else (State.UNKNOWN, _REPLACED))
                    self.close()
            leave(*args, **named)

        call.__module__ = "os"
        return call

    def _open_reporter(self) -> None:
        """Begin to report the whole launch; a rank that a recorded program has started does so once it trains."""
        self._reporter = Reporter(self._assignment, self._assignment.trial_id)
        self._reporter.started(known_at_start(self._assignment))

    def _read_log_lines(self) -> None:
        job, contract = self._assignment.job, self._assignment.contract
        self._lines = LogLines(self.guarded, devices=job.world_size, on_news=self._on_lines, declared=contract.log)
        self._lines.listen()

    def _on_lines(self) -> None:
        if self._lines is None or (self._training is not None and self._training.steps):
            return  # once there are steps, log lines are read together with them
        measurement = self._measure_log({})
        if self._attempt is not None and has_throughput(measurement):
            self._attempt.stepped()
        if self._reporter is None and self._assignment.leads:
            self._open_reporter()
        if self._reporter is not None:
            self._reporter.learn({}, measurement)
            self._reporter.measured()
        elif self._peers is not None and measurement is not None:
            self._peers.post("log", encode_measurement(measurement))

    def _on_torch(self) -> None:
        from torchx_cubicml.recorder.model.storage_reservation import watch_reservations
        from torchx_cubicml.recorder.ranks.peers import Peers
        from torchx_cubicml.recorder.steps.checkpoint_calls import Checkpoints, watch_checkpoints
        from torchx_cubicml.recorder.steps.deferred_hooks import make_step_hook
        from torchx_cubicml.recorder.steps.evaluation_passes import on_every_mode_switch, on_every_no_grad
        from torchx_cubicml.recorder.steps.torch_hooks import hide_hooks_from_torchscript, make_tracing_test

        self._checkpoints = Checkpoints()  # by now the arguments are the program's
        self._is_traced = make_tracing_test()
        self._peers = Peers(self._assignment.job)
        if self._training is None:  # else the hooks have refused: steps were made without torch
            self._training = self._new_training()
            self._install_hooks(self._peers)
        hide_hooks_from_torchscript()
        self._training.clipping.install()
        self._training.on_unhooked_step = self._on_unhooked_step
        on_every_mode_switch(self.guarded(self._training.switched))
        on_every_no_grad(self._training.on_no_grad, self._training.on_grad)
        watch_memory_failures(self.guarded(self._training.ran_out_of_memory))
        watch_checkpoints(self._save, self._load, self.guarded)
        watch_reservations(partial(self._hook_facts.__setitem__, "reserved_share"), self.guarded)
        once_imported("torch._dynamo.callback", self.guarded(self._on_compiler))
        hook = make_step_hook(self._training.notes, self._on_step, self.guarded)
        self._unhook = on_every_step(hook).remove
        if self._assignment.leads and not trial_id_of(self._assignment.job):
            self._peers.post("trial_id", self._assignment.trial_id)

    def _save(self, save: partial[object]) -> object:
        training, checkpoints = self._training, self._checkpoints
        if training is None or checkpoints is None:
            return save()
        if self._attempt is not None and training.steps:
            self._attempt.saved()
        self.guarded(training.count)()

        def noted() -> object:
            self.guarded(checkpoints.saving)(save, steps=training.steps)
            return save()

        result = training.pauses.saving(noted if self._assignment.leads else save)
        if checkpoints.has_news and training.steps:  # the process may be killed before the next event
            checkpoints.has_news = False
            self.guarded(self._report_progress)(training)
        return result

    def _load(self, load: partial[object]) -> object:
        checkpoints = self._checkpoints
        if self._training is None or self._training.steps or checkpoints is None:
            return load()
        result = checkpoints.load(load)
        self.guarded(self._note_loading)(checkpoints, load, result)
        return result

    def _note_loading(self, checkpoints: Checkpoints, load: partial[object], result: object) -> None:
        if not (checkpoints.loaded(load, result) and self._may_be_anew):
            return
        from torch import distributed

        from torchx_cubicml.recorder.attempt.resumed import begun_with_other_config

        self._may_be_anew = False
        contract, second = self._assignment.contract, self._attempt.second if self._attempt is not None else ""
        typed = decode_contract(second) if second else contract.typed()
        if not begun_with_other_config(contract, typed.config, checkpoints.facts):
            return
        has_peers = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
        alone, moving = None if second or has_peers else self._typed_start, list[str]()
        if second and self._attempt is not None:
            self._attempt.goes_on()
        elif alone is None:
            warn(f"the rewritten launch {GOES_ON_AS_TYPED}: its loader may skip samples, or repeat them")
            return
        else:
            warn(f"the rewritten command {GOES_ON_AS_TYPED}; starting again as you typed it")
            moving = alone.moving()
        self._end(lambda: (State.STOPPED_EARLY, GOES_ON_AS_TYPED))
        self.close()
        if alone is not None:
            alone.run(moving)
        os._exit(1)  # the launcher starts the command again as typed

    def _on_compiler(self) -> None:
        from torchx_cubicml.recorder.steps.optimizer_changes import on_every_compilation

        on_every_compilation(
            partial(self._on_compilation, has_ended=False), partial(self._on_compilation, has_ended=True)
        )

    def _on_compilation(self, *_event: object, has_ended: bool) -> None:  # older torch passes no event
        if self._is_disabled or self._training is None:
            return
        try:  # ``guarded`` would skip this hook, as the compiler is active here
            (self._training.compiled if has_ended else self._training.compiling)()
        except Exception as error:  # noqa: BLE001 - a recorder failure must not reach the training
            self._give_up(error)

    def _on_unhooked_step(self, news: bool) -> None:
        if self._training is not None:
            self._after_step(self._training, news=news)

    def _install_hooks(self, peers: Peers) -> None:
        contract = self._assignment.contract
        if not contract.hooks and not contract.checked_hooks:
            return
        from torchx_cubicml.recorder.apply.hooks import installed

        self._hooks = installed(contract.hooks, contract.checked_hooks, peers=peers, guard=self.guarded)

    def _refuse_hooks(self) -> None:
        """Take stand-ins for the hooks, which refuse, in a program that makes its steps without torch."""
        contract = self._assignment.contract
        if contract.hooks or contract.checked_hooks:
            from torchx_cubicml.recorder.apply.hooks import NoTorch

            self._hooks = {hook_of(place): NoTorch() for place in (*contract.checked_hooks, *contract.hooks)}

    def _release_hooks(self) -> None:
        """Remove the hooks around the wrapping of layers, and record the changes that they refused."""
        if not self._hooks:
            return
        from torchx_cubicml.recorder.apply.hooks import hook_facts, warn_of_refusals

        hooks, self._hooks = self._hooks, {}
        for hook in reversed(hooks.values()):  # two of them wrap the same functions
            hook.release()
        for name, hook in hooks.items():
            self._hook_facts |= hook_facts(name, hook)
        if self._assignment.leads:
            warn_of_refusals(hooks, self._assignment.contract.hooks)

    def _new_training(self) -> Training:
        from torchx_cubicml.recorder.steps.training import Training

        contract = self._assignment.contract
        hooks = {**contract.checked_hooks, **contract.hooks}
        return Training(
            self.guarded,
            world_size=self._assignment.job.world_size,
            requested={**contract.config, **{hook_spec(place).fact or place: value for place, value in hooks.items()}},
            step_limit=self._step_limit,
            began=self._began,
        )

    def _on_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        if self._training is not None:
            self._after_step(self._training, news=self._training.step(optimizer))

    def _on_record_step(self, samples: float | None, tokens: float | None) -> None:
        if self._training is None:  # the program has not imported torch, or not yet
            self._training = self._new_training()
            self._refuse_hooks()
        self._after_step(self._training, news=self._training.record_step(samples, tokens))

    def _after_step(self, training: Training, *, news: bool) -> None:
        if news:
            self._report_progress(training)
        if 0 < self._step_limit <= training.steps:
            self._leave(training)

    def _report_progress(self, training: Training) -> None:
        if self._attempt is not None:
            self._attempt.stepped()
        self._energy.reported(training)
        facts = self._facts(training)
        if self._reporter is None and self._assignment.leads:
            self._open_reporter()
        if self._reporter is not None:
            measured = self._with_power(training.measurement(), facts, None)
            self._reporter.learn(facts, self._merged_with_log(measured, self._measured_by_log(facts)))
            self._reporter.measured()
        elif self._peers is not None:
            self._post_work(self._peers, training)

    def _with_power(
        self, measured: Measurement | None, facts: Mapping[str, Value], others: RankWork | None
    ) -> Measurement | None:
        """Return a measurement with the job's power; without it if other processes train that this one has started."""
        n_ranks = self._assignment.job.world_size
        return self._energy.added_to(measured, others) if facts.get("world_size", n_ranks) == n_ranks else measured

    def _facts(self, training: Training, *, within_s: float = 0.0) -> dict[str, Value]:
        """Return the facts of the training; rank 0 of a pipeline adds up the facts that each stage's rank posts."""
        if not self._only_starts_ranks:
            self._release_hooks()
        facts = training.facts() | self._hook_facts | (self._checkpoints.facts if self._checkpoints else {})
        if self._peers is None or not training.n_stages:
            return facts
        for number, encoded in training.encoded_stage_facts.items():
            self._peers.post(f"stage/{number}", encoded, within_s=within_s)
        if not self._assignment.leads:
            return facts
        words = self._peers.gather([f"stage/{number}" for number in range(training.n_stages)], within_s=within_s)
        return facts | combine_stages(words)

    def _end(self, describe: Callable[[], tuple[State, str]]) -> None:
        """Report the end of the program; ``close`` waits for the store."""
        if os.getpid() != self._pid or self._has_ended:
            return  # a forked child that ran the program to its end, or a handler that leaves after the end
        self._has_ended = True
        if self._lines is not None:
            self._lines.release()
        self.guarded(self._conclude)()
        self._is_disabled = False  # the end is reported even after a hook has failed
        self.guarded(self._report_end)(describe)
        self._is_disabled = True

    def _conclude(self) -> None:
        training = self._training
        facts: dict[str, Value] = {}
        self._energy.stop()
        if training is not None:
            training.conclude()
            facts = self._facts(training, within_s=_QUERY_S)
        if self._reporter is not None:
            others = self._work_of_others(training) if training is not None else None
            measured = training.measurement(others=others) if training is not None else None
            measured = self._with_power(measured, facts, others)
            is_declared = self._lines is not None and self._lines.is_declared
            is_open = is_declared or not has_throughput(measured)
            logged = self._measured_by_log(facts, within_s=_SHORT_QUERY_S if is_open else 0.0)
            self._warn_about_log(measured, logged, is_declared=is_declared)
            self._reporter.learn(facts, self._merged_with_log(measured, logged))
            if training is not None and (coverage := training.coverage.text()):
                notice(coverage)
        elif self._peers is not None:
            self._post_log(facts)
            self._post_work(self._peers, training, has_ended=True, within_s=_QUERY_S)

    def _work_of_others(self, training: Training) -> RankWork | None:
        """Return the work that the other ranks posted; if batch sizes differ, wait briefly for their final numbers."""
        if self._peers is None:
            return None
        end, own = time.monotonic() + _SHORT_QUERY_S, training.work_of_this_rank()
        number = training.coverage.number
        work = self._peers.work(within_s=_QUERY_S, training=number)
        while work is not None and not work.has_ended and time.monotonic() < end:
            if not work.differs(*own) and not self._energy.lacks(work):
                break
            time.sleep(_POLL_S)
            work = self._peers.work(within_s=_SHORT_QUERY_S, training=number) or work
        return work

    def _post_work(
        self, peers: Peers, training: Training | None, *, has_ended: bool = False, within_s: float = 0.0
    ) -> None:
        from torchx_cubicml.recorder.ranks.peers import encode_rank_work

        samples, tokens = training.work_of_this_rank() if training is not None else (None, None)
        number = training.coverage.number if training is not None else 1
        word = encode_rank_work(
            peak_memory_gib(), samples, tokens, has_ended=has_ended, training=number, watts=self._energy.watts
        )
        peers.post_work(word, within_s=within_s)

    def _merged_with_log(self, measured: Measurement | None, logged: Measurement | None) -> Measurement | None:
        """Return the measurement by steps, with the log's throughput if steps have none or the user declared a log."""
        is_declared = self._lines is not None and self._lines.is_declared
        return merged(measured, logged, prefer_log=is_declared and has_throughput(logged))

    def _measured_by_log(self, facts: Mapping[str, Value], *, within_s: float = 0.0) -> Measurement | None:
        logged = self._measure_log(facts)
        if logged is None and within_s and self._peers is not None and self._assignment.job.world_size > 1:
            encoded = self._peers.ask("log", within_s=within_s)
            # Another rank prints, but "log" may cover only its first lines: prefer the final "log/end".
            logged = decode_measurement(encoded and (self._peers.ask("log/end", within_s=_QUERY_S) or encoded))
        return logged

    def _measure_log(self, facts: Mapping[str, Value]) -> Measurement | None:
        if self._lines is None:
            return None
        if self._training is None:
            return self._lines.measurement(facts)
        return self._lines.measurement(facts, paused_s=self._training.paused_s())

    def _warn_about_log(self, measured: Measurement | None, logged: Measurement | None, *, is_declared: bool) -> None:
        if logged is None and is_declared:
            self._log_doubt = "" if has_throughput(measured) else _NEVER_MATCHED
            warn(self._log_doubt or f"{_NEVER_MATCHED}; the {STEPS} were timed all the same")
        elif difference := disagreement(measured, logged):
            first = "log lines" if is_declared else STEPS
            warn(f"{difference}; both are recorded, and the {first} take precedence")

    def _post_log(self, facts: Mapping[str, Value]) -> None:
        logged = self._measure_log(facts)
        if logged is not None and self._peers is not None:
            for name in ("log", "log/end"):
                self._peers.post(name, encode_measurement(logged), within_s=_QUERY_S)

    def _report_end(self, describe: Callable[[], tuple[State, str]]) -> None:
        state, reason = describe()
        reason = reason or (self._log_doubt if state is State.COMPLETED else "")
        if self._attempt is not None:
            self._attempt.ended(state)
        if self._reporter is None and state is not State.COMPLETED:
            self._reporter = self._failure_reporter()
        if self._reporter is not None:
            has_begun = self._training is None or self._training.steps > 0
            checkpoints = None if has_begun or state is State.COMPLETED else self._checkpoints
            if checkpoints is not None and checkpoints.was_loading(reason):
                self._reporter.learn({LOAD_FAILED: True}, None)
            self._reporter.ended(state, reason, is_starter=self._only_starts_ranks)

    @property
    def _only_starts_ranks(self) -> bool:
        """True if this process has started others and did not train itself, so that they may be the ranks."""
        has_trained = self._training is not None and self._training.steps > 0
        return self._has_started_processes and not has_trained and self._measure_log({}) is None

    def _failure_reporter(self) -> Reporter | None:
        """Return a reporter for a failing rank other than 0; ``None`` if rank 0's trial id cannot be read."""
        trial_id = self._assignment.trial_id
        if not trial_id and self._peers is not None:
            trial_id = self._peers.ask("trial_id", within_s=_QUERY_S)
        return Reporter(self._assignment, trial_id) if trial_id else None

    def _leave(self, training: Training) -> None:
        """End a profiling launch at its last step, on every rank alike.

        The process ends by ``os._exit``, which skips the program's own clean-up, such as saving a checkpoint in a
        ``finally`` block. The ranks wait for one another first, so that no peer leaves in the middle of a collective.
        """
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        if self._peers is not None:
            self._post_work(self._peers, training, has_ended=True, within_s=_QUERY_S)
            self._peers.meet(within_s=_MEET_S)
        self._end(lambda: (State.COMPLETED, STEP_LIMIT))
        self.close()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(0)

    def close(self) -> None:
        """Wait for the store within its limits, before this process ends."""
        if os.getpid() != self._pid:
            return
        self._is_closed = True
        try:
            if self._peers is not None:
                self._peers.close()
            if self._reporter is not None:
                self._reporter.close()
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - as above, on the way out
            warn(f"the end of this launch was not recorded: {error}")

    def _disable_in_fork(self) -> None:
        self._is_disabled = True
        if self._lines is not None:
            self._lines.release()
        if self._reporter is not None:
            self._reporter.abandon()

    def _give_up(self, error: Exception) -> None:
        self._is_disabled = True
        self.lose_sight()
        if self._assignment.leads:
            warn(f"recording stopped, the training continues: {type(error).__name__}: {error}")
        measure.listen(None)
        self._energy.stop()
        training, lines = self._training, self._lines
        releases = [
            holder.release for holder in (training, lines, *reversed(self._hooks.values())) if holder is not None
        ]
        for unhook in (self._unhook, *releases):
            try:
                if unhook is not None:
                    unhook()
            except Exception:  # noqa: BLE001, S112 - a hook that stays installed does nothing while _is_disabled is set
                continue


def _can_run(file: str | bytes | os.PathLike[str]) -> bool:
    """Return whether a file can surely be executed; a program that fails to become another one goes on."""
    with Path(os.fsdecode(file)).open("rb") as opened:
        return opened.read(4).startswith((b"#!", b"\x7fELF")) and os.access(file, os.X_OK)
