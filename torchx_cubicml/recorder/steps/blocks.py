"""Step durations of a training: one block per optimizer step, merged in pairs once there are too many."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random
from statistics import median

MOST_BLOCKS = 4096  # even; at this number, blocks are merged in pairs
_RECENT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One optimizer step of this process, or several consecutive ones.

    Args:
        seconds: from the end of the preceding step to the end of the last of these, > 0.
        steps: number of steps, >= 1.
        watched: number of these steps whose consumed samples and first forward were observed.
        samples: consumed by this process in the watched steps; ``None`` where one of them is unknown.
        tokens: likewise.
        outside_s: seconds of the watched steps before their first forward (data loading, logging); ``None``: unknown.
        eval_mode_s: seconds of ``EVAL_MODE`` pauses.
        eval_mode_steps: number of watched steps that follow such a pause.
        no_grad_s: seconds of ``NO_GRAD`` pauses.
        no_grad_steps: likewise.
        checkpoint_s: seconds of saving checkpoints.
        compiled: whether a compiler ran during these steps.
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
        """Return one block with the steps of both."""
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
    """All steps of a training in at most ``MOST_BLOCKS`` blocks of equal size, and a reservoir sample of single steps.

    No step is dropped: sums over blocks are sums over all steps.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._whole: list[Block] = []
        self._partial: Block | None = None
        self._size = 1
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._sampled: list[Block] = []
        self._random = Random(0)  # noqa: S311 - it only picks the steps of the sample

    def add(self, step: Block) -> None:
        """Append the next step."""
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
        """Return all blocks in order; the last may hold fewer steps."""
        return [*self._whole, self._partial] if self._partial is not None else list(self._whole)

    def sampled_steps(self) -> list[Block]:
        """Return a uniform sample of single steps; empty while each block holds one step."""
        return list(self._sampled)

    def median_s(self) -> float:
        """Return the median duration of a step in seconds; 0 while none is known."""
        return median(block.seconds / block.steps for block in self.all()) if self.steps else 0.0

    def recent_s(self) -> float | None:
        """Return the median of the latest 16 durations in seconds; ``None`` while fewer are known."""
        return median(self._recent) if len(self._recent) == _RECENT else None

    def _sample(self, step: Block) -> None:
        """Replace a sampled step at random, so that all steps are equally likely to be kept (reservoir sampling)."""
        index = self._random.randrange(self.steps)
        if index < len(self._sampled):
            self._sampled[index] = step


def _sum_of_watched(one: Block, other: Block, name: str) -> float | None:
    amounts = [getattr(each, name) for each in (one, other) if each.watched]
    return sum(amounts) if amounts and None not in amounts else None
