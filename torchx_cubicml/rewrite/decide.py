"""From a store and a command to the config that the launch runs, with the least work that is sure to be enough."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError, StoreError
from torchx_cubicml.launch.messages import first_few
from torchx_cubicml.records.redaction import mask
from torchx_cubicml.records.workload import comparable_trials, matches, under_way
from torchx_cubicml.rewrite.cache import CachedSuggestion, cache_path, digest, keep, recall
from torchx_cubicml.rewrite.choice import advise, explore, has_shown_something, is_program_measured, judge, n_launched
from torchx_cubicml.rewrite.rules import explores
from torchx_cubicml.store import TrialStore
from torchx_cubicml.store.deadline import read_within, within
from torchx_cubicml.store.fingerprint import fingerprint_of, still_holds
from torchx_cubicml.store.predictor_choice import latest_choice
from torchx_cubicml.store.url import LOCAL_PROTOCOLS, split_url

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from torchx_cubicml.rewrite.choice import Choice, DecisionContext


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionLimits:
    """What deciding may take.

    Args:
        read_s: seconds for the store.
        think_s: seconds for choosing a config.
        cache: folder for what is kept for the next launch; ``None`` for nowhere.
    """

    read_s: float
    think_s: float
    cache: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a launch is to run.

    Args:
        choice: ``None`` where no launch of the workload was measured yet.
        lines: what is told besides: of the store, of the workload's trials, of exploring.
    """

    choice: Choice | None
    lines: tuple[str, ...] = ()


def decide(case: DecisionContext, url: str, *, limits: DecisionLimits, now: datetime) -> Decision:
    """Return the config of a launch.

    Args:
        case: the launch; its trials are read here.
        url: of the store.
        limits: what it may take.
        now: the time, see ``explore``.

    Raises:
        StoreError: the store cannot be read, or not in time.
        SpaceError: see ``advise``.
        LaunchError: see ``judge``; or choosing took too long.
    """
    path = cache_path(limits.cache, case, url) if limits.cache is not None else None
    kept = recall(path, case) if path is not None else None
    # Elsewhere a listing is what costs, and whoever reads lists too.
    if path is not None and kept is not None and split_url(url)[0] in LOCAL_PROTOCOLS:
        unchanged = _unchanged(kept, url, limits)
        if unchanged is not None and not explores(case.space, workload=case.workload, n_trials=kept.n_launched):
            if unchanged != kept:
                keep(path, unchanged, case)
            return _decision(unchanged, case)
    reading = read_within(url, deadline_s=limits.read_s, cache=limits.cache)
    case = replace(case, trials=reading.trials, predictor=_chosen(url, limits))
    thought = within(limits.think_s, lambda: _thought(case, kept, now), what="choosing a config")
    fresh = replace(thought.kept, store=fingerprint_of(reading.shelves), warnings=reading.warnings)
    if path is not None:
        keep(path, fresh, case)
    if thought.explored is not None:
        return Decision(choice=thought.explored, lines=(*first_few(fresh.warnings), *fresh.lines, thought.note))
    return _decision(fresh, case, note=thought.note)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decided:
    kept: CachedSuggestion
    explored: Choice | None = None
    note: str = ""


def _thought(case: DecisionContext, kept: CachedSuggestion | None, now: datetime) -> _Decided:
    if not is_program_measured(case):
        nothing = CachedSuggestion(suggestion=None, store={}, shown="", n_trials=len(case.trials), n_launched=0)
        return _Decided(kept=replace(nothing, predictor=case.predictor))
    explored, note = explore(case, now=now)
    own = [trial for trial in under_way(case.trials, case.workload) if matches(trial, case.workload)]
    own = [trial for trial in own if has_shown_something(trial)]
    shown = digest(own)
    if kept is not None and kept.stands(shown=shown, n_trials=len(case.trials), predictor=case.predictor):
        return _Decided(kept=replace(kept, n_launched=n_launched(case)), explored=explored, note=note)
    fresh = CachedSuggestion(
        suggestion=advise(case),
        store={},
        shown=shown,
        n_trials=len(case.trials),
        n_launched=n_launched(case),
        predictor=case.predictor,
        lines=comparable_trials(own, case.workload)[1],
    )
    return _Decided(kept=fresh, explored=explored, note=note)


def _decision(kept: CachedSuggestion, case: DecisionContext, note: str = "") -> Decision:
    choice = judge(case, kept.suggestion) if kept.suggestion is not None else None
    return Decision(choice=choice, lines=(*first_few(kept.warnings), *kept.lines, *filter(None, [note])))


def _chosen(url: str, limits: DecisionLimits) -> str:
    """Return the predictor kept for the store; none where it cannot be read, for the default serves as well."""
    try:
        return within(limits.read_s, lambda: latest_choice(url), what="reading the choice of a predictor")
    except (LaunchError, StoreError):
        return ""


def _unchanged(kept: CachedSuggestion, url: str, limits: DecisionLimits) -> CachedSuggestion | None:
    """Return what was kept where the store holds the objects that it held."""
    store = TrialStore(url)
    try:
        now = within(limits.read_s, lambda: still_holds(store.folder, kept.store), what="listing")
    except LaunchError:
        raise StoreError(f"store {mask(store.url)} was not read within {limits.read_s:g} s") from None
    return None if now is None or _chosen(url, limits) != kept.predictor else replace(kept, store=now)
