"""Cached or fresh decision: a launch reuses the last suggestion while it holds, else it reads the store."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError, StoreError
from torchx_cubicml.history.passes import OF_LAUNCH, comparable, passed
from torchx_cubicml.history.same_training import batch_lines
from torchx_cubicml.launch.messages import first_few
from torchx_cubicml.records.redaction import mask
from torchx_cubicml.records.resumption import digested, folders, savers
from torchx_cubicml.records.trial import short_id
from torchx_cubicml.records.workload import expire_lost_trials, is_informative
from torchx_cubicml.rewrite.cache import CachedSuggestion, cache_path, digest, load, save
from torchx_cubicml.rewrite.choice import (
    advise,
    apply_rules,
    earlier_launch,
    explore,
    going_on_line,
    keeps_own,
    other_submission_note,
    resumed_choice,
)
from torchx_cubicml.rewrite.observed_batch import faster_batch_note
from torchx_cubicml.rewrite.rules import ENOUGH_OF_BASELINE, explores, held, measures_baseline
from torchx_cubicml.rewrite.unsure_gain import unsure_gain
from torchx_cubicml.store import TrialStore
from torchx_cubicml.store.deadline import read_with_deadline, within
from torchx_cubicml.store.digest_key import digest_keys
from torchx_cubicml.store.fingerprint import fingerprint_of, refresh_if_unchanged
from torchx_cubicml.store.predictor_choice import latest_choice
from torchx_cubicml.store.url import LOCAL_PROTOCOLS, split_url

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from pathlib import Path

    from torchx_cubicml.history.history import History
    from torchx_cubicml.launch.going_on import ResumeSigns
    from torchx_cubicml.records.suggestion import Suggestion
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.rewrite.choice import Choice
    from torchx_cubicml.space import RewriteRules

_LEAST_S = 0.2  # for the small objects of a store that was read late


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionLimits:
    """Limits of a decision.

    Args:
        read_s: deadline in seconds for reading the store.
        think_s: deadline in seconds for choosing a config.
        cache: folder of the suggestions cached for the next launch; ``None`` for no cache.
    """

    read_s: float
    think_s: float
    cache: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Decision on one launch.

    Args:
        choice: the chosen config; ``None`` if no launch of the workload was measured yet.
        lines: further messages to the user: on the store, the workload's trials, and exploring.
    """

    choice: Choice | None
    lines: tuple[str, ...] = ()


def decide(case: History, signs: ResumeSigns, url: str, *, limits: DecisionLimits, now: datetime) -> Decision:
    """Decide on the config of a launch.

    Args:
        case: command; its trials are read here.
        signs: that the command goes on with an earlier training.
        url: URL of the store.
        limits: limits of the decision.
        now: present time, see ``explore``.

    Raises:
        StoreError: the store cannot be read, or not in time.
        SpaceError: see ``advise``.
        LaunchError: see ``apply_rules``; or choosing took too long.
    """
    path = cache_path(limits.cache, case, url) if limits.cache is not None else None
    cached = load(path, case) if path is not None else None
    if (
        path is not None
        and cached is not None
        and (unchanged := _unchanged(cached, case, signs, url, limits)) is not None
    ):
        if unchanged != cached:
            save(path, unchanged, case)
        return _decision(unchanged, case)
    started = time.monotonic()
    reading = read_with_deadline(url, deadline_s=limits.read_s, cache=limits.cache)

    def left() -> DecisionLimits:
        return replace(limits, read_s=max(started + limits.read_s - time.monotonic(), _LEAST_S))

    keys = _digest_keys(url, left())
    case = replace(case, trials=reading.trials, predictor=_chosen_predictor(url, left()), keys=keys)
    lines: tuple[str, ...] = ()
    goes_on, earlier = earlier_launch(case, signs)
    if goes_on:
        path = cached = None  # they are of launches that begin anew
        resumed = resumed_choice(case, earlier)
        lines = (going_on_line(case, signs, earlier, case.current if resumed is None else resumed.config),)
        if resumed is not None:
            return Decision(choice=resumed, lines=(*first_few(reading.warnings), *lines))
        case = replace(case, held=held(case.space, goes_on=True))
    chosen, explored, note = within(
        limits.think_s, lambda: _choose(passed(case, *OF_LAUNCH), cached, now, reading.trials), what="choosing a config"
    )
    saved_in = {folder for trial in savers(reading.trials, case.workload) for folder in folders(trial)}
    fresh = replace(
        chosen,
        store=fingerprint_of(reading.directories),
        warnings=reading.warnings,
        folders=tuple(sorted(saved_in)),
        lines=(*lines, *chosen.lines),
    )
    if path is not None:
        save(path, fresh, case)
    if explored is not None:
        return Decision(choice=explored, lines=(*first_few(fresh.warnings), *fresh.lines, note))
    return _decision(fresh, case, note=note)


def typed_over_lines(case: History, signs: ResumeSigns, url: str, *, limits: DecisionLimits) -> tuple[str, ...]:
    """Return a warning if a launch that stays as typed goes on with a training of another config.

    Raises:
        CubicMLError: see ``decide``.
    """
    if split_url(url)[0] not in LOCAL_PROTOCOLS:  # a launch that is only recorded waits for no network
        return ()
    reading = read_with_deadline(url, deadline_s=limits.read_s, cache=limits.cache)
    case = replace(case, trials=reading.trials, keys=_digest_keys(url, limits))
    _, earlier = earlier_launch(case, signs)
    choice = resumed_choice(case, earlier)
    if choice is None:
        return ()
    differing = (f"{name} {value}" for name, value in choice.config.items() if value != case.current.get(name))
    ran = f"goes on from launch {short_id(choice.resumes)}, which ran with {', '.join(differing)}"
    return (f"{ran}; this launch runs as typed all the same",)


def _choose(
    case: History, cached: CachedSuggestion | None, now: datetime, recorded: Sequence[Trial]
) -> tuple[CachedSuggestion, Choice | None, str]:
    """Return the cached suggestion if it still holds, else a fresh one; the config to explore, if any; and a note."""
    if not case.is_measured:
        unknown = CachedSuggestion(suggestion=None, store={}, shown="", n_trials=len(case.trials), n_launched=0)
        return replace(unknown, predictor=case.predictor, lines=case.notes), None, ""
    explored, note = explore(case, now=now)
    expired = replace(case, trials=expire_lost_trials(case.trials, case.workload))
    own = replace(case, trials=[*filter(is_informative, expired.own)])
    shown = digest(own.trials)
    if cached is not None and cached.stands(shown=shown, n_trials=len(case.trials), predictor=case.predictor):
        return replace(cached, n_launched=len(case.own)), explored, note
    suggestion = advise(case)
    fresh = CachedSuggestion(
        suggestion=suggestion,
        store={},
        shown=shown,
        n_trials=len(case.trials),
        n_launched=len(case.own),
        predictor=case.predictor,
        unseen=case.unseen,
        unsure=unsure_gain(case, recorded=recorded) if keeps_own(case, suggestion) else "",
        kept=case.kept,
        lines=(
            *comparable(own).notes,
            *_further_lines(case, own.trials, suggestion),
        ),
    )
    return fresh, explored, note


def _further_lines(case: History, own: Sequence[Trial], suggestion: Suggestion | None) -> list[str]:
    """Return messages on what this launch could not take.

    They are on parameters that keep the global batch size, on faster launches of another one, and on the scheduler.
    """
    lines = [*dict.fromkeys(batch_lines(case).values())]
    if not (case.unseen or case.kept) and (suggestion is None or suggestion.config == case.current):
        lines.append(faster_batch_note(case.space, own, workload=case.workload, current=case.current))
    return [line for line in (*lines, other_submission_note(case)) if line]


def _decision(cached: CachedSuggestion, case: History, note: str = "") -> Decision:
    choice = None
    if cached.suggestion is not None:
        choice = apply_rules(replace(case, kept=cached.kept), cached.suggestion, unsure=cached.unsure)
        if cached.unseen:
            choice = replace(choice, rejection_reason=cached.unseen)
        rules = case.space.rewrite
        if not choice.rejection_reason and measures_baseline(cached.suggestion, rules, n_launched=cached.n_launched):
            choice = replace(choice, rejection_reason=_baseline_reason(cached.suggestion, rules))
    return Decision(choice=choice, lines=(*first_few(cached.warnings), *cached.lines, *filter(None, [note])))


def _baseline_reason(suggestion: Suggestion, rules: RewriteRules) -> str:
    times = "once" if suggestion.n_baseline == 1 else f"{suggestion.n_baseline} times"
    return (
        f"this launch measures your own config again, which was measured {times}: one launch in "
        f"{rules.baseline_every} does until there are {ENOUGH_OF_BASELINE} (baseline_every = 0 switches this off)"
    )


def _chosen_predictor(url: str, limits: DecisionLimits) -> str:
    """Return the predictor chosen for the store; empty, for the default one, if it cannot be read."""
    with suppress(LaunchError, StoreError):
        return within(limits.read_s, lambda: latest_choice(url), what="reading the choice of a predictor")
    return ""


def _digest_keys(url: str, limits: DecisionLimits) -> tuple[str, ...]:
    """Return the keys of the store's digests; none if they cannot be read."""
    with suppress(LaunchError, StoreError):
        return within(limits.read_s, lambda: digest_keys(url), what="reading the key of the digests")
    return ()


def _unchanged(
    cached: CachedSuggestion, case: History, signs: ResumeSigns, url: str, limits: DecisionLimits
) -> CachedSuggestion | None:
    """Return the cached suggestion if it holds without reading the trials, else ``None``.

    The store and its chosen predictor have not changed, and this launch neither explores nor goes on with another.
    """
    # On a remote store the listing is what takes time, and reading the trials needs it anyway.
    if split_url(url)[0] not in LOCAL_PROTOCOLS or explores(
        case.space, workload=case.workload, n_trials=cached.n_launched
    ):
        return None
    keys = _digest_keys(url, limits) if cached.folders else ()
    if signs.says or signs.holds or signs.job or not digested(signs.places, keys).isdisjoint(cached.folders):
        return None
    store = TrialStore(url)
    try:
        now = within(limits.read_s, lambda: refresh_if_unchanged(store.folder, cached.store), what="listing")
    except LaunchError:
        raise StoreError(f"store {mask(store.url)} was not read within {limits.read_s:g} s") from None
    return None if now is None or _chosen_predictor(url, limits) != cached.predictor else replace(cached, store=now)
