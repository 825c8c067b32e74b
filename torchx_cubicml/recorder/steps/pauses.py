"""Pauses of training, observed in the process: evaluation and checkpoint saving between steps.

Evaluation lasts from the model's first forward in evaluation mode or without gradients to the end of its last one, or
from and to the edges of the ``no_grad`` around them. What comes before and follows, such as the opening of a loader,
belongs to the training. Saving is a call of torch's own saving functions, or of a trainer's.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import defaultdict, deque
from functools import partial
from itertools import accumulate
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from torchx_cubicml.recorder.steps.torch_hooks import Guard

    Moment: TypeAlias = float | torch.cuda.Event | None  # host seconds, or an event in a device stream

EVAL_MODE, NO_GRAD, CHECKPOINT = "eval mode", "no grad", "checkpoint"
_MOST_KEPT = 4096  # pauses of each kind, kept for queries of host time


class Pause(NamedTuple):
    """One pause of training.

    Args:
        kind: ``EVAL_MODE``, ``NO_GRAD`` or ``CHECKPOINT``.
        begin: moment on the step clock.
        end: likewise.
        inner: saving within the pause.
    """

    kind: str
    begin: Moment
    end: Moment
    inner: tuple[Pause, ...] = ()


class Pauses:
    """Pauses since the preceding step; ``kind`` is that of the current pause, empty without one.

    ``steps`` counts ended steps. ``is_usual`` is true if the preceding step entered ``no_grad`` from the same code
    location as the last entry did. Otherwise forwards without gradients count as evaluation mode.

    Nothing is noted before ``now`` is set, at the end of the first step.

    Args:
        guard: makes code harmless that runs within the program's own calls.
    """

    __slots__ = (
        "_began",
        "_began_s",
        "_begin_saving",
        "_end_saving",
        "_ended",
        "_entered",
        "_host",
        "_inner",
        "_is_in_block",
        "_is_within",
        "_pauses",
        "_save_began",
        "_save_began_s",
        "_save_depth",
        "_thread",
        "add",
        "is_usual",
        "kind",
        "now",
        "on_begin",
        "steps",
    )

    def __init__(self, guard: Guard) -> None:
        self._begin_saving, self._end_saving = guard(self._begin), guard(self._end)
        self.kind = ""
        self.steps = 0
        self.is_usual = True
        self.now: Callable[[], Moment] | None = None
        self.on_begin: Callable[[], object] = bool  # called within the first forward of an evaluation
        self._pauses: list[Pause] = []
        self.add: Callable[[Pause], object] = self._pauses.append  # a settled training notes pauses among its steps
        self._inner: list[Pause] = []
        self._began: Moment = None
        self._began_s = 0.0
        self._ended: tuple[Moment, float, int] | None = None  # end of its last forward, and the saves until then
        self._is_in_block = False  # in a ``no_grad`` that training steps do not enter
        self._is_within = False  # a forward ran in it
        self._entered: tuple[Moment, float, int] | None = None  # its begin and step, until an evaluation begins there
        self._save_depth = 0
        self._save_began: Moment = None
        self._save_began_s = 0.0
        self._thread = threading.get_ident()
        self._host: defaultdict[str, deque[tuple[float, float]]] = defaultdict(partial(deque, maxlen=_MOST_KEPT))

    def begin(self, now: Callable[[], Moment]) -> None:
        """Start noting pauses in this thread, which trains; ``now`` reads the step clock."""
        self.now, self._thread = now, threading.get_ident()

    def evaluate(self, *, in_training_mode: bool) -> None:
        """Note a forward of the model that is not a training forward."""
        kind = NO_GRAD if in_training_mode and self.is_usual else EVAL_MODE
        if self.now is None:
            return
        if self.kind != kind:
            self.train()
            entered, self._entered = self._entered, None
            if entered is not None and entered[2] == self.steps:
                self._began, self._began_s, _ = entered
            else:
                self._began, self._began_s, self._inner = self.now(), perf_counter(), []
            self.kind = kind
            if kind == EVAL_MODE:
                self.on_begin()
        self._ended, self._is_within = None, self._is_in_block

    def enter(self) -> None:
        """Note that the program enters ``no_grad`` where training steps do not."""
        if self.now is None:
            return
        self._is_in_block = True
        if not self.kind and (moment := self.now()) is not None:
            self._entered, self._inner = (moment, perf_counter(), self.steps), []

    def leave(self) -> None:
        """Note that the program has left ``no_grad``, which ends an evaluation within it."""
        if self._is_in_block and self.is_in_its_thread:
            if self._is_within:
                self.evaluated()
            self._is_in_block, self._is_within, self._entered = False, False, None

    def evaluated(self) -> None:
        """Note the end of such a forward, or what follows where no hook saw that end."""
        if self.kind and self.now is not None and (moment := self.now()) is not None:
            self._ended = moment, perf_counter(), len(self._inner)

    def left_evaluation(self) -> None:
        """Note that the model is set to training mode, which ends an evaluation whose last forward was not seen."""
        if self._ended is None:
            self.evaluated()

    def train(self) -> None:
        """Note a training forward; without any other sign, it ends the evaluation."""
        if not self.kind or self.now is None:
            return
        end, end_s, n_inner = self._ended or (self.now(), perf_counter(), len(self._inner))
        self.add(Pause(self.kind, self._began, end, tuple(self._inner[:n_inner])))
        self._host[self.kind].append((self._began_s, end_s))
        self.kind, self._ended = "", None

    def drop(self) -> None:
        """Note the end of a step; other forwards since its last training forward were part of it, not evaluation."""
        self.kind = ""
        self.is_usual = True
        self.steps += 1

    @property
    def is_in_its_thread(self) -> bool:
        """True if the current thread is the one that trains."""
        return threading.get_ident() == self._thread

    def saving(self, save: Callable[[], object]) -> object:
        """Call ``save`` and note its duration, unless it is nested or in another thread; return its result."""
        self._begin_saving()
        try:
            return save()
        finally:
            self._end_saving()

    def take(self) -> tuple[Pause, ...]:
        """Return the pauses since the last call that were not noted by a settled training."""
        pauses = tuple(self._pauses)
        self._pauses.clear()
        return pauses

    def keep(self, pauses: tuple[Pause, ...]) -> None:
        """Put back pauses that a settled training noted for a step whose end it does not observe."""
        self._pauses[:0] = pauses

    def note_alone(self) -> None:
        """Collect pauses here again, instead of among the steps of a settled training."""
        self.add = self._pauses.append

    def host_seconds(self, kinds: frozenset[str]) -> Callable[[float, float], float]:
        """Return a function that sums the seconds of these kinds of pauses between two ``perf_counter`` readings.

        Saving within evaluation counts once.
        """
        begins: list[float] = []
        ends: list[float] = []
        for begin, end in sorted(span for kind in kinds for span in self._host.get(kind, ())):
            if ends and begin <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            else:
                begins.append(begin)
                ends.append(end)
        sums = [0.0, *accumulate(end - begin for begin, end in zip(begins, ends, strict=True))]

        def before(moment: float) -> float:
            index = bisect_right(begins, moment)
            return sums[index] - max(ends[index - 1] - moment, 0.0) if index else 0.0

        return lambda begin, end: before(end) - before(begin)

    def _begin(self) -> None:
        if self.now is None or not self.is_in_its_thread:
            return
        self._save_depth += 1
        if self._save_depth == 1:
            self._save_began, self._save_began_s = self.now(), perf_counter()

    def _end(self) -> None:
        if self.now is None or not self._save_depth or not self.is_in_its_thread:
            return
        self._save_depth -= 1
        if self._save_depth:
            return
        pause = Pause(CHECKPOINT, self._save_began, self.now())
        self.add(pause)
        self._host[CHECKPOINT].append((self._save_began_s, perf_counter()))
        if self.kind or self._is_in_block:
            self._inner.append(pause)


def paused_s(
    pauses: tuple[Pause, ...], elapsed: Callable[[Moment, Moment], float], *, is_watched: bool = True
) -> dict[str, float]:
    """Return the fields of a ``Block`` about pauses.

    Args:
        pauses: pauses before the end of one step.
        elapsed: returns the seconds between two moments.
        is_watched: whether all forwards of that step were watched: only such steps are counted as preceded by a pause.
    """
    if not pauses:
        return {}
    seconds = dict.fromkeys((EVAL_MODE, NO_GRAD, CHECKPOINT), 0.0)
    for pause in pauses:
        within = sum(elapsed(inner.begin, inner.end) for inner in pause.inner)
        seconds[pause.kind] += max(elapsed(pause.begin, pause.end) - within, 0.0)
    kinds = {pause.kind for pause in pauses}
    return {
        "eval_mode_s": seconds[EVAL_MODE],
        "eval_mode_steps": is_watched and EVAL_MODE in kinds,
        "no_grad_s": seconds[NO_GRAD],
        "no_grad_steps": is_watched and NO_GRAD in kinds,
        "checkpoint_s": seconds[CHECKPOINT],
    }
