"""Texts of values and configs for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.records.redaction import printable

if TYPE_CHECKING:
    from collections.abc import Mapping


def config_text(config: Mapping[str, object]) -> str:
    """Return a config on one line; runs of equal entries in a tuple are counted (run-length encoding).

    >>> config_text({"micro_batch_size": 8, "sharding_strategy": ("NO_SHARD", "NO_SHARD", "FULL_SHARD")})
    'micro_batch_size=8 sharding_strategy=2xNO_SHARD,FULL_SHARD'
    """
    return " ".join(f"{printable(name)}={value_text(value)}" for name, value in config.items())


def value_text(value: object) -> str:
    """Return one value as text for people, without control characters; see ``config_text``."""
    if not isinstance(value, tuple | list):
        return f"{value:.6g}" if isinstance(value, float) else printable(str(value))
    runs: list[tuple[object, int]] = []
    for item in value:
        if runs and runs[-1][0] == item:
            runs[-1] = (item, runs[-1][1] + 1)
        else:
            runs.append((item, 1))
    return ",".join(f"{count}x{value_text(item)}" if count > 1 else value_text(item) for item, count in runs)


def entries_text(value: object, entries: str = "layers") -> str:
    """Return a value as text; the entries of a tuple are counted.

    Args:
        value: of a parameter.
        entries: what the entries of a tuple belong to, in words.

    >>> entries_text(8), entries_text(("DDP", "DDP")), entries_text(("DDP", "FULL_SHARD", "DDP"))
    ('8', 'DDP in all layers', 'DDP in 2, FULL_SHARD in 1 layers')
    """
    if not isinstance(value, tuple):
        return value_text(value)
    counts = {entry: value.count(entry) for entry in dict.fromkeys(value)}
    if len(counts) == 1:
        return f"{value_text(value[0])} in all {entries}"
    return ", ".join(f"{value_text(entry)} in {count}" for entry, count in counts.items()) + f" {entries}"
