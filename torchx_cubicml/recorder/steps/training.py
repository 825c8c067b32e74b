"""Follows a training by its optimizer steps: which are real, how long they take, and what the model is.

A step is real when a training forward came before it, and when the optimizer is the one that leads: of several in one
iteration, the first. A checkpoint loader that fills an optimizer's state by a step without a forward takes no step.
An optimizer of the same class that takes over the same model, as where each epoch makes its own, goes on with the
training. Where one takes over for good that trains something else, another training has begun (after a search for a
learning rate, the real one): it has facts and times of its own, and the one with the most steps is told of.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.model.facts import software_facts
from torchx_cubicml.recorder.model.inspection import ModelInspection, parameters_of
from torchx_cubicml.recorder.model.layers import modules_around
from torchx_cubicml.recorder.steps.clipping import Clipping
from torchx_cubicml.recorder.steps.deferred_hooks import Notes, has_rate
from torchx_cubicml.recorder.steps.forwards import Forwards
from torchx_cubicml.recorder.steps.optimizer_changes import (
    CountedAlone,
    OptimizerIdentity,
    OtherOptimizers,
    UnhookedOptimizers,
    UnhookedSteps,
)
from torchx_cubicml.recorder.steps.pauses import CHECKPOINT, EVAL_MODE, NO_GRAD, Pauses
from torchx_cubicml.recorder.steps.sampling import StepSampling
from torchx_cubicml.recorder.steps.step_clock import StepEnd, StepTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType

    from torch import nn
    from torch.optim import Optimizer

    from torchx_cubicml.recorder.ranks.peers import RankWork
    from torchx_cubicml.recorder.steps.forwards import Work
    from torchx_cubicml.recorder.steps.pauses import Pause
    from torchx_cubicml.recorder.steps.step_clock import Snapshot
    from torchx_cubicml.recorder.steps.torch_hooks import Guard
    from torchx_cubicml.records.trial import Measurement, Value

FIRST_REPORT = 8  # steps; then at 16, 32, ...
_STEPS_TO_SETTLE = 8  # that are seen in full before they are noted alone
_STEPS_TO_CHECK = 2  # likewise, after each report
_STEPS_NOTED = 64  # before they are looked at
_MOST_TRAININGS = 8  # each costs a look at the model; of those that come later, steps are counted alone
_STEPS_UNSEEN = 8  # of the leading optimizer without any forward ever seen: the model is called in a way of its own


class Training:
    """One training as its hooks tell of it.

    ``clipping`` sees gradients being clipped once it is installed. ``on_quiet_step`` hears of each step that no hook
    has seen, with whether there is something new to tell. To ``notes`` goes what the hooks of a settled training see.

    Args:
        guard: for each hook.
        world_size: of the job.
        requested: config that was asked for.
        step_limit: step at which the training is left, 0 without one; it is told of in time.
    """

    def __init__(
        self, guard: Guard, *, world_size: int, requested: Mapping[str, Value] | None = None, step_limit: int = 0
    ) -> None:
        self.pauses = Pauses(guard)
        self.notes = Notes(self.pauses)
        self.clipping = Clipping(guard)
        self.on_quiet_step: Callable[[bool], None] | None = None
        micro_batch_size = (requested or {}).get("micro_batch_size")
        self._forwards = Forwards(
            guard, self.pauses, requested=micro_batch_size if isinstance(micro_batch_size, int) else None
        )
        self._forwards.on_first = self._begin_step
        self._new_look = partial(ModelInspection, self._forwards, self.clipping, guard, world_size=world_size)
        self._look = self._new_look()
        self._times = StepTimes()
        self._longest: tuple[ModelInspection, StepTimes] | None = None  # of the trainings before this one
        self._steps_before = 0  # in all of those
        self._trainings = 1
        self._watching = StepSampling()
        self._step_limit = step_limit
        self._until_settled = _STEPS_TO_SETTLE
        self._began: Snapshot = None
        self._is_half_seen = False  # the step under way: its forwards may have come before the hooks
        self._leading: weakref.ref[Optimizer] | None = None
        self._trained: OptimizerIdentity | None = None  # by the leading one
        self._strangers = OtherOptimizers()
        self._counted_alone = CountedAlone()
        self._unseen_steps = 0
        self._next_report = FIRST_REPORT
        self._is_explicit = False
        self._has_compiled = False
        self._compiles = False  # since the last step that was counted
        self._has_rested = False
        self._quiet_optimizers = UnhookedOptimizers()
        self._quiet: UnhookedSteps | None = None

    @property
    def steps(self) -> int:
        """Steps counted up to now, in all trainings of this process."""
        return self._steps_before + self._times.steps

    @property
    def n_stages(self) -> int:
        """Stages of the pipeline; 0 without one."""
        return self._told()[0].n_stages

    @property
    def stage_words(self) -> Mapping[int, str]:
        """What this rank has to tell of its stages of a pipeline, by their number."""
        return self._told()[0].stage_words

    def compiled(self) -> None:
        """Look for an optimizer whose step was compiled: something was, and no step was seen by now."""
        self._has_compiled = self._compiles = True
        self._forwards.evaluation.may_hook = False
        if self._leading is not None or self._is_explicit:
            return
        optimizer = self._quiet_optimizers.find()
        if optimizer is not None:
            self._follow(optimizer)
            self._quiet = UnhookedSteps(optimizer)
            self._forwards.before_each = self._look_for_step

    def step(self, optimizer: Optimizer) -> bool:
        """Note that an optimizer has stepped; return whether there is something new to tell."""
        if self._quiet is not None:  # it was not what it seemed
            self._quiet = self._leading = self._forwards.before_each = None
        if self._leading is None:
            self._follow(optimizer)
            if _looks_real(optimizer):
                self._count(None)
            return False
        if self._leading() is not optimizer and not self._goes_on_with(optimizer):
            self._unsettle_within_step()
            self._forwards.trained_elsewhere(optimizer)
            self._meet(optimizer)
            return False
        if self._counted_alone.is_on:
            return self._count_alone(optimizer)
        strangers = self._strangers.end()
        news = self._take_step(optimizer)
        if news is None:
            return False
        self._settle(optimizer, news=news, strangers=strangers)
        return news

    def explicit_step(self, samples: float | None, tokens: float | None) -> bool:
        """Note a step that the script itself tells of, with what the whole job consumed in it.

        From the first on, steps are counted and timed by these alone.
        """
        if not self._is_explicit:
            self._unsettle()
            self._is_explicit = True
            if self._look.facts:
                self._forwards.release()
            self._times.begin_anew()
            self._longest, self._steps_before = None, 0
        self._tick(samples, tokens)
        return self._is_due()

    def facts(self) -> dict[str, Value]:
        """Return what is known of the training by now."""
        return {**software_facts(), **self._told()[0].facts}

    def conclude(self) -> None:
        """Look for the model once more where no step showed it: the training ends here."""
        self._unsettle()
        self.on_quiet_step = None
        self._look_for_step()
        if not self._look.facts and self._longest is None:
            self._look.read(self._leading() if self._leading is not None else None, None)
        self.release()

    def switched(self, module: nn.Module, mode: object) -> None:
        """Note that a module was set to training or evaluation mode."""
        self._forwards.evaluation.switched(module, mode)

    def entered_no_grad(self, frame: FrameType) -> None:
        """Note that the program entered ``no_grad``, at the place where ``frame`` is."""
        self._forwards.evaluation.entered_no_grad(frame)

    def measurement(self, *, others: RankWork | None = None) -> Measurement | None:
        """Return the throughput of the whole job up to now; ``None`` before a steady state.

        Args:
            others: what the other processes have told; ``None`` where nothing.
        """
        if self.notes.left:
            self._read_notes()
        look, times = self._told()
        is_watched = self._forwards.was_found and not self._is_explicit
        measured = times.measurement(
            look.facts,
            is_of_whole_job=self._is_explicit,
            others=others,
            may_include_evaluation=self._has_rested or not is_watched or self._forwards.evaluation.has_missed,
        )
        if measured is not None and not self._forwards.was_found:
            return replace(measured, evaluation_s=None)
        return measured

    def work_of_this_rank(self) -> tuple[float | None, float | None]:
        """Return samples and tokens of a step of this process, in the mean; ``None`` where unknown."""
        if self.notes.left:
            self._read_notes()
        steady = self._told()[1].steady()
        return (steady.samples_per_step, steady.tokens_per_step) if steady is not None else (None, None)

    def paused_s(self) -> Callable[[float, float], float]:
        """Return what tells the seconds of evaluation and saving between two moments of ``perf_counter``."""
        evaluation = self._told()[1].evaluation()
        kinds = {CHECKPOINT: True, EVAL_MODE: evaluation.eval_mode, NO_GRAD: evaluation.no_grad}
        return self.pauses.host_seconds(frozenset(kind for kind, is_left_out in kinds.items() if is_left_out))

    def release(self) -> None:
        """Take every hook off the model."""
        self.notes.close()
        self._forwards.release()
        self._forwards.evaluation.release()
        self._look.release()

    def _told(self) -> tuple[ModelInspection, StepTimes]:
        if self._longest is None or self._longest[1].steps <= self._times.steps:
            return self._look, self._times
        return self._longest

    def _take_step(self, optimizer: Optimizer) -> bool | None:
        """Count a step of the leading optimizer; ``None`` where it is none, else whether there is something to tell."""
        if self.notes.left and (self.notes.is_watched or has_rate(optimizer)):
            self.notes.end_step()
            self._read_notes()
            return self._is_due()
        self._unsettle_within_step()
        work = self._forwards.take()
        if (self._is_half_seen or (work is None and self._forwards.may_have_trained())) and has_rate(optimizer):
            self._is_half_seen = False
            self._tick(None, None, is_watched=False)
            return self._is_due()
        if work is None and not self._is_unseen(optimizer):
            return None
        return self._count(work)

    def _look_for_step(self) -> None:
        """Count a step that nobody has told of: what is trained was written since the last forward."""
        if self._quiet is None or not self._quiet.has_stepped():
            return
        work = self._forwards.take()
        news = work is not None and self._count(work)
        if work is not None and self.on_quiet_step is not None:
            self.on_quiet_step(news)

    def _count(self, work: Work | None) -> bool:
        news = False
        if not self._look.facts and work is not None:
            self._look.read(self._leading() if self._leading is not None else None, work)
            news = True
        if self._is_explicit:
            if news:
                self._forwards.release()
            return news
        self._watching.saw(work)
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
                is_compiled=self._compiles,
            )
        )
        self.pauses.begin(clock.now)
        self._compiles = False
        self._times.steps += 1
        if self.steps % _STEPS_NOTED == 0:
            self._times.read()

    def _is_due(self) -> bool:
        """Whether a report is due."""
        if self.steps < self._next_report:
            return False
        while self._next_report <= self.steps:
            self._next_report *= 2
        return True

    def _settle(self, leading: Optimizer, *, news: bool, strangers: int) -> None:
        """Leave hooks that only note where enough is known, and everything in place for some steps after a report."""
        if news:
            self._unsettle()
        if not self.notes.left:
            self._until_settled -= 1
            if self._is_explicit or not self._look.facts or self._until_settled > 0:
                return
            if not self._forwards.settle(self.notes):
                return
            self.notes.open(weakref.ref(leading), self._times.clock().now, strangers=strangers)
        is_watched, count = self._plan(leading)
        if is_watched and not self.notes.is_watched and not self._forwards.settle(self.notes):
            self._unsettle()
            return
        self.notes.is_watched = is_watched or (self.notes.is_watched and not self._forwards.rest())
        ends = [_STEPS_NOTED, count, self._next_report - self.steps]
        self.notes.left = max(min(ends + [self._step_limit - self.steps] * (self._step_limit > 0)), 1)

    def _plan(self, leading: Optimizer) -> tuple[bool, int]:
        """Return whether the forwards of the next steps are watched, and for how many at most.

        A profiling launch is short, and counts alike on every rank. A compiler may have compiled for a model with the
        hooks that it has.
        """
        if self._step_limit or self._has_compiled or not has_rate(leading):
            return True, _STEPS_NOTED
        return self._watching.plan(self._times.recent_s())

    def _unsettle(self) -> None:
        if not self.notes.left:
            return
        self._read_notes()
        self.notes.close()
        self._until_settled = _STEPS_TO_CHECK
        self._forwards.look_again()

    def _unsettle_within_step(self) -> None:
        if self.notes.left:
            self._read_notes()
            self._is_half_seen = not self.notes.is_watched or self.notes.is_within_step
        self._unsettle()

    def _read_notes(self) -> None:
        """Count the steps that were noted."""
        clock, times = self._times.clock(), self._times
        shapes: Sequence[Sequence[int] | None] | None = None
        work: Work | None = None
        waiting: tuple[Pause, ...] = ()  # for the next step
        for noted in self.notes.take():
            pauses = waiting + noted.pauses
            if noted.shapes is None:
                clock.tick(StepEnd(noted.end, is_watched=False, pauses=pauses))
                self._watching.rested()
                self._has_rested, waiting = True, ()
                times.steps += 1
                continue
            if noted.shapes != shapes:
                shapes, work = noted.shapes, self._forwards.work_of(noted.shapes)
            self._watching.saw(work)
            waiting = pauses if work is None else ()
            if work is not None:
                clock.tick(
                    StepEnd(
                        noted.end,
                        began=noted.began,
                        samples=work.samples,
                        tokens=work.tokens,
                        pauses=pauses,
                        is_compiled=self._compiles,
                    )
                )
                self._compiles = False
                times.steps += 1
        self.pauses.keep(waiting)
        times.read()

    def _begin_step(self) -> None:
        # After a step of another optimizer, the time since that of the leading one is not all outside of steps.
        if self._times.is_running and not self._is_explicit and self._quiet is None and not self._strangers.steps:
            self._began = self._times.clock().now()

    def _follow(self, optimizer: Optimizer) -> None:
        self._lead(optimizer)
        self._until_settled = _STEPS_TO_SETTLE
        self._is_half_seen = False
        self._watching = StepSampling()
        self._forwards.take()
        self._forwards.on_training = self._look.look_into_layers
        self.clipping.watch_fsdp()
        parameters = parameters_of(optimizer)
        self._forwards.watch(modules_around(parameters), parameters)

    def _lead(self, optimizer: Optimizer) -> None:
        self._leading = self.notes.leading = weakref.ref(optimizer)
        self._trained = OptimizerIdentity(optimizer)
        self._strangers.forget()

    def _is_gone(self) -> bool:
        return self._leading is None or self._leading() is None

    def _trains_the_same(self, other: Optimizer) -> bool:
        return self._trained is not None and self._trained.is_also_of(other, self._forwards)

    def _goes_on_with(self, newcomer: Optimizer) -> bool:
        """Whether an optimizer now leads in the place of one that is gone, within the training as it is known."""
        if not self._is_gone():
            return False
        if not self._trains_the_same(newcomer):
            if not self._counted_alone.is_on:
                return False
            self._counted_alone.begin()
        self._lead(newcomer)
        return True

    def _meet(self, stranger: Optimizer) -> None:
        """Note a step of another optimizer, and follow it once the leading one has fallen silent."""
        if not self._strangers.saw(stranger) and not self._is_gone():
            return
        if self._trains_the_same(stranger):
            self._lead(stranger)
            if not self._look.facts:
                self._forwards.take()
        elif self._trainings < _MOST_TRAININGS:
            self._trainings += 1
            self._begin_another()
            self._follow(stranger)
        else:
            self._counted_alone.begin()
            self._forwards.watch((), ())
            self._look.release()
            self._lead(stranger)

    def _count_alone(self, optimizer: Optimizer) -> bool:
        """Count a step of a training that nobody looked at; follow the training once it is long."""
        self._strangers.end()
        if self._is_explicit or not has_rate(optimizer):
            return False
        self._steps_before += 1
        if self._counted_alone.is_long():
            self._begin_another()
            self._follow(optimizer)
        return self._is_due()

    def _begin_another(self) -> None:
        """Leave the training as it is, and have what comes looked at and timed as another one."""
        if self._is_explicit or not self._look.facts:
            return
        self._times.read()
        self._look.release()
        self._longest = self._told()
        self._steps_before = self.steps
        self._look, self._times = self._new_look(), StepTimes()

    def _is_unseen(self, optimizer: Optimizer) -> bool:
        """Whether a step without a forward is one all the same, because no forward of this training can be seen."""
        if self._forwards.model is not None:
            return False
        self._unseen_steps += 1
        if self._unseen_steps == 1:  # what was watched was found before the model was compiled or wrapped
            self._follow(optimizer)
            return not self.steps and _looks_real(optimizer)
        return self._unseen_steps > _STEPS_UNSEEN


def _looks_real(optimizer: Optimizer) -> bool:
    """Whether a step that nobody saw a forward of may be one: a loader that fills the state sets the rates to zero."""
    rates = [group.get("lr") for group in optimizer.param_groups]
    return any(not isinstance(rate, int | float) or rate != 0 for rate in rates)
