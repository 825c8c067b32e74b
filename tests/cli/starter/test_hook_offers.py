from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.cli.starter import starter_space
from torchx_cubicml.launch import Launch, read_config
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from pathlib import Path

FSDP1 = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)\n"
FSDP2 = "from torch.distributed.fsdp import fully_shard\nfully_shard(model)\n"
OWN = "from torch.utils.checkpoint import checkpoint\n"


def starter(folder: Path, source: str, *args: str) -> tuple[str, Launch]:
    script = folder / "train.py"
    script.write_text(source)
    launch = Launch(program=str(script), script_args=args, world_size=2)
    return starter_space(launch, ""), launch


@pytest.mark.parametrize("source", [FSDP1, FSDP2], ids=["FSDP1", "FSDP2"])
@pytest.mark.parametrize("args", [(), ("--n_layers", "3")], ids=["unknown layers", "layers"])
def test_the_offer_is_a_space_once_it_is_uncommented(source: str, args: tuple[str, ...], tmp_path: Path) -> None:
    text, launch = starter(tmp_path, source, *args)
    head, _, offer = text.partition("# No flag sets these.")
    lines = offer.split("\n\n")[0].splitlines()[1:]
    space = parse_space(head + "\n".join(line.removeprefix("# ") for line in lines), where="space.toml")
    _, config = read_config(launch, space)
    own = {"sharding_strategy": "FULL_SHARD", "activation_checkpointing": "none"}
    for name, value in own.items():
        assert config[name] == ((value,) * 3 if args else value)
    assert ("NO_SHARD" in offer) == (source == FSDP1)


@pytest.mark.parametrize(
    ("source", "args", "offered"),
    [
        ("import torch\n", (), []),
        (FSDP1 + OWN, (), ["fsdp"]),
        (FSDP1, ("--sharding", "FULL_SHARD"), ["activation_checkpointing"]),
        (FSDP1 + OWN, ("--sharding", "FULL_SHARD"), []),
    ],
    ids=["no FSDP", "its own checkpoints", "a flag", "both"],
)
def test_what_the_script_sets_is_not_offered(
    source: str, args: tuple[str, ...], offered: list[str], tmp_path: Path
) -> None:
    text, _ = starter(tmp_path, source, *args)
    hooks = [line.partition('"')[2].rstrip('"') for line in text.splitlines() if line.startswith("# hook = ")]
    assert hooks == offered
    assert ("No flag sets these" in text) == bool(offered)
