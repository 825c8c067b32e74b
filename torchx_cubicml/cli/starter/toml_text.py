"""Text (TOML) of a starter space file, from the flags of a command and their help texts."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, TypeAlias

from torchx_cubicml.records.values import MAX_ITEMS
from torchx_cubicml.space.arithmetic import kind
from torchx_cubicml.space.constraints import batch_derivation
from torchx_cubicml.space.spelling import number, switch_value
from torchx_cubicml.space.trainers import SHARDING_STRATEGIES, WORKLOAD_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torchx_cubicml.cli.starter.meanings import ScriptFlag
    from torchx_cubicml.records.values import Scalar

Counts: TypeAlias = "Mapping[str, int]"
"""Numbers above 0 of a command by standard name."""
_IN_BATCH = frozenset({"micro_batch_size", "gradient_accumulation_steps"})
"""Factors of the global batch that a script needs for it to stay."""
_PER_LAYER = re.compile(r"per[ _-]layer|(?:each|every) layer|layer[ _-]?wise", re.IGNORECASE)
_CHECKPOINTING = ("none", "selective", "full")
_FACTS = WORKLOAD_NAMES | {"n_kv_heads", "n_experts"}  # which rules of legality read, too
_MAX_BATCH_FACTOR = 8  # largest factor between a proposed micro batch and the current one, either way
_FIXED_BATCH = (
    "no accumulation to adjust was found, so other values change the training: "
    "add them only on purpose, and changes_training = true"
)
_DERIVED_ACCUMULATION = f'derive = "{batch_derivation()}"'
_UNSEEN_ACCUMULATION = (
    "# If a flag sets the accumulation, name it here, and list further micro batches above: the training stays.",
    "# [parameters.gradient_accumulation_steps]",
    f"# {_DERIVED_ACCUMULATION}",
    '# flag = "--..."',
)
_MAX_DEGREE = 8  # ranks that share a model; a node rarely has more


def parameter_sections(flags: Sequence[ScriptFlag], world_size: int | None) -> list[list[str]]:
    """Return the lines of workload facts, of each parameter whose meaning is known, and of their constraints.

    Args:
        flags: flags of the command and of the script, no two of one meaning.
        world_size: processes of the job, where known.
    """
    named = {flag.meaning: flag for flag in flags if flag.meaning and flag.value is not None}
    guesses = {name for name, flag in named.items() if flag.is_guess and name in _PARAMETERS}
    guesses |= {"gradient_accumulation_steps"} if "micro_batch_size" in guesses else set()
    values = {name: number(flag.value or "") for name, flag in named.items()}
    perhaps = {name: value for name, value in values.items() if isinstance(value, int) and value > 0}
    sure = {name: value for name, value in perhaps.items() if name not in guesses}
    seen = _UNSEEN_ACCUMULATION if "gradient_accumulation_steps" in named else ()

    def written(name: str, counts: Counts) -> list[str]:
        return [line for line in _PARAMETERS[name](named[name], counts, world_size) if line not in seen]

    blocks = [
        _guessed(named[name], written(name, perhaps))
        if name in guesses
        else [*_evidence(named[name]), *written(name, sure)]
        for name in _PARAMETERS
        if name in named
    ]
    facts = [_fact(name, named[name]) for name in sure if name in _FACTS]
    facts = ["[workload] # read from the command, never changed", *facts] if facts else []
    other_evidence = [line for flag in flags if flag.meaning not in _PARAMETERS for line in _evidence(flag)]
    stages = ["[[constraints]]", 'require = "n_layers % pp_degree == 0" # remove it if stages may differ']
    return [facts, *blocks, other_evidence, stages if {"n_layers", "pp_degree"} <= sure.keys() else []]


def with_heading(program: str, first: Sequence[str], sections: Iterable[Sequence[str]]) -> str:
    """Return the text of a starter file, with its heading.

    Args:
        program: program of the command.
        first: lines before all tables.
        sections: lines of each further section; an empty section is left out.
    """
    head = [
        f"# Search space for {one_line(program)}: the parameters to tune, and where the command sets them.",
        "# Written by `torchx cubicml init`: remove what must not change, and add values to try.",
    ]
    objective = (
        '# objective = "samples_per_second" # default: tokens per second if the launches count tokens, else samples, '
        "else steps"
    )
    return "\n\n".join("\n".join(lines) for lines in (head, [*first, objective], *sections) if lines) + "\n"


def _micro_batch(flag: ScriptFlag, counts: Counts, world_size: int | None) -> list[str]:
    present = counts.get(flag.meaning)
    if present is None:
        return []
    if not (counts.keys() >= _IN_BATCH or flag.kept):
        return [*parameter_table(flag, choices=[present], remark=_FIXED_BATCH), *_UNSEEN_ACCUMULATION]
    total = (flag.kept or 0) // (world_size or 1)
    largest = max(total, present * counts.get("gradient_accumulation_steps", 1))
    nearby = [
        size for size in _powers(min(largest, present * _MAX_BATCH_FACTOR)) if size * _MAX_BATCH_FACTOR >= present
    ]
    remark = f"the script derives its accumulation: launches of several had one global batch, {flag.kept}"
    remark = remark if flag.kept else "samples per forward pass on each rank"
    return parameter_table(flag, choices=sorted({present, *nearby}), remark=remark)


def _powers(largest: int) -> list[int]:
    return [2**power for power in range(largest.bit_length())]


def _accumulation(flag: ScriptFlag, counts: Counts, world_size: int | None) -> list[str]:
    remark = "keeps the global batch, and thus the training, the same"
    return parameter_table(flag, lines=[_DERIVED_ACCUMULATION], remark=remark) if counts.keys() >= _IN_BATCH else []


def _sharding(flag: ScriptFlag, counts: Counts, world_size: int | None) -> list[str]:
    entries = (flag.value or "").split(",")
    named = [name for name in SHARDING_STRATEGIES if re.search(rf"\b{name}\b", flag.text)]
    choices = list(flag.choices or named or SHARDING_STRATEGIES[:3])
    if not set(entries) <= set(choices):
        return []
    layers = counts.get("n_layers")
    is_counted = layers is not None and layers <= MAX_ITEMS and len(entries) in {1, layers}
    per_layer = "n_layers" if is_counted else len(entries)
    if per_layer == 1 or not (len(entries) > 1 or _PER_LAYER.search(flag.text)):
        return parameter_table(flag, choices=choices)
    lines = [f"per_layer = {toml(per_layer)} # or groups = 4: one value for each of four blocks of layers"]
    return parameter_table(flag, choices=choices, lines=lines, remark="one choice per layer")


def _checkpointing(flag: ScriptFlag, counts: Counts, world_size: int | None) -> list[str]:
    choices = _words(flag, [name for name in _CHECKPOINTING if name in {flag.value, "none", "full"}])
    is_known = flag.value in choices or not isinstance(choices[0], str)
    remark = "trades time for memory; numerics unchanged"
    return parameter_table(flag, choices=choices, remark=remark) if is_known else []


def _degree(flag: ScriptFlag, counts: Counts, world_size: int | None) -> list[str]:
    present = counts.get(flag.meaning)
    if present is None:
        return []
    if not counts.keys() >= _IN_BATCH:
        return parameter_table(flag, choices=[present], remark=_FIXED_BATCH)
    largest = min(world_size or present, max(_MAX_DEGREE, present))
    return parameter_table(flag, choices=sorted({present, *_powers(largest)}))


def _workers(flag: ScriptFlag, counts: Counts, world_size: int | None) -> list[str]:
    value = number(flag.value or "")
    if not isinstance(value, int) or value < 0:
        return []
    return parameter_table(flag, choices=sorted({value, 1, 2, 4, 8}), remark="processes that load data, for each rank")


def _numerics(flag: ScriptFlag, counts: Counts, world_size: int | None) -> list[str]:
    effect = "takes minutes at each start and may change" if flag.meaning == "compile" else "changes"
    remark = f"{effect} the numerics of the training: uncomment it only on purpose"
    return [f"# {line}" for line in parameter_table(flag, choices=_words(flag), remark=remark)]


def _words(flag: ScriptFlag, usual: Sequence[Scalar] = ()) -> list[Scalar]:
    """Return the values of a switch, or the words that the script lists, else the usual ones, else the present one."""
    is_switch = flag.is_switch or switch_value(flag.value or "") is not None
    return switch_choices(flag) if is_switch else list(flag.choices or usual or [flag.value or ""])


def switch_choices(flag: ScriptFlag) -> list[Scalar]:
    """Return the values of a switch: those that the script lists, else 0 and 1 for a number, else false and true."""
    if flag.choices:
        return [text if (value := number(text)) is None else value for text in flag.choices]
    return [False, True] if number(flag.value or "") is None else [0, 1]


_PARAMETERS: dict[str, Callable[[ScriptFlag, Counts, int | None], list[str]]] = {
    "micro_batch_size": _micro_batch,
    "gradient_accumulation_steps": _accumulation,
    "sharding_strategy": _sharding,
    "activation_checkpointing": _checkpointing,
    "tp_degree": _degree,
    "pp_degree": _degree,
    "cp_degree": _degree,
    "data_workers": _workers,
    "precision": _numerics,
    "compile": _numerics,
}

NO_FLAG = "# No flag of this command is known to change only the speed. Add a table for each that does. Until then:"


def _guessed(flag: ScriptFlag, lines: Sequence[str]) -> list[str]:
    """Return the lines of a table as a comment, below what tells of the guess."""
    evidence = _evidence(flag) or [f"# {one_line(flag.name)} goes with the micro batch."]
    commented = [f"# {line}" for line in lines if not line.startswith("#")]
    return [*evidence, *commented] if commented else []


def _evidence(flag: ScriptFlag) -> list[str]:
    """Return what recorded launches tell of a flag, as a comment."""
    told = [f"# {one_line(flag.evidence)}."] if flag.evidence else []
    doubt = "# That is a guess. Uncomment it if it is true. To know, launch with other values and ranks, then run init:"
    return [*told, doubt] if flag.is_guess else told


def parameter_table(
    flag: ScriptFlag, *, choices: Sequence[Scalar] = (), lines: Sequence[str] = (), remark: str = ""
) -> list[str]:
    """Return the table of a parameter that is named by the meaning of its flag.

    Args:
        flag: sets the parameter; its default is of the kind of the choices.
        choices: values; none for a derived parameter.
        lines: further lines.
        remark: comment.
    """
    table = [f"[parameters.{flag.meaning}]" + (f" # {remark}" if remark else "")]
    if choices:
        table.append(f"choices = [{listed(choices)}]")
    table += [*lines, *_binding(flag)]
    default = _default(flag.default, kind(choices[0]) if choices else "a number")
    return table if default is None else [*table, f"default = {toml(default)} # if the command does not set it"]


def _binding(flag: ScriptFlag) -> list[str]:
    name = toml(flag.name)
    return [f"file = {toml(flag.file)}", f"key = {name}"] if flag.file else [f"{flag.place} = {name}"]


def _fact(name: str, flag: ScriptFlag) -> str:
    default = _default(flag.default, "a number")
    stated = "" if default is None else f", default = {toml(default)}"
    return f"{name} = {{ {', '.join(_binding(flag))}{stated} }}"


def _default(text: str | None, value_kind: str) -> Scalar | None:
    if text is None or value_kind == "a string":
        return text
    return number(text) if value_kind == "a number" else switch_value(text)


def toml(value: Scalar) -> str:
    """Encode a value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F").encode(errors="replace").decode()


def listed(values: Iterable[Scalar]) -> str:
    """Encode values as the entries of a TOML array."""
    return ", ".join(map(toml, values))


def one_line(text: str, *, max_length: int = 200) -> str:
    """Return a text on one line, for a comment."""
    return "".join(character if character.isprintable() else " " for character in text)[:max_length]
