"""Commands of small trainings with drawn sizes, for ``explain_commands.py``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_FLOP = 2.5e10  # of a step on one process: about a second
_KINDS = {"gpt": 34, "llama": 30, "encoder": 16, "dlrm": 14, "torchrec": 14}
_STEPS = 14
_KEPT = frozenset(
    {
        *("max_iters", "max_steps", "steps", "limit_train_batches", "hidden_size", "n_embd", "d-model", "n_head"),
        *("num-heads", "num_attention_heads", "num_key_value_heads", "embedding_dim", "dense_arch_layer_sizes"),
    }
)
"""Flags that are never left to their defaults: sizes that must divide or equal others, and the steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of ``torchx run dist.ddp``, or of ``cubicrun``.

    Args:
        kind: name of the training script, without ``train_``.
        processes: of the job, on one node.
        words: of the script.
    """

    kind: str
    processes: int
    words: tuple[str, ...]

    @property
    def script(self) -> str:
        """File name of the script."""
        return f"train_{self.kind}.py"


def generated(seed: int) -> list[Command]:
    """Return commands of all kinds in mixed order."""
    rng = np.random.default_rng(seed)
    makers: dict[str, Callable[[np.random.Generator], dict[str, object]]] = {
        "gpt": _gpt,
        "llama": _llama,
        "encoder": _encoder,
        "dlrm": _dlrm,
        "torchrec": _torchrec,
    }
    kinds = rng.permutation([kind for kind, count in _KINDS.items() for _ in range(count)]).tolist()
    commands = []
    for kind in kinds:
        flags = makers[kind](rng)
        words = [word for name, value in flags.items() for word in _spelled(name, value, rng)]
        commands.append(Command(kind=kind, processes=int(rng.integers(1, 3)), words=tuple(words)))
    return commands


def _spelled(name: str, value: object, rng: np.random.Generator) -> tuple[str, ...]:
    """Return a flag in one of its spellings; one in eight is left out, so that the default in the source holds."""
    is_kept = name in _KEPT
    if value is False or (rng.random() < 0.125 and not is_kept):
        return ()
    if value is True:
        return (f"--{name}",)
    return (f"--{name}={value}",) if rng.random() < 0.5 else (f"--{name}", str(value))


def _transformer(rng: np.random.Generator) -> dict[str, int]:
    """Return sizes of a transformer whose step takes no more than a second or so."""
    while True:
        width = int(rng.choice([64, 96, 128, 192, 256, 384, 512]))
        sizes = {
            "layers": int(rng.integers(1, 9)),
            "width": width,
            "heads": int(rng.choice([each for each in (1, 2, 4, 8) if width // each >= 16])),
            "vocab": int(rng.choice([256, 1000, 4096, 8192, 16_000])),
            "length": int(rng.choice([32, 64, 128, 256])),
            "batch": int(2 ** rng.integers(0, 5)),
            "accumulate": int(rng.choice([1, 1, 2])),
        }
        tokens = sizes["length"] * sizes["batch"] * sizes["accumulate"]
        flop = 6.0 * tokens * (12.0 * sizes["layers"] * width**2 + sizes["vocab"] * width)
        if flop < _MOST_FLOP and flop > _MOST_FLOP / 200.0:
            return sizes


def _gpt(rng: np.random.Generator) -> dict[str, object]:
    sizes = _transformer(rng)
    return {
        "n_layer": sizes["layers"],
        "n_head": sizes["heads"],
        "n_embd": sizes["width"],
        "vocab_size": sizes["vocab"],
        "block_size": sizes["length"],
        "batch_size": sizes["batch"],
        "gradient_accumulation_steps": sizes["accumulate"],
        "dtype": "bfloat16" if rng.random() < 0.2 else "float32",
        "no-bias": bool(rng.random() < 0.3),
        "gradient_checkpointing": bool(rng.random() < 0.25),
        "sharding": str(rng.choice(["ddp", "fsdp2"])),
        "max_iters": _STEPS,
    }


def _llama(rng: np.random.Generator) -> dict[str, object]:
    sizes = _transformer(rng)
    heads = max(sizes["heads"], 2)
    return {
        "num_hidden_layers": sizes["layers"],
        "hidden_size": sizes["width"],
        "intermediate_size": int(sizes["width"] * rng.choice([2, 8 / 3, 3.5]) // 8 * 8),
        "num_attention_heads": heads,
        "num_key_value_heads": int(rng.choice([each for each in (1, 2, 4, 8) if heads % each == 0])),
        "vocab_size": sizes["vocab"],
        "max_seq_len": sizes["length"],
        "per_device_train_batch_size": sizes["batch"],
        "gradient_accumulation_steps": sizes["accumulate"],
        "bf16": bool(rng.random() < 0.2),
        "gradient_checkpointing": bool(rng.random() < 0.25),
        "sharding": str(rng.choice(["ddp", "fsdp2"])),
        "max_steps": _STEPS,
    }


def _encoder(rng: np.random.Generator) -> dict[str, object]:
    sizes = _transformer(rng)
    return {
        "num-layers": sizes["layers"],
        "d-model": sizes["width"],
        "num-heads": sizes["heads"],
        "dim-feedforward": sizes["width"] * int(rng.choice([2, 4])),
        "vocab-size": sizes["vocab"],
        "seq-length": sizes["length"],
        "micro-batch-size": sizes["batch"],
        "num-classes": int(rng.integers(2, 20)),
        "steps": _STEPS,
    }


def _dlrm(rng: np.random.Generator) -> dict[str, object]:
    width, count = int(2 ** rng.integers(3, 7)), int(rng.integers(2, 20))
    rows = [int(10 ** rng.uniform(1.0, 4.5)) for _ in range(count)]
    return {
        "num_embeddings_per_feature": ",".join(map(str, rows)),
        "pooling_factor": int(2 ** rng.integers(0, 5)),
        "dense_in_features": int(rng.integers(4, 64)),
        **_coupled(rng, width),
        "batch_size": int(2 ** rng.integers(5, 12)),
        "steps": _STEPS,
    }


def _torchrec(rng: np.random.Generator) -> dict[str, object]:
    width = int(2 ** rng.integers(3, 7))
    rows = ",".join(str(int(10 ** rng.uniform(1.0, 5.5))) for _ in range(26))
    tables = (
        {"num_embeddings_per_feature": rows}
        if rng.random() < 0.5
        else {"num_embeddings": int(10 ** rng.uniform(3.0, 5.3))}
    )
    return {
        **tables,
        **_coupled(rng, width),
        "interaction_type": str(rng.choice(["original", "dcn"])),
        "batch_size": int(2 ** rng.integers(4, 11)),
        "limit_train_batches": _STEPS,
    }


def _coupled(rng: np.random.Generator, width: int) -> dict[str, object]:
    """Return widths that belong together: the dense layers end with the width of the tables."""
    if width == 16:  # the scripts' default
        return {}
    inner = [int(2 ** rng.integers(4, 9)) for _ in range(3)]
    return {
        "embedding_dim": width,
        "dense_arch_layer_sizes": f"{inner[0]},{width}",
        "over_arch_layer_sizes": f"{inner[1]},{inner[2]},1",
    }
