"""Anonymous trials: those of a store without any text of its owner, for people who must not know whose they are.

Facts are kept by an allow-list (``shareable_facts``). Any other text is dropped, or becomes a pseudonym where trials
must stay apart or be compared by it. Pseudonyms are random, so those of two exports have nothing in common. A number
under a name that is not standard becomes its rank among the numbers of that name, which keeps their order alone.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from torchx_cubicml.records.crowding import CROWDING_FACTS
from torchx_cubicml.records.iso_time import parse_time
from torchx_cubicml.records.memory_failure import as_asked, plain_memory_reason
from torchx_cubicml.records.provenance import PACKAGE_VERSION
from torchx_cubicml.records.shareable_facts import KEPT_NAMES, LOG_SOURCES, shareable_text
from torchx_cubicml.records.trial import State
from torchx_cubicml.records.workload import PROJECT, is_same_project, value_key, without_refused_values

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from torchx_cubicml.records.measurement import Measurement
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Scalar, Value

_PROGRAM = "program"
_FIRST_START = datetime(2000, 1, 1, tzinfo=UTC)  # of the earliest trial of every export
_LOG = "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnonymousTrials:
    """Trials of one anonymous export.

    Args:
        trials: without a text of their owner; planned ones are left out.
        renamed: name of a parameter or workload fact -> its pseudonym; for the owner's eyes only.
        left_out: names of the observed facts that are dropped, likewise.
    """

    trials: tuple[Trial, ...]
    renamed: Mapping[str, str]
    left_out: tuple[str, ...]


def anonymous_trials(
    trials: Iterable[Trial], *, device_name: Callable[[str], str], random_hex: Callable[[], str] | None = None
) -> AnonymousTrials:
    """Return the anonymous form of trials.

    Args:
        trials: as read from a store, with the uncertainty of crowded measurements in their error.
        device_name: see ``shareable_text``.
        random_hex: returns a new random text of hexadecimal digits at each call.
    """
    kept = as_asked(without_refused_values(trial) for trial in trials if trial.state is not State.PLANNED)
    scheme = _Pseudonyms(random_hex=random_hex or _random_hex, device_name=device_name)
    scheme.ranks.update(_ranks(kept))
    projects = _project_groups(kept)
    starts = [time for trial in kept for text in (trial.started_at, trial.ended_at) if (time := parse_time(text))]
    shift = _Shift(min(starts, default=_FIRST_START))
    anonymous = [_anonymous(trial, scheme, projects, shift) for trial in kept]
    left_out = {name for trial in kept for name in trial.observed if name not in KEPT_NAMES}
    return AnonymousTrials(trials=tuple(anonymous), renamed=dict(scheme.names), left_out=tuple(sorted(left_out)))


def _random_hex() -> str:
    return secrets.token_hex(6)


@dataclass(slots=True, kw_only=True)
class _Pseudonyms:
    """Random pseudonyms of one export: one for each name and each text of a name.

    Args:
        random_hex: see ``anonymous_trials``.
        device_name: see ``shareable_text``.
        names: name -> pseudonym.
        texts: name and text -> pseudonym.
        ranks: name -> number -> its rank.
    """

    random_hex: Callable[[], str]
    device_name: Callable[[str], str]
    names: dict[str, str] = field(default_factory=dict)
    texts: dict[Hashable, str] = field(default_factory=dict)
    ranks: dict[str, dict[float, int]] = field(default_factory=dict)

    def of_text(self, kind: str, key: Hashable) -> str:
        """Return the pseudonym of a text, which begins with ``kind``."""
        if (kind, key) not in self.texts:
            self.texts[kind, key] = f"{kind}-{self.random_hex()}"
        return self.texts[kind, key]

    def of_name(self, name: str) -> str:
        """Return a standard name itself, and the pseudonym of any other one."""
        if name in KEPT_NAMES:
            return name
        if name not in self.names:
            self.names[name] = f"name_{self.random_hex()}"
        return self.names[name]

    def of_value(self, name: str, value: Value) -> Value:
        """Return the shareable form of a value of the fact ``name``."""
        if isinstance(value, tuple):
            return tuple(self._of_scalar(name, entry) for entry in value)
        return self._of_scalar(name, value)

    def _of_scalar(self, name: str, value: Scalar) -> Scalar:
        if isinstance(value, bool):
            return value
        if not isinstance(value, str):
            return value if name in KEPT_NAMES else self.ranks[name][value]
        known = shareable_text(name, value, device_name=self.device_name) if name in KEPT_NAMES else None
        return known if known is not None else self.of_text("text", (name, value))


@dataclass(frozen=True, slots=True)
class _Shift:
    """Shift of all times of one export by the same span, which keeps their order and distances."""

    first: datetime

    def of(self, text: str) -> str:
        """Return a shifted time, to the second; empty for a text that is no time, or one beyond the calendar."""
        time = parse_time(text)
        try:
            return (_FIRST_START + (time - self.first)).isoformat(timespec="seconds") if time is not None else ""
        except OverflowError:
            return ""


def _anonymous(
    trial: Trial, scheme: _Pseudonyms, projects: Mapping[tuple[Hashable, Hashable], int], shift: _Shift
) -> Trial:
    workload = {
        scheme.of_name(name): scheme.of_value(name, value)
        for name, value in trial.workload.items()
        if name not in {_PROGRAM, PROJECT}
    }
    if _PROGRAM in trial.workload:
        key = value_key(trial.workload[_PROGRAM])
        workload[_PROGRAM] = scheme.of_text(_PROGRAM, (key, projects[key, _project_key(trial)]))
    is_counted = trial.measurement is None  # else its crowding is part of its error
    observed = {
        name: scheme.of_value(name, value)
        for name, value in trial.observed.items()
        if name in KEPT_NAMES and (is_counted or name not in CROWDING_FACTS)
    }
    version = shareable_text("python_version", str(trial.provenance.get(PACKAGE_VERSION, "")), device_name=str)
    return replace(
        trial,
        trial_id=f"anonymous-{scheme.random_hex()}",
        launch_id="",
        workload=workload,
        config={scheme.of_name(name): scheme.of_value(name, value) for name, value in trial.config.items()},
        observed=observed,
        measurement=_anonymous_measurement(trial.measurement),
        crowding=None,
        reason=plain_memory_reason(trial.reason),
        suggestion=None,
        arguments=None,
        digests=None,
        provenance={PACKAGE_VERSION: version} if version else {},
        command={},
        started_at=shift.of(trial.started_at),
        ended_at=shift.of(trial.ended_at),
    )


def _anonymous_measurement(measurement: Measurement | None) -> Measurement | None:
    if measurement is None:
        return None
    source, other = (_source(text) for text in (measurement.source, measurement.other_source))
    return replace(measurement, source=source, other_source=other)


def _source(text: str) -> str:
    return text if text in LOG_SOURCES or not text else _LOG


def _ranks(trials: Sequence[Trial]) -> dict[str, dict[float, int]]:
    """Return name -> number -> its rank among the numbers of that name, for the names that are not standard."""
    found: defaultdict[str, set[float]] = defaultdict(set)
    for trial in trials:
        for facts in (trial.workload, trial.config):
            for name, value in facts.items():
                entries = value if isinstance(value, tuple) else (value,)
                if name not in KEPT_NAMES:
                    found[name].update(each for each in entries if not isinstance(each, bool | str))
    return {name: {number: rank for rank, number in enumerate(sorted(numbers))} for name, numbers in found.items()}


def _project_key(trial: Trial) -> Hashable:
    return trial.workload.get(PROJECT)


def _project_groups(trials: Sequence[Trial]) -> dict[tuple[Hashable, Hashable], int]:
    """Return program and project -> number of the project among those of that program.

    Two identities that fit each other are of one project. An unknown project is the only one, if there is only one.
    """
    found: defaultdict[Hashable, dict[Value, None]] = defaultdict(dict)
    groups: dict[tuple[Hashable, Hashable], int] = {}
    programs: dict[Hashable, None] = {}
    for trial in trials:
        if _PROGRAM in trial.workload:
            key = value_key(trial.workload[_PROGRAM])
            programs[key] = None
            if PROJECT in trial.workload:
                found[key][trial.workload[PROJECT]] = None
    for key in programs:
        members: list[list[Value]] = []
        for project in found[key]:
            fitting = [group for group in members if any(is_same_project(project, each) for each in group)]
            merged = [project, *(each for group in fitting for each in group)]
            members = [*(group for group in members if group not in fitting), merged]
        groups |= {(key, project): number for number, group in enumerate(members) for project in group}
        groups[key, None] = 0 if len(members) <= 1 else len(members)
    return groups
