"""Selection of trials: the filters of ``torchx cubicml history list``, and one trial by its id."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from torchx_cubicml.cli.component_command import follow_up
from torchx_cubicml.cli.option_choices import add_choice
from torchx_cubicml.errors import LaunchError, RecordError
from torchx_cubicml.records.provenance import COMMIT, OWNER, PACKAGE_VERSION, SPACE, Trust
from torchx_cubicml.records.redaction import mask, printable
from torchx_cubicml.records.trial import State
from torchx_cubicml.records.value_text import config_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Value

_BY_PREFIX = {"owner": OWNER, "commit": COMMIT}  # option -> name in the provenance


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Declare the filters; a trial must pass all that are given."""
    text = "only workloads whose program or facts contain TEXT, such as gpt.py, or a whole value as in world_size=8"
    parser.add_argument("--workload", default="", metavar="TEXT", help=text)
    text = "only trials of programs whose path ends in NAME, such as train.py"
    parser.add_argument("--program", default="", metavar="NAME", help=text)
    text, how = "only trials in this state", {"action": "append", "note": "repeatable"}
    add_choice(parser, "--state", State, text, metavar="STATE", default=[], **how)
    text = "only trials started since then: a date such as 2026-01-31, or an age such as 12h or 7d"
    parser.add_argument("--since", default="", metavar="TIME", help=text)
    add_choice(parser, "--trust", Trust, "only trials of this trust level", metavar="LEVEL", default=[], **how)
    text = "only trials of the owner with this pseudonym, or its beginning (see `history show`)"
    parser.add_argument("--owner", default="", metavar="ID", help=text)
    text = "only trials of programs at this git commit, or its beginning"
    parser.add_argument("--commit", default="", metavar="HASH", help=text)
    text = "only trials recorded by this version of the package"
    parser.add_argument("--package-version", default="", metavar="VERSION", help=text)
    text = "only trials launched with this space file, or with the one of this digest"
    parser.add_argument("--space", default="", metavar="FILE", help=text)


def filtered(trials: Iterable[Trial], args: argparse.Namespace) -> list[Trial]:
    """Return the trials that pass the filters of a command.

    Raises:
        RecordError: the space file cannot be read, or ``--since`` is no time.
    """
    since = _since(args.since, now=datetime.now(UTC)) if args.since else None
    wanted = {PACKAGE_VERSION: args.package_version, SPACE: _space_digest(args.space) if args.space else ""}
    prefixes = {name: getattr(args, option) for option, name in _BY_PREFIX.items()}
    return [
        trial
        for trial in trials
        if (not args.trust or trial.trust in args.trust)
        and (not args.state or trial.state in args.state)
        and str(trial.workload.get("program", "")).endswith(args.program)
        and (not args.workload or _contains(trial.workload, args.workload))
        and (since is None or _started(trial) >= since)
        and all(trial.provenance.get(name) == value for name, value in wanted.items() if value)
        and all(str(trial.provenance.get(name, "")).startswith(prefix) for name, prefix in prefixes.items())
    ]


def _contains(workload: Mapping[str, Value], text: str) -> bool:
    """Return whether the facts of a workload contain a text; a value in it must be whole.

    >>> _contains({"world_size": 80}, "world"), _contains({"world_size": 80}, "world_size=8")
    (True, False)
    """
    end = " " if "=" in text else ""
    return f"{text}{end}" in f"{config_text(workload)} "


def find_trial(trials: Sequence[Trial], prefix: str, *, store: str) -> Trial:
    """Return the trial whose id is ``prefix``, or the only one that begins with it or whose last part is or does.

    Args:
        trials: trials of a store.
        prefix: id of a trial, its beginning, or the part behind its last hyphen, or the beginning of that.
        store: its URL, for messages.

    Raises:
        RecordError: no trial matches, or several do.
    """
    exact = [trial for trial in trials if trial.trial_id == prefix]
    parts = [(trial, (trial.trial_id, trial.trial_id.rpartition("-")[2])) for trial in trials]
    exact = exact or [trial for trial, (_, ending) in parts if ending == prefix]
    found = exact or [trial for trial, names in parts if any(name.startswith(prefix) for name in names)]
    if len(found) == 1:
        return found[0]
    if found:
        matches = printable(", ".join(trial.trial_id for trial in found[:5]))
        raise RecordError(f"trial id {prefix!r} is ambiguous: {len(found)} trials begin or end with it: {matches}")
    if not trials:
        raise RecordError(f"no trial {prefix!r} in store {mask(store)}: it is empty")
    known = f"{len(trials)} trials); see `{follow_up('history', 'list', store=store)}`"
    raise RecordError(f"no trial {prefix!r} in store {mask(store)} ({known}")


def _since(text: str, *, now: datetime) -> datetime:
    """Return the time that ``--since`` names.

    >>> _since("12h", now=datetime(2026, 1, 2, tzinfo=UTC)).isoformat()
    '2026-01-01T12:00:00+00:00'
    """
    age = re.fullmatch(r"([0-9]{1,4})([hd])", text)
    if age:
        return now - timedelta(**{"h": {"hours": int(age[1])}, "d": {"days": int(age[1])}}[age[2]])
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        legal = "a date such as 2026-01-31, a time such as 2026-01-31T12:00, or an age such as 12h or 7d"
        raise RecordError(f"--since must be {legal}, got {text!r:.80}") from error
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _started(trial: Trial) -> datetime:
    try:
        time = datetime.fromisoformat(trial.started_at)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _space_digest(text: str) -> str:
    from pathlib import Path

    from torchx_cubicml.space.toml.reader import is_digest, space_digest
    from torchx_cubicml.user_files import read_text

    if is_digest(text) and not Path(text).exists():
        return text
    try:
        return space_digest(read_text(text))
    except LaunchError as error:
        raise RecordError(f"--space must be a space file or its digest, got {text!r:.80}: {error}") from error
