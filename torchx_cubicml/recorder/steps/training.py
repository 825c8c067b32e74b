"""Training observed through optimizer steps: which steps count, how long they take, and facts about the model.

A step counts if a training forward precedes it and its optimizer leads: the first of several in one iteration. A
checkpoint loader that fills the optimizer state by a step without a forward is not counted. An optimizer of the same
class that replaces the leading one on the same model (a new one per epoch) continues the training. One that trains
something else, or the same model with batches of another size, and replaces it for good begins another training, such
as the real one after a learning-rate search. Each training has its own facts and times, and the one that took the most
time is reported (``trainings``). Where the program caught a failure for want of memory, what it trains afterwards with
batches of another size is another training, too, and the earlier ones are not reported.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.events.failures import reason_of
from torchx_cubicml.recorder.model.facts import software_facts
from torchx_cubicml.recorder.model.inspection import ModelInspection, parameters_of
from torchx_cubicml.recorder.model.layers import modules_around
from torchx_cubicml.recorder.steps.buffered_steps import count_buffered_steps
from torchx_cubicml.recorder.steps.clipping import Clipping
from torchx_cubicml.recorder.steps.deferred_hooks import StepBuffer, has_rate
from torchx_cubicml.recorder.steps.forwards import Forwards
from torchx_cubicml.recorder.steps.optimizer_changes import (
    OptimizerIdentity,
    OtherOptimizers,
    UnhookedOptimizers,
    UnhookedSteps,
    UninspectedTraining,
    has_nonzero_rate,
)
from torchx_cubicml.recorder.steps.pauses import CHECKPOINT, EVAL_MODE, NO_GRAD, Pauses
from torchx_cubicml.recorder.steps.sampling import StepSampling
from torchx_cubicml.recorder.steps.start_up import StartUp
from torchx_cubicml.recorder.steps.step_clock import StepEnd
from torchx_cubicml.recorder.steps.step_times import StepTimes
from torchx_cubicml.recorder.steps.trainings import Coverage, EarlierTrainings, OneTraining, WorkChange
from torchx_cubicml.records.memory_failure import CAUGHT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

    from torch import nn
    from torch.optim import Optimizer

    from torchx_cubicml.recorder.ranks.peers import RankWork
    from torchx_cubicml.recorder.steps.forwards import Work
    from torchx_cubicml.recorder.steps.pauses import Moment
    from torchx_cubicml.recorder.steps.torch_hooks import Guard
    from torchx_cubicml.records.measurement import Measurement
    from torchx_cubicml.records.values import Value

FIRST_REPORT = 8  # steps; then at 16, 32, ...
_STEPS_TO_DEFER = 8  # observed by the full hooks before the hooks are deferred
_STEPS_TO_CHECK = 2  # likewise, after each report
_MAX_NOTED_STEPS = 64  # deferred before they are processed
_MAX_TRAININGS = 8  # each costs an inspection of the model; of later ones only the steps are counted
_MAX_STEPS_WITHOUT_FORWARD = 8  # of the leading optimizer without an observed forward: the model is called unusually


class Training:
    """Training of this process, as observed by its hooks.

    ``clipping`` observes gradient clipping once it is installed. ``on_unhooked_step`` is called after each step that no
    hook observed, with whether a report is due. ``notes`` buffers the observations of deferred hooks.

    Args:
        guard: makes each hook harmless.
        world_size: of the job.
        requested: requested config; a fact of it that has one value per layer is read so.
        step_limit: step at which the training is ended, 0 without one; deferred hooks stop in time for it.
        began: ``perf_counter`` at the start of the process; by default now.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        world_size: int,
        requested: Mapping[str, Value] | None = None,
        step_limit: int = 0,
        began: float | None = None,
    ) -> None:
        self._start_up = StartUp(began)
        self.pauses = Pauses(guard)
        self.notes = StepBuffer(self.pauses)
        self.clipping = Clipping(guard)
        self.on_unhooked_step: Callable[[bool], None] | None = None
        micro_batch_size = (requested or {}).get("micro_batch_size")
        self._forwards = Forwards(
            guard, self.pauses, requested=micro_batch_size if isinstance(micro_batch_size, int) else None
        )
        self._forwards.on_first = self._begin_step
        self._new_inspection = partial(
            ModelInspection, self._forwards, self.clipping, guard, world_size=world_size, requested=requested
        )
        self._inspection = self._new_inspection()
        self._times = StepTimes(self._start_up)
        self._earlier = EarlierTrainings()
        self._work_change = WorkChange()
        self._short_steps = 0  # at the end, of a training too short to be followed
        self._sampling = StepSampling()
        self._step_limit = step_limit
        self._until_deferred = _STEPS_TO_DEFER
        self._began: Moment = None
        self._is_partly_observed = False  # forwards of the current step may have run before the hooks were back
        self._leading: weakref.ref[Optimizer] | None = None
        self._identity: OptimizerIdentity | None = None  # of the leading optimizer
        self._others = OtherOptimizers()
        self._count_only = UninspectedTraining()
        self._steps_without_forward, self._next_report = 0, FIRST_REPORT
        self._is_explicit = self._is_compiled = False  # explicitly reported; compiled since the last counted step
        self._has_compiled = self._has_unwatched_steps = False
        self._unhooked_optimizers = UnhookedOptimizers()
        self._unhooked: UnhookedSteps | None = None
        self._failure, self._steps_before = "", 0  # a failure for want of memory since the last step; steps before one
        self._caught: dict[str, Value] = {}  # one that steps have followed, as a fact

    @property
    def steps(self) -> int:
        """Steps counted up to now, in all trainings of this process."""
        return self._earlier.steps + self._times.steps

    @property
    def n_stages(self) -> int:
        """Stages of the pipeline; 0 without one."""
        return self._reported.inspection.n_stages

    @property
    def encoded_stage_facts(self) -> Mapping[int, str]:
        """Encoded facts of this rank's pipeline stages, by stage number."""
        return self._reported.inspection.encoded_stage_facts

    def compiling(self) -> None:
        """Note that a compilation begins."""
        self._start_up.compiling()

    def compiled(self) -> None:
        """Note the end of a compilation; if no step was observed yet, search for an optimizer with a compiled step."""
        self._start_up.compiled()
        self._has_compiled = self._is_compiled = True
        self._forwards.evaluation.may_hook = False
        if self._leading is not None or self._is_explicit:
            return
        optimizer = self._unhooked_optimizers.find()
        if optimizer is not None:
            self._follow(optimizer)
            self._unhooked = UnhookedSteps(optimizer)
            self._forwards.before_each = self._look_for_step

    def ran_out_of_memory(self, error: BaseException) -> None:
        """Note a failure for want of memory, at any moment and in any thread; if a step follows, it was caught."""
        self._failure = reason_of(error)  # not the error, which holds tensors
        self.notes.left = min(self.notes.left, 1)  # the next step ends the notes

    def step(self, optimizer: Optimizer) -> bool:
        """Note that an optimizer has stepped; return whether a report is due."""
        self._outlive_failure()
        if self._unhooked is not None:  # its steps are not compiled after all
            self._unhooked = self._leading = self._forwards.before_each = None
        if self._leading is None:
            self._follow(optimizer)
            if has_nonzero_rate(optimizer):
                self._count(None)
            return False
        if self._leading() is not optimizer and not self._continues_with(optimizer):
            self._restore_hooks_within_step()
            self._forwards.note_other_optimizer(optimizer)
            self._follow_if_replaced(optimizer)
            if not self._count_only.is_on and self._others.takes_turns(optimizer):
                self._inspection.add_networks(optimizer)
            return False
        if self._count_only.is_on:
            return self._count_uninspected(optimizer)
        strangers = self._others.end()
        news = self._take_step(optimizer)
        if news is None:
            return False
        self._defer_hooks(optimizer, news=news, strangers=strangers)
        return news

    def record_step(self, samples: float | None, tokens: float | None) -> bool:
        """Note a step that the script reports explicitly, with what the whole job consumed in it.

        From the first call on, steps are counted and timed by these calls alone.
        """
        self._outlive_failure()
        if not self._is_explicit:
            self._restore_hooks()
            self._is_explicit = True
            if self._inspection.facts:
                self._forwards.release()
            self._times.begin_anew()
            self._earlier, self._count_only = EarlierTrainings(), UninspectedTraining()
        self._tick(samples, tokens)
        return self._is_due()

    def facts(self) -> dict[str, Value]:
        """Return the facts of the training that are known by now."""
        return {**software_facts(), **self._reported.inspection.known_facts(), **self.coverage.facts(), **self._caught}

    def count(self) -> None:
        """Count the steps up to now, those that the deferred hooks have noted included."""
        if self.notes.left:
            self._read_notes()

    @property
    def coverage(self) -> Coverage:
        """Part of the program that is reported."""
        self.count()
        uninspected = self._count_only.begun
        return self._earlier.coverage(self._current, uninspected=uninspected, short_steps=self._short_steps)

    def conclude(self) -> None:
        """End the training; inspect the model a last time if no step revealed it."""
        if not self._is_explicit:
            self._short_steps = self.notes.lone_steps if self.notes.left else self._others.short_steps
        self._restore_hooks()
        self.on_unhooked_step = None
        self._look_for_step()
        if not self._inspection.facts and self._earlier.longest is None:
            self._inspection.read(self._leading() if self._leading is not None else None, None)
        self.release()

    def switched(self, module: nn.Module, mode: object) -> None:
        """Note that a module was set to training or evaluation mode."""
        self._forwards.evaluation.switched(module, mode)

    def on_no_grad(self, frame: FrameType) -> None:
        """Note that the program entered ``no_grad`` at ``frame``."""
        self._forwards.evaluation.on_no_grad(frame)

    def on_grad(self) -> None:
        """Note that the program has left ``no_grad``."""
        self._forwards.evaluation.on_grad()

    def measurement(self, *, others: RankWork | None = None) -> Measurement | None:
        """Return the throughput of the whole job up to now; ``None`` before a steady state.

        Args:
            others: values reported by the other ranks; ``None`` if there are none.
        """
        self.count()
        reported = self._reported
        is_watched = self._forwards.was_found and not self._is_explicit
        measured = reported.times.measurement(
            reported.inspection.facts,
            is_of_whole_job=self._is_explicit,
            others=others,
            may_include_evaluation=self._has_unwatched_steps or not is_watched or self._forwards.evaluation.has_missed,
        )
        if measured is not None and not self._forwards.was_found:
            return replace(measured, evaluation_s=None)
        return measured

    def work_of_this_rank(self) -> tuple[float | None, float | None]:
        """Return mean samples and tokens per step of this process; ``None`` where unknown."""
        self.count()
        steady = self._reported.times.steady()
        return (steady.samples_per_step, steady.tokens_per_step) if steady is not None else (None, None)

    def paused_s(self) -> Callable[[float, float], float]:
        """Return a function that sums evaluation and saving seconds between two ``perf_counter`` readings."""
        evaluation = self._reported.times.evaluation()
        kinds = {CHECKPOINT: True, EVAL_MODE: evaluation.eval_mode, NO_GRAD: evaluation.no_grad}
        return self.pauses.host_seconds(frozenset(kind for kind, is_left_out in kinds.items() if is_left_out))

    def release(self) -> None:
        """Remove all hooks from the model."""
        self.notes.close()
        self._forwards.release()
        self._forwards.evaluation.release()
        self._inspection.release()

    @property
    def _current(self) -> OneTraining:
        return OneTraining(number=self._earlier.number, inspection=self._inspection, times=self._times)

    @property
    def _reported(self) -> OneTraining:
        return self._earlier.reported(self._current)

    def _outlive_failure(self) -> None:
        """If memory ran out since the last step, look whether the training goes on with batches of another size."""
        if not self._failure:
            return
        self._restore_hooks()
        self._forwards.begin_anew()  # the one that failed, and those of the step that ends now
        self._until_deferred, self._is_partly_observed = _STEPS_TO_DEFER, True
        self._caught, self._failure, self._steps_before = {CAUGHT: self._failure}, "", self.steps
        self._work_change.renew()

    def _take_step(self, optimizer: Optimizer) -> bool | None:
        """Count a step of the leading optimizer; return whether a report is due, or ``None`` if it does not count."""
        if self.notes.left and (self.notes.is_watched or has_rate(optimizer)):
            self.notes.end_step()
            self._read_notes()
            return self._is_due()
        self._restore_hooks_within_step()
        work = self._forwards.take()
        if (self._is_partly_observed or (work is None and self._forwards.may_have_trained())) and has_rate(optimizer):
            self._is_partly_observed = False
            self._tick(None, None, is_watched=False)
            return self._is_due()
        if work is None and not self._counts_without_forward(optimizer):
            return None
        return self._count(work)

    def _look_for_step(self) -> None:
        """Count a step without a hook: its parameter was written since the last forward."""
        if self._unhooked is None or not self._unhooked.has_stepped():
            return
        work = self._forwards.take()
        news = work is not None and self._count(work)
        if work is not None and self.on_unhooked_step is not None:
            self.on_unhooked_step(news)

    def _count(self, work: Work | None) -> bool:
        news = False
        if not self._inspection.facts and work is not None:
            self._inspection.read(self._leading() if self._leading is not None else None, work)
            news = True
        if self._is_explicit:
            if news:
                self._forwards.release()
            return news
        if work is not None and self._work_change.saw(work) and self._begin_another_of_model():
            return False
        self._sampling.saw(work)
        samples, tokens = (work.samples, work.tokens) if work is not None else (None, None)
        self._tick(samples, tokens)
        return self._is_due() or news

    def _tick(self, samples: float | None, tokens: float | None, *, is_watched: bool = True) -> None:
        """Count a step that ends now."""
        clock = self._times.clock()
        began, self._began = self._began, None
        self.pauses.drop()
        clock.tick(
            StepEnd(
                clock.now(),
                began=began,
                samples=samples,
                tokens=tokens,
                is_watched=is_watched,
                pauses=self.pauses.take(),
                is_compiled=self._is_compiled,
            )
        )
        self.pauses.begin(clock.now)
        self._is_compiled = False
        self._times.steps += 1
        if self.steps % _MAX_NOTED_STEPS == 0:
            self._times.read()

    def _is_due(self) -> bool:
        """Return whether a report is due, at 8, 16, 32, ... steps."""
        if self.steps < self._next_report:
            return False
        while self._next_report <= self.steps:
            self._next_report *= 2
        return True

    def _defer_hooks(self, leading: Optimizer, *, news: bool, strangers: int) -> None:
        """Switch to deferred hooks once enough is known; keep the full hooks for some steps after a report."""
        if news:
            self._restore_hooks()
        if not self.notes.left:
            self._until_deferred -= 1
            if self._is_explicit or not self._inspection.facts or self._until_deferred > 0:
                return
            if not self._forwards.settle(self.notes):
                return
            self.notes.open(weakref.ref(leading), self._times.clock().now, strangers=strangers)
        is_watched, count = self._plan(leading)
        if is_watched and not self.notes.is_watched and not self._forwards.settle(self.notes):
            self._restore_hooks()
            return
        self.notes.is_watched = is_watched or (self.notes.is_watched and not self._forwards.rest())
        ends = [_MAX_NOTED_STEPS, count, self._next_report - self.steps]
        self.notes.left = max(min(ends + [self._step_limit - self.steps] * (self._step_limit > 0)), 1)

    def _plan(self, leading: Optimizer) -> tuple[bool, int]:
        """Return whether to watch the forwards of the next steps, and the most steps until the next decision.

        A profiling launch watches all: it is short, and must count the same steps on every rank. So does a compiled
        training: the model may be compiled for the hooks that it has.
        """
        if self._step_limit or self._has_compiled or not has_rate(leading):
            return True, _MAX_NOTED_STEPS
        return self._sampling.plan(self._times.recent_s())

    def _restore_hooks(self) -> None:
        if not self.notes.left:
            return
        self._read_notes()
        self.notes.close()
        self._until_deferred = _STEPS_TO_CHECK
        self._forwards.look_again()

    def _restore_hooks_within_step(self) -> None:
        if self.notes.left:
            self._read_notes()
            self._is_partly_observed = not self.notes.is_watched or self.notes.is_within_step
        self._restore_hooks()

    def _read_notes(self) -> None:
        """Count the steps in the buffer of the deferred hooks."""
        counted = count_buffered_steps(
            self.notes.take(),
            clock=self._times.clock(),
            sampling=self._sampling,
            work_of=self._forwards.work_of,
            is_compiled=self._is_compiled,
        )
        self._times.steps += counted.steps
        self._is_compiled = counted.is_compiled
        self._has_unwatched_steps |= counted.has_unwatched
        self.pauses.keep(counted.pauses)
        self._times.read()

    def _begin_step(self) -> None:
        # After a step of another optimizer, the time since the leading one's step is partly within steps.
        if self._times.is_running and not self._is_explicit and self._unhooked is None and not self._others.steps:
            self._began = self._times.clock().now()

    def _follow(self, optimizer: Optimizer) -> None:
        self._others = OtherOptimizers()
        self._set_leading(optimizer)
        self._until_deferred = _STEPS_TO_DEFER
        self._is_partly_observed = False
        self._sampling = StepSampling()
        self._forwards.take()
        self._forwards.on_training = self._inspection.install_probe
        self.clipping.watch_fsdp()
        parameters = parameters_of(optimizer)
        self._forwards.watch(modules_around(parameters), parameters)

    def _set_leading(self, optimizer: Optimizer) -> None:
        self._leading = self.notes.leading = weakref.ref(optimizer)
        self._identity = OptimizerIdentity(optimizer)
        self._others.forget()

    def _is_gone(self) -> bool:
        return self._leading is None or self._leading() is None

    def _is_same_training(self, other: Optimizer) -> bool:
        return self._identity is not None and self._identity.is_also_of(other, self._forwards)

    def _continues_with(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer replaces a leading one that is gone, within the same training."""
        if not self._is_gone():
            return False
        if not self._is_same_training(optimizer):
            if not self._count_only.is_on:
                return False
            self._count_only.begin()
        self._restore_hooks_within_step()
        self._renew(optimizer)
        return True

    def _renew(self, optimizer: Optimizer) -> None:
        """Follow an optimizer that continues the training, unless its batches differ from those up to now."""
        self._set_leading(optimizer)
        self._work_change.renew()
        self._until_deferred = _STEPS_TO_DEFER

    def _follow_if_replaced(self, other: Optimizer) -> None:
        """Note a step of another optimizer, and follow it once the leading one has stopped stepping."""
        if not self._others.saw(other) and not self._is_gone():
            return
        if self._is_same_training(other):
            self._renew(other)
            self._forwards.begin_anew()
        elif self._earlier.inspected < _MAX_TRAININGS:
            self._begin_another_training()
            self._follow(other)
        else:
            self._count_only.begin()
            self._forwards.watch((), ())
            self._inspection.release()
            self._set_leading(other)

    def _count_uninspected(self, optimizer: Optimizer) -> bool:
        """Count a step of an uninspected training; follow the training once it is long."""
        self._others.end()
        if self._is_explicit or not has_rate(optimizer):
            return False
        self._earlier.steps += 1
        if self._count_only.is_long():
            self._begin_another_training()
            self._follow(optimizer)
        return self._is_due()

    def _begin_another_training(self) -> None:
        """Keep the training so far if it is the longest; inspect and time what follows as another one."""
        if self._is_explicit or not self._inspection.facts:
            return
        self._inspection.release()
        self._earlier.end(self._current, steps=self.steps, uninspected=self._count_only.begun)
        if self._caught and self._earlier.steps - self._steps_before <= _STEPS_TO_DEFER:
            self._earlier.longest = None  # it ran out of memory, so what follows ran in its place
        self._inspection, self._work_change = self._new_inspection(), WorkChange()
        self._times = StepTimes(self._start_up)

    def _begin_another_of_model(self) -> bool:
        """Begin another training of the same model by the leading optimizer, unless too many were inspected."""
        optimizer = self._leading() if self._leading is not None else None
        if optimizer is None or self._earlier.inspected >= _MAX_TRAININGS:
            return False
        self._begin_another_training()
        self._follow(optimizer)
        return True

    def _counts_without_forward(self, optimizer: Optimizer) -> bool:
        """Return whether a step without a forward counts, because no forward of this training can be observed."""
        if self._forwards.model is not None:
            return False
        self._steps_without_forward += 1
        if self._steps_without_forward == 1:  # the watched modules were found before the model was compiled or wrapped
            self._follow(optimizer)
            return not self.steps and has_nonzero_rate(optimizer)
        return self._steps_without_forward > _MAX_STEPS_WITHOUT_FORWARD
