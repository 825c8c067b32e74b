"""Reader of ``key=value`` arguments, and of the keys that a Hydra program's help lists."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchx_cubicml.cli.starter.from_files import leaves
from torchx_cubicml.cli.starter.toml_text import one_line
from torchx_cubicml.errors import CubicMLError
from torchx_cubicml.facts.named_places import named_values
from torchx_cubicml.launch.config_text import parse_document

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    return {f"{'.'.join(key)}=": text for key, text in leaves(document, ()) if "," not in text}


def hydra_remarks(help_text: str, args: Sequence[str]) -> list[str]:
    """Return the comments on a Hydra command whose keys are not offered, or that starts several runs."""
    chosen = _chosen_config(help_text, args)
    remarks = []
    if is_sweep(args):
        remarks.append(
            "# This command trains several times in one job (multirun): record and tune one run of it instead."
        )
    if chosen:
        remarks.append(
            f"# Only typed keys are offered, as {one_line(chosen)} chooses another config: type a key to tune it."
        )
    return remarks


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
