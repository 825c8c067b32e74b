"""Outputs of a command by the names of its flags, keys and variables: where a profiling launch must not write."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from torchx_cubicml.cli.starter.from_files import keys_in_files
from torchx_cubicml.cli.starter.from_help import parse_help
from torchx_cubicml.cli.starter.script_flag import ScriptFlag
from torchx_cubicml.facts.named_places import NamedPlace, named_values, place_of
from torchx_cubicml.launch.bindings.argv import find_flag, looks_like_value
from torchx_cubicml.launch.source_files import dotted, parsed_modules
from torchx_cubicml.space.spelling import switch_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchx_cubicml.launch import Launch
    from torchx_cubicml.space import SearchSpace

_WRITTEN = frozenset({NamedPlace.OUTPUT, NamedPlace.LABEL})
_READERS = frozenset({"os.getenv", "os.environ.get", "os.environ.setdefault", "getenv", "environ.get"})


def typed_value(name: str, args: Sequence[str]) -> str | None:
    """Return the value of a flag as typed: empty for a switch, ``None`` for an absent flag."""
    found = find_flag(args, name, is_value=looks_like_value)
    return ",".join(found[-1].texts) if found else None


def is_destination(name: str, value: str | None) -> bool:
    """Return whether a typed flag or key with this value names an output of its own, and nothing that is read."""
    return bool(value) and switch_value(value or "") is None and place_of(name, value) in _WRITTEN


def is_offered_destination(name: str) -> bool:
    """Return whether a flag that is not typed surely names an output, whatever its default."""
    return place_of(name) is NamedPlace.OUTPUT


def is_path_key(name: str, text: str) -> bool:
    """Return whether a key with this value names an output, but not as ``save: true`` or ``save_strategy: epoch``."""
    return is_destination(name, text) and ("/" in text or is_offered_destination(name))


def output_keys(launch: Launch) -> list[ScriptFlag]:
    """Return the keys of the command's config files that name an output."""

    def make(file: str, key: str, text: str) -> ScriptFlag | None:
        return ScriptFlag(name=key, file=file, present=text, destination=True) if is_path_key(key, text) else None

    return keys_in_files(launch, make)


def output_variables(launch: Launch) -> list[ScriptFlag]:
    """Return the environment variables that name an output, set by the command or read by the program's source."""
    names = {name: value for name, value in launch.env.items() if is_path_key(name, value)}
    for _, tree in parsed_modules(launch):
        names |= {name: "" for name in variables_read(tree) if name not in launch.env and is_offered_destination(name)}
    return [
        ScriptFlag(name=name, present=value or None, is_variable=True, destination=True)
        for name, value in names.items()
        if "wandb" not in name.lower()
    ]


def unredirected_outputs(launch: Launch, space: SearchSpace, help_text: str = "") -> tuple[str, ...]:
    """Return the probable output, resume or logging destinations that ``[tune]`` does not redirect.

    Tuned flags and workload facts do not count, nor does a flag whose value is a number or a negation such as ``none``.

    Args:
        launch: the command.
        space: search space, with the redirections of ``[tune]``.
        help_text: output of ``--help``, for destinations that have a default.
    """
    bindings = [item.binding for item in space.parameters] + [item.binding for item in space.workload]
    handled = {name.rstrip("=") for place in bindings if place for name in (place.name, *place.aliases)}
    handled |= {name.rstrip("=") for name in space.tune.args}
    handled |= {f"{'.'.join(key)} in {file}" for file, keys in space.tune.files.items() for key in keys}
    typed = {name.lstrip("+"): value for name, value in named_values(launch.script_args)}
    offered = [flag.name for flag in parse_help(help_text) if flag.takes_value and not flag.choices]
    if "WANDB_MODE" in space.tune.env:
        handled |= {name for name in (*typed, *offered) if "wandb" in name.lower()}
    names = [name for name, value in typed.items() if place_of(name, value) in _WRITTEN | {NamedPlace.RESUME}]
    names += [name for name in offered if name not in typed and is_offered_destination(name)]
    names += [f"{key.name} in {key.file}" for key in output_keys(launch)]
    return tuple(name for name in names if name not in handled)


def variables_read(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the environment variables that a module reads."""
    for node in ast.walk(tree):
        name: ast.expr | None = None
        if isinstance(node, ast.Call) and dotted(node.func) in _READERS and node.args:
            name = node.args[0]
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            name = node.slice if dotted(node.value) in {"os.environ", "environ"} else None
        if isinstance(name, ast.Constant) and isinstance(name.value, str) and re.fullmatch(r"[A-Za-z_]\w*", name.value):
            yield name.value
