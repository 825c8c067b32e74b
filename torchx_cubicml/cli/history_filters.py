"""Selection of trials: the filters of ``torchx cubicml history list``, and one trial by its id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.provenance import COMMIT, OWNER, PACKAGE_VERSION, SPACE, Trust
from torchx_cubicml.records.redaction import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.records.trial import Trial, Value

_BY_PREFIX = {"owner": OWNER, "commit": COMMIT}  # option -> name in the provenance


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Declare the filters; a trial must pass all that are given."""
    text = f"only trials of this trust level: {', '.join(Trust)}; repeatable"
    parser.add_argument("--trust", action="append", default=[], choices=[*map(str, Trust)], metavar="LEVEL", help=text)
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
        RecordError: the space file cannot be read.
    """
    wanted = {PACKAGE_VERSION: args.package_version, SPACE: _space_digest(args.space) if args.space else ""}
    prefixes = {name: getattr(args, option) for option, name in _BY_PREFIX.items()}
    return [
        trial
        for trial in trials
        if (not args.trust or trial.trust in args.trust)
        and all(trial.provenance.get(name) == value for name, value in wanted.items() if value)
        and all(_begins(trial.provenance, name, prefix) for name, prefix in prefixes.items() if prefix)
    ]


def find_trial(trials: Sequence[Trial], prefix: str, *, where: str) -> Trial:
    """Return the trial whose id is ``prefix``, or the only one that begins with it.

    Args:
        trials: trials of a store.
        prefix: id of a trial, or its beginning.
        where: the store, for messages.

    Raises:
        RecordError: no trial matches, or several do.
    """
    exact = [trial for trial in trials if trial.trial_id == prefix]
    found = exact or [trial for trial in trials if trial.trial_id.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    if found:
        matches = printable(", ".join(trial.trial_id for trial in found[:5]))
        raise RecordError(f"trial id {prefix!r} is ambiguous: {len(found)} trials begin with it: {matches}")
    if not trials:
        raise RecordError(f"no trial {prefix!r} in store {where}: it is empty")
    raise RecordError(f"no trial {prefix!r} in store {where} ({len(trials)} trials); see `torchx cubicml history list`")


def _begins(provenance: Mapping[str, Value], name: str, prefix: str) -> bool:
    return str(provenance.get(name, "")).startswith(prefix)


def _space_digest(text: str) -> str:
    from pathlib import Path

    from torchx_cubicml.space.toml.reader import is_digest, space_digest

    if is_digest(text) and not Path(text).exists():
        return text
    try:
        return space_digest(Path(text).read_bytes())
    except OSError as error:
        raise RecordError(f"--space must be a space file or its digest, got {text!r:.80}: {error.strerror}") from error
