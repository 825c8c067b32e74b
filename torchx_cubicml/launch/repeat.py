"""Repetition of a recorded launch: its config written into a stranger's own command, and in what the two still differ.

Nothing of a record becomes a word of a command but numbers and texts that the reader's own space file or command holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.history.migration import migrated_trials
from torchx_cubicml.history.same_work import differing_settings
from torchx_cubicml.launch.checkout import commit_of, has_uncommitted_changes
from torchx_cubicml.launch.command_texts import program_path
from torchx_cubicml.launch.config_io import command_history, present_command, read_config, write_config
from torchx_cubicml.launch.messages import short
from torchx_cubicml.records.provenance import COMMIT, SPACE, UNCOMMITTED
from torchx_cubicml.records.workload import PROJECT
from torchx_cubicml.space.spelling import same_value

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Value
    from torchx_cubicml.space import Parameter, SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedLaunch:
    """A user's command with the config of a record.

    Args:
        launch: the command.
        differences: how it differs from the recorded launch, one clause each; empty if nothing is known to differ.
        unknown: what could not be compared, likewise.
    """

    launch: Launch
    differences: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def repeated_launch(launch: Launch, space: SearchSpace, trial: Trial, *, digest_keys: Sequence[str]) -> RepeatedLaunch:
    """Return a user's command with the config of a trial in it.

    Args:
        launch: the user's own command for the same program.
        space: the user's space file, not bound.
        trial: as recorded.
        digest_keys: keys of the digests in the store of the trial.

    Raises:
        LaunchError: a recorded text is no legal value of the space file, or a value cannot be written.
    """
    history = command_history(launch, space)
    (trial,) = migrated_trials(replace(history, trials=[trial], keys=tuple(digest_keys)))
    config = {item.name: trial.config[item.name] for item in space.parameters if item.name in trial.config}
    for item in space.parameters:
        if item.name in config:
            _check_own(item, config[item.name], history.current.get(item.name))
    written = write_config(launch, space, config)
    program = program_path(launch.program, is_module=launch.is_module)
    differences, unknown = _checkout(trial, program)
    for of_part in (
        _settings(trial, written, space, digest_keys),
        _facts(trial, written, space),
        _places(trial, space),
    ):
        differences += of_part[0]
        unknown += of_part[1]
    return RepeatedLaunch(launch=written, differences=tuple(differences), unknown=tuple(unknown))


def _check_own(parameter: Parameter, value: Value, own: Value | None) -> None:
    """Refuse a text that the user's own files do not hold; numbers are harmless in any command."""
    known = [each for source in (parameter.default, own) if source is not None for each in _entries(source)]
    legal = [*parameter.choices, *known]
    for entry in _entries(value):
        if isinstance(entry, str) and entry not in legal:
            choices = ", ".join(map(str, parameter.choices))
            raise LaunchError(
                f"the recorded {parameter.label or parameter.name} = {short(entry)!r} is no value of the space file; "
                f"it has {choices:.200}"
            )


def _entries(value: Value) -> tuple[Value, ...]:
    return value if isinstance(value, tuple) else (value,)


def _checkout(trial: Trial, program: Path | None) -> tuple[list[str], list[str]]:
    """Compare the checkout of the program with the recorded one."""
    recorded, here = str(trial.provenance.get(COMMIT, "")), commit_of(program)
    if not recorded:
        return [], ["the record holds no commit of the program"]
    if not here:
        return [], [f"the record is of commit {recorded}, and the program here is in no git checkout"]
    differences = [] if here == recorded else [f"this checkout is at commit {here}, and the record at {recorded}"]
    changed_here = has_uncommitted_changes(program) if program is not None else None
    changed_there = trial.provenance.get(UNCOMMITTED)
    if changed_here:
        differences.append("files of this checkout differ from its commit")
    if changed_there is True:
        differences.append("files differed from the commit when it was recorded")
    unsaid = [place for place, known in (("here", changed_here), ("in the record", changed_there)) if known is None]
    return differences, [f"whether files differed from the commit {' and '.join(unsaid)}"] if unsaid else []


def _settings(trial: Trial, launch: Launch, space: SearchSpace, keys: Sequence[str]) -> tuple[list[str], list[str]]:
    """Compare the settings that the space file does not declare."""
    names = differing_settings(trial, present_command(launch, space), keys=keys)
    if names is None:
        return [], ["the other arguments and the program's file: the record holds none that can be compared"]
    return [f"another value of {name}" for name in names], []


def _facts(trial: Trial, launch: Launch, space: SearchSpace) -> tuple[list[str], list[str]]:
    """Compare the facts of the workload."""
    workload, _ = read_config(launch, space)
    tuned = {item.name for item in space.parameters}
    differences, unknown = [], []
    for name, value in trial.workload.items():
        if name == PROJECT or name in tuned:
            continue
        if name not in workload:
            unknown.append(f"{name}, which is {short(value)} in the record: the space file does not declare it")
        elif not same_value(workload[name], value):
            differences.append(f"{name} is {short(workload[name])} here and {short(value)} in the record")
    return differences, unknown


def _places(trial: Trial, space: SearchSpace) -> tuple[list[str], list[str]]:
    """Compare the parameters of the record with those of the space file."""
    declared = {item.name for item in space.parameters}
    differences = [
        f"{name} = {short(value)} of the record has no place in the space file, so it is not set"
        for name, value in _requested(trial).items()
        if name not in declared
    ]
    lacking = [item.label or item.name for item in space.parameters if item.name not in trial.config]
    unknown = [f"the record holds no {', '.join(lacking)}: your own stays"] if lacking else []
    recorded = trial.provenance.get(SPACE)
    if recorded is not None and space.digest and recorded != space.digest:
        unknown.append("the space file differs from the recorded one, so places of values may differ, too")
    return differences, unknown


def _requested(trial: Trial) -> Config:
    return {name: value for name, value in trial.config.items() if name not in trial.workload}
