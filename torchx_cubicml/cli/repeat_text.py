"""Texts of ``history show`` on how to repeat the run of a trial."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from torchx_cubicml.cli.component_command import follow_up
from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.kept_command import command_notes, command_text
from torchx_cubicml.records.provenance import COMMIT, SPACE, UNCOMMITTED, Trust
from torchx_cubicml.records.redaction import printable
from torchx_cubicml.records.trial import short_id
from torchx_cubicml.records.value_text import config_text

if TYPE_CHECKING:
    from torchx_cubicml.records.trial import Trial

_STATE_OF_FILES = {True: ", with changes that were not committed", False: "", None: ", perhaps with changes"}
_COMMIT = re.compile(r"[0-9a-f]{4,64}")  # a word of a command, so nothing else passes
_SIZES = ("nnodes", "world_size")


def print_command(trial: Trial) -> None:
    """Print the kept command of a trial on stdout, and on stderr what it does not state.

    Raises:
        RecordError: the record holds no command.
    """
    text = command_text(trial.command)
    if not text:
        raise RecordError(
            f"trial {printable(short_id(trial.trial_id))} holds no command: it was launched without --keep-command; "
            "`history show` says what it holds"
        )
    for note in [*_trust_notes(trial), *checkout_lines(trial), *command_notes(trial.command)]:
        print(f"torchx-cubicml: {printable(note)}", file=sys.stderr)  # noqa: T201 - the command line's own output
    sys.stdout.write(f"{text}\n")


def _trust_notes(trial: Trial) -> list[str]:
    if trial.trust is Trust.OWN:
        return []
    return [f"this command comes from others (trust level {trial.trust}): read it before you run it"]


def checkout_lines(trial: Trial) -> list[str]:
    """Return the line that restores the program's checkout; none where its commit is unknown, or is no hash."""
    commit = str(trial.provenance.get(COMMIT, ""))
    changes = trial.provenance.get(UNCOMMITTED)
    state = _STATE_OF_FILES[changes if isinstance(changes, bool) else None]
    return [f"git checkout {commit}{state}"] if _COMMIT.fullmatch(commit) else []


def repeat_lines(trial: Trial, *, store: str) -> list[str]:
    """Return instructions for repeating the run of a trial from its record; empty without commit and command."""
    lines, name = checkout_lines(trial), short_id(trial.trial_id)
    if trial.command:
        return [*lines, follow_up("history", "show", name, "--command", store=store)]
    if not lines:
        return []
    sizes = {name: trial.observed[name] for name in _SIZES if name in trial.observed}
    lines.append(
        f"start {trial.workload.get('program', 'the program')} with {config_text(sizes)}".removesuffix(" with ")
    )
    if trial.config:
        space = f", in the places of space file {trial.provenance[SPACE]}" if SPACE in trial.provenance else ""
        lines.append(f"set {config_text(trial.config)}{space}")
        again = follow_up("history", "repeat", name, store=store)
        lines.append(f"{again} --space FILE -- YOUR COMMAND")
    return lines
