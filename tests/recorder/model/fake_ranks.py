"""One process that takes itself for one rank of many: process groups of torch whose collectives do nothing."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

if TYPE_CHECKING:
    from collections.abc import Iterator


_SETUPS = count(1)


@contextmanager
def fake_ranks(world_size: int) -> Iterator[None]:
    """Make torch believe that so many ranks run, within the context."""
    # Torch keeps device meshes in its caches. The names of their groups must not be those of other groups.
    dist.distributed_c10d._world.group_count = 1000 * next(_SETUPS)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()
