"""Comparison of a command with those of earlier launches: what is new in it, and which launches did the same work.

A word of the command (a flag with its value, an argument, an environment variable, a key of a config file, the content
of the program's file) that the space file does not declare may change the work of a step. Three things tell:

1. a table of names that are harmless, such as seeds, folders, learning rates and step counts (``harmless_words``);
2. the history: a word whose last change left the observed work as it was is harmless;
3. what was observed of a launch with the present words. Launches whose observed work differs from it are left out.

A launch whose words none of these covers is another job until it has run: it runs as typed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING

from torchx_cubicml.launch.bindings.argv import negations
from torchx_cubicml.launch.command_texts import LAUNCHED, PROGRAM, command_texts, program_digest, program_path
from torchx_cubicml.records.argument_words import argument_words
from torchx_cubicml.records.arguments import digested_arguments, is_keyed, text_digest
from torchx_cubicml.records.harmless_words import is_harmless
from torchx_cubicml.records.standard_names import WORKLOAD_SIZES
from torchx_cubicml.records.trial import Origin
from torchx_cubicml.records.workload import is_informative, is_same_workload, recency, value_key
from torchx_cubicml.space import BindingKind

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from torchx_cubicml.launch import Launch
    from torchx_cubicml.records.trial import Config, Trial, Value, Workload
    from torchx_cubicml.space import Binding, SearchSpace

_MACRO = "${"  # of TorchX or torchrun: the program receives another text
_TEXTS_KNOWN = "$"  # word of a launch that recorded the texts beside its arguments
_SIZES = tuple(sorted({*WORKLOAD_SIZES, "n_params", "n_trainable_params", "n_experts", "n_active_experts"}))
_TOLERANCE = 0.02  # relative, of a size: padding to shards varies with the config
_OF_CONFIG = (
    *("precision", "float8_modules", "compile", "activation_checkpointing", "checkpointed_modules", "cpu_offload"),
    *("optimizer", "optimizer_fused", "optimizer_foreach", "sharding_strategy", "root_sharding_strategy"),
    *("micro_batch_size", "gradient_accumulation_steps", "global_batch_size", "dp_degree", "tp_degree", "pp_degree"),
)
"""Observed facts that two launches with the same config share if they do the same work."""
_SPEED_RATIO = 1.5  # of two launches with the same config, from which a slow node does not explain the difference
_MEMORY_RATIO = {"cpu": 1.3}  # likewise, of the peak memory of one process
_DEVICE_MEMORY_RATIO = 1.1
_MOST_GROUPS = 40  # different commands that are compared with each other: the latest
_NAMED = 3  # words that a message names
_OTHER_FILE = "the script here differs from the one in the job: that of the latest launch of it is compared"


@dataclass(frozen=True)
class PresentCommand:
    """Command of the present launch, in texts. They are compared as digests and kept nowhere.

    Args:
        arguments: of the program.
        texts: other texts by name, as ``command_texts`` gives them.
        declared: names of the words that the space file declares.
        redirected: names of the words that profiling launches change.
    """

    arguments: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    declared: frozenset[str] = frozenset()
    redirected: frozenset[str] = frozenset()

    @classmethod
    def of(cls, launch: Launch, space: SearchSpace, *, variables: Iterable[str] = ()) -> PresentCommand:
        """Return the command of a launch.

        Args:
            launch: command as typed.
            space: its bindings declare words.
            variables: names of environment variables, as ``recorded_variables`` gives them.
        """
        texts = command_texts(
            program_path(launch.program, is_module=launch.is_module),
            launch.script_args,
            variables=variables,
            environment=launch.env,
        )
        bindings = [item.binding for item in space.parameters] + [fact.binding for fact in space.workload]
        tune = space.tune
        files = {f":{'.'.join(key)}" for keys in tune.files.values() for key in keys}
        return cls(
            arguments=launch.script_args,
            texts=texts,
            declared=frozenset(name for binding in bindings if binding for name in _names_of(binding)),
            redirected=frozenset({*argument_words([*tune.args]), *(f"${name}" for name in tune.env), *files}),
        )

    @cached_property
    def unknown(self) -> frozenset[str]:
        """Names of words whose texts the launcher fills in later."""
        words = {**argument_words(self.arguments), **self.texts}
        return frozenset(name for name, text in words.items() if name != PROGRAM and _MACRO in text)

    def words(self, key: str) -> dict[str, str]:
        """Return the words by name, as digests under a key; see ``digested_arguments``."""
        digests = {name: text_digest(text, key) for name, text in self.texts.items()} if key else {}
        return {
            **argument_words(digested_arguments(self.arguments, key)),
            **digests,
            **({_TEXTS_KNOWN: ""} if key else {}),
        }

    def as_in_job(self, own: Iterable[Trial], key: str) -> dict[str, str]:
        """Return the words by name, with the program's file as the job of the latest launch of the same file found it.

        Launcher and job may read two files: another checkout, or an image.

        Args:
            own: trials of the workload.
            key: key of the store's digests.
        """
        words, digest = self.words(key), program_digest(self.texts)
        launched = text_digest(digest, key) if digest and key else None
        same = [trial for trial in own if trial.digests and launched and trial.digests.get(LAUNCHED) == launched]
        if not same:
            return words
        found = max(same, key=recency).digests or {}
        others = {name: value for name, value in words.items() if not _is_of_program(name)}
        return others | {name: value for name, value in found.items() if _is_of_program(name)}

    def ignores(self, name: str, origin: Origin | None = None) -> bool:
        """Return whether a word of this name never tells two works apart."""
        key = f":{name.rpartition(':')[2]}"
        named = {name, key} if ":" in name else {name}
        if named & self.declared or name in self.unknown or is_harmless(name):
            return True
        return origin is Origin.TUNE and bool(named & self.redirected)

    def identity(self) -> list[list[str]]:
        """Return the words that may tell two works apart, for the name of a cache file."""
        words = {**argument_words(self.arguments), **self.texts}
        return sorted([name, text] for name, text in words.items() if not self.ignores(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTrials:
    """Trials that did the work of the present command, as far as known.

    Args:
        trials: of all workloads, without those of the workload that did other work.
        unseen: words that make the present command another job until it has run; empty where there are none.
        lines: reasons why trials were left out, one line each.
    """

    trials: list[Trial]
    unseen: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Reason why the present command runs as typed; empty where there is none."""
        if not self.unseen:
            return ""
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


def compared_trials(
    trials: Sequence[Trial], command: PresentCommand, *, space: SearchSpace, workload: Workload, key: str
) -> ComparedTrials:
    """Leave out the trials of the workload that did other work than the present command.

    Args:
        trials: of all workloads, in the terms of the space.
        command: the present one.
        space: the search space; observed facts of its parameters tell no works apart.
        workload: facts of the present launch.
        key: key of the store's digests; empty where it has none.
    """
    own = [trial for trial in trials if is_same_workload(trial, workload) and is_informative(trial)]
    groups = _groups(own, command, key)
    if not groups:
        return ComparedTrials(trials=list(trials))
    work = _ObservedWork(space)
    here, present = (
        {name: value for name, value in words.items() if not command.ignores(name)}
        for words in (command.words(key), command.as_in_job(own, key))
    )
    lines = () if here == present else (_OTHER_FILE,)
    values = _EqualValues(groups, work)
    changes = {id(group): values.changes(group.words, present) for group in groups}
    same = [group for group in groups if not changes[id(group)]]
    if not same:
        closest = min(groups, key=lambda group: (len(changes[id(group)]), -group.recency[0]))
        return ComparedTrials(trials=list(trials), unseen=tuple(sorted(changes[id(closest)])), lines=lines)
    reference = [trial for group in same for trial in group.trials]
    left_out: defaultdict[str, list[Trial]] = defaultdict(list)
    for group in groups:
        difference = work.difference(group.trials, reference) if changes[id(group)] else ""
        if difference != "":
            left_out[_left_out_reason(changes[id(group)], difference)] += group.trials
    others = {id(trial) for found in left_out.values() for trial in found}
    return ComparedTrials(
        trials=[trial for trial in trials if id(trial) not in others],
        lines=(
            *lines,
            *(f"{_launches(len(found))} left out: {why}" for why, found in list(left_out.items())[:_NAMED]),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Trials with the same words."""

    words: Mapping[str, str]
    trials: list[Trial]

    @property
    def recency(self) -> tuple[float, str]:
        return max(map(recency, self.trials))


def _groups(own: Iterable[Trial], command: PresentCommand, key: str) -> list[_Group]:
    """Return the trials with known words by their words, the latest groups last."""
    keyed, plain = command.words(key), command.words("")
    found: dict[frozenset[tuple[str, str]], _Group] = {}
    for trial in own:
        if trial.arguments is None:
            continue
        words = argument_words(trial.arguments)
        if key and not is_keyed(trial.arguments):  # a record of an earlier release
            words = {name: keyed[name] if value == plain.get(name) else value for name, value in words.items()}
        words |= {} if trial.digests is None else {**trial.digests, _TEXTS_KNOWN: ""}
        words = {
            name: value for name, value in words.items() if name != LAUNCHED and not command.ignores(name, trial.origin)
        }
        group = found.setdefault(frozenset(words.items()), _Group(words=words, trials=[]))
        group.trials.append(trial)
    return sorted(found.values(), key=lambda group: group.recency)[-_MOST_GROUPS:]


def _is_of_program(name: str) -> bool:
    return name.partition(":")[0] == PROGRAM


def _is_known(name: str, words: Mapping[str, str]) -> bool:
    """Return whether the absence of a word in a launch is known to be one."""
    family = name.partition(":")[0]
    if name in words or (family == PROGRAM and ":" in name):
        return name in words or PROGRAM in words
    if name.startswith("$"):
        return _TEXTS_KNOWN in words
    return ":" not in name and name != PROGRAM


def _differences(one: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
    """Return the names of the words in which two launches differ, as far as both are known."""
    files = [{name.partition(":")[0] for name in words if ":" in name} for words in (one, other)]
    named = {name for name in {**one, **other} if one.get(name) != other.get(name)}

    def is_known(name: str) -> bool:
        flag = name.partition(":")[0]
        if flag == PROGRAM:
            return flag in one and flag in other
        if name.startswith("$"):
            return name != _TEXTS_KNOWN and _TEXTS_KNOWN in one and _TEXTS_KNOWN in other
        if ":" in name:
            return flag in files[0] and flag in files[1]
        return not (flag in files[0] and flag in files[1])  # the path does not matter if the contents are known

    return set(filter(is_known, named))


class _EqualValues:
    """Values of each word with which launches did the same work (equivalence classes, by union-find).

    Two values are of one class if launches that differ in nothing else did the same work. Two changes at once show
    nothing, because they could cancel each other out. A new value is of the class of the latest one, if the last change
    of its word stayed in one class.

    Args:
        groups: launches, the latest group last.
        work: compares what was observed of them.
    """

    def __init__(self, groups: Sequence[_Group], work: _ObservedWork) -> None:
        self._parents: dict[tuple[str, str | None], tuple[str, str | None]] = {}
        self._latest: dict[str, list[str | None]] = {}
        for name in {name for group in groups for name in group.words}:
            used = dict.fromkeys(group.words.get(name) for group in reversed(groups) if _is_known(name, group.words))
            self._latest[name] = list(used)
        pairs = [
            pair for pair in combinations(reversed(groups), 2) if work.difference(*(each.trials for each in pair)) == ""
        ]
        while joined := [pair for pair in pairs if len(self._between(pair[0].words, pair[1].words)) == 1]:
            for one, other in joined:
                for name in self._between(one.words, other.words):
                    self._parents[self._root(name, one.words.get(name))] = self._root(name, other.words.get(name))

    def changes(self, earlier: Mapping[str, str], present: Mapping[str, str]) -> set[str]:
        """Return the words of the present command that may make its work another than that of an earlier one."""
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
        if value not in latest and len(latest) > 1:
            last, before = (self._root(name, each) for each in latest[:2])
            if last == before:
                return last
        return self._root(name, value)


class _ObservedWork:
    """Work of launches, as it was observed.

    Args:
        space: facts that its parameters set are no sign of other work.
    """

    def __init__(self, space: SearchSpace) -> None:
        tuned = {name for item in space.parameters for name in (item.name, item.observed_as) if name}
        self._sizes = tuple(name for name in _SIZES if name not in tuned)
        self._objective = space.objective
        self._known: dict[tuple[int, ...], str | None] = {}

    def difference(self, one: Sequence[Trial], other: Sequence[Trial]) -> str | None:
        """Return a difference between the work of two groups, in words.

        Empty if they did the same work; ``None`` if too little was observed to tell.
        """
        key = (*map(id, one), 0, *map(id, other))
        if key not in self._known:
            self._known[key] = self._compared(one, other)
        return self._known[key]

    def _compared(self, one: Sequence[Trial], other: Sequence[Trial]) -> str | None:
        for name in self._sizes:
            first, second = _latest(one, name), _latest(other, name)
            if first is None or second is None:
                continue
            if not _about_equal(first, second):
                return f"{name} was {first}, not {second}"
        is_paired = False
        for of_one, of_other in _pairs(one, other):
            if difference := self._of_one_config(of_one, of_other):
                return difference
            is_paired = is_paired or all(any(trial.measurement for trial in each) for each in (of_one, of_other))
        return "" if is_paired else None

    def _of_one_config(self, one: Sequence[Trial], other: Sequence[Trial]) -> str:
        for name in _OF_CONFIG:
            first, second = _latest(one, name), _latest(other, name)
            if first is not None and second is not None and not _about_equal(first, second):
                return f"{name} was {first}, not {second}"
        speeds = [self._median(each, "speed") for each in (one, other)]
        if _ratio(*speeds) > _SPEED_RATIO:
            return "the same config had another speed"
        device = str(_latest(other, "device") or "")
        limit = _MEMORY_RATIO.get(device, _DEVICE_MEMORY_RATIO)
        if _ratio(*(self._median(each, "memory") for each in (one, other))) > limit:
            return "the same config needed another amount of memory"
        return ""

    def _median(self, trials: Iterable[Trial], what: str) -> float | None:
        measured = [trial.measurement for trial in trials if trial.measurement is not None]
        values = [each.peak_gib if what == "memory" else each.throughput(self._objective) for each in measured]
        found = [value for value in values if value is not None]
        return median(found) if found else None


def _pairs(one: Iterable[Trial], other: Iterable[Trial]) -> Iterator[tuple[list[Trial], list[Trial]]]:
    """Yield the trials of each config that both groups have."""
    first, second = _by_config(one), _by_config(other)
    yield from ((first[key], second[key]) for key in first if key in second)


def _by_config(trials: Iterable[Trial]) -> dict[Hashable, list[Trial]]:
    found: dict[Hashable, list[Trial]] = {}
    for trial in trials:
        found.setdefault(_key(trial.config), []).append(trial)
    return found


def _key(config: Config) -> Hashable:
    return frozenset((name, value_key(value)) for name, value in config.items())


def _latest(trials: Iterable[Trial], name: str) -> Value | None:
    observing = [trial for trial in trials if name in trial.observed]
    return max(observing, key=recency).observed[name] if observing else None


def _about_equal(one: Value, other: Value) -> bool:
    if isinstance(one, bool | str | tuple) or isinstance(other, bool | str | tuple):
        return value_key(one) == value_key(other)
    return abs(one - other) <= _TOLERANCE * max(abs(one), abs(other))


def _ratio(one: float | None, other: float | None) -> float:
    return 1.0 if not one or not other else math.exp(abs(math.log(one / other)))


def _names_of(binding: Binding) -> Iterator[str]:
    beside = [flag for _, companions in binding.companions for flag, _ in companions]
    if binding.key:
        yield f":{'.'.join(binding.key)}"
    if binding.kind == BindingKind.ENV:
        yield f"${binding.name}"
    elif binding.kind == BindingKind.FLAG:
        for name in (binding.name, *binding.aliases, *beside):
            yield from argument_words([name if not name.endswith("=") else f"{name}0"])
            for negated in negations(name):
                yield from argument_words([negated])


def _left_out_reason(names: Iterable[str], difference: str | None) -> str:
    why = difference or "too little was observed to tell whether the work was the same"
    return f"another value of {_listed([_spoken(name) for name in sorted(names)])}, and {why}"


def _launches(count: int) -> str:
    return f"{count} launch{'es' if count > 1 else ''}"


def _spoken(name: str) -> str:
    """Return the name of a word as a user knows it."""
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
    return f': {flag.strip("-").replace(".", "_")} = {{ flag = "{flag}" }}' if flag else ""
