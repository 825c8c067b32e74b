"""Published step times that no prior was learned from and no rule was chosen by: a check of intervals on a new source.

They are the layouts that BigScience tried for BLOOM on Jean Zay's A100s of 80 GB, in ``SOURCE``. Each is one step, the
second of a job. Left out are rows that ran out of memory, rows without a stated depth, and models of fewer than 12
layers. ``train/tr11-176B-ml`` of that repository states what the page does not: 2,048 tokens, a vocabulary of 250,880,
recomputation of every layer, ZeRO 1. Attention of that time wrote its scores to memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lib.public_sources import Source

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

NAME = "BigScience"
SOURCE = "bigscience-workshop/bigscience train/tr11-176B-ml/chronicles-prequel.md"
# Nodes, layers, width, heads, DP, TP, PP, micro batch, global batch, seconds per step; fp16, then bf16.
_FP16 = """
40 80 13824 64 4 8 10 1 2048 160.29
40 80 13824 64 4 8 10 2 2048 151.07
40 80 13824 64 4 8 10 4 2048 147.43
40 80 13824 64 4 8 10 8 2048 152.51
48 72 14336 64 4 8 12 1 2048 143.31
48 72 14336 64 4 8 12 2 2048 134.02
48 72 14336 64 4 8 12 4 2048 123.69
48 72 14336 64 4 8 12 8 2048 129.26
48 72 14336 64 8 8 6 1 2048 139.82
48 72 14336 64 8 8 6 2 2048 131.02
48 72 14336 64 8 8 6 4 2048 121.48
48 84 13824 64 4 8 12 2 2048 143.89
48 84 13824 64 4 8 12 4 2048 133.12
48 84 13824 64 8 8 6 2 2048 141.41
48 84 13824 64 8 8 6 4 2048 130.31
48 96 12288 64 8 8 6 2 2048 136.73
48 96 12288 64 8 8 6 4 2048 122.96
48 84 13312 64 4 8 12 4 2048 125.52
48 84 13312 64 8 8 6 2 2048 135.55
48 84 13312 64 8 8 6 4 2048 122.93
48 78 13824 64 8 8 6 4 2048 121.28
48 72 14336 16 8 8 6 4 2048 121.03
48 72 14336 32 8 8 6 4 2048 124.01
48 72 14336 112 8 8 6 4 2048 138.72
48 72 14336 128 8 8 6 4 2048 124.89
48 72 14336 256 8 8 6 4 2048 132.85
48 78 13824 96 8 8 6 4 2048 124.75
48 78 13824 128 8 8 6 4 2048 162.72
48 84 13312 128 8 8 6 4 2048 129.17
48 96 12288 96 8 8 6 4 2048 145.40
48 96 12288 128 8 8 6 4 2048 129.42
48 72 14336 64 8 8 6 4 1568 113.01
48 72 14336 64 8 8 6 4 2048 114.11
48 72 14336 64 8 8 6 6 2016 123.57
48 72 14336 64 4 8 12 4 1568 92.75
48 72 14336 64 4 8 12 4 2048 117.07
48 72 14336 64 4 8 12 2 1568 99.93
48 72 14336 64 4 8 12 2 2048 128.82
48 72 14336 64 6 8 8 4 2016 113.16
48 72 14336 64 12 8 4 2 2016 125.52
48 72 14336 64 12 8 4 4 2016 114.81
48 72 14336 64 24 8 2 1 2016 145.45
48 72 14336 64 24 8 2 2 2016 136.13
48 72 14336 64 8 4 12 4 2048 111.89
48 72 14336 64 8 4 12 2 2048 110.48
48 72 14336 64 16 4 6 4 2048 117.11
48 72 14336 64 16 4 6 2 2048 111.71
48 72 14336 64 16 2 12 2 2048 112.50
48 72 14336 64 8 2 24 1 2048 119.53
48 72 14336 64 8 2 24 2 2048 122.75
48 72 14336 64 4 4 24 1 2048 130.60
48 96 12288 64 8 1 48 1 2048 142.17
48 78 13824 64 8 4 12 1 2048 148.24
48 78 13824 64 8 4 12 2 2048 103.51
48 78 13824 96 8 4 12 2 2048 107.12
48 78 13824 128 8 4 12 2 2048 147.41
48 78 13824 64 8 4 12 4 2048 106.72
48 78 13824 96 8 4 12 4 2048 110.31
48 78 13824 128 8 4 12 4 2048 153.90
48 78 13824 96 8 8 6 4 2048 118.12
48 78 13824 128 8 8 6 4 2048 156.84
48 72 14336 128 8 4 12 2 2048 114.02
48 72 14336 128 8 4 12 4 2048 137.53
48 72 14336 128 8 8 6 4 2048 116.06
48 84 13312 64 8 4 12 2 2048 103.82
48 84 13312 64 8 4 12 4 2048 113.21
48 84 13312 64 8 8 6 2 2048 129.61
48 78 13824 96 8 4 12 2 512 35.77
48 78 13824 96 8 4 12 2 1024 59.65
48 78 13824 96 8 4 12 2 1536 83.11
48 78 13824 96 8 8 6 2 2048 133.57
48 78 13824 96 16 4 6 4 2048 115.55
48 106 12288 96 8 4 12 2 2048 112.69
48 106 12288 64 8 4 12 2 2048 110.96
"""
_BF16 = """
48 106 12288 64 8 4 12 2 2048 116.54
48 106 12288 96 8 4 12 2 2048 118.79
48 106 12288 128 8 4 12 2 2048 121.42
48 106 12288 96 8 4 12 4 2048 120.34
48 100 12288 64 8 8 6 2 2048 139.72
48 100 12288 64 8 8 6 4 2048 120.96
48 82 13312 64 4 8 12 4 2048 111.79
48 82 13312 64 8 4 12 2 2048 104.45
48 82 13312 104 8 4 12 2 2048 123.71
48 82 13312 128 8 4 12 2 2048 108.78
48 82 13312 64 8 4 12 4 2048 104.82
48 94 13312 128 8 4 12 2 2048 124.10
48 70 14336 64 4 8 12 2 2048 121.63
48 70 14336 64 8 4 12 2 2048 102.03
48 70 14336 112 8 4 12 2 2048 104.50
48 70 14336 128 8 4 12 2 2048 105.89
48 70 14336 64 8 4 12 4 2048 102.27
"""
_FACTS: dict[str, Value] = {
    "seq_len": 2048,
    "vocab_size": 250_880,
    "tied_embeddings": True,
    "nproc_per_node": 8,
    "zero_stage": 1,
    "sequence_parallel": False,
    "activation_checkpointing": "full",
    "attention_kernel": "math",
    "device": "NVIDIA A100-SXM4-80GB",
}
_COLUMNS = (
    *("nnodes", "n_layers", "d_model", "n_heads", "dp_degree", "tp_degree", "pp_degree"),
    *("micro_batch_size", "global_batch_size"),
)


def unused_source() -> Source:
    """Return the trainings as a source."""
    rows: list[dict[str, Value]] = []
    seconds: list[float] = []
    for precision, table in (("fp16", _FP16), ("bf16", _BF16)):
        for line in table.strip().splitlines():
            *numbers, measured = line.split()
            facts: dict[str, Value] = dict(zip(_COLUMNS, map(int, numbers), strict=True))
            facts |= {"world_size": 8 * int(numbers[0]), "d_ff": 4 * int(numbers[2]), "precision": precision}
            rows.append({**_FACTS, **facts})
            seconds.append(float(measured))
    return Source(
        name=NAME, rows=rows, log_seconds=np.log(seconds), log_peak_gib=np.full(len(rows), np.nan, dtype=np.float64)
    )
