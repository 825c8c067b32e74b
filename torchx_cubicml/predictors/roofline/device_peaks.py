"""Devices and number formats of trainings, as fields of a layout derived from facts."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from torchx_cubicml.predictors.features.device_specs import PRECISIONS, REFERENCE, find_hardware, precision_word

if TYPE_CHECKING:
    from torchx_cubicml.predictors.features.device_specs import Hardware
    from torchx_cubicml.predictors.roofline.facts import Facts

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

_BYTES = {"fp32": 4.0, "tf32": 4.0}  # of a weight, an activation or a gradient in transfer; 2 for all others
_FACTS = {
    "memory": "memory",
    "memory_bandwidth": "memory_bandwidth",
    "link": "link",
    "network": "network",
    "host_link": "host",
    "per_node": "per_node",
    "matmul_share": "matmul_share",
}


def device_fields(facts: Facts) -> dict[str, Array]:
    """Return the fields of a layout that describe the devices and the number format, float64 ``[n]`` each."""
    names = tuple(facts.shares.get("device", {}))
    precision = _precision(facts, names)
    table: dict[str, Array] = {name: np.zeros(facts.n) for name in ("peak", "attention_peak", *_FACTS)}
    weight = np.zeros(facts.n)
    for name, share in facts.shares.get("device", {}).items():
        weight = weight + share
        _add_device(table, _hardware(name), share, precision)
    _add_device(table, REFERENCE, 1.0 - weight, precision)
    stated_per_node = facts.number("nproc_per_node", table["per_node"])
    # Fast links may join a whole rack, which contains several of the scheduler's nodes.
    table["per_node"] = np.where(table["per_node"] > 8, table["per_node"], stated_per_node)
    fp8 = precision["fp8"]
    width_bytes = sum((share * (_BYTES.get(word, 2.0)) for word, share in precision.items()), np.zeros(facts.n))
    return {**table, "width_bytes": width_bytes, "low_bit": fp8}


def _add_device(table: dict[str, Array], hardware: Hardware, share: Array, precision: dict[str, Array]) -> None:
    peak = sum((part * hardware.peak(word) for word, part in precision.items()), np.zeros(len(share)))
    table["peak"] = table["peak"] + share * peak
    of_attention = {word: "bf16" if word == "fp8" else word for word in precision}
    attention = sum(
        (part * hardware.peak(of_attention[word]) for word, part in precision.items()), np.zeros(len(share))
    )
    table["attention_peak"] = table["attention_peak"] + share * attention
    for name, attribute in _FACTS.items():
        table[name] = table[name] + share * float(getattr(hardware, attribute))


@cache
def _hardware(device: str) -> Hardware:
    return find_hardware(device) or REFERENCE


def _precision(facts: Facts, devices: tuple[str, ...]) -> dict[str, Array]:
    shares: dict[str, Array] = {word: np.zeros(facts.n) for word in PRECISIONS}
    for text, share in facts.shares.get("precision", {}).items():
        word = precision_word(text)
        if word is None:  # such as nvfp4: its peak is unknown, and none of the formats stands in for it
            shares["bf16"] = np.where(share > 0.0, np.nan, shares["bf16"])
        else:
            shares[word] = shares[word] + share
    cpu = facts.share("device", [name for name in devices if _hardware(name).name == "cpu"])
    old = facts.share("device", [name for name in devices if _hardware(name).fp16])  # no bf16: trained in fp16
    unknown = 1.0 - facts.known("precision")
    shares["fp32"] = shares["fp32"] + unknown * cpu
    shares["fp16"] = shares["fp16"] + unknown * old
    shares["bf16"] = shares["bf16"] + unknown * (1.0 - cpu - old)
    return shares
