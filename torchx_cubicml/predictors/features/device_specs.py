"""Hardware specifications of common accelerators: peak rates from public data sheets.

Dense peaks (no sparsity) in FLOP/s of tensor cores where there are any, memory in bytes, bandwidths in bytes per
second, one direction. Sources: NVIDIA's data sheets of V100, A100, A10, L4, L40S, T4, H100, H200, GH200 and of the DGX
V100 / A100 / H100 / B200 and GB200 / GB300 NVL72 systems; AMD's data sheets of Instinct MI250X, MI300X, MI325X, MI355X.
Peaks, memory and links of A100, H100 (SXM), B200, B300, GB200 and GB300 agree with what others quote from those sheets
(glennklockwood.com/garden/processors, verda.com/blog/gb300-nvl72-architecture). For the GB200 the two differ, and the
sums of the whole rack decide. The memories of MI300X, MI325X and MI355X agree, too; the others were not checked line by
line. Links between nodes are those of the vendors' reference systems, divided among their GPUs. A cluster may have
other links, which is why calibration has a constant for them. The link to the host is that of 16 lanes of PCIe 4 or 5.

No device reaches its peak. How much of it the largest bf16 matrix products reach was measured with one program on
several devices (stas00/ml-engineering, compute/accelerator/README.md, "Maximum Achievable Matmul FLOPS", second
version; the MI250X is in its first alone). A device that is not listed there counts as an H100.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from torchx_cubicml.records.standard_words import standard_word

PRECISIONS = ("fp8", "bf16", "fp16", "tf32", "fp32")
_T = 1e12
_G = 1e9
_PCIE_4, _PCIE_5 = 32e9, 64e9  # bytes per second of 16 lanes, one direction
_WITH_PCIE_5 = frozenset({"h100", "h200", "h800", "h20", "b200", "b300"})


_MATMUL_SHARE_OF_H100 = 0.803


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Specification of one kind of device as PyTorch counts devices (MI250X: one of its two dies).

    Args:
        name: short name.
        fp32: peak FLOP/s.
        tf32: likewise; 0.0 where the device has none, and so below.
        bf16: likewise; fp16 is as fast wherever bf16 exists.
        fp8: likewise.
        fp16: likewise, given only where bf16 is not native.
        memory: bytes.
        memory_bandwidth: bytes per second.
        link: to a device of the same node, bytes per second.
        network: to a device of another node, bytes per second.
        host: to the host's memory, bytes per second, over PCIe.
        per_node: devices joined by the fast links.
        matmul_share: share of the bf16 peak that the largest matrix products reach.
    """

    name: str
    fp32: float
    tf32: float = 0.0
    bf16: float = 0.0
    fp8: float = 0.0
    fp16: float = 0.0
    memory: float
    memory_bandwidth: float
    link: float
    network: float
    host: float = _PCIE_4
    per_node: int = 8
    matmul_share: float = _MATMUL_SHARE_OF_H100

    def peak(self, precision: str) -> float:
        """Return the peak FLOP/s in ``precision``, a standard word; the next wider one where it is not native.

        >>> find_hardware("Tesla V100-SXM2-32GB").peak("bf16") / 1e12
        15.7
        """
        tf32 = self.tf32 or self.fp32
        bf16 = self.bf16 or tf32
        peaks = {"tf32": tf32, "bf16": bf16, "fp16": self.fp16 or bf16, "fp8": self.fp8 or bf16}
        return peaks.get(precision, self.fp32)


def _nvidia(
    name: str, tflops: tuple[float, float, float, float], memory: tuple[float, float], links: tuple[float, float, int]
) -> Hardware:
    fp32, tf32, bf16, fp8 = (value * _T for value in tflops)
    gigabytes, bandwidth = memory
    link, network, per_node = links
    return Hardware(
        name=name,
        fp32=fp32,
        tf32=tf32,
        bf16=bf16,
        fp8=fp8,
        memory=gigabytes * _G,
        memory_bandwidth=bandwidth * _G,
        link=link * _G,
        network=network * _G,
        host=_PCIE_5 if name.partition("-")[0] in _WITH_PCIE_5 else _PCIE_4,
        per_node=per_node,
        matmul_share=_MATMUL_SHARES.get(name, _MATMUL_SHARE_OF_H100),
    )


_MATMUL_SHARES = {
    **dict.fromkeys(("a100-80", "a100-40", "a800"), 0.869),
    **dict.fromkeys(("a100-pcie", "a100-pcie-40"), 0.811),
    "gh200": 0.836,
    "mi325x": 0.604,
    "mi300x": 0.514,
    "mi250x": 0.767,
}
_HOPPER = (66.9, 494.7, 989.4, 1978.9)
_AMPERE = (19.5, 156.0, 312.0, 0.0)
_V100 = Hardware(
    name="v100",
    fp32=15.7 * _T,
    fp16=125 * _T,
    memory=32 * _G,
    memory_bandwidth=900 * _G,
    link=150 * _G,
    network=6.25 * _G,
)

# One process on a few cores; an order of magnitude only.
CPU = _nvidia("cpu", (0.1, 0.1, 0.1, 0.0), (16.0, 20.0), (4.0, 1.0, 64))

# (words that the name must contain, facts); the first match wins, so more specific entries come first.
_TABLE: tuple[tuple[str, Hardware], ...] = (
    ("gb300", _nvidia("gb300", (80.0, 1250.0, 2500.0, 5000.0), (279.0, 8000.0), (900.0, 100.0, 72))),
    ("gb200", _nvidia("gb200", (80.0, 1250.0, 2500.0, 5000.0), (186.0, 8000.0), (900.0, 50.0, 72))),
    ("b300", _nvidia("b300", (75.0, 1125.0, 2250.0, 4500.0), (270.0, 7700.0), (900.0, 100.0, 8))),
    ("b200", _nvidia("b200", (75.0, 1125.0, 2250.0, 4500.0), (180.0, 7700.0), (900.0, 50.0, 8))),
    ("gh200", _nvidia("gh200", _HOPPER, (96.0, 4000.0), (450.0, 50.0, 1))),
    ("h200", _nvidia("h200", _HOPPER, (141.0, 4800.0), (450.0, 50.0, 8))),
    ("h100 pcie", _nvidia("h100-pcie", (51.2, 378.0, 756.0, 1513.0), (80.0, 2000.0), (64.0, 25.0, 8))),
    ("h100 nvl", _nvidia("h100-nvl", (60.0, 417.5, 835.0, 1670.0), (94.0, 3900.0), (64.0, 25.0, 8))),
    ("h100", _nvidia("h100", _HOPPER, (80.0, 3352.0), (450.0, 50.0, 8))),
    ("h800", _nvidia("h800", _HOPPER, (80.0, 3352.0), (200.0, 50.0, 8))),
    ("h20", _nvidia("h20", (44.0, 74.0, 148.0, 296.0), (96.0, 4000.0), (450.0, 50.0, 8))),
    ("a100 pcie 40", _nvidia("a100-pcie-40", _AMPERE, (40.0, 1555.0), (32.0, 12.5, 8))),
    ("a100 40", _nvidia("a100-40", _AMPERE, (40.0, 1555.0), (300.0, 25.0, 8))),
    ("a100 pcie", _nvidia("a100-pcie", _AMPERE, (80.0, 1935.0), (32.0, 12.5, 8))),
    ("a100", _nvidia("a100-80", _AMPERE, (80.0, 2039.0), (300.0, 25.0, 8))),
    ("a800", _nvidia("a800", _AMPERE, (80.0, 2039.0), (200.0, 25.0, 8))),
    ("a10g", _nvidia("a10g", (31.2, 35.0, 70.0, 0.0), (24.0, 600.0), (32.0, 6.25, 8))),
    ("a10", _nvidia("a10", (31.2, 62.5, 125.0, 0.0), (24.0, 600.0), (32.0, 6.25, 8))),
    ("l40s", _nvidia("l40s", (91.6, 183.0, 362.0, 733.0), (48.0, 864.0), (32.0, 12.5, 8))),
    ("l4", _nvidia("l4", (30.3, 60.0, 121.0, 242.0), (24.0, 300.0), (32.0, 6.25, 8))),
    ("v100 16", replace(_V100, name="v100-16", memory=16 * _G)),
    ("v100", _V100),
    ("t4", Hardware(
        name="t4",
        fp32=8.1 * _T,
        fp16=65 * _T,
        memory=16 * _G,
        memory_bandwidth=320 * _G,
        link=16 * _G,
        network=3 * _G,
    )),
    ("mi355x", _nvidia("mi355x", (157.3, 0.0, 2516.6, 5033.2), (288.0, 8000.0), (537.0, 50.0, 8))),
    ("mi325x", _nvidia("mi325x", (163.4, 653.7, 1307.4, 2614.9), (256.0, 6000.0), (448.0, 50.0, 8))),
    ("mi300x", _nvidia("mi300x", (163.4, 653.7, 1307.4, 2614.9), (192.0, 5300.0), (448.0, 50.0, 8))),
    ("mi250x", _nvidia("mi250x", (47.9, 0.0, 191.5, 0.0), (64.0, 1638.0), (100.0, 12.5, 8))),
    ("mi250", _nvidia("mi250", (45.3, 0.0, 181.0, 0.0), (64.0, 1638.0), (100.0, 12.5, 8))),
    ("cpu", CPU),
)  # fmt: skip

REFERENCE = next(facts for words, facts in _TABLE if words == "h100")
"""Replacement for a device of unknown kind; calibration then fits the difference."""


def find_hardware(device: str) -> Hardware | None:
    """Return the specification of a device by any of its usual names, ``None`` where it is unknown.

    >>> [find_hardware(name).name for name in ("NVIDIA H100 80GB HBM3", "h100_80gb", "A100-SXM4-40GB", "cpu")]
    ['h100', 'h100', 'a100-40', 'cpu']
    >>> find_hardware("abacus") is None
    True
    """
    # "40gb" is the number 40 and a unit; "a10g" is one word.
    words = {re.sub(r"^(\d+)gi?b?$", r"\1", word) for word in re.findall(r"[a-z0-9]+", device.lower())}
    return next((facts for key, facts in _TABLE if words.issuperset(key.split())), None)


def precision_word(text: str) -> str | None:
    """Return the precision of ``PRECISIONS`` by any of its usual names, ``None`` where it is none of them.

    >>> [precision_word(text) for text in ("amp_fp8", "bf16-mixed", "float16", "int4", "nvfp4", "mxfp8")]
    ['fp8', 'bf16', 'fp16', None, None, None]
    """
    word = standard_word("precision", text)
    return word if word in PRECISIONS else None


def hardware_names() -> tuple[str, ...]:
    """Return the short names of all known devices; ``find_hardware`` accepts each of them.

    >>> all(find_hardware(name).name == name for name in hardware_names())
    True
    """
    return tuple(facts.name for _, facts in _TABLE)
