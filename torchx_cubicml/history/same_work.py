"""Comparison of a command with those of earlier launches: what is new in it, and which launches did the same work.

A setting (``PresentCommand``) that the space file does not declare may change the work of a step. Three things tell:

1. a table of names that are harmless, such as seeds, folders, learning rates and step counts (``harmless_settings``);
2. the history: a setting whose last change left the observed work as it was is harmless;
3. what was observed of a launch with the present settings. Launches whose observed work differs from it are left out.

Where steps alone were counted, nothing observed tells a batch: launches that differ in a setting named as a size of the
batch or of a sample are kept apart.

A launch whose settings none of these covers is another job until it has run: it runs as typed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

from torchx_cubicml.history.observed_work import ObservedWork
from torchx_cubicml.history.present_command import PROGRAM, TEXTS_KNOWN, RecordedSettings, has_same_key, is_of_program
from torchx_cubicml.records.argument_words import names_as_typed
from torchx_cubicml.records.arguments import is_keyed
from torchx_cubicml.records.memory_failure import as_asked, proves_too_large
from torchx_cubicml.records.standard_names import BATCH_FLAGS, WORKLOAD_SIZES, standard_flag_name
from torchx_cubicml.records.workload import count_of_launches, is_informative, recency
from torchx_cubicml.space.constraints import IN_BATCH

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.history.history import History
    from torchx_cubicml.history.observed_work import WorkSummary
    from torchx_cubicml.history.present_command import PresentCommand
    from torchx_cubicml.records.trial import Trial

_MOST_PAIRED = 40  # different commands that are compared with each other, each with each: the latest
_NAMED = 3  # settings that a message names
_OTHER_FILE = "the script here differs from the one in the job: that of the latest launch of it is compared"
_NO_KEY = "*key"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTrials:
    """Trials that did the work of the present command, as far as known.

    Args:
        trials: of all workloads, without those of the workload that did other work.
        certain: likewise, without those whose work is not known to be the same while the command has not run, unless
            they ran out of memory: what did not fit is not tried before that is known.
        unseen: settings that make the present command another job until it has run, flags as typed; empty where there
            are none.
        lines: reasons why trials were left out, one line each.
    """

    trials: Sequence[Trial]
    certain: Sequence[Trial]
    unseen: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Reason why the present command runs as typed; empty where there is none."""
        if not self.unseen:
            return ""
        if self.unseen == (_NO_KEY,):
            return "the key of the store's digests was not read, so this command cannot be compared with recorded ones"
        if self.unseen == (PROGRAM,):
            return (
                "the program's file has changed since its last recorded launch: this launch runs as typed, which shows "
                "whether its work is the same"
            )
        names = _listed([_spoken(name) for name in self.unseen])
        return (
            f"no recorded launch had this value of {names}: this launch runs as typed, which shows whether its work is "
            f"the same (if it changes the work, declare it under [workload] in the space file{_example(self.unseen)})"
        )


def with_same_work(history: History) -> ComparedTrials:
    """Leave out the trials of the workload that did other work than the present command.

    Args:
        history: in the terms of its space, whose parameters' observed facts tell no works apart.
    """
    trials, command, keys = history.trials, history.command, history.keys
    own = [trial for trial in history.own if trial.arguments is not None and is_informative(trial)]
    if not own:
        return ComparedTrials(trials=trials, certain=trials)
    elsewhere = _without(
        trials, [trial for trial, seen in zip(own, as_asked(own), strict=True) if not proves_too_large(seen)]
    )
    if not keys and any(trial.digests is not None or is_keyed(trial.arguments or ()) for trial in own):
        return ComparedTrials(trials=trials, certain=elsewhere, unseen=(_NO_KEY,))
    work, recorded = ObservedWork(history.space), RecordedSettings(command, keys)
    groups = _groups(own, recorded, work)
    present = recorded.present(own)
    lines = () if recorded.here == present else (_OTHER_FILE,)
    values = _EqualValues(groups, work)
    changes = [values.changes(group.settings, present) for group in groups]
    same = [trial for group, changed in zip(groups, changes, strict=True) if not changed for trial in group.trials]
    typed = _TypedNames(command, own)
    if not same:
        closest = min(reversed(changes), key=len)
        unseen = tuple(sorted(typed.get(name) for name in closest))
        return ComparedTrials(trials=trials, certain=elsewhere, unseen=unseen, lines=lines)
    reference = work.of(same)
    left_out: defaultdict[str, list[Trial]] = defaultdict(list)
    for group, changed in zip(groups, changes, strict=True):
        difference = _difference(work, group.work, reference, changed) if changed else ""
        if difference != "":
            left_out[_left_out_reason(map(typed.get, changed), difference)] += group.trials
    kept = _without(trials, [trial for found in left_out.values() for trial in found])
    found = [f"{count_of_launches(len(found))} left out: {why}" for why, found in left_out.items()]
    if len(found) > _NAMED:
        more = sum(map(len, list(left_out.values())[_NAMED:]))
        found[_NAMED:] = [f"{count_of_launches(more)} left out for other changes of this kind"]
    return ComparedTrials(trials=kept, certain=kept, lines=(*lines, *found))


def differing_settings(trial: Trial, command: PresentCommand, *, keys: Sequence[str]) -> tuple[str, ...] | None:
    """Return the settings, in words, that differ between a command and a recorded launch and may change the work.

    Args:
        trial: as recorded.
        command: the present one.
        keys: of the digests in the trial's store.

    Returns:
        ``None`` where the launch recorded no arguments, or the key of its digests is not among ``keys``.
    """
    recorded = RecordedSettings(command, keys)
    if trial.arguments is None or not recorded.can_compare(trial):
        return None
    typed = _TypedNames(command, [trial])
    differing = _differences(recorded.of(trial), recorded.present([trial]))
    return tuple(_spoken(typed.get(name)) for name in sorted(differing))


def _without(trials: Sequence[Trial], others: Iterable[Trial]) -> Sequence[Trial]:
    left_out = set(map(id, others))
    return [trial for trial in trials if id(trial) not in left_out] if left_out else trials


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Trials with the same settings."""

    settings: Mapping[str, str]
    trials: list[Trial]
    observed: ObservedWork

    @cached_property
    def work(self) -> WorkSummary:
        return self.observed.of(self.trials)

    @cached_property
    def recency(self) -> tuple[float, str]:
        return max(map(recency, self.trials))


class _TypedNames:
    """Names of settings with their flags as typed in the present command, or else in the latest launch that has them.

    Args:
        command: the present one.
        own: trials of the workload.
    """

    def __init__(self, command: PresentCommand, own: Iterable[Trial]) -> None:
        self._typed: dict[str, str] = {}
        for trial in sorted(own, key=recency):
            self._typed |= names_as_typed(trial.arguments or ())
        self._typed |= names_as_typed(command.arguments)

    def get(self, name: str) -> str:
        """Return a name with its flag as typed."""
        flag, colon, key = name.partition(":")
        return f"{self._typed.get(flag, flag)}{colon}{key}"


def _groups(own: Iterable[Trial], recorded: RecordedSettings, work: ObservedWork) -> list[_Group]:
    """Return the trials by their settings, the latest groups last."""
    found: dict[frozenset[tuple[str, str]], _Group] = {}
    for trial in own:
        settings = recorded.of(trial)
        key = frozenset(settings.items())
        found.setdefault(key, _Group(settings=settings, trials=[], observed=work)).trials.append(trial)
    return sorted(found.values(), key=lambda group: group.recency)


def _is_known(name: str, settings: Mapping[str, str]) -> bool:
    """Return whether the absence of a setting in a launch is known to be one."""
    if name in settings or (is_of_program(name) and name != PROGRAM):
        return name in settings or PROGRAM in settings
    if name.startswith("$"):
        return TEXTS_KNOWN in settings
    return ":" not in name and name != PROGRAM


def _differences(one: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
    """Return the names of the settings in which two launches differ, as far as both are known."""
    files = [{name.partition(":")[0] for name in each if ":" in name} for each in (one, other)]
    named = {name for name in {**one, **other} if one.get(name) != other.get(name)}

    def is_known(name: str) -> bool:
        flag = name.partition(":")[0]
        if flag == PROGRAM:
            return flag in one and flag in other
        if name.startswith("$"):
            return name != TEXTS_KNOWN and TEXTS_KNOWN in one and TEXTS_KNOWN in other
        if ":" in name:
            return flag in files[0] and flag in files[1]
        return not (flag in files[0] and flag in files[1])  # the path does not matter if the contents are known

    return set(filter(is_known, named))


def _difference(work: ObservedWork, one: WorkSummary, other: WorkSummary, names: Iterable[str]) -> str | None:
    """Return the difference of two works whose settings differ in ``names``, as ``ObservedWork`` does."""
    found = work.difference(one, other)
    if found == "" and not (one.is_counted and other.is_counted) and any(map(_is_size, names)):
        return "steps alone were counted, which do not tell it"
    return found


def _is_size(name: str) -> bool:
    """Return whether a setting is named as a size of the batch or of a sample.

    >>> [_is_size(name) for name in ("--train.batch-size", "$BSZ", "program:--seq_len", "--workers")]
    [True, True, True, False]
    """
    return standard_flag_name(name.rpartition(":")[2].strip("$")) in BATCH_FLAGS | IN_BATCH | WORKLOAD_SIZES


class _EqualValues:
    """Values of each setting with which launches did the same work (equivalence classes, by union-find).

    Two values are of one class if launches that differ in nothing else did the same work. Two changes at once show
    nothing, because they could cancel each other out. A new value is of the class of the latest one, if the last change
    of its setting stayed in one class.

    Args:
        groups: launches, the latest group last.
        work: compares what was observed of them.
    """

    def __init__(self, groups: Sequence[_Group], work: ObservedWork) -> None:
        self._parents: dict[tuple[str, str | None], tuple[str, str | None]] = {}
        self._latest: dict[str, list[str | None]] = {}
        for name in {name for group in groups for name in group.settings}:
            used = dict.fromkeys(
                group.settings.get(name) for group in reversed(groups) if _is_known(name, group.settings)
            )
            self._latest[name] = list(used)
        latest = [*reversed(groups)][:_MOST_PAIRED]
        pairs = [
            (one, other)
            for one, other in combinations(latest, 2)
            if _difference(work, one.work, other.work, _differences(one.settings, other.settings)) == ""
        ]
        while joined := [pair for pair in pairs if len(self._between(pair[0].settings, pair[1].settings)) == 1]:
            for one, other in joined:
                for name in self._between(one.settings, other.settings):
                    self._parents[self._root(name, one.settings.get(name))] = self._root(name, other.settings.get(name))

    def changes(self, earlier: Mapping[str, str], present: Mapping[str, str]) -> set[str]:
        """Return the settings of the present command that may make its work another than that of an earlier one."""
        return {
            name
            for name in _differences(earlier, present)
            if self._root(name, earlier.get(name)) != self._root_of_present(name, present.get(name))
        }

    def _between(self, one: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
        differing = _differences(one, other)
        return {name for name in differing if self._root(name, one.get(name)) != self._root(name, other.get(name))}

    def _root(self, name: str, value: str | None) -> tuple[str, str | None]:
        root = (name, value)
        while (parent := self._parents.get(root, root)) != root:
            root = parent
        return root

    def _root_of_present(self, name: str, value: str | None) -> tuple[str, str | None]:
        latest = self._latest.get(name, [])
        if value not in latest and len(latest) > 1 and has_same_key(*latest[:2]):
            last, before = (self._root(name, each) for each in latest[:2])
            if last == before:
                return last
        return self._root(name, value)


def _left_out_reason(names: Iterable[str], difference: str | None) -> str:
    why = difference or "too little was observed to tell whether the work was the same"
    return f"another value of {_listed([_spoken(name) for name in sorted(names)])}, and {why}"


def _spoken(name: str) -> str:
    """Return the name of a setting as a user knows it."""
    if name == PROGRAM:
        return "the program's file"
    flag, colon, key = name.partition(":")
    if flag == PROGRAM:
        return f"the default of {key}" if key.startswith("-") else f"{key} in the program's file"
    return f"{key} in the file of {flag}" if colon and key != "*" else f"the file of {flag}" if colon else name


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def _example(names: Sequence[str]) -> str:
    flag = next((name for name in names if name.startswith("--") and ":" not in name), "")
    return f': {re.sub(r"[.-]", "_", flag.strip("-"))} = {{ flag = "{flag}" }}' if flag else ""
