"""Hold-out splits of trials into known (training) and held-out (test) ones."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from torchx_cubicml.errors import RecordError
from torchx_cubicml.predictors.features.history import config_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torchx_cubicml.records.trial import Trial

_TRAIN_SHARE = 0.8
_MOST_WORKLOADS = 30  # left out in turn, those with most trials
_FEWEST_OF_WORKLOAD = 3  # measured trials; the ranks of fewer are not worth a grade


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRequest:
    """Request for a hold-out split.

    Args:
        split: a name in ``SPLITS``.
        max_world_size: for ``scale``: the largest job known; by default that up to which half of the trials run.
        large: for ``scale``: number of larger measured jobs that are known as well, drawn at random.
        seed: of all randomness.
    """

    split: str = "random"
    max_world_size: int | None = None
    large: int = 0
    seed: int = 0


Split: TypeAlias = "tuple[list[Trial], list[Trial]]"


def make_splits(trials: Iterable[Trial], request: SplitRequest) -> tuple[list[Split], str]:
    """Return pairs of known and held-out trials, and a description of the split in words.

    Args:
        trials: of any workloads; those that have not ended are ignored.
        request: the split.

    Raises:
        RecordError: the name is unknown, or trials lack the fact that it splits by.
    """
    if request.split not in SPLITS:
        raise RecordError(f"unknown split {request.split!r}; choose from {', '.join(SPLITS)}")
    # Ids are random, so trials are sorted by content, which is the same in every store that holds them.
    ended = sorted((trial for trial in trials if trial.state.ended), key=_content)
    return SPLITS[request.split](ended, request)


def split_randomly(trials: Sequence[Trial], request: SplitRequest) -> tuple[list[Split], str]:
    """Return a random split with four fifths known."""
    known = np.random.default_rng(request.seed).permutation(len(trials)) < _TRAIN_SHARE * len(trials)
    return [_split(trials, known.tolist())], "a random fifth held out"


def split_by_time(trials: Sequence[Trial], _request: SplitRequest) -> tuple[list[Split], str]:
    """Return a split with the earlier four fifths known; equal times are never split, undated trials are left out."""
    dated = [trial for trial in trials if trial.started_at]
    if not dated:
        raise RecordError(f"split time needs trials with a start time; none of the {len(trials)} trials has one")
    times = sorted(trial.started_at for trial in dated)
    cut = _latest_cut(times)
    description = "the latest fifth held out" + _without_note(len(trials) - len(dated), "a start time")
    return [_split(dated, [trial.started_at < cut for trial in dated])], description


def _latest_cut(times: Sequence[str]) -> str:
    """Return the time from which trials are held out: where four fifths are over, or the next that leaves any known.

    >>> _latest_cut(["2024", "2024", "2025"]), _latest_cut(["2024", "2025", "2025"])
    ('2025', '2025')
    """
    cut = times[min(int(_TRAIN_SHARE * len(times)), len(times) - 1)]
    return cut if cut > times[0] else next((time for time in times if time > cut), cut)


def split_by_scale(trials: Sequence[Trial], request: SplitRequest) -> tuple[list[Split], str]:
    """Return a split with the smaller jobs known, and ``large`` of the larger."""
    sized = [(trial, size) for trial in trials if isinstance(size := trial.fact("world_size"), int)]
    if not sized:
        raise RecordError(f"split scale needs trials with a world_size; none of the {len(trials)} trials has one")
    note = _without_note(len(trials) - len(sized), "a world_size")
    trials, sizes = [trial for trial, _ in sized], [size for _, size in sized]
    limit = request.max_world_size if request.max_world_size is not None else sorted(sizes)[(len(sizes) - 1) // 2]
    known = [size <= limit for size in sizes]
    larger = [index for index, trial in enumerate(trials) if not known[index] and trial.measurement is not None]
    for index in np.random.default_rng(request.seed).permutation(larger)[: request.large].tolist():
        known[index] = True
    exception = f" except {min(request.large, len(larger))}" if request.large else ""
    return [_split(trials, known)], f"jobs above {limit} processes{exception} held out{note}"


def _without_note(count: int, lacking: str) -> str:
    return f" ({count} without {lacking} ignored)" if count else ""


def split_by_workload(trials: Sequence[Trial], _request: SplitRequest) -> tuple[list[Split], str]:
    """Return leave-one-workload-out splits."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for index, trial in enumerate(trials):
        groups[config_key(trial.workload)].append(index)
    eligible = {
        key: members
        for key, members in groups.items()
        if sum(trials[index].measurement is not None for index in members) >= _FEWEST_OF_WORKLOAD
    }
    largest = sorted(eligible, key=lambda key: (-len(eligible[key]), key))[:_MOST_WORKLOADS]
    if len(groups) < 2 or not largest:
        raise RecordError(
            f"split workload needs two workloads, one of them with {_FEWEST_OF_WORKLOAD} measured trials; got "
            f"{len(groups)} workloads, {len(largest)} with that many"
        )
    splits = []
    for key in largest:
        held_out_rows = set(eligible[key])
        splits.append(_split(trials, [index not in held_out_rows for index in range(len(trials))]))
    return splits, f"{len(splits)} workloads held out in turn"


SPLITS: dict[str, Callable[[Sequence[Trial], SplitRequest], tuple[list[Split], str]]] = {
    "random": split_randomly,
    "time": split_by_time,
    "scale": split_by_scale,
    "workload": split_by_workload,
}
"""Name of a split -> function that makes it."""


def _split(trials: Sequence[Trial], known: Sequence[bool]) -> Split:
    train = [trial for trial, flag in zip(trials, known, strict=True) if flag]
    return train, [trial for trial, flag in zip(trials, known, strict=True) if not flag]


def _content(trial: Trial) -> tuple[str, str]:
    return config_key({**trial.workload, **trial.config}), f"{trial.state} {trial.measurement}"
