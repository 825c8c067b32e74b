"""Text (TOML) of a starter space file, from the flags of a command and their help texts."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchx_cubicml.records.values import MAX_ITEMS
from torchx_cubicml.space.arithmetic import kind
from torchx_cubicml.space.constraints import batch_derivation
from torchx_cubicml.space.spelling import number, switch_value
from torchx_cubicml.space.trainers import SHARDING_STRATEGIES, WORKLOAD_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torchx_cubicml.cli.starter.script_flag import ScriptFlag
    from torchx_cubicml.records.values import Scalar

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


def starter_text(
    flags: Sequence[ScriptFlag],
    *,
    program: str,
    world_size: int | None,
    offered: Sequence[ScriptFlag],
    variable: Callable[..., Sequence[str]],
    sections: Sequence[Sequence[str]],
) -> str:
    """Return the starter space file: TOML with comments.

    Args:
        flags: flags of the command and of the script, no two of one meaning.
        program: program of the command, for the heading.
        world_size: processes of the job, where known.
        offered: flags that a further section offers as parameters.
        variable: returns the lines of a parameter that is a variable; it may have none unless it ``is_needed``.
        sections: lines of each further section.
    """
    named = {flag.meaning: flag for flag in flags if flag.meaning and flag.value is not None}
    guesses = _guesses(named)
    meanings = {name: flag for name, flag in named.items() if name not in guesses}
    facts = {name: flag for name, flag in meanings.items() if name in _FACTS and _count(flag)}
    command = _Command(meanings=meanings, facts=facts, world_size=world_size)
    blocks = {
        name: _with_evidence(meanings[name], write(meanings[name], command))
        for name, write in _PARAMETERS.items()
        if name in meanings
    }
    written = {name: lines for name, lines in blocks.items() if lines}
    guessed = _guessed(guesses, replace(command, meanings=named))
    active = any(not line.startswith("#") for lines in written.values() for line in lines)
    is_free = any(line.startswith("choices") and "," in line for lines in written.values() for line in lines)
    destinations = [flag for flag in flags if flag.destination]
    found = [named[name] for name in (*written, *guessed)]
    told = [flag for flag in flags if flag.evidence and flag.meaning not in _PARAMETERS]
    used = {*facts.values(), *found, *told, *destinations, *offered}
    parts = [
        ["[workload] # read from the command, never changed", *map(_fact, facts, facts.values())] if facts else [],
        *written.values(),
        variable(is_needed=not is_free),
        *guessed.values(),
        _not_these_meanings(flags),
        _constraints(command) if active else [],
        *sections,
        _unchanged_flags(flag for flag in flags if flag.present is not None and flag not in used and not flag.file),
    ]
    return with_heading(program, [], parts)


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


def is_nothing_found(text: str) -> bool:
    """Return whether a starter file tunes none of the command's own settings."""
    return NO_FLAG in text.splitlines()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Command:
    """Facts of a command: its flags by standard name, those that are workload facts, and the world size."""

    meanings: Mapping[str, ScriptFlag]
    facts: Mapping[str, ScriptFlag]
    world_size: int | None

    def count(self, name: str) -> int | None:
        """Return the value of a flag if it is a whole number above 0, else ``None``."""
        return _count(self.meanings[name]) if name in self.meanings else None

    @property
    def keeps_global_batch(self) -> bool:
        """Return whether accumulation can compensate for another micro batch."""
        return self.count("micro_batch_size") is not None and self.count("gradient_accumulation_steps") is not None


def _micro_batch(flag: ScriptFlag, command: _Command) -> list[str]:
    present = command.count(flag.meaning)
    if present is None:
        return []
    if not command.keeps_global_batch and not flag.kept:
        unseen = [] if "gradient_accumulation_steps" in command.meanings else _UNSEEN_ACCUMULATION
        return [*parameter_table(flag, choices=[present], remark=_FIXED_BATCH), *unseen]
    total = (flag.kept or 0) // (command.world_size or 1)
    largest = max(total, present * (command.count("gradient_accumulation_steps") or 1))
    powers = [2**power for power in range(largest.bit_length())]
    nearby = [
        size for size in powers if present / _MAX_BATCH_FACTOR <= size <= min(largest, present * _MAX_BATCH_FACTOR)
    ]
    remark = f"the script derives its accumulation: launches of several had one global batch, {flag.kept}"
    remark = remark if flag.kept else "samples per forward pass on each rank"
    return parameter_table(flag, choices=sorted({present, *nearby}), remark=remark)


def _accumulation(flag: ScriptFlag, command: _Command) -> list[str]:
    if not command.keeps_global_batch:
        return []
    return parameter_table(
        flag, lines=[_DERIVED_ACCUMULATION], remark="keeps the global batch, and thus the training, the same"
    )


def _sharding(flag: ScriptFlag, command: _Command) -> list[str]:
    entries = (flag.value or "").split(",")
    named = [name for name in SHARDING_STRATEGIES if re.search(rf"\b{name}\b", flag.text)]
    choices = list(flag.choices or named or SHARDING_STRATEGIES[:3])
    if not set(entries) <= set(choices):
        return []
    per_layer: str | int | None = None
    if len(entries) > 1 or _PER_LAYER.search(flag.text):
        layers = command.count("n_layers")
        counted = layers is not None and layers <= MAX_ITEMS and len(entries) in {1, layers}
        per_layer = "n_layers" if counted else len(entries)
    if per_layer is None or per_layer == 1:
        return parameter_table(flag, choices=choices)
    lines = [f"per_layer = {toml(per_layer)} # or groups = 4: one value for each of four blocks of layers"]
    return parameter_table(flag, choices=choices, lines=lines, remark="one choice per layer")


def _checkpointing(flag: ScriptFlag, command: _Command) -> list[str]:
    remark = "trades time for memory; numerics unchanged"
    if flag.is_switch or switch_value(flag.value or "") is not None:
        return parameter_table(flag, choices=switch_choices(flag), remark=remark)
    choices = list(flag.choices) or [name for name in _CHECKPOINTING if name in {flag.value, "none", "full"}]
    return parameter_table(flag, choices=choices, remark=remark) if flag.value in choices else []


def _degree(flag: ScriptFlag, command: _Command) -> list[str]:
    present = command.count(flag.meaning)
    if present is None:
        return []
    if not command.keeps_global_batch:
        return parameter_table(flag, choices=[present], remark=_FIXED_BATCH)
    largest = min(command.world_size or present, max(_MAX_DEGREE, present))
    powers = [2**power for power in range(largest.bit_length()) if 2**power <= largest]
    return parameter_table(flag, choices=sorted({present, *powers}))


def _workers(flag: ScriptFlag, command: _Command) -> list[str]:
    value = number(flag.value or "")
    if not isinstance(value, int) or value < 0:
        return []
    return parameter_table(flag, choices=sorted({value, 1, 2, 4, 8}), remark="processes that load data, for each rank")


def _precision(flag: ScriptFlag, command: _Command) -> list[str]:
    remark = "changes the numerics of the training: uncomment it only on purpose"
    choices: list[Scalar] = list(flag.choices) or [flag.value or ""]
    return [f"# {line}" for line in parameter_table(flag, choices=choices, remark=remark)]


def _compile(flag: ScriptFlag, command: _Command) -> list[str]:
    if not flag.is_switch and switch_value(flag.value or "") is None:
        return []
    remark = "takes minutes at each start and may change the numerics slightly: uncomment it only on purpose"
    return [f"# {line}" for line in parameter_table(flag, choices=switch_choices(flag), remark=remark)]


def switch_choices(flag: ScriptFlag) -> list[Scalar]:
    """Return the values of a switch: those that the script lists, else 0 and 1 for a number, else false and true."""
    if flag.choices:
        return [text if (value := number(text)) is None else value for text in flag.choices]
    return [False, True] if number(flag.value or "") is None else [0, 1]


_PARAMETERS: dict[str, Callable[[ScriptFlag, _Command], list[str]]] = {
    "micro_batch_size": _micro_batch,
    "gradient_accumulation_steps": _accumulation,
    "sharding_strategy": _sharding,
    "activation_checkpointing": _checkpointing,
    "tp_degree": _degree,
    "pp_degree": _degree,
    "cp_degree": _degree,
    "data_workers": _workers,
    "precision": _precision,
    "compile": _compile,
}

NO_FLAG = "# No flag of this command is known to change only the speed. Add a table for each that does. Until then:"


def _guesses(named: Mapping[str, ScriptFlag]) -> dict[str, ScriptFlag]:
    """Return the flags of a guessed meaning; with a guessed micro batch, the accumulation is one, too."""
    guesses = {name: flag for name, flag in named.items() if flag.is_guess and name in _PARAMETERS}
    if "micro_batch_size" in guesses and (flag := named.get("gradient_accumulation_steps")):
        guesses["gradient_accumulation_steps"] = flag
    return guesses


def _guessed(guesses: Mapping[str, ScriptFlag], command: _Command) -> dict[str, list[str]]:
    """Return the commented tables of guessed meanings."""
    blocks: dict[str, list[str]] = {}
    for name, flag in guesses.items():
        lines = [line for line in _PARAMETERS[name](flag, command) if not line.startswith("#")]
        if lines:
            blocks[name] = [f"# {line}" for line in lines]
            evidence = _with_evidence(flag, []) or [f"# {one_line(flag.name)} goes with the micro batch."]
            blocks[name] = [*evidence, *blocks[name]]
    return blocks


def _with_evidence(flag: ScriptFlag, lines: list[str]) -> list[str]:
    """Return the lines of a table below what recorded launches tell of its flag."""
    if not flag.evidence:
        return lines
    lines_of_evidence = [f"# {one_line(flag.evidence)}."]
    if flag.is_guess:
        lines_of_evidence.append(
            "# That is a guess. Uncomment it if it is true. To know, launch with other values and ranks, then run init:"
        )
    return [*lines_of_evidence, *lines]


def _not_these_meanings(flags: Sequence[ScriptFlag]) -> list[str]:
    """Return the comments on flags whose recorded meaning is not tuned."""
    return [line for flag in flags if flag.meaning not in _PARAMETERS for line in _with_evidence(flag, [])]


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
        table.append(f"choices = [{', '.join(map(toml, choices))}]")
    table += [*lines, *_binding(flag)]
    default = _default(flag.default, kind(choices[0]) if choices else "a number")
    return table if default is None else [*table, f"default = {toml(default)} # if the command does not set it"]


def _binding(flag: ScriptFlag) -> list[str]:
    return [f"file = {toml(flag.file)}", f"key = {toml(flag.name)}"] if flag.file else [f"flag = {toml(flag.name)}"]


def _fact(name: str, flag: ScriptFlag) -> str:
    default = _default(flag.default, "a number")
    stated = "" if default is None else f", default = {toml(default)}"
    return f"{name} = {{ {', '.join(_binding(flag))}{stated} }}"


def _constraints(command: _Command) -> list[str]:
    if command.count("pp_degree") is None or "n_layers" not in command.facts:
        return []
    return ["[[constraints]]", 'require = "n_layers % pp_degree == 0" # remove it if stages may differ']


def _unchanged_flags(flags: Iterable[ScriptFlag]) -> list[str]:
    names = ", ".join(one_line(flag.name) for flag in flags)
    return [f"# Not tuned: {names}"] if names else []


def _count(flag: ScriptFlag) -> int | None:
    value = number(flag.value or "")
    return value if isinstance(value, int) and value > 0 else None


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


def one_line(text: str, *, max_length: int = 200) -> str:
    """Return a text on one line, for a comment."""
    return "".join(character if character.isprintable() else " " for character in text)[:max_length]
