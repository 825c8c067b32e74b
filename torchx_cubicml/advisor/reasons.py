"""Why a config is proposed, in words for the person who launches it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchx_cubicml.records.trial import Config, Value


def against_baseline(gain: float, low: float, high: float) -> str:
    """Return a gain over the user's own config with its 80 % interval.

    >>> against_baseline(1.4, 1.25, 1.57)
    '1.40x your own config (1.25x to 1.57x)'
    >>> against_baseline(1.01, 0.98, 1.04)
    '1.01x your own config (0.98x to 1.04x: inside the noise)'
    """
    told = ": inside the noise" if low < 1.0 < high else ""
    return f"{gain:.2f}x your own config ({low:.2f}x to {high:.2f}x{told})"


def differences(config: Config, other: Config) -> str:
    """Return what ``other`` has in place of what ``config`` has, in words.

    >>> differences({"micro_batch_size": 8, "compile": True}, {"micro_batch_size": 4, "compile": True})
    'micro_batch_size 4 in place of 8'
    """
    return ", ".join(_change(name, config[name], other[name]) for name in _different(config, other))


def distance(config: Config, other: Config) -> float:
    """Return in how many parameters two configs differ; of a value per layer, the share of layers counts."""
    return sum(_share(config[name], other[name]) for name in _different(config, other))


def without_effect(names: Iterable[str]) -> str:
    """Return which parameters are left alone because nothing observed depended on them; nothing where none is."""
    told = ", ".join(names)
    return f"{told} left as typed: no effect was observed here" if told else ""


def _different(config: Config, other: Config) -> list[str]:
    return [name for name, value in config.items() if name in other and other[name] != value]


def _share(value: Value, other: Value) -> float:
    """Return the share of entries that differ; a value that is no tuple differs as a whole."""
    if isinstance(value, tuple) and isinstance(other, tuple) and len(value) == len(other):
        return sum(a != b for a, b in zip(value, other, strict=True)) / len(value)
    return 1.0


def _change(name: str, value: Value, other: Value) -> str:
    if isinstance(value, tuple) and isinstance(other, tuple) and len(value) == len(other):
        return f"{name} unlike in {sum(a != b for a, b in zip(value, other, strict=True))} of {len(value)} entries"
    return f"{name} {other} in place of {value}"
