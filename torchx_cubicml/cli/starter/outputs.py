"""Outputs of a command, where a profiling launch must not write: by names of flags, keys and variables, and by calls.

``[tune]`` of a starter space file redirects them.
"""

from __future__ import annotations

import ast
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from torchx_cubicml.cli.starter.from_keys import keys_in_files
from torchx_cubicml.cli.starter.meanings import WRITTEN, ScriptFlag, is_offered_destination, is_path_key
from torchx_cubicml.cli.starter.script import parse_help
from torchx_cubicml.cli.starter.toml_text import one_line, toml
from torchx_cubicml.facts.named_places import NamedPlace, named_values, place_of
from torchx_cubicml.launch.bindings.argv import find_flag, looks_like_value
from torchx_cubicml.launch.source_files import dotted, full_name, imported_names, nodes_of, parsed_modules
from torchx_cubicml.recorder.steps.checkpoint_calls import saving_names
from torchx_cubicml.records.workload import is_same_program

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torchx_cubicml.launch import Launch
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Workload
    from torchx_cubicml.space import SearchSpace

_READERS = frozenset({"os.getenv", "os.environ.get", "os.environ.setdefault", "getenv", "environ.get"})
_PLACES = ("{scratch}/{launch_id}", *(f"{{scratch}}/{{launch_id}}-{index}" for index in range(2, 99)))


def typed_value(name: str, args: Sequence[str]) -> str | None:
    """Return the value of a flag as typed: empty for a switch, ``None`` for an absent flag."""
    found = find_flag(args, name, is_value=looks_like_value)
    return ",".join(found[-1].texts) if found else None


def output_variables(launch: Launch) -> list[ScriptFlag]:
    """Return the environment variables that name an output, set by the command or read by the program's source."""
    names = {name: value for name, value in launch.env.items() if is_path_key(name, value)}
    for _, tree in parsed_modules(launch):
        names |= {name: "" for name in variables_read(tree) if name not in launch.env and is_offered_destination(name)}
    return [
        ScriptFlag(name=name, present=value or None, place="env", destination=True)
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
    offered = [flag.name for flag in parse_help(help_text) if not flag.is_switch and not flag.choices]
    if "WANDB_MODE" in space.tune.env:
        handled |= {name for name in (*typed, *offered) if "wandb" in name.lower()}
    names = [name for name, value in typed.items() if place_of(name, value) in WRITTEN | {NamedPlace.RESUME}]
    names += [name for name in offered if name not in typed and is_offered_destination(name)]
    names += [f"{key.name} in {key.file}" for key in keys_in_files(launch) if key.destination]
    return tuple(name for name in names if name not in handled)


def variables_read(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the environment variables that a module reads."""
    for node in nodes_of(tree):
        name: ast.expr | None = None
        if isinstance(node, ast.Call) and dotted(node.func) in _READERS and node.args:
            name = node.args[0]
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            name = node.slice if dotted(node.value) in {"os.environ", "environ"} else None
        if isinstance(name, ast.Constant) and isinstance(name.value, str) and re.fullmatch(r"[A-Za-z_]\w*", name.value):
            yield name.value


def tune_lines(flags: Iterable[ScriptFlag], *, uses_wandb: bool, saving: str = "") -> list[str]:
    """Return the lines of ``[tune]``; none where nothing is known to be written.

    Args:
        flags: flags, keys and variables, some of which name an output.
        uses_wandb: whether the training logs to Weights & Biases, which profiling launches turn off.
        saving: call that saves checkpoints and its file, as ``saving_call`` returns it; empty if none was found.
    """
    tables: dict[str, list[str]] = {}
    destinations = [flag for flag in flags if flag.destination]
    for flag, place in zip(destinations, _PLACES, strict=False):
        table = f"files.{toml(flag.file)}" if flag.file else "env" if flag.place == "env" else "args"
        key = flag.name if flag.place == "env" else toml(flag.name)
        tables.setdefault(table, []).append(f"{key} = {toml(_redirected(flag, place))}")
    if uses_wandb:
        tables.setdefault("env", []).append('WANDB_MODE = "disabled"')
    head = "[tune] # redirects what profiling launches write, so that they never overwrite your outputs"
    lines = [head, *(f"{table} = {{ {', '.join(pairs)} }}" for table, pairs in tables.items())] if tables else []
    if destinations or not saving:
        return lines
    return [
        f"# {one_line(saving)} saves checkpoints, and no flag, key or variable was found that names their place.",
        "# Each launch of a tune would save them too. If there is such a flag, redirect it:",
        *([] if lines else ["# [tune]"]),
        '# args = { "--out_dir" = "{scratch}/{launch_id}" }',
        *lines,
    ]


def _redirected(flag: ScriptFlag, place: str) -> str:
    if place_of(flag.name, flag.value) is NamedPlace.LABEL:
        return "{launch_id}"
    suffix = PurePosixPath(flag.value or "").suffix
    return place + (suffix if re.fullmatch(r"\.[A-Za-z][A-Za-z0-9]{0,5}", suffix) else "")


def is_redirected(space: SearchSpace) -> bool:
    """Return whether ``[tune]`` redirects an output: by a flag, a key of a config file, or a variable."""
    changes = space.tune
    return bool(changes.args or changes.files or any("{scratch}" in value for value in changes.env.values()))


def recorded_saving(trials: Iterable[Trial], workload: Workload) -> bool:
    """Return whether a recorded launch of the same program saved checkpoints."""
    return any(trial.observed.get("saves_checkpoints") is True and is_same_program(trial, workload) for trial in trials)


def saving_call(launch: Launch) -> str:
    """Return the first call of a saving function in the script and the modules beside it; empty if none is found.

    >>> from torchx_cubicml.launch import Launch
    >>> saving_call(Launch(program="not/here.py"))
    ''
    """
    functions, methods = saving_names()
    methods |= {"save_pretrained"}
    for path, tree in parsed_modules(launch):
        imported = imported_names(tree)
        for node in (node for node in nodes_of(tree) if isinstance(node, ast.Call)):
            if full_name(node.func, imported) in functions or getattr(node.func, "attr", "") in methods:
                return f"{ast.unparse(node.func)} in {path}"
    return ""
