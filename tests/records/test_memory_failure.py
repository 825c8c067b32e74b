from __future__ import annotations

from dataclasses import replace

import pytest

from torchx_cubicml.recorder.events.writer import KILLED_BY_HOST
from torchx_cubicml.records.memory_failure import proves_too_large, share_of_others
from torchx_cubicml.records.trial import Trial

LOST = Trial.infeasible(workload={"program": "a.py"}, config={"micro_batch_size": 8})
ON_DEVICE = {"devices_per_node": 8}


def message(own: str) -> str:
    return (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        f"80.00 GiB of which 1024.00 MiB is free. Including non-PyTorch memory, this process has {own} memory in use. "
        "Of the allocated memory 38.00 GiB is allocated by PyTorch"
    )


@pytest.mark.parametrize(
    ("observed", "reason", "expected"),
    [
        ({}, "", True),
        (ON_DEVICE, message("78.50 GiB"), True),
        (ON_DEVICE, message("39.00 GiB"), False),  # others held half of the device
        (ON_DEVICE, message("40000.00 MiB"), False),
        ({**ON_DEVICE, "other_device_share": 0.02}, "", True),
        ({**ON_DEVICE, "other_device_share": 0.4}, "", False),
        (ON_DEVICE, "the process sent no end event; the host ran out of memory and killed processes", False),
        (ON_DEVICE, KILLED_BY_HOST, False),
        (ON_DEVICE, "the scheduler ended the job: out of memory", False),
        ({}, "the scheduler ended the job: out of memory", True),
        (ON_DEVICE, "CUDA out of memory. Tried to allocate 2.00 GiB", True),
    ],
    ids=str,
)
def test_only_a_device_of_its_own_proves_anything(observed: dict[str, object], reason: str, expected: bool) -> None:
    assert proves_too_large(replace(LOST, observed=observed, reason=reason)) is expected


def test_other_failures_prove_nothing() -> None:
    assert not proves_too_large(Trial.infeasible(workload={}, config={}, reason="unknown"))


@pytest.mark.parametrize(("own", "share"), [("39.00 GiB", 0.5), ("0.00 KiB", 0.9875), ("90.00 GiB", 0.0)])
def test_the_share_of_others_is_what_is_neither_free_nor_own(own: str, share: float) -> None:
    assert share_of_others(message(own)) == pytest.approx(share)
    assert share_of_others(message(own).replace("total capacity", "size")) == 0.0
