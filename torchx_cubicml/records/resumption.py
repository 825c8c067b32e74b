"""Trainings that go on from a checkpoint: which earlier launch saved it, by digests of folders that tell no path.

A launch records the folders in which it saved checkpoints, and those that it went on from. The first folder is the
*root*: the one that a word of the command names, or that the program itself chooses. The others stand below it.
"""

from __future__ import annotations

import re
from hashlib import blake2s
from itertools import combinations
from typing import TYPE_CHECKING

from torchx_cubicml.records.argument_words import argument_words
from torchx_cubicml.records.arguments import text_digest
from torchx_cubicml.records.workload import LOAD_FAILED, is_same_program, recency

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Workload

SAVED_IN, LOADED_FROM = "checkpoint_folders", "resumed_folders"
FOLDER_FACTS = (SAVED_IN, LOADED_FROM)
SAVED_STEP = "checkpoint_step"
"""Observed fact: optimizer steps of the whole training at the last checkpoint, those of earlier launches included."""
STARTS_ANEW = "starts_anew"
"""Observed fact: the launch replaced an earlier checkpoint, and had loaded none."""

RESUMPTION_FACTS = (*FOLDER_FACTS, SAVED_STEP, STARTS_ANEW, LOAD_FAILED)

RESUMED_FROM = "resumed_from"
"""Name of the launch that ``resumed_from`` returns, in tables."""
_STATELESS = re.compile(r"(?i)recompute|(?:activation|gradient)_checkpointing|prefetch|alloc|threads|pin_memory")


def touches_state(name: str) -> bool:
    """Return whether a parameter of this name, or flag, may change the order of the samples or the state of a training.

    >>> touches_state("micro_batch_size"), touches_state("activation_checkpointing"), touches_state("prefetch_factor")
    (True, False, False)
    """
    return _STATELESS.search(name) is None


def has_same_state(one: Config, other: Config) -> bool:
    """Return whether a training that one config has begun may go on with another one; unknown values do not count."""
    return all(one[name] == other[name] for name in one.keys() & other.keys() if touches_state(name))


def folder_id(path: str, *, is_named: bool = True) -> str:
    """Return the text whose digest stands for a folder.

    Args:
        path: real path of the folder.
        is_named: whether a word of the command names it, or may do so; else the program itself chooses it.
    """
    return blake2s(f"{'' if is_named else '.'}{path}".encode(errors="surrogatepass"), digest_size=8).hexdigest()


UNSEEN = folder_id("", is_named=False)
"""Root of checkpoints that stand outside the working folder, where no word of the command leads."""


def digested(ids: Iterable[str], keys: Iterable[str]) -> frozenset[str]:
    """Return the digests of folders under the keys of a store."""
    ids = tuple(ids)
    return frozenset(text_digest(each, key) for key in keys for each in ids)


def folders(trial: Trial, fact: str = SAVED_IN) -> tuple[str, ...]:
    """Return the digests of the folders in which a launch saved checkpoints, or that it went on from; root first."""
    found = trial.observed.get(fact)
    return tuple(map(str, found)) if isinstance(found, tuple) else ()


def savers(trials: Iterable[Trial], workload: Workload, places: Collection[str] | None = None) -> list[Trial]:
    """Return the launches of the program that saved checkpoints in one of ``places`` (digests; by default anywhere).

    The latest comes last.
    """
    own = (trial for trial in trials if folders(trial) and is_same_program(trial, workload))
    return sorted((each for each in own if places is None or not set(places).isdisjoint(folders(each))), key=recency)


def saves_weights_alone(trials: Iterable[Trial], workload: Workload) -> bool:
    """Return whether the latest launch of the program that saved anything saved nothing to go on from."""
    own = (trial for trial in trials if trial.observed.get("saves_checkpoints") and is_same_program(trial, workload))
    latest = max(own, key=recency, default=None)
    return latest is not None and not folders(latest)


def starts_anew(earlier: Sequence[Trial], arguments: Sequence[str], program: Collection[str]) -> bool:
    """Return whether earlier launches show that a command with these flags leaves the checkpoints that it finds alone.

    One of them replaced a checkpoint that it had not loaded, or two equal commands saved in different folders of one
    root, as programs do that number their launches. A launch of other flags or another code shows nothing.

    Args:
        earlier: launches that saved where this one may find it.
        arguments: of the present program.
        program: digests of its code.
    """
    flags = set(argument_words(arguments))
    alike = [trial for trial in earlier if (trial.digests or {}).get("program") in program]
    alike = [trial for trial in alike if set(argument_words(trial.arguments or ())) == flags]
    if any(folders(trial, LOADED_FROM) for trial in alike):
        return False
    return any(trial.observed.get(STARTS_ANEW) is True for trial in alike) or any(
        one.arguments == other.arguments
        and folders(one)[0] == folders(other)[0]
        and set(folders(one)[1:]).isdisjoint(folders(other)[1:])
        for one, other in combinations(alike, 2)
    )


def resumed_from(trial: Trial, trials: Iterable[Trial]) -> str:
    """Return the id of the launch whose checkpoint a launch went on from; empty if it did not, or none is known."""
    if LOADED_FROM not in trial.observed:
        return ""
    earlier = (each for each in trials if each.trial_id != trial.trial_id and each.started_at <= trial.started_at)
    found = savers(earlier, trial.workload, folders(trial, LOADED_FROM))
    return found[-1].trial_id if found else ""
