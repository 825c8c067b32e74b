"""Cache of the suggestion for one command, for the next launch of the same command.

A cached suggestion is valid, under the same predictor chosen for the store,

- while the store contains the same objects, which are never rewritten;
- while the workload itself has no new results and the number of trials of all workloads has grown by at most a
  twentieth: single trials of other workloads change a prediction little, and the gain was true of the earlier trials.

It contains positions in the user's own lists of choices, numbers, and texts for display; none of it is a word of a
command. Readers check it against the user's rules again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from torchx_cubicml.errors import CubicMLError
from torchx_cubicml.records.json_fields import items_of, number_of, object_of, text_of, texts_of, whole_number_of
from torchx_cubicml.records.objective_units import OBJECTIVES
from torchx_cubicml.records.suggestion import Suggestion
from torchx_cubicml.space.spelling import same_value
from torchx_cubicml.store.file_cache import code_stamp, read_cache, write_cache
from torchx_cubicml.store.fingerprint import fingerprint_from_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from torchx_cubicml.history.history import History
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Value, Workload
    from torchx_cubicml.store.fingerprint import Fingerprint

FORMAT = 3
_MOST_COMMANDS = 256
_GROWTH = 0.05
_MOST_TEXT = 4096
_MOST_LINES = 16
_PARTS = "time_to_done"
# ``nearest`` and ``round_number`` are only for lists of suggestions: not cached
_NO_NUMBERS = ("config", "reason", "n_trials", "n_baseline", "objective", "time_to_done", "round_number", "nearest")
_NUMBERS = tuple(item.name for item in fields(Suggestion) if item.name not in _NO_NUMBERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedSuggestion:
    """Suggestion for one command, with the state of the store that it was computed from.

    Args:
        suggestion: the suggestion; ``None`` if no launch of the workload was measured.
        store: fingerprint of the store's objects.
        shown: digest of the results of the workload's own trials.
        n_trials: number of trials of all workloads.
        predictor: name of the predictor chosen for the store.
        n_launched: number of launches of the workload, those in flight included.
        unseen: see ``History``.
        unsure: why a config that measured faster is not chosen, see ``unsure_gain``; empty if none is.
        kept: see ``History``.
        folders: digests of the folders in which launches of the program saved checkpoints.
        lines: advice on the workload's trials.
        warnings: warnings about parts of the store that could not be read.
    """

    suggestion: Suggestion | None
    store: Fingerprint
    shown: str
    n_trials: int
    n_launched: int
    predictor: str = ""
    unseen: str = ""
    unsure: str = ""
    kept: Workload = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def stands(self, *, shown: str, n_trials: int, predictor: str) -> bool:
        """Return whether the suggestion is still valid although the store's objects have changed."""
        unchanged = shown == self.shown and predictor == self.predictor
        return unchanged and self.n_trials <= n_trials <= (1 + _GROWTH) * self.n_trials


def cache_path(folder: Path, case: History, url: str) -> Path:
    """Return the path of a command's cached suggestion below the folder of caches."""
    key = [FORMAT, code_stamp(), url, _plain(case.space), _plain(case.workload), _plain(case.current)]
    key.append(case.command.identity())
    return folder / "suggestions" / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]}.json"


def save(path: Path, cached: CachedSuggestion, case: History) -> None:
    """Save a suggestion for the next launch of the same command."""
    try:
        suggestion = None if cached.suggestion is None else _suggestion_to_json(cached.suggestion, case)
    except CubicMLError:  # its config has values that are not in the lists of choices
        return
    most = {"lines": cached.lines[:_MOST_LINES], "warnings": cached.warnings[:_MOST_LINES]}
    payload = {item.name: getattr(cached, item.name) for item in fields(cached)} | most | {"suggestion": suggestion}
    write_cache(path, payload, most=_MOST_COMMANDS)


def load(path: Path, case: History) -> CachedSuggestion | None:
    """Load a cached suggestion; ``None`` if there is none, or its file is damaged."""
    payload = read_cache(path)
    try:
        return None if payload is None else _from_json(payload, case)
    except (CubicMLError, LookupError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def digest(trials: Iterable[Trial]) -> str:
    """Return a digest of trials that does not depend on their order."""
    texts_of: dict[int, tuple[Mapping[str, Value], str]] = {}  # keeps each mapping alive, so that its id stays unique

    def text_of(facts: Mapping[str, Value]) -> str:
        if id(facts) not in texts_of:
            texts_of[id(facts)] = facts, repr(sorted(facts.items()))
        return texts_of[id(facts)][1]

    texts = [
        f"{item.trial_id!r} {item.state} {item.attempts} {item.started_at!r} {item.ended_at!r} {item.measurement}"
        f"{text_of(item.workload)}{text_of(item.config)}{text_of(item.observed)}"
        for item in trials
    ]
    return hashlib.sha256("\n".join(sorted(texts)).encode(errors="surrogatepass")).hexdigest()


def _from_json(payload: Mapping[str, object], case: History) -> CachedSuggestion:
    def lines(name: str) -> tuple[str, ...]:
        return texts_of(payload[name], name, most=_MOST_LINES, most_characters=_MOST_TEXT)

    suggestion = payload["suggestion"]
    return CachedSuggestion(
        suggestion=None if suggestion is None else _suggestion(suggestion, case),
        store=fingerprint_from_json(payload["store"]),
        shown=_text(payload, "shown"),
        n_trials=_count(payload, "n_trials"),
        n_launched=_count(payload, "n_launched"),
        predictor=_text(payload, "predictor"),
        unseen=_text(payload, "unseen"),
        unsure=_text(payload, "unsure"),
        kept={name: whole_number_of(value, name) for name, value in object_of(payload["kept"], "kept").items()},
        folders=texts_of(payload["folders"], "folders"),
        lines=lines("lines"),
        warnings=lines("warnings"),
    )


def _text(payload: Mapping[str, object], name: str) -> str:
    return text_of(payload[name], name, most=_MOST_TEXT)


def _count(payload: Mapping[str, object], name: str) -> int:
    return whole_number_of(payload[name], name)


def _suggestion_to_json(suggestion: Suggestion, case: History) -> dict[str, object]:
    numbers = {name: getattr(suggestion, name) for name in _NUMBERS}
    parts = {} if suggestion.time_to_done is None else {_PARTS: dict(suggestion.time_to_done)}
    counts = {"n_trials": suggestion.n_trials, "n_baseline": suggestion.n_baseline}
    others = {"reason": suggestion.reason[:_MOST_TEXT], "choices": _choices(suggestion.config, case)}
    return {**numbers, **counts, **parts, **others}


def _choices(config: Config, case: History) -> list[int] | None:
    """Return a config as positions in the user's lists of choices; ``None`` for the user's own config."""
    if all(name in case.current and same_value(value, case.current[name]) for name, value in config.items()):
        return None
    bound = case.frozen_space.without_rules().bind(workload=case.workload, current=case.current)
    return list(bound.encode(config))


def _suggestion(payload: object, case: History) -> Suggestion:
    if not isinstance(payload, dict):
        raise TypeError("a suggestion is an object")
    numbers = {name: None if payload[name] is None else number_of(payload[name], name) for name in _NUMBERS}
    probability, doubt = numbers.pop("probability_to_fit"), numbers.pop("doubt")
    if doubt is None or probability is None or probability > 1:
        raise ValueError("a probability is at most 1")
    for low, middle, high in (("low", "throughput", "high"), ("gain_low", "gain", "gain_high")):
        if not (numbers[low] or 0.0) <= (numbers[middle] or 0.0) <= (numbers[high] or 0.0):
            raise ValueError("an interval holds its middle")
    return Suggestion(
        config=_config(payload, "choices", case),
        probability_to_fit=probability,
        doubt=doubt,
        n_trials=_count(payload, "n_trials"),
        n_baseline=_count(payload, "n_baseline"),
        reason=_text(payload, "reason"),
        objective=None if case.space.objective in OBJECTIVES else case.space.objective,
        time_to_done=_parts(payload.get(_PARTS)),
        nearest=(),
        throughput=numbers["throughput"],
        low=numbers["low"],
        high=numbers["high"],
        baseline_throughput=numbers["baseline_throughput"],
        gain=numbers["gain"],
        gain_low=numbers["gain_low"],
        gain_high=numbers["gain_high"],
    )


def _parts(payload: object) -> dict[str, float] | None:
    if payload is None:
        return None
    return {name: number_of(each, name) for name, each in object_of(payload, _PARTS).items()}


def _config(payload: Mapping[str, object], name: str, case: History) -> Config:
    if payload[name] is None:
        return case.current
    choices = [whole_number_of(index, name) for index in items_of(payload[name], name)]
    config = case.frozen_space.without_rules().bind(workload=case.workload, current=case.current).decode(choices)
    if config is None:
        raise ValueError("the config is not legal")
    return config


def _plain(value: object) -> object:
    """Return canonical JSON values: equal records give equal values, whatever the order of their sets and mappings."""
    if dataclasses.is_dataclass(value):
        compared = (item.name for item in fields(value) if item.compare)
        return [type(value).__name__, *(_plain(getattr(value, name)) for name in compared)]
    if isinstance(value, dict):
        return sorted([str(name), _plain(item)] for name, item in value.items())
    if isinstance(value, set | frozenset):
        return sorted(str(item) for item in value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return [type(value).__name__, str(value)]
