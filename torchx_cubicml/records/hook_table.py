"""Hooks by name: the values that each can set, the fact that observes them, and the words of a refusal."""

from __future__ import annotations

from typing import NamedTuple

from torchx_cubicml.records.standard_names import EMBEDDING_KERNELS, EMBEDDING_SHARDINGS


class HookCalls(NamedTuple):
    """Calls of a program that a hook changes.

    Args:
        names: functions, one of which the program must call.
        marks: texts in lower case, one of which any source has that can name such a function, under whatever name.
    """

    names: tuple[str, ...]
    marks: tuple[str, ...]


LEFT_TO_PLANNER = "planner"
"""Value that leaves a table's sharding or kernel to TorchRec's planner."""

AS_PLANNED = "plan"
"""Value that leaves modules to the script's own tensor-parallel plan."""

HOOK_SHARES = {"torchrec_reserved": 0.15}
"""Hook that sets a share from 0 to 1 -> TorchRec's default."""
RESHARD_SIZES = {f"FULL_SHARD_{size}": size for size in (2, 4, 8, 16, 32, 64)}
"""Strategies of FSDP2 that keep parameters within groups of ranks after forward -> ranks of a group."""

HOOKS: dict[str, tuple[tuple[str | bool, ...], ...]] = {
    "fsdp": (
        ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", *RESHARD_SIZES),
        ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"),
    ),
    "activation_checkpointing": (("none", "full"),),
    "fsdp_precision": (("fp32", "bf16"),),
    "torchrec": ((LEFT_TO_PLANNER, *EMBEDDING_SHARDINGS),),
    "torchrec_kernel": ((LEFT_TO_PLANNER, *EMBEDDING_KERNELS),),
    **dict.fromkeys(HOOK_SHARES, ()),
    "mesh": (),
    "parallelize_module": ((AS_PLANNED, "colwise", "rowwise", "replicated"),),
    "sequence_parallel": ((True, False),),
}
"""Hook -> values that it can set, in groups that do not mix, each with the default first; none where it sets a number.

The groups of FSDP shard over all ranks, or within replicated groups. Sequence parallelism has the script's own plan
first: it can be switched off. The hook of the device mesh sets one size per axis, each under a name of its own
(``mesh.tp``), and that of placements one value per group of modules; see ``hook_of``. ``recorder/apply/fsdp_hook.py``
sets ``fsdp``, and so on. ``parallelize_module`` is installed before ``sequence_parallel``, which reads the script's own
styles.
"""

_FSDP = HookCalls(("FullyShardedDataParallel", "fully_shard"), ("fsdp", "fully_shard", "fullyshard"))
_TORCHREC = HookCalls(("EmbeddingShardingPlanner", "DistributedModelParallel"), ("torchrec",))
HOOK_CALLS = {
    "fsdp": _FSDP,
    "fsdp_precision": _FSDP,
    "torchrec": _TORCHREC,
    "torchrec_kernel": _TORCHREC,
    "torchrec_reserved": _TORCHREC,
    "mesh": HookCalls(("init_device_mesh", "DeviceMesh"), ("mesh",)),
    "parallelize_module": HookCalls(("parallelize_module",), ("paralleliz", "tensor.parallel")),
    "sequence_parallel": HookCalls(("SequenceParallel",), ("sequenceparallel",)),
}
"""Hook -> calls of the program that it changes; a hook without them serves any program with the layers it needs."""

_OWN_CHECKPOINTS = "the script may recompute layers itself"
HOOK_RIVALS = {
    "activation_checkpointing": {
        "torch.compile": "the model may be compiled as a whole",
        "utils.checkpoint": _OWN_CHECKPOINTS,
        "checkpoint_wrapper": _OWN_CHECKPOINTS,
        "gradient_checkpointing_enable": _OWN_CHECKPOINTS,
    },
    "fsdp_precision": {"autocast": "autocast may choose the format in place of the parameters"},
}
"""Hook -> name in the source, in lower case -> why the hook may not serve a program with that name."""

HOOK_COUNTS = {
    "fsdp": "n_layers",
    "fsdp_precision": "n_layers",
    "activation_checkpointing": "n_layers",
    "torchrec": "n_embedding_tables",
    "torchrec_kernel": "n_embedding_tables",
}
"""Hook -> observed fact that counts what gets a value each."""

HOOK_ABSENCES = {"fsdp": ("sharding_strategy", "DDP"), "fsdp_precision": ("sharding_strategy", "DDP")}
"""Hook -> observed fact, and its value in a program that has nothing for the hook to set."""

TABLE_HOOKS = ("torchrec", "torchrec_kernel")
"""Hooks with a value per embedding table."""


REFUSED, VALUES_REFUSED = "refused: ", "values refused: "
"""Beginnings of a hook's fact: it can set nothing in this program, or not the values of this launch."""

CHANGED = "after the change, "
"""Beginning of a refusal that only a launch with the change can find; a launch that only checks does not lift it."""


def hook_of(place: str) -> str:
    """Return the hook that sets a place: the name before the first dot.

    >>> hook_of("mesh.tp"), hook_of("fsdp")
    ('mesh', 'fsdp')
    """
    return place.partition(".")[0]


HOOKED_FACTS = {
    "fsdp": "sharding_strategy",
    "activation_checkpointing": "activation_checkpointing",
    "fsdp_precision": "precision",
    "torchrec": "embedding_sharding",
    "torchrec_kernel": "embedding_kernel",
    "torchrec_reserved": "reserved_share",
    "sequence_parallel": "sequence_parallel",
}
"""Hook -> standard name of the fact under which its values are observed."""


def hook_fact(hook: str) -> str:
    """Return the name of the fact that a hook made no change, with the reason."""
    return f"{hook}_hook"


def illegal_hook_fact(hook: str) -> str:
    """Return the name of the fact with the values of a hook that the program does not allow."""
    return f"{hook}_hook_illegal"
