from __future__ import annotations

import pytest

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch import Launch, read_config
from torchx_cubicml.space.toml import parse_space

SPACE = """
[parameters.sharding_strategy]
choices = ["FULL_SHARD", "NO_SHARD"]
per_layer = 4
env = "SHARDING"
"""


def config_of(text: str) -> object:
    launch = Launch(program="train.py", env={"SHARDING": text}, world_size=2)
    _, config = read_config(launch, parse_space(SPACE, where="space.toml"))
    return config["sharding_strategy"]


@pytest.mark.parametrize("text", ["NO_SHARD", "NO_SHARD,NO_SHARD,NO_SHARD,NO_SHARD"])
def test_one_entry_counts_for_every_layer(text: str) -> None:
    assert config_of(text) == ("NO_SHARD",) * 4


def test_another_number_of_entries_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"SHARDING of .* has 3 entries; it must have 1 or 4"):
        config_of("NO_SHARD,NO_SHARD,NO_SHARD")
