"""Outputs of a command by the names of its flags, keys and variables: where a profiling launch must not write."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from torchx_cubicml.cli.starter.from_files import keys_in_files
from torchx_cubicml.cli.starter.from_help import parse_help
from torchx_cubicml.cli.starter.script_flag import ScriptFlag
from torchx_cubicml.launch.bindings.argv import find_flag, flags_in, looks_like_value
from torchx_cubicml.launch.bindings.spelling import number, switch_value
from torchx_cubicml.launch.source_files import dotted, parsed_modules
from torchx_cubicml.space import BindingKind
from torchx_cubicml.space.trainers import FLAG_ALIASES, NOT_OUTPUT_WORDS, OUTPUT_WORDS, TRAINERS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from torchx_cubicml.launch import Launch
    from torchx_cubicml.space import SearchSpace

_PATH_NAME = re.compile(r"(?:^|_)(?:dir|directory|folder|path|out|output|outdir|logdir|workdir|rundir)$")
_RESUME = re.compile(r"(?:^|_)(?:resume|load)(?:_|$)")
_NEGATIONS = frozenset({"", "none", "null", "no", "off", "false", "/dev/null"})
_HYDRA_OUTPUTS = ("hydra.run.dir", "hydra.sweep.dir")
_READERS = frozenset({"os.getenv", "os.environ.get", "os.environ.setdefault", "getenv", "environ.get"})
_FLAGS = [flag.flag for trainer in TRAINERS.values() for flag in trainer.flags.values() if flag.flag]


def normalized(name: str) -> str:
    """Return a name in lower case, its parts joined by underscores.

    >>> normalized("--trainer.outputDir="), normalized("OUT_DIR")
    ('trainer_output_dir', 'out_dir')
    """
    separated = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.lstrip("-+").rstrip("="))
    return re.sub(r"[-.]", "_", separated).lower()


_TUNED = frozenset(map(normalized, _FLAGS))


def typed_value(name: str, args: Sequence[str]) -> str | None:
    """Return the value of a flag as typed: empty for a switch, ``None`` for an absent flag."""
    found = find_flag(args, name, is_value=looks_like_value)
    return ",".join(found[-1].texts) if found else None


def is_destination(name: str, value: str | None) -> bool:
    """Return whether a typed flag or key with this value names an output of its own, and nothing that is read."""
    if name.rstrip("=") in _HYDRA_OUTPUTS:
        return True
    return _may_be_destination(name, value) and bool(value) and not _RESUME.search(normalized(name))


def is_offered_destination(name: str) -> bool:
    """Return whether a flag that is not typed surely names an output, whatever its default."""
    return _may_be_destination(name, "somewhere") and bool(_PATH_NAME.search(normalized(name)))


def is_path_key(name: str, text: str) -> bool:
    """Return whether a key with this value names an output, but not as ``save: true`` or ``save_strategy: epoch``."""
    last = name.rstrip("=").rpartition(".")[2]
    is_path = "/" in text or bool(_PATH_NAME.search(normalized(last)))
    return is_path and switch_value(text) is None and is_destination(last, text)


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


def imports_wandb(launch: Launch) -> bool:
    """Return whether the program's source imports the client of Weights & Biases."""
    nodes = (node for _, tree in parsed_modules(launch) for node in ast.walk(tree))
    return any(
        (isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "wandb" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "wandb")
        for node in nodes
    )


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
    candidates = [(name, typed_value(name, launch.script_args)) for name in flags_in(launch.script_args)]
    candidates += [_key_value(word) for word in launch.script_args if "=" in word and not word.startswith("-")]
    typed = {name for name, _ in candidates}
    offered = [flag for flag in parse_help(help_text) if flag.takes_value and not flag.choices]
    candidates += [(flag.name, "somewhere") for flag in offered if _is_default_destination(flag.name, typed)]
    handled = declared | {name.rstrip("=") for name in space.tune.args}
    if "WANDB_MODE" in space.tune.env:
        handled |= {name for name, _ in candidates if "wandb" in name.lower()}
    flags = [name for name, value in candidates if name not in handled and _may_be_destination(name, value)]
    return (*flags, *_unredirected_keys(launch, space))


def _unredirected_keys(launch: Launch, space: SearchSpace) -> list[str]:
    bindings = [item.binding for item in space.parameters] + [item.binding for item in space.workload]
    places = (binding.name for binding in bindings if binding is not None)
    handled = {*places, *(f"{'.'.join(key)} in {file}" for file, keys in space.tune.files.items() for key in keys)}
    labels = [f"{key.name} in {key.file}" for key in output_keys(launch)]
    return [label for label in labels if label not in handled]


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


def _key_value(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name.lstrip("+"), value


def _may_be_destination(name: str, value: str | None) -> bool:
    known = normalized(name)
    if known in FLAG_ALIASES or known in _TUNED or known.startswith("no_") or value is None:
        return False
    words = f"_{known}_"
    is_output_name = any(f"_{word}_" in words for word in OUTPUT_WORDS)
    is_rate_name = any(f"_{word}_" in words for word in NOT_OUTPUT_WORDS)
    is_no_path = value.lower() in _NEGATIONS - {""} or number(value) is not None
    return is_output_name and not is_rate_name and not is_no_path


def _is_default_destination(name: str, typed: Collection[str]) -> bool:
    return name not in typed and is_offered_destination(name)
