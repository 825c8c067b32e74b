"""Meanings of a command's flags, learnt from the typed arguments and the observed facts of recorded launches.

A flag whose number equals the observed micro batch in launches with several values sets the micro batch. One value
alone may be chance, so it gives a guess.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from torchx_cubicml.history.present_command import PresentCommand, RecordedSettings
from torchx_cubicml.history.same_training import kept_batch
from torchx_cubicml.launch.launch import workload_of
from torchx_cubicml.launch.source_files import nodes_of
from torchx_cubicml.records.argument_words import argument_words, with_underscores
from torchx_cubicml.records.arguments import restored_arguments
from torchx_cubicml.records.standard_names import ACCUMULATION, GLOBAL_BATCH, MICRO_BATCH, STANDARD_WORDS
from torchx_cubicml.records.workload import is_same_program, recency
from torchx_cubicml.space.spelling import number, switch_value

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

    from torchx_cubicml.cli.starter.meanings import ScriptFlag
    from torchx_cubicml.launch import Launch
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Value

_COUNTS = (MICRO_BATCH, ACCUMULATION, "tp_degree", "pp_degree", "cp_degree", GLOBAL_BATCH)
_WORDS = ("sharding_strategy", "activation_checkpointing", "precision")
_SWITCHES = ("activation_checkpointing", "compile")
_MAX_LAUNCHES = 100  # the latest ones
_LONGEST_WORD = 64
_MAX_LISTED = 8  # values in a comment
_FEWEST_TO_KNOW = 2  # values, each of which fits

Shown: TypeAlias = "tuple[Mapping[str, str], Mapping[str, Value]]"
"""Typed words of one launch by the name of their flag, and its observed facts."""

Pair: TypeAlias = "tuple[Hashable, Hashable]"
"""Value of a flag, and the observed value of a fact, in one launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLaunches:
    """Recorded launches of the program of a command, in the order of their ends.

    Args:
        trials: their records.
        keys: of the store's digests.
        is_alone: whether the command has one rank.
    """

    trials: tuple[Trial, ...] = ()
    keys: tuple[str, ...] = ()
    is_alone: bool = False

    @classmethod
    def of(cls, launch: Launch, trials: Iterable[Trial], keys: Sequence[str] = ()) -> RecordedLaunches:
        """Return the latest launches of the command's program that recorded their arguments and observed facts."""
        workload = workload_of(launch)
        own = (trial for trial in trials if is_same_program(trial, workload))
        found = [trial for trial in own if trial.arguments is not None and trial.observed]
        latest = tuple(sorted(found, key=recency)[-_MAX_LAUNCHES:])
        return cls(trials=latest, keys=tuple(keys), is_alone=launch.world_size == 1)

    def kept_batch(self, name: str) -> int | None:
        """Return the global batch size that the script keeps whatever a flag, the micro batch; see ``kept_batch``."""
        settings = RecordedSettings(PresentCommand(declared=frozenset(argument_words([name]))), self.keys)
        configs = ({**settings.of(each), "": each.fact("world_size") or 0} for each in self.trials)
        trials = [replace(each, config=config) for each, config in zip(self.trials, configs, strict=True)]
        return next(iter(kept_batch(trials, current={MICRO_BATCH: 1}).values()), None)


def with_launch_meanings(
    flags: Sequence[ScriptFlag], launches: RecordedLaunches, trees: Iterable[ast.Module]
) -> list[ScriptFlag]:
    """Return the flags, those without a meaning with the one that launches show.

    A name that tells the micro batch or the accumulation counts for nothing where each launch shows a smaller number,
    as of a batch that the script divides among its ranks.

    Args:
        flags: of the command and its script.
        launches: of the same program.
        trees: of the program's source; its texts tell recorded words.
    """
    if not launches.trials:
        return list(flags)
    shown = _shown(launches, _texts(flags, trees))
    checked = [_without_refuted(_without_resizing(flag, shown), shown) for flag in flags]
    checked = [
        replace(each, kept=launches.kept_batch(each.name)) if each.meaning == MICRO_BATCH else each for each in checked
    ]
    taken = {flag.meaning for flag in checked if flag.meaning}
    # Of launches on one rank without accumulation, the micro batch is the global batch.
    is_global = all(observed.get(MICRO_BATCH) == observed.get(GLOBAL_BATCH) for _, observed in shown)
    for fact in (*_COUNTS, *_WORDS, *_SWITCHES):
        if fact not in taken and (index := _carrier(checked, fact, shown)) is not None:
            flag = _with_meaning(checked[index], fact, shown)
            if fact == MICRO_BATCH and not launches.is_alone and is_global:
                flag = replace(flag, evidence=f"{flag.evidence}, and the global batch size, too", is_guess=True)
            checked[index] = flag
            taken.add(fact)
    return checked


def _texts(flags: Sequence[ScriptFlag], trees: Iterable[ast.Module]) -> set[str]:
    """Return the words that flags may have: the listed, the typed and the standard ones, and those in the source."""
    texts = {text for flag in flags for text in (*flag.choices, flag.value) if text}
    nodes = (node.value for tree in trees for node in nodes_of(tree) if isinstance(node, ast.Constant))
    texts |= {text for text in nodes if isinstance(text, str) and 0 < len(text) <= _LONGEST_WORD}
    return texts.union(*(STANDARD_WORDS[fact] for fact in _WORDS))


def _shown(launches: RecordedLaunches, texts: Collection[str]) -> list[Shown]:
    """Return the words typed and the facts shown by each launch; recorded words among ``texts`` are readable."""
    words = tuple({word for trial in launches.trials for word in trial.arguments or ()})
    readable = dict(zip(words, restored_arguments(words, texts, launches.keys), strict=True))
    return [
        (argument_words([readable[word] for word in trial.arguments or ()]), trial.observed)
        for trial in launches.trials
    ]


def _without_refuted(flag: ScriptFlag, launches: Sequence[Shown]) -> ScriptFlag:
    """Return a flag without the meaning of its name, if each launch that shows that fact shows a smaller number."""
    if flag.meaning not in _COUNTS[:2] or flag.file:
        return flag
    pairs = _pairs(flag, flag.meaning, launches)
    if not pairs or not all(
        isinstance(shown, int) and isinstance(typed, int) and shown < typed for typed, shown in pairs
    ):
        return flag  # a larger one may count rows of flattened samples
    typed, shown = pairs[-1]
    what = flag.meaning.replace("_", " ")
    why = f"{flag.name} is not the {what} in any recorded launch: the latest with {typed} showed {shown}"
    return replace(flag, meaning="", evidence=why)


def _without_resizing(flag: ScriptFlag, launches: Sequence[Shown]) -> ScriptFlag:
    """Return a flag with evidence against an offer, if the number of parameters changed with its value alone."""
    name = with_underscores(flag.name)
    shown = {(words.get(name, flag.default), seen["n_params"]) for words, seen in launches if "n_params" in seen}
    values, counts = ({pair[side] for pair in shown} for side in (0, 1))
    if flag.meaning or not 1 < len(counts) <= len(values) == len(shown):
        return flag
    return replace(flag, evidence=f"In recorded launches, the number of parameters changed with {flag.name}")


def _carrier(flags: Sequence[ScriptFlag], fact: str, launches: Sequence[Shown]) -> int | None:
    """Return the index of the one flag that fits a fact, by the most values; ``None`` where none or several do."""
    fitting: dict[int, int] = {}
    for index, flag in enumerate(flags):
        if not (flag.meaning or flag.destination or flag.file):
            fitting[index] = _n_values(_pairs(flag, fact, launches), fact)
    best = [index for index, count in fitting.items() if count and count == max(fitting.values())]
    return best[0] if len(best) == 1 and _is_told(_pairs(flags[best[0]], fact, launches), fact) else None


def _n_values(pairs: Sequence[Pair], fact: str) -> int:
    """Return the number of values with which a flag fits a fact; 0 where it does not, or one value tells nothing."""
    typed, shown = ({pair[side] for pair in pairs} for side in (0, 1))
    if fact in _COUNTS:
        is_fitting = all(one == other for one, other in pairs) and typed != {1}
        return len(typed) if is_fitting else 0
    if not len(typed) == len(shown) == len(set(pairs)):
        return 0
    if len(typed) < _FEWEST_TO_KNOW and (typed != shown or typed & {False, True}):
        return 0  # another word than the observed one, or a switch
    return len(typed)


def _is_told(pairs: Sequence[Pair], fact: str) -> bool:
    """Return whether a flag that fits a fact may be told to carry it.

    A seed, a size, a name or a switch that turns something off may fit a sharding or recomputation by chance.
    """
    if fact in _COUNTS:
        return True
    if any(isinstance(typed, bool) for typed, _ in pairs):
        return all(typed == shown for typed, shown in pairs)
    return all(number(str(typed)) is None and not str(typed).startswith("~") for typed, _ in pairs)


def _pairs(flag: ScriptFlag, fact: str, launches: Sequence[Shown]) -> list[Pair]:
    """Return the values of a flag and of a fact in each launch that tells both."""
    pairs: list[Pair] = []
    for words, observed in launches:
        value, shown = _typed(flag, fact, words), observed.get(fact)
        if shown is not None and _is_switch(flag, fact):
            shown = shown not in {False, "none"}
        if value is not None and shown is not None and not isinstance(shown, tuple):
            pairs.append((value, shown))
    return pairs


def _typed(flag: ScriptFlag, fact: str, words: Mapping[str, str]) -> Hashable | None:
    """Return the value of a flag in one launch, of the kind of a fact; ``None`` where it is unknown."""
    text = words.get(with_underscores(flag.name), None if flag.is_switch else flag.default)
    if fact in _COUNTS:
        value = number(text) if text else None
        return value if isinstance(value, int) else None
    if not _is_switch(flag, fact):
        return text or None
    if text is None and not flag.is_switch:
        return None  # its default is unknown
    return switch_value(text) if text else text is not None


def _is_switch(flag: ScriptFlag, fact: str) -> bool:
    value = flag.value
    return fact in _SWITCHES and (flag.is_switch or value is None or switch_value(value) is not None)


def _with_meaning(flag: ScriptFlag, fact: str, launches: Sequence[Shown]) -> ScriptFlag:
    pairs = _pairs(flag, fact, launches)
    values = list(dict.fromkeys(pairs))
    is_guess = len(values) < _FEWEST_TO_KNOW
    if fact in _COUNTS:
        texts = [str(value) for value in sorted(value for value, _ in values if isinstance(value, int))]
    else:
        texts = [_pair_text(*pair) for pair in values]
    count = f"{len(pairs)} recorded launch{'es' if len(pairs) > 1 else ''}"
    did = "was" if fact in _COUNTS else "went with"
    listed = ", ".join([*texts[:_MAX_LISTED], *(["..."] if len(texts) > _MAX_LISTED else [])])
    evidence = f"In {count}, {flag.name} {did} the observed {fact.replace('_', ' ')} ({listed})"
    choices = flag.choices
    if fact in _WORDS and not choices and not _is_switch(flag, fact):
        choices = tuple(str(typed) for typed, _ in values)
    return replace(flag, meaning=fact, evidence=evidence, is_guess=is_guess, choices=choices)


def _pair_text(typed: Hashable, shown: Hashable) -> str:
    if isinstance(typed, bool):
        return "on" if typed else "off"
    return str(typed) if typed == shown else f"{typed}: {shown}"
