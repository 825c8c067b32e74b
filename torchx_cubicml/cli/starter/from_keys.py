"""Keys of a command: its ``key=value`` arguments, those in a Hydra program's help, and those of its config files."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.cli.starter.meanings import ScriptFlag, is_destination, is_path_key, meaning_of
from torchx_cubicml.cli.starter.toml_text import one_line
from torchx_cubicml.errors import CubicMLError
from torchx_cubicml.facts.named_places import named_values
from torchx_cubicml.launch.bindings.hydra import is_one_value, unquoted
from torchx_cubicml.launch.command_facts.stated_settings import read_document
from torchx_cubicml.launch.config_text import flat_keys, is_document, parse_document, value_at
from torchx_cubicml.space.spelling import spell

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchx_cubicml.launch import Launch

MAX_KEYS = 2000  # of one document
_GROUP = re.compile(r"[+~]{0,2}(?P<key>[A-Za-z_][\w./-]*(?:@[\w.:-]*)?)(?:=|$)")
_HYDRA = re.compile(r"\bhydra\.main\b|\bfrom hydra import (?:\w+, )*main\b")
_CONFIG = re.compile(r"^== Config ==\n.*\n(?P<text>(?:\n|.+\n)*?)(?=\n*Powered by Hydra|\Z)", re.MULTILINE)
_GROUPS = re.compile(r"^== Configuration groups ==\n.*\n(?P<text>(?:\n|.+\n)*?)(?=^== |\Z)", re.MULTILINE)
_CONFIG_FLAGS = ("--config-name", "-cn", "--config-path", "-cp", "--config-dir", "-cd")
_SWEEPS = ("-m", "--multirun")


def is_hydra(source: str) -> bool:
    """Return whether the source of a program has an entry point of Hydra, which handles ``--help``."""
    return _HYDRA.search(source) is not None


def is_sweep(args: Sequence[str]) -> bool:
    """Return whether a Hydra command starts several runs in one job."""
    return any(word in _SWEEPS for word in args)


def typed_keys(args: Sequence[str]) -> dict[str, str]:
    """Return the ``key=value`` arguments of a command, by their keys with ``=``; the last of several counts.

    >>> typed_keys(["data.bin", "model.depth=2", "+trainer.devices=8", "--lr=1", "db/engine=fast", "~a.b"])
    {'model.depth=': '2', 'trainer.devices=': '8'}
    """
    end = list(args).index("--") if "--" in args else len(args)
    return {f"{name.lstrip('+')}=": value for name, value in named_values(args[:end]) if not name.startswith("-")}


def listed_keys(help_text: str, args: Sequence[str]) -> dict[str, str]:
    """Return the keys with ``=`` that a Hydra program's help lists, and their values without an argument.

    Nothing is returned for a command that chooses another config, by a group or a flag: other values may hold there.
    """
    config = _CONFIG.search(help_text)
    if config is None or _chosen_config(help_text, args):
        return {}
    try:
        document = parse_document(config["text"], path="config.yaml")
    except (ValueError, CubicMLError):  # nothing is proposed from a text that cannot be read
        return {}
    return {f"{key}=": text for key, text in leaves(document) if "," not in text}


def key_flags(args: Sequence[str], help_text: str, *, is_of_hydra: bool) -> list[ScriptFlag]:
    """Return the ``key=value`` arguments, typed or listed by a Hydra program's help, and the place of Hydra's outputs.

    Args:
        args: of the program.
        help_text: output of its ``--help``; may be empty.
        is_of_hydra: whether Hydra reads the arguments.
    """
    typed, listed = typed_keys(args), listed_keys(help_text, args) if is_of_hydra else {}
    output = "hydra.sweep.dir=" if is_sweep(args) else "hydra.run.dir="
    has_output = is_of_hydra or any(key.startswith("hydra.") for key in typed)
    outputs = [ScriptFlag(name=output, present=typed.get(output), destination=True)] if has_output else []
    names = [name for name in {**typed, **listed} if not (has_output and name == output)]
    return [*outputs, *(_key_flag(name, typed.get(name), listed.get(name)) for name in names)]


def _key_flag(name: str, present: str | None, default: str | None) -> ScriptFlag:
    destination = is_destination(name, present) if present is not None else is_path_key(name, default or "")
    has_value = present is None or is_one_value(present)
    meaning = meaning_of(name) if has_value and not name.startswith("hydra.") else ""
    present = unquoted(present) if present is not None else None
    return ScriptFlag(name=name, meaning=meaning, present=present, default=default, destination=destination)


def hydra_remarks(help_text: str, args: Sequence[str]) -> list[str]:
    """Return the comments on a Hydra command whose keys are not offered, or that starts several runs."""
    chosen = _chosen_config(help_text, args)
    sweep = "# This command trains several times in one job (multirun): record and tune one run of it instead."
    other = f"# Only typed keys are offered, as {one_line(chosen)} chooses another config: type a key to tune it."
    return [*([sweep] if is_sweep(args) else []), *([other] if chosen else [])]


def _chosen_config(help_text: str, args: Sequence[str]) -> str:
    """Return the first argument that chooses another config than the one that the help shows; empty without one."""
    groups = _GROUPS.search(help_text)
    names = re.findall(r"^([\w./-]+):", groups["text"] if groups else "", re.MULTILINE)
    for word in args:
        match = _GROUP.match(word)
        if word.partition("=")[0] in _CONFIG_FLAGS or word.startswith("~") or (match and "@" in match["key"]):
            return word
        if match is not None and match["key"] in names:
            return word
    return ""


def keys_in_files(launch: Launch) -> list[ScriptFlag]:
    """Return the keys of the config files that a command names, those that exist here."""
    return [
        ScriptFlag(name=key, file=label, present=text, meaning=meaning_of(key), destination=is_path_key(key, text))
        for label, path in _named_files(launch)
        for key, text in leaves(read_document(Path(path)))
    ]


def _named_files(launch: Launch) -> list[tuple[str, str]]:
    """Return label and path of each config file; the label is the argument or variable that holds it."""
    named = []
    for previous, word in zip(["", *launch.script_args], launch.script_args, strict=False):
        name, equals, path = word.partition("=")
        if not equals:
            name, path = (previous if previous.startswith("-") and "=" not in previous else ""), word
        elif not name.startswith("-"):
            name = f"{name}="
        if is_document(path):
            named.append((name or path, path))
    return named + [(f"${name}", path) for name, path in launch.env.items() if is_document(path)]


def leaves(document: dict[str, object]) -> Iterator[tuple[str, str]]:
    """Yield dotted key and text of each leaf of a document: scalars and flat lists."""
    for key, value in islice(flat_keys(document), MAX_KEYS):
        entries = value if isinstance(value, list) else [value]
        scalars = [entry for entry in entries if isinstance(entry, bool | int | float | str)]
        is_unambiguous = value_at(document, tuple(key.split("."))) is value  # no name holds a dot
        if scalars and len(scalars) == len(entries) and is_unambiguous:
            yield key, ",".join(map(spell, scalars))
