"""The steps of a training as they become known: one block each, and blocks of several once there are many."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random
from statistics import median

MOST_BLOCKS = 4096  # even; when there are as many, every two become one
_RECENT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One optimizer step of this process, or several one after the other.

    Args:
        seconds: from the end of the step before to the end of the last of these, > 0.
        steps: how many, >= 1.
        watched: of how many of them somebody looked at what they consumed, and at their first forward.
        samples: consumed in the watched ones by this process; ``None`` where one of them does not tell.
        tokens: likewise.
        outside_s: seconds of the watched ones before their first forward (loading data, logging); ``None``: unknown.
        eval_mode_s: seconds of passages of the model in evaluation mode, or otherwise unlike those within steps.
        eval_mode_steps: before how many of the watched steps there was such a passage.
        no_grad_s: seconds of other passages of the model without gradients.
        no_grad_steps: likewise.
        checkpoint_s: seconds of saving.
        compiled: whether a compiler was at work.
    """

    seconds: float
    steps: int = 1
    watched: int = 1
    samples: float | None = None
    tokens: float | None = None
    outside_s: float | None = None
    eval_mode_s: float = 0.0
    eval_mode_steps: int = 0
    no_grad_s: float = 0.0
    no_grad_steps: int = 0
    checkpoint_s: float = 0.0
    compiled: bool = False

    def __add__(self, later: Block) -> Block:
        """Return the steps of both as one block."""
        return Block(
            seconds=self.seconds + later.seconds,
            steps=self.steps + later.steps,
            watched=self.watched + later.watched,
            samples=_sum_of_watched(self, later, "samples"),
            tokens=_sum_of_watched(self, later, "tokens"),
            outside_s=_sum_of_watched(self, later, "outside_s"),
            eval_mode_s=self.eval_mode_s + later.eval_mode_s,
            eval_mode_steps=self.eval_mode_steps + later.eval_mode_steps,
            no_grad_s=self.no_grad_s + later.no_grad_s,
            no_grad_steps=self.no_grad_steps + later.no_grad_steps,
            checkpoint_s=self.checkpoint_s + later.checkpoint_s,
            compiled=self.compiled or later.compiled,
        )


class Blocks:
    """All steps of a training, in at most ``MOST_BLOCKS`` blocks of alike many steps, and some of the steps themselves.

    Nothing is forgotten: sums over blocks are sums over all steps.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._whole: list[Block] = []
        self._partial: Block | None = None
        self._size = 1
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._sampled: list[Block] = []
        self._random = Random(0)  # noqa: S311 - it only picks which steps are kept

    def add(self, step: Block) -> None:
        """Take in the next step."""
        self.steps += 1
        self._recent.append(step.seconds)
        if self._size == 1:
            self._whole.append(step)
        else:
            self._sample(step)
            self._partial = step if self._partial is None else self._partial + step
            if self._partial.steps == self._size:
                self._whole.append(self._partial)
                self._partial = None
        if len(self._whole) >= MOST_BLOCKS:
            self._sampled = self._sampled or list(self._whole)
            self._whole = [one + other for one, other in zip(self._whole[::2], self._whole[1::2], strict=True)]
            self._size *= 2

    def all(self) -> list[Block]:
        """Return every block, in order; the last may hold fewer steps."""
        return [*self._whole, self._partial] if self._partial is not None else list(self._whole)

    def sampled_steps(self) -> list[Block]:
        """Return some single steps, each step of the run being as likely; none while the blocks are of one each."""
        return list(self._sampled)

    def recent_s(self) -> float | None:
        """Return the median of the latest durations, seconds; ``None`` where fewer are known."""
        return median(self._recent) if len(self._recent) == _RECENT else None

    def _sample(self, step: Block) -> None:
        """Keep a step in the place of another, as often as makes all alike likely to be kept (reservoir sampling)."""
        place = self._random.randrange(self.steps)
        if place < len(self._sampled):
            self._sampled[place] = step


def _sum_of_watched(one: Block, other: Block, name: str) -> float | None:
    amounts = [getattr(each, name) for each in (one, other) if each.watched]
    return sum(amounts) if amounts and None not in amounts else None
