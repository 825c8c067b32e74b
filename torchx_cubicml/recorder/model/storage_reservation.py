"""Storage reservation of TorchRec's planner: the share of device memory that it leaves to all but the tables."""

from __future__ import annotations

import sys
from functools import wraps
from typing import TYPE_CHECKING, Any

from torchx_cubicml.recorder.steps.torch_hooks import once_imported

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.recorder.steps.torch_hooks import Guard

_MODULE = "torchrec.distributed.planner.storage_reservations"
_WITH_SHARE = ("FixedPercentageStorageReservation", "HeuristicalStorageReservation")


def watch_reservations(note: Callable[[float], None], guard: Guard) -> None:
    """Call ``note`` with the reserved share, in 0 to 1, each time that a planner of the program reserves memory.

    TorchRec plans on rank 0 and sends the plan to the others, so only rank 0 learns the share.

    Args:
        note: receives the share.
        guard: makes a call harmless to the planner.
    """

    def read(reservation: object) -> None:
        share = reserved_share(reservation)
        if share is not None:
            note(share)

    safe_read = guard(read)

    def wrap_all() -> None:
        kinds = sys.modules[_MODULE]
        for name in _WITH_SHARE:
            kind = getattr(kinds, name, None)
            original = vars(kind).get("reserve") if kind is not None else None
            if callable(original):
                setattr(kind, "reserve", _wrapped(original, safe_read))  # noqa: B010 - of a class that may be absent

    once_imported(_MODULE, guard(wrap_all))


def reserved_share(reservation: object) -> float | None:
    """Return the share that a reservation keeps; ``None`` if it keeps a number of bytes, or has no share."""
    attributes = getattr(reservation, "__dict__", {})
    share = attributes.get("_percentage")
    if attributes.get("_hbm_reserved_bytes") or isinstance(share, bool) or not isinstance(share, int | float):
        return None
    return float(share)


def _wrapped(original: Callable[..., Any], read: Callable[[object], None]) -> Callable[..., Any]:
    @wraps(original)
    def reserve(self: object, *args: Any, **kwargs: Any) -> Any:
        read(self)
        return original(self, *args, **kwargs)

    return reserve
