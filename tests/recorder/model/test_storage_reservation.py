from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.recorder.model.storage_reservation import reserved_share, watch_reservations

if TYPE_CHECKING:
    from collections.abc import Callable

MODULE = "torchrec.distributed.planner.storage_reservations"


class FixedPercentageStorageReservation:
    """Known by its name, as TorchRec's own."""

    def __init__(self, percentage: float) -> None:
        self._percentage = percentage

    def reserve(self, topology: str, *, batch_size: int) -> str:
        return f"{topology} less {self._percentage} for {batch_size}"


class FixedAbsoluteStorageReservation(FixedPercentageStorageReservation):
    def __init__(self, size: int) -> None:
        super().__init__(0.0)
        self._hbm_reserved_bytes = size


def guard(hook: Callable[..., object]) -> Callable[..., None]:
    def call(*args: object) -> None:
        hook(*args)

    return call


def test_the_share_of_each_reservation_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(MODULE)
    module.FixedPercentageStorageReservation = type(  # type: ignore[attr-defined]  # a module that is made here
        "FixedPercentageStorageReservation",
        (FixedPercentageStorageReservation,),
        {"reserve": FixedPercentageStorageReservation.reserve},
    )
    monkeypatch.setitem(sys.modules, MODULE, module)
    notes: list[float] = []
    watch_reservations(notes.append, guard)
    reservation = module.FixedPercentageStorageReservation(0.25)
    assert reservation.reserve("node", batch_size=3) == "node less 0.25 for 3"
    assert notes == [0.25]


@pytest.mark.parametrize(
    ("reservation", "share"),
    [
        (FixedPercentageStorageReservation(0.0), 0.0),
        (FixedPercentageStorageReservation(1), 1.0),
        (FixedAbsoluteStorageReservation(7), None),
        (SimpleNamespace(_percentage="much"), None),
        (SimpleNamespace(_percentage=True), None),
        (object(), None),
    ],
)
def test_a_share_is_read_where_there_is_one(reservation: object, share: float | None) -> None:
    assert reserved_share(reservation) == share
