"""Generator of a starter space file, and detector of outputs that a profiling launch would overwrite."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.cli.starter.from_files import keys_in_files
from torchx_cubicml.cli.starter.from_help import MAX_HELP, FlagHelp, parse_help
from torchx_cubicml.cli.starter.from_trainer import detect_trainer, trainer_text
from torchx_cubicml.cli.starter.rules_comment import rules_comment
from torchx_cubicml.cli.starter.toml_text import ScriptFlag, starter_text, tune_lines
from torchx_cubicml.launch.bindings.argv import find_flag, flags_in, looks_like_value
from torchx_cubicml.launch.bindings.spelling import number, switch_value
from torchx_cubicml.settings import child_environment
from torchx_cubicml.space import BindingKind
from torchx_cubicml.space.trainers import FLAG_ALIASES, NOT_OUTPUT_WORDS, OUTPUT_WORDS, TRAINERS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torchx_cubicml.launch import Launch
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.space.trainers import Trainer

HELP_TIMEOUT_S = 60.0  # a script may import torch before it parses its arguments

_PARSER = re.compile(r"argparse|ArgumentParser|click|typer|tyro|docopt|absl")
_PATH_NAME = re.compile(r"(?:^|_)(?:dir|directory|folder|path|out|output|outdir|logdir)$")
_RESUME = re.compile(r"(?:^|_)(?:resume|load)(?:_|$)")
_NEGATIONS = frozenset({"", "none", "null", "no", "off", "false", "/dev/null"})


def starter_space(launch: Launch, help_text: str) -> str:
    """Return a commented space file, TOML, for a command.

    Args:
        launch: the command.
        help_text: output of the script's ``--help``; may be empty.
    """
    described = {flag.name: flag for flag in parse_help(help_text)}
    flags: list[ScriptFlag] = []
    meanings: set[str] = set()
    for name in dict.fromkeys([*flags_in(launch.script_args), *described]):
        flag = _known_flag(name, launch.script_args, described.get(name), used_meanings=meanings)
        flags.append(flag)
        meanings.add(flag.meaning)
    uses_wandb = any("wandb" in word.lower() for word in (*flags_in(launch.script_args), *launch.env))
    source = _source(launch)[0]
    trainer = detect_trainer(launch, source)
    if trainer is not None:
        outputs = _with_outputs([flag for flag in flags if flag.destination], trainer) + _outputs_in_files(launch)
        text = trainer_text(trainer, launch, tune=tune_lines(outputs, uses_wandb=uses_wandb))
        if text is not None:
            return text + rules_comment(text, launch)
    flags += keys_in_files(launch, lambda *found: _known_key(*found, used_meanings=meanings))
    text = starter_text(flags, program=launch.program, world_size=launch.world_size, uses_wandb=uses_wandb)
    return text + rules_comment(text, launch)


def script_help(launch: Launch, *, report: Callable[[str], object] = lambda reason: None) -> str:
    """Return the output of the program's ``--help``; an empty text where it is unavailable.

    A program without a visible argument parser is not started: it might train.

    Args:
        launch: the command.
        report: called with the cause of an empty text.
    """
    reason = _help_obstacle(launch)
    if reason:
        report(f"{reason}, so its --help was not read")
        return ""
    command = [sys.executable, *(["-m"] if launch.is_module else []), launch.program, "--help"]
    try:
        process = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=HELP_TIMEOUT_S,
            check=False,
            env=child_environment({**launch.env, "COLUMNS": "160"}),
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        report(f"cannot run {launch.program} --help: {error}")
        return ""
    if process.returncode != 0:
        last = process.stderr.strip().splitlines()[-1:] or ["no error output"]
        report(f"{launch.program} --help failed with exit code {process.returncode}: {last[0]:.200}")
        return ""
    return process.stdout[:MAX_HELP]


def unredirected_outputs(launch: Launch, space: SearchSpace, help_text: str = "") -> tuple[str, ...]:
    """Return the probable output, resume or logging destinations that ``[tune]`` does not redirect.

    Tuned flags and workload facts do not count, nor does a flag whose value is a number or a negation such as ``none``.

    Args:
        launch: the command.
        space: search space, with the redirections of ``[tune]``.
        help_text: output of ``--help``, for destinations that have a default.
    """
    bindings = [item.binding for item in space.parameters] + [item.binding for item in space.workload]
    places = [binding for binding in bindings if binding is not None and binding.kind == BindingKind.FLAG]
    declared = {name.rstrip("=") for place in places for name in (place.name, *place.aliases)}
    candidates = [(name, _typed_value(name, launch.script_args)) for name in flags_in(launch.script_args)]
    candidates += [_key_value(word) for word in launch.script_args if "=" in word and not word.startswith("-")]
    typed = {name for name, _ in candidates}
    offered = [flag for flag in parse_help(help_text) if flag.takes_value and not flag.choices]
    candidates += [(flag.name, "somewhere") for flag in offered if _is_default_destination(flag.name, typed)]
    handled = declared | {name.rstrip("=") for name in space.tune.args}
    if "WANDB_MODE" in space.tune.env:
        handled |= {name for name, _ in candidates if "wandb" in name.lower()}
    flags = [name for name, value in candidates if name not in handled and _may_be_destination(name, value)]
    return (*flags, *_unredirected_keys(launch, space))


def _outputs_in_files(launch: Launch) -> list[ScriptFlag]:
    found = keys_in_files(launch, lambda *key: _known_key(*key, used_meanings=set()))
    return [key for key in found if key.destination]


def _unredirected_keys(launch: Launch, space: SearchSpace) -> list[str]:
    bindings = [item.binding for item in space.parameters] + [item.binding for item in space.workload]
    places = (binding.name for binding in bindings if binding is not None)
    handled = {*places, *(f"{'.'.join(key)} in {file}" for file, keys in space.tune.files.items() for key in keys)}
    labels = [f"{key.name} in {key.file}" for key in _outputs_in_files(launch)]
    return [label for label in labels if label not in handled]


def _known_flag(name: str, args: Sequence[str], described: FlagHelp | None, *, used_meanings: set[str]) -> ScriptFlag:
    present = _typed_value(name, args)
    meaning = FLAG_ALIASES.get(_normalized(name), "")
    destination = _may_be_destination(name, present) and bool(present) and not _RESUME.search(_normalized(name))
    if described is None:
        return ScriptFlag(
            name=name,
            meaning="" if meaning in used_meanings else meaning,
            present=present,
            is_switch=present == "",
            destination=destination,
        )
    offered = present is None and described.takes_value and not described.choices
    return ScriptFlag(
        name=name,
        meaning="" if meaning in used_meanings else meaning,
        present=present,
        is_switch=not described.takes_value,
        choices=described.choices,
        default=described.default if described.takes_value else "false",
        text=described.text,
        destination=destination or (offered and _is_offered_destination(name)),
    )


def _known_key(file: str, key: str, text: str, *, used_meanings: set[str]) -> ScriptFlag | None:
    """Return a key of a config file by the meaning of its last name; ``None`` for an unknown or repeated meaning."""
    last = key.rpartition(".")[2]
    meaning = FLAG_ALIASES.get(_normalized(last), "")
    if meaning and meaning not in used_meanings:
        used_meanings.add(meaning)
        return ScriptFlag(name=key, file=file, meaning=meaning, present=text)
    is_path = "/" in text or bool(
        _PATH_NAME.search(_normalized(last))
    )  # but not `save: true` or `save_strategy: epoch`
    if (
        is_path
        and switch_value(text) is None
        and _may_be_destination(last, text)
        and not _RESUME.search(_normalized(last))
    ):
        return ScriptFlag(name=key, file=file, present=text, destination=True)
    return None


def _with_outputs(destinations: list[ScriptFlag], trainer: Trainer) -> list[ScriptFlag]:
    """Return the destinations and the trainer's default outputs, as flags in the trainer's spelling."""
    joined = all(flag.flag.endswith("=") for flag in trainer.flags.values())
    found = [replace(flag, name=f"{flag.name}=") for flag in destinations] if joined else destinations
    known = {flag.name for flag in found}
    return [*found, *(ScriptFlag(name=name, destination=True) for name in trainer.outputs if name not in known)]


def _source(launch: Launch) -> tuple[str, str]:
    """Return the source text of the program, and the cause where it is unavailable."""
    path = Path(*launch.program.split(".")) if launch.is_module else Path(launch.program)
    try:
        places = [path.with_name(f"{path.name}.py"), path / "__main__.py"] if launch.is_module else [path]
        found = next((place for place in places if place.is_file()), None)
        if not launch.program or found is None:
            return "", f"{launch.program or 'the program'} not found here"
        return found.read_bytes().decode(errors="replace"), ""
    except (OSError, ValueError) as error:
        return "", f"cannot read {launch.program} ({error})"


def _help_obstacle(launch: Launch) -> str:
    source, reason = _source(launch)
    if reason:
        return reason
    return "" if _PARSER.search(source) else f"no argument parser found in {launch.program}"


def _typed_value(name: str, args: Sequence[str]) -> str | None:
    """Return the value of a flag as typed: empty for a switch, ``None`` for an absent flag."""
    found = find_flag(args, name, is_value=looks_like_value)
    return ",".join(found[-1].texts) if found else None


def _key_value(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, value


def _normalized(name: str) -> str:
    separated = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.lstrip("-+"))
    return re.sub(r"[-.]", "_", separated).lower()


def _may_be_destination(name: str, value: str | None) -> bool:
    normalized = _normalized(name)
    if normalized in FLAG_ALIASES or normalized in _TUNED or normalized.startswith("no_") or value is None:
        return False
    words = f"_{normalized}_"
    is_output_name = any(f"_{word}_" in words for word in OUTPUT_WORDS)
    is_rate_name = any(f"_{word}_" in words for word in NOT_OUTPUT_WORDS)
    is_no_path = value.lower() in _NEGATIONS - {""} or number(value) is not None
    return is_output_name and not is_rate_name and not is_no_path


_FLAGS = [flag.flag for trainer in TRAINERS.values() for flag in trainer.flags.values() if flag.flag]
_TUNED = frozenset(_normalized(flag.rstrip("=")) for flag in _FLAGS)


def _is_default_destination(name: str, typed: Collection[str]) -> bool:
    return name not in typed and _is_offered_destination(name)


def _is_offered_destination(name: str) -> bool:
    return _may_be_destination(name, "somewhere") and bool(_PATH_NAME.search(_normalized(name)))
