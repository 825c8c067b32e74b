"""Texts of a config as its difference from another one, such as ``batch 2 -> 16, sharding 4xFULL_SHARD -> DDP``."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from torchx_cubicml.records.redaction import printable
from torchx_cubicml.records.value_text import value_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SHORT_NAMES = {
    "micro_batch_size": "batch",
    "gradient_accumulation_steps": "accumulation",
    "global_batch_size": "global_batch",
    "sharding_strategy": "sharding",
    "activation_checkpointing": "checkpointing",
    "dp_replicate_degree": "dp_replicate",
    "dp_shard_degree": "dp_shard",
    **{f"{axis}_degree": axis for axis in ("tp", "pp", "cp", "ep", "dp")},
}
"""Standard name of a parameter -> the short name by which people know it."""

_LONGEST_VALUE = 48  # characters of one value
_T = TypeVar("_T")


def short_name(name: str, among: Iterable[str] = ()) -> str:
    """Return the short name of a parameter; the full one where another parameter has the short one.

    >>> short_name("micro_batch_size"), short_name("micro_batch_size", {"batch"}), short_name("workers")
    ('batch', 'micro_batch_size', 'workers')
    """
    short = SHORT_NAMES.get(name, name)
    return printable(name if short in set(among) - {name} else short)


def config_changes(config: Mapping[str, object], own: Mapping[str, object]) -> list[str]:
    """Return the text of each value of a config that differs from the user's own.

    >>> config_changes({"micro_batch_size": 16, "compile": True}, {"micro_batch_size": 2, "compile": True})
    ['batch 2 -> 16']
    """
    changed = changed_values(config, own).items()
    return [f"{short_name(name, config)} {_text(own[name])} -> {_text(value)}" for name, value in changed]


def changed_values(config: Mapping[str, _T], own: Mapping[str, object]) -> dict[str, _T]:
    """Return the values of a config that differ from the user's own; what either side does not know is no change.

    >>> changed_values({"workers": 4, "compile": True, "depth": None}, {"workers": 2, "depth": 3})
    {'workers': 4}
    """
    return {name: value for name, value in config.items() if None not in (value, own.get(name)) and own[name] != value}


def config_values(config: Mapping[str, object]) -> list[str]:
    """Return the text of each value of a config, with its short name.

    >>> config_values({"micro_batch_size": 2, "sharding_strategy": ("NO_SHARD", "NO_SHARD")})
    ['batch 2', 'sharding 2xNO_SHARD']
    """
    return [f"{short_name(name, config)} {_text(value)}" for name, value in config.items()]


def _text(value: object) -> str:
    text = value_text(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
