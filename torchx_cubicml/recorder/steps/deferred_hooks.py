"""Deferred hooks of a settled training: they only append timestamps and shapes, which are processed many steps later.

A hook that runs between the kernels of a training finds cold processor caches. There, each function and each object
that it touches costs more than its own work.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from torchx_cubicml.recorder.model.batch import entry_getter
from torchx_cubicml.recorder.model.keyed_optimizers import KeyedOptimizers
from torchx_cubicml.recorder.steps.torch_hooks import ModuleHook, tracing_test

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn
    from torch.optim import Optimizer

    from torchx_cubicml.recorder.model.batch import ArgumentPath
    from torchx_cubicml.recorder.steps.pauses import Moment, Pause, Pauses
    from torchx_cubicml.recorder.steps.torch_hooks import Guard

    # One of: the end of a step; a forward, with its start if it is the first of its step, and the shape of its batch
    # where known; a pause; empty for a forward in evaluation mode with gradients.
    Entry: TypeAlias = tuple[()] | tuple[Moment] | tuple[Moment, Sequence[int] | None] | Pause

_MAX_NOTED = 1 << 16
_UNKNOWN_NAME = ""
_BATCH_NOT_FOUND = (AttributeError, IndexError, KeyError, NotImplementedError, TypeError)  # no batch at the binding
_PATIENCE_FACTOR = 8  # after this many times the usual steps of others, the leading one may be gone


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedStep:
    """One step as the deferred hooks noted it.

    Args:
        end: moment at which the step ended.
        began: moment at which its first forward began.
        shapes: batch shape of each forward, ``None`` where unknown. Empty if no forward preceded the step. ``None`` if
            the forwards were not watched, or ran in evaluation mode with gradients.
        pauses: since the preceding step.
    """

    end: Moment
    began: Moment
    shapes: tuple[Sequence[int] | None, ...] | None
    pauses: tuple[Pause, ...] = ()


class StepBuffer:
    """Buffer of forwards, steps and pauses in their order; ``left`` is the number of steps until it is processed.

    While ``left`` is 0 nothing is noted. ``is_watched`` is true while forwards are noted too.

    Args:
        pauses: recorder of pauses, which are noted between the steps.
    """

    __slots__ = (
        "add",
        "entries",
        "is_between",
        "is_watched",
        "leading",
        "left",
        "now",
        "patience",
        "pauses",
        "strangers",
    )

    def __init__(self, pauses: Pauses) -> None:
        self.pauses = pauses
        self.entries: deque[Entry] = deque(maxlen=_MAX_NOTED)
        self.add = self.entries.append
        self.now: Callable[[], Moment] = _no_snapshot
        self.leading: Callable[[], Optimizer | None] = _no_optimizer
        self.left = 0
        self.is_between = True  # between steps: the next forward begins one
        self.is_watched = True
        self.strangers = 0  # steps of other optimizers since the last step of the leading one
        self.patience = 0

    def open(self, leading: Callable[[], Optimizer | None], now: Callable[[], Moment], *, strangers: int) -> None:
        """Start noting after a step of the leading optimizer.

        Args:
            leading: returns that optimizer while it is alive.
            now: returns the current moment.
            strangers: number of steps of other optimizers between two of the leading one.
        """
        self.entries.clear()
        self.pauses.add = self.add
        self.leading, self.now = leading, now
        self.is_between, self.is_watched, self.strangers = True, True, 0
        self.patience = _PATIENCE_FACTOR * (strangers + 1)

    def wait_on(self) -> bool:
        """Note a step of another optimizer; return whether the leading one may still step."""
        self.strangers += 1
        self.is_between = False  # the next forward does not start a step: another optimizer stepped in between
        return self.strangers < self.patience

    @property
    def lone_steps(self) -> int:
        """Steps of other optimizers since the last one of the leading optimizer, where it was alone until then.

        A single one shows no training.
        """
        return self.strangers if self.patience == _PATIENCE_FACTOR and self.strangers > 1 else 0

    def end_step(self) -> None:
        """Note that a step of the leading optimizer has ended."""
        self.strangers = 0
        self.is_between = True
        self.pauses.drop()
        self.add((self.now(),))

    @property
    def is_within_step(self) -> bool:
        """True if a forward was noted since the last processed step."""
        return any(len(entry) == 2 for entry in self.entries)

    def close(self) -> None:
        """Stop noting; drop forwards after the last step, and hand pauses back."""
        self.left = 0
        self.pauses.note_alone()
        self.pauses.keep(tuple(entry for entry in self.entries if len(entry) > 2))
        self.entries.clear()

    def take(self) -> Iterator[BufferedStep]:
        """Yield each step noted since the last call; keep the forwards after the last one."""
        complete = len(self.entries) < _MAX_NOTED  # otherwise the oldest entries were dropped
        began: Moment = None
        shapes: list[Sequence[int] | None] = []
        pauses: list[Pause] = []
        waiting: list[Entry] = []
        has_eval_forward = False
        while self.entries:
            entry = self.entries.popleft()
            if not entry:
                has_eval_forward = True
                waiting.append(entry)
                continue
            if len(entry) > 2:
                pauses.append(entry)
                waiting.append(entry)
                continue
            if len(entry) == 2:
                began = entry[0] if not shapes else began
                shapes.append(entry[1])
                waiting.append(entry)
                continue
            if complete:
                seen = tuple(shapes) if self.is_watched and (shapes or not has_eval_forward) else None
                yield BufferedStep(end=entry[0], began=began, shapes=seen, pauses=tuple(pauses))
            complete, began, shapes, pauses, waiting = True, None, [], [], []
            has_eval_forward = False
        self.entries.extend(waiting)


def make_step_hook(
    notes: StepBuffer, full: Callable[[Optimizer, object, object], None], guard: Guard
) -> Callable[[Optimizer, object, object], None]:
    """Return the hook to run after each step of any optimizer: a closure, which needs few memory accesses.

    Args:
        notes: buffer for the steps of a settled training.
        full: handles every other step.
        guard: makes a hook harmless.
    """
    from torch import compiler

    run_full, fail = guard(full), guard(_raise)
    keyed = KeyedOptimizers()
    is_compiling = getattr(compiler, "is_dynamo_compiling", compiler.is_compiling)
    pauses = notes.pauses

    def hook(optimizer: Optimizer, args: object, kwargs: object) -> None:
        if is_compiling() or (keyed[optimizer.__class__] and keyed.skips(optimizer)):
            return
        try:
            if notes.left > 1 and optimizer is notes.leading():
                # Inlined from has_rate and end_step: a call would be a large part of the cost.
                rate = None if notes.is_watched else optimizer.param_groups[0].get("lr")
                if rate.__class__ is not float or rate != 0.0:
                    notes.left -= 1
                    notes.strangers, notes.is_between = 0, True
                    pauses.kind = ""
                    pauses.steps += 1
                    notes.add((notes.now(),))
                    return
            elif notes.left:
                leading = notes.leading()
                if leading is not None and leading is not optimizer and notes.wait_on():
                    return
        except Exception as error:  # noqa: BLE001 - a device that has failed fails here, too
            fail(error)
            return
        run_full(optimizer, args, kwargs)

    return hook


class DeferredForwardHook(ModuleHook):
    """Forward pre-hook on the model of a settled training.

    Args:
        notes: buffer for training forwards.
        place: binding of the batch: its path in the arguments; empty where unknown.
        guard: makes a hook harmless.
        wrapped: module that the model wraps, whose mode counts; ``None`` if the model is no wrapper.
    """

    __slots__ = (
        "_first",
        "_is_compiling",
        "_is_grad_enabled",
        "_is_named",
        "_is_tracing",
        "_notes",
        "_pauses",
        "_rest",
        "_wrapped",
    )

    def __init__(
        self, notes: StepBuffer, place: ArgumentPath, guard: Guard, *, wrapped: nn.Module | None = None
    ) -> None:
        from torch import compiler, is_grad_enabled

        super().__init__(guard(_raise))
        self._notes, self._pauses = notes, notes.pauses
        self._first = place[0] if place else _UNKNOWN_NAME
        self._rest = tuple(map(entry_getter, place[1:]))
        self._is_named = isinstance(self._first, str)
        self._is_compiling, self._is_tracing = compiler.is_compiling, tracing_test()
        self._is_grad_enabled = is_grad_enabled
        self._wrapped = wrapped

    def __call__(self, module: nn.Module, args: Sequence[object], other: object = None) -> None:
        """Note one forward; ``other`` holds its keyword arguments."""
        if self._is_compiling() or self._is_tracing():
            return
        notes, began = self._notes, None
        try:
            wrapped = self._wrapped
            in_training_mode = module.training if wrapped is None else wrapped.training
            if not in_training_mode or not self._is_grad_enabled():
                self._evaluate(in_training_mode=in_training_mode)
                return
            if self._pauses.kind:
                self._pauses.train()
            if notes.is_between:
                notes.is_between = False
                began = notes.now()
            value = (other if self._is_named else args)[self._first]  # type: ignore[index]  # caught below
            for getter in self._rest:
                value = getter(value)
            notes.add((began, value.shape))
        except _BATCH_NOT_FOUND:
            notes.add((began, None))
        except Exception as error:  # noqa: BLE001 - a device that has failed fails here, too
            self._call(error)

    def _evaluate(self, *, in_training_mode: bool) -> None:
        self._pauses.evaluate(in_training_mode=in_training_mode)
        entries = self._notes.entries
        if not in_training_mode and self._is_grad_enabled() and not (entries and entries[-1] == ()):
            self._notes.add(())  # it may be a training forward: the program may not have switched the mode back


def has_rate(optimizer: Optimizer) -> bool:
    """Return whether the learning rate may be nonzero: a loader that fills the state by a step sets the rates to zero.

    Only the first group's rate is read. A tensor is not, because it may be on a device.
    """
    groups = optimizer.param_groups
    rate = groups[0].get("lr") if groups else 0.0
    return rate.__class__ is not float or rate != 0.0


def _raise(error: Exception) -> None:
    raise error


def _no_snapshot() -> None:
    return None


def _no_optimizer() -> None:
    return None
