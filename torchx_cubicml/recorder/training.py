"""Follows a training by its optimizer steps: which are real, how long they take, and what the model is.

A step is real when a training forward came before it, and when the optimizer is the one that leads: of several in one
iteration, the first. A checkpoint loader that fills an optimizer's state by a step without a forward takes no step.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.attention import attention_kernel
from torchx_cubicml.recorder.clipping import Clipping
from torchx_cubicml.recorder.clocks import make_clock
from torchx_cubicml.recorder.compilation import is_compiled
from torchx_cubicml.recorder.forwards import Forwards
from torchx_cubicml.recorder.layers import holds_all, modules_around, outermost, repeated_blocks
from torchx_cubicml.recorder.memory import allocator_retries, peak_memory_gib, peak_reserved_gib
from torchx_cubicml.recorder.observe import Seen, observe, observe_stage, software_facts
from torchx_cubicml.recorder.pipeline import OF_A_STAGE, read_pipeline, stage_word
from torchx_cubicml.recorder.probe import Probe, autocast_type
from torchx_cubicml.recorder.quiet_steps import QuietSteps, quiet_optimizer
from torchx_cubicml.recorder.settled import Notes
from torchx_cubicml.recorder.steps import Step, steady_state
from torchx_cubicml.trial import Measurement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn
    from torch.autograd.graph import Node
    from torch.optim import Optimizer

    from torchx_cubicml.recorder.clocks import Clock, Moment
    from torchx_cubicml.recorder.forwards import Work
    from torchx_cubicml.recorder.module_hook import Guard
    from torchx_cubicml.recorder.pipeline import Pipeline
    from torchx_cubicml.trial import Value

FIRST_REPORT = 8  # steps; then at 16, 32, ...
_MAX_STEPS_KEPT = 4096
_STEPS_TO_SETTLE = 8  # that are seen in full before they are noted alone
_STEPS_TO_CHECK = 2  # likewise, after each report
_STEPS_NOTED = 64  # before they are looked at
_STEPS_OF_A_STRANGER = 8  # without one of the leading optimizer: it leads no more
_OF_WRAPPING = frozenset({"sharding_strategy", "dp_degree", "dp_replicate_degree", "dp_shard_degree"})
_STEPS_UNSEEN = 8  # of the leading optimizer without any forward ever seen: the model is called in a way of its own


class Training:
    """One training as its hooks tell of it.

    ``clipping`` sees gradients being clipped once it is installed. ``on_quiet_step`` hears of each step that no hook
    has seen, with whether there is something new to tell. ``stage_words`` holds what this rank has to tell of its
    stages of a pipeline, by their number. To ``notes`` goes what the hooks of a settled training see.

    Args:
        guard: for each hook.
        world_size: of the job.
        requested: config that was asked for.
        step_limit: step at which the training is left, 0 without one; it is told of in time.
    """

    def __init__(
        self, guard: Guard, *, world_size: int, requested: Mapping[str, Value] | None = None, step_limit: int = 0
    ) -> None:
        self.notes = Notes()
        self.clipping = Clipping(guard)
        self.steps = 0
        self.n_stages = 0
        self.stage_words: dict[int, str] = {}
        self._guard = guard
        self._world_size = world_size
        self._step_limit = step_limit
        self._until_settled = _STEPS_TO_SETTLE
        self._strangers = 0  # steps of other optimizers since the last of the leading one
        self._began: Moment = None
        micro_batch_size = (requested or {}).get("micro_batch_size")
        self._forwards = Forwards(guard, requested=micro_batch_size if isinstance(micro_batch_size, int) else None)
        self._forwards.on_first = self._begin_step
        self._clock: Clock | None = None
        self._kept: deque[Step] = deque(maxlen=_MAX_STEPS_KEPT)
        self._timed = 0
        self._leading: weakref.ref[Optimizer] | None = None
        self._stranger: weakref.ref[Optimizer] | None = None
        self._stranger_steps = 0
        self._unseen_steps = 0
        self._next_report = FIRST_REPORT
        self._probe: Probe | None = None
        self._autocast_type = ""
        self._attention_kernel = ""
        self._facts: dict[str, Value] = {}
        self._explicit = False
        self._quiet: QuietSteps | None = None
        self.on_quiet_step: Callable[[bool], None] | None = None

    def compiled(self) -> None:
        """Look for an optimizer whose step was compiled: something was, and no step was seen by now."""
        if self._leading is not None or self._explicit:
            return
        optimizer = quiet_optimizer()
        if optimizer is not None:
            self._follow(optimizer)
            self._quiet = QuietSteps(optimizer)
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
        if self._leading() is not optimizer:
            self._unsettle()
            self._meet(optimizer)
            return False
        strangers, self._strangers = self._strangers, 0
        self._stranger, self._stranger_steps = None, 0
        if self.notes.left:
            self.notes.end_step()
            self._read_notes()
            news = self._is_due()
        else:
            work = self._forwards.take()
            if work is None and not self._is_unseen(optimizer):
                return False
            news = self._count(work)
        self._settle(news=news, strangers=strangers)
        return news

    def explicit_step(self, samples: float | None, tokens: float | None) -> bool:
        """Note a step that the script itself tells of, with what the whole job consumed in it.

        From the first on, steps are counted and timed by these alone.
        """
        if not self._explicit:
            self._unsettle()
            self._explicit, self._clock = True, None
            if self._facts:
                self._forwards.release()
            self._kept.clear()
            self.steps = self._timed = 0
        self._tick(samples, tokens)
        return self._is_due()

    def facts(self) -> dict[str, Value]:
        """Return what is known of the training by now."""
        return {**software_facts(), **self._facts}

    def conclude(self) -> None:
        """Look for the model once more where no step showed it: the training ends here."""
        self._unsettle()
        self.on_quiet_step = None
        self._look_for_step()
        if not self._facts:
            self._observe(None)
        self.release()

    def measurement(self, *, peak_memory: float = 0.0) -> Measurement | None:
        """Return the throughput of the whole job up to now; ``None`` before a steady state.

        Args:
            peak_memory: largest of the other processes, GiB.
        """
        if self.notes.left:
            self._read_notes()
        self._read_clock()
        steady = steady_state(list(self._kept))
        if steady is None:
            return None
        degree = self._facts.get("dp_degree")
        scale = 1 if self._explicit else degree if isinstance(degree, int) else None
        # Of a sequence that several ranks share, this rank may see all or its part.
        tokens = steady.tokens_per_second if self._explicit or self._facts.get("cp_degree", 1) == 1 else None
        return Measurement(
            samples_per_second=_scaled(steady.samples_per_second, scale),
            tokens_per_second=_scaled(tokens, scale),
            steps_counted=steady.counted,
            warmup_steps=self._timed - steady.counted + 1,  # the first step has a beginning that nobody saw
            step_time_s=steady.step_time_s,
            mean_step_time_s=steady.mean_step_time_s,
            drift=steady.drift,
            share_outside_steps=steady.share_outside,
            peak_memory_gib=max(peak_memory, peak_memory_gib()) or None,
            peak_reserved_gib=peak_reserved_gib(),
            allocator_retries=allocator_retries(),
        )

    def release(self) -> None:
        """Take every hook off the model."""
        self.notes.left = 0
        self._forwards.release()
        if self._probe is not None:
            self._probe.release()

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
        if not self._facts and work is not None:
            self._observe(work)
            news = True
        if self._explicit:
            if news:
                self._forwards.release()
            return news
        samples, tokens = (work.samples, work.tokens) if work is not None else (None, None)
        self._tick(samples, tokens)
        return self._is_due() or news

    def _tick(self, samples: float | None, tokens: float | None) -> None:
        """Count a step that ends now."""
        clock = self._running_clock()
        began, self._began = self._began, None
        clock.tick(clock.now(), began=began, samples=samples, tokens=tokens)
        self.steps += 1
        if self.steps % _STEPS_NOTED == 0:
            self._read_clock()

    def _is_due(self) -> bool:
        """Whether a report is due."""
        if self.steps < self._next_report:
            return False
        while self._next_report <= self.steps:
            self._next_report *= 2
        return True

    def _settle(self, *, news: bool, strangers: int) -> None:
        """Leave hooks that only note where enough is known, and everything in place for some steps after a report."""
        if news:
            self._unsettle()
        if not self.notes.left:
            self._until_settled -= 1
            if self._leading is None or self._explicit or not self._facts or self._until_settled > 0:
                return
            if not self._forwards.settle(self.notes):
                return
            self.notes.open(self._leading, self._running_clock().now, strangers=strangers)
        ends = [_STEPS_NOTED, self._next_report - self.steps]
        self.notes.left = max(min(ends + [self._step_limit - self.steps] * (self._step_limit > 0)), 1)

    def _unsettle(self) -> None:
        if not self.notes.left:
            return
        self._read_notes()
        self.notes.left = 0
        self._until_settled = _STEPS_TO_CHECK
        self._forwards.look_again()

    def _read_notes(self) -> None:
        """Count the steps that were noted."""
        clock = self._running_clock()
        for noted in self.notes.take():
            work = self._forwards.work_of(noted.shapes)
            if work is not None:
                clock.tick(noted.end, began=noted.began, samples=work.samples, tokens=work.tokens)
                self.steps += 1
        self._read_clock()

    def _running_clock(self) -> Clock:
        if self._clock is None:
            self._clock = make_clock()
        return self._clock

    def _begin_step(self) -> None:
        if self._clock is not None and not self._explicit and self._quiet is None:
            self._began = self._clock.now()

    def _read_clock(self) -> None:
        if self._clock is not None:
            for step in self._clock.steps():
                self._kept.append(step)
                self._timed += 1

    def _follow(self, optimizer: Optimizer) -> None:
        self._leading = weakref.ref(optimizer)
        self._until_settled = _STEPS_TO_SETTLE
        self._stranger, self._stranger_steps = None, 0
        self._forwards.on_training = self._look_into_layers
        self.clipping.watch_fsdp()
        parameters = _parameters_of(optimizer)
        self._forwards.watch(modules_around(parameters), parameters)

    def _meet(self, stranger: Optimizer) -> None:
        """Note a step of another optimizer, and follow it once the leading one has fallen silent."""
        self._strangers += 1
        if self._stranger is None:
            self._stranger = weakref.ref(stranger)
        if self._stranger() is not stranger:
            return
        self._stranger_steps += 1
        gone = self._leading is None or self._leading() is None
        if gone or self._stranger_steps >= _STEPS_OF_A_STRANGER:
            self._follow(stranger)

    def _is_unseen(self, optimizer: Optimizer) -> bool:
        """Whether a step without a forward is one all the same, because no forward of this training can be seen."""
        if self._forwards.model is not None:
            return False
        self._unseen_steps += 1
        if self._unseen_steps == 1:  # what was watched was found before the model was compiled or wrapped
            self._follow(optimizer)
            return not self.steps and _looks_real(optimizer)
        return self._unseen_steps > _STEPS_UNSEEN

    def _look_into_layers(self) -> None:
        model = self._forwards.model
        if model is None or self._facts:
            return
        self._autocast_type = autocast_type(model)
        blocks = repeated_blocks(model)
        self._forwards.on_output = lambda node: self._look_behind(node, len(blocks))
        if blocks and not is_compiled(model):
            self._probe = Probe(blocks, self._guard)

    def _look_behind(self, node: Node, n_layers: int) -> None:
        self._attention_kernel = attention_kernel(node, n_layers)

    def _observe(self, work: Work | None) -> None:
        leading = self._leading() if self._leading is not None else None
        model = self._forwards.model if self._forwards.is_whole else None
        # A trainer may call the user's module through a wrapper that is itself in evaluation mode: Lightning does.
        model = outermost(model) if model is not None else _all_around(_parameters_of(leading))
        seen = Seen(
            forwards=work.forwards if work is not None else None,
            samples=self._forwards.samples_per_forward,
            seq_len=self._seq_len(),
            autocast_type=self._autocast_type,
            attention_kernel=self._attention_kernel,
            clipping=self.clipping.facts(),
        )
        if self._probe is not None:
            self._probe.release()
            seen = replace(
                seen,
                autocast_type=self._probe.autocast_type or seen.autocast_type,
                activation_checkpointing=self._probe.activation_checkpointing if work is not None else "",
                n_checkpointed=self._probe.n_checkpointed if work is not None else None,
            )
            self._probe = None
        if model is not None:
            pipeline = read_pipeline()
            facts = observe(model, leading, seen, world_size=self._world_size, pipeline=pipeline)
            if leading is None and facts.get("sharding_strategy") == "NONE":  # nobody has wrapped it by now
                facts = {name: value for name, value in facts.items() if name not in _OF_WRAPPING}
            self._facts = facts
            if pipeline is not None:
                self._tell_stages(pipeline)

    def _tell_stages(self, pipeline: Pipeline) -> None:
        self.n_stages = pipeline.n_stages
        self._facts = {name: value for name, value in self._facts.items() if name not in OF_A_STAGE}
        self.stage_words = {
            number: stage_word(observe_stage(stage, world_size=self._world_size, pp_degree=pipeline.degree))
            for number, stage in pipeline.stages.items()
        }

    def _seq_len(self) -> int | None:
        samples, tokens = self._forwards.samples_per_forward, self._forwards.tokens_per_forward
        return tokens // samples if samples and tokens else None


def _looks_real(optimizer: Optimizer) -> bool:
    """Whether a step that nobody saw a forward of may be one: a loader that fills the state sets the rates to zero."""
    rates = [group.get("lr") for group in optimizer.param_groups]
    return any(not isinstance(rate, int | float) or rate != 0 for rate in rates)


def _parameters_of(optimizer: Optimizer | None) -> list[nn.Parameter]:
    groups = optimizer.param_groups if optimizer is not None else []
    return [parameter for group in groups for parameter in group["params"]]


def _all_around(parameters: list[nn.Parameter]) -> nn.Module | None:
    """Return the smallest module that holds all of the parameters, in its wrappers, or the largest that holds some."""
    around = modules_around(parameters)
    whole = (module for module in around if parameters and holds_all(module, parameters))
    smallest = next(whole, around[-1] if around else None)
    if smallest is None:
        return None
    return outermost(smallest, around)


def _scaled(rate: float | None, scale: float | None) -> float | None:
    return rate * scale if rate is not None and scale is not None else None
