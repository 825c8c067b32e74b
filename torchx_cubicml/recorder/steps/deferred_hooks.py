"""What the hooks of a settled training do: they note moments, and many steps later somebody looks at them.

A hook that runs between the kernels of a training finds nothing of its own in the processor's caches: there, each
function and each object that it touches costs more than what it does.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from torchx_cubicml.recorder.model.batch import getter_of
from torchx_cubicml.recorder.steps.torch_hooks import ModuleHook, tracing_test

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn
    from torch.optim import Optimizer

    from torchx_cubicml.recorder.model.batch import BindingIO
    from torchx_cubicml.recorder.steps.pauses import Pause, Pauses
    from torchx_cubicml.recorder.steps.step_clock import Snapshot
    from torchx_cubicml.recorder.steps.torch_hooks import Guard

    # The end of a step; a forward: when the first of a step began, and the shape of its batch where it is known; a
    # pause; or nothing, for a forward in evaluation mode with gradients.
    Entry: TypeAlias = tuple[()] | tuple[Snapshot] | tuple[Snapshot, Sequence[int] | None] | Pause

_MAX_NOTED = 1 << 16
_NOWHERE = ""
_ELSEWHERE = (AttributeError, IndexError, KeyError, TypeError)  # the batch, in this forward
_STRANGERS_FOR_ONE = 8  # times as many steps of other optimizers as usual: the leading one may be gone


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedStep:
    """One step as it was noted.

    Args:
        end: when it ended.
        began: when its first forward began.
        shapes: of the batch of each forward, ``None`` where unknown; empty where no forward came before the step;
            ``None`` where nobody watched the forwards, or they were in evaluation mode with gradients.
        pauses: since the step before.
    """

    end: Snapshot
    began: Snapshot
    shapes: tuple[Sequence[int] | None, ...] | None
    pauses: tuple[Pause, ...] = ()


class Notes:
    """Forwards and steps in their order; ``left`` says how many steps are noted before they are looked at.

    While ``left`` is 0 nothing is noted. ``is_watched`` says whether forwards are noted too.

    Args:
        pauses: that are noted among them.
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
        self.now: Callable[[], Snapshot] = _no_moment
        self.leading: Callable[[], Optimizer | None] = _nobody
        self.left = 0
        self.is_between = True  # steps: the next forward begins one
        self.is_watched = True
        self.strangers = 0  # steps of other optimizers since the last of the leading one
        self.patience = 0

    def open(self, leading: Callable[[], Optimizer | None], now: Callable[[], Snapshot], *, strangers: int) -> None:
        """Begin after a step of the leading optimizer.

        Args:
            leading: returns that optimizer while it lives.
            now: returns the moment.
            strangers: steps of other optimizers between two of the leading one.
        """
        self.entries.clear()
        self.pauses.add = self.add
        self.leading, self.now = leading, now
        self.is_between, self.is_watched, self.strangers = True, True, 0
        self.patience = _STRANGERS_FOR_ONE * (strangers + 1)

    def wait_on(self) -> bool:
        """Note a step of another optimizer; return whether the leading one may still come."""
        self.strangers += 1
        self.is_between = False  # steps are not over where the leading one's is: when the next begins says nothing
        return self.strangers < self.patience

    def end_step(self) -> None:
        """Note that a step of the leading optimizer has ended."""
        self.strangers = 0
        self.is_between = True
        self.pauses.drop()
        self.add((self.now(),))

    @property
    def is_within_step(self) -> bool:
        """Whether a forward was noted since the last step that was taken."""
        return any(len(entry) == 2 for entry in self.entries)

    def close(self) -> None:
        """Note no more; what came after the last step is none of the next."""
        self.left = 0
        self.pauses.note_alone()
        self.pauses.keep(tuple(entry for entry in self.entries if len(entry) > 2))
        self.entries.clear()

    def take(self) -> Iterator[NotedStep]:
        """Yield the steps that were noted since the last call, each once; forwards after the last of them stay."""
        complete = len(self.entries) < _MAX_NOTED  # else the oldest are gone
        began: Snapshot = None
        shapes: list[Sequence[int] | None] = []
        pauses: list[Pause] = []
        waiting: list[Entry] = []
        may_have_trained = False
        while self.entries:
            entry = self.entries.popleft()
            if not entry:
                may_have_trained = True
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
                seen = tuple(shapes) if self.is_watched and (shapes or not may_have_trained) else None
                yield NotedStep(end=entry[0], began=began, shapes=seen, pauses=tuple(pauses))
            complete, began, shapes, pauses, waiting = True, None, [], [], []
            may_have_trained = False
        self.entries.extend(waiting)


def make_step_hook(
    notes: Notes, full: Callable[[Optimizer, object, object], None], guard: Guard
) -> Callable[[Optimizer, object, object], None]:
    """Return what runs after each step of any optimizer: a function, which finds all it needs in few places.

    Args:
        notes: to which a step of a settled training goes.
        full: takes every other step.
        guard: for what may fail.
    """
    from torch import compiler

    hand_on, fail = guard(full), guard(_fail)
    is_compiling = getattr(compiler, "is_dynamo_compiling", compiler.is_compiling)
    pauses = notes.pauses

    def hook(optimizer: Optimizer, args: object, kwargs: object) -> None:
        if is_compiling():
            return
        try:
            if notes.left > 1 and optimizer is notes.leading():
                # As in has_rate and in end_step: a call is a good part of what this costs.
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
        hand_on(optimizer, args, kwargs)

    return hook


class NotingHook(ModuleHook):
    """Runs before each forward of a settled training's model.

    Args:
        notes: to which forwards of training go.
        place: of the batch among the arguments; empty where unknown.
        guard: for what may fail.
        wrapped: what the model wraps, whose mode counts; ``None`` where it is no wrapper.
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

    def __init__(self, notes: Notes, place: BindingIO, guard: Guard, *, wrapped: nn.Module | None = None) -> None:
        from torch import compiler, is_grad_enabled

        super().__init__(guard(_fail))
        self._notes, self._pauses = notes, notes.pauses
        self._first = place[0] if place else _NOWHERE
        self._rest = tuple(map(getter_of, place[1:]))
        self._is_named = isinstance(self._first, str)
        self._is_compiling, self._is_tracing = compiler.is_compiling, tracing_test()
        self._is_grad_enabled = is_grad_enabled
        self._wrapped = wrapped

    def __call__(self, module: nn.Module, args: Sequence[object], other: object = None) -> None:
        """Note one forward, whose keyword arguments come last."""
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
            for take_out in self._rest:
                value = take_out(value)
            notes.add((began, value.shape))
        except _ELSEWHERE:
            notes.add((began, None))
        except Exception as error:  # noqa: BLE001 - a device that has failed fails here, too
            self._tell(error)

    def _evaluate(self, *, in_training_mode: bool) -> None:
        self._pauses.evaluate(in_training_mode=in_training_mode)
        entries = self._notes.entries
        if not in_training_mode and self._is_grad_enabled() and not (entries and entries[-1] == ()):
            self._notes.add(())  # it may be of training all the same, where nobody has switched back


def has_rate(optimizer: Optimizer) -> bool:
    """Return whether an optimizer may change anything: a loader that fills its state by a step sets the rates to zero.

    Only the first group's is looked at, and no tensor, which may be on a device.
    """
    groups = optimizer.param_groups
    rate = groups[0].get("lr") if groups else 0.0
    return rate.__class__ is not float or rate != 0.0


def _fail(error: Exception) -> None:
    raise error


def _no_moment() -> None:
    return None


def _nobody() -> None:
    return None
