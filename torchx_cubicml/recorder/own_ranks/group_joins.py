"""Hook on the default process group of torch: a process that joins one is a rank of a training."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any

from torchx_cubicml.recorder.steps.torch_hooks import once_imported

if TYPE_CHECKING:
    from collections.abc import Callable

_MODULE = "torch.distributed.distributed_c10d"
_SETTER = "_update_default_pg"  # torch calls it once a default group is made, and with None when it is destroyed


def on_every_join(call: Callable[[int, int], None]) -> None:
    """Run ``call(rank, world_size)``, which must not raise, after this process or a fork of it has joined a group.

    A torch without the private function that is wrapped makes no such call.
    """
    once_imported(_MODULE, lambda: _wrap(call))


def _wrap(call: Callable[[int, int], None]) -> None:
    module = sys.modules[_MODULE]
    original = getattr(module, _SETTER, None)
    if original is None:
        return

    @wraps(original)
    def update(*args: Any, **options: Any) -> None:
        original(*args, **options)
        group: Any = next(iter((*args, *options.values())), None)
        with suppress(Exception):  # nothing of ours may reach init_process_group
            if hasattr(group, "rank") and hasattr(group, "size"):
                call(group.rank(), group.size())

    setattr(module, _SETTER, update)
