"""Evaluation and saving, as the process shows them: time between steps that is no training.

Evaluation is a passage of the trained model, from its first forward in evaluation mode or without gradients to its next
training forward. Saving is a call of torch's own functions for that, or of a trainer's.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import defaultdict, deque
from functools import partial
from itertools import accumulate
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.recorder.steps.step_clock import Snapshot
    from torchx_cubicml.recorder.steps.torch_hooks import Guard

EVAL_MODE, NO_GRAD, CHECKPOINT = "eval mode", "no grad", "checkpoint"
_MOST_KEPT = 4096  # pauses of each kind, for what is asked about the host's time


class Pause(NamedTuple):
    """One passage.

    Args:
        kind: ``EVAL_MODE``, ``NO_GRAD`` or ``CHECKPOINT``.
        begin: on the clock of the steps.
        end: likewise.
        inner: saving within it.
    """

    kind: str
    begin: Snapshot
    end: Snapshot
    inner: tuple[Pause, ...] = ()


class Pauses:
    """The pauses since the step before; ``kind`` is that of the passage under way, empty without one.

    ``steps`` counts those that have ended. ``is_usual`` says whether the last entry into ``no_grad`` came from a place
    that the step before entered from, too. Where it did not, forwards are told apart as those in evaluation mode are.

    Before ``now`` is set, when the first step ends, nothing is noted.

    Args:
        guard: for what runs within the program's own calls.
    """

    __slots__ = (
        "_began",
        "_began_s",
        "_begin_saving",
        "_end_saving",
        "_found",
        "_host",
        "_inner",
        "_save_began",
        "_save_began_s",
        "_saving",
        "_thread",
        "add",
        "is_usual",
        "kind",
        "now",
        "steps",
    )

    def __init__(self, guard: Guard) -> None:
        self._begin_saving, self._end_saving = guard(self._begin), guard(self._end)
        self.kind = ""
        self.steps = 0
        self.is_usual = True
        self.now: Callable[[], Snapshot] | None = None
        self._found: list[Pause] = []
        self.add: Callable[[Pause], object] = self._found.append  # a settled training notes them among its steps
        self._inner: list[Pause] = []
        self._began: Snapshot = None
        self._began_s = 0.0
        self._saving = 0
        self._save_began: Snapshot = None
        self._save_began_s = 0.0
        self._thread = threading.get_ident()
        self._host: defaultdict[str, deque[tuple[float, float]]] = defaultdict(partial(deque, maxlen=_MOST_KEPT))

    def begin(self, now: Callable[[], Snapshot]) -> None:
        """Note pauses from now on in this thread, which trains; ``now`` returns the moment on its clock of steps."""
        self.now, self._thread = now, threading.get_ident()

    def evaluate(self, *, in_training_mode: bool) -> None:
        """Note a forward of the model that is none of training."""
        kind = NO_GRAD if in_training_mode and self.is_usual else EVAL_MODE
        if self.kind == kind or self.now is None:
            return
        if self.kind:
            self.train()
        self.kind, self._began, self._began_s, self._inner = kind, self.now(), perf_counter(), []

    def train(self) -> None:
        """Note a training forward: evaluation has ended, if there was any."""
        if not self.kind or self.now is None:
            return
        self.add(Pause(self.kind, self._began, self.now(), tuple(self._inner)))
        self._host[self.kind].append((self._began_s, perf_counter()))
        self.kind = ""

    def drop(self) -> None:
        """Note that a step has ended: a forward since the last training forward was a part of it."""
        self.kind = ""
        self.is_usual = True
        self.steps += 1

    @property
    def is_in_its_thread(self) -> bool:
        """Whether this is the thread that trains."""
        return threading.get_ident() == self._thread

    def saving(self, save: Callable[[], object]) -> object:
        """Return what ``save`` returns, and note how long it took; in another call, or thread, it is not noted."""
        self._begin_saving()
        try:
            return save()
        finally:
            self._end_saving()

    def take(self) -> tuple[Pause, ...]:
        """Return the pauses since the last call that no settled training has noted."""
        found = tuple(self._found)
        self._found.clear()
        return found

    def keep(self, pauses: tuple[Pause, ...]) -> None:
        """Take back pauses that a settled training has noted for a step that it does not see the end of."""
        self._found[:0] = pauses

    def note_alone(self) -> None:
        """Keep pauses here again, in place of among the steps of a settled training."""
        self.add = self._found.append

    def host_seconds(self, kinds: frozenset[str]) -> Callable[[float, float], float]:
        """Return what tells the seconds of pauses of these kinds between two moments of ``perf_counter``.

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
            place = bisect_right(begins, moment)
            return sums[place] - max(ends[place - 1] - moment, 0.0) if place else 0.0

        return lambda begin, end: before(end) - before(begin)

    def _begin(self) -> None:
        if self.now is None or not self.is_in_its_thread:
            return
        self._saving += 1
        if self._saving == 1:
            self._save_began, self._save_began_s = self.now(), perf_counter()

    def _end(self) -> None:
        if self.now is None or not self._saving or not self.is_in_its_thread:
            return
        self._saving -= 1
        if self._saving:
            return
        pause = Pause(CHECKPOINT, self._save_began, self.now())
        self.add(pause)
        self._host[CHECKPOINT].append((self._save_began_s, perf_counter()))
        if self.kind:
            self._inner.append(pause)


def paused_s(
    pauses: tuple[Pause, ...], elapsed: Callable[[Snapshot, Snapshot], float], *, is_watched: bool = True
) -> dict[str, float]:
    """Return the fields of a ``Block`` that tell of pauses.

    Args:
        pauses: before the end of one step.
        elapsed: returns the seconds between two moments.
        is_watched: whether all forwards of that step were: only such steps tell how often there are passages.
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
