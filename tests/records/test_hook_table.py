"""The values that hooks can set, and the facts that observe them."""

from __future__ import annotations

from torchx_cubicml.facts.hooks import HOOKED_FACTS, HOOKS
from torchx_cubicml.records.standard_names import EMBEDDING_KERNELS, EMBEDDING_SHARDINGS, STANDARD_PARAMETERS


def test_fsdp_shards_over_all_ranks_or_within_replicated_groups() -> None:
    plain, hybrid = HOOKS["fsdp"]
    assert plain[:3] == ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
    assert plain[3:] == tuple(f"FULL_SHARD_{2**power}" for power in range(1, 7))
    assert hybrid == ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")


def test_each_hook_is_observed_under_a_standard_name() -> None:
    assert {name: families for name, families in HOOKS.items() if name != "fsdp"} == {
        "activation_checkpointing": (("none", "full"),),
        "fsdp_precision": (("fp32", "bf16"),),
        "torchrec": (("planner", *EMBEDDING_SHARDINGS),),
        "torchrec_kernel": (("planner", *EMBEDDING_KERNELS),),
        "torchrec_reserved": (),
        "mesh": (),
        "parallelize_module": (("plan", "colwise", "rowwise", "replicated"),),
        "sequence_parallel": ((True, False),),
    }
    assert HOOKED_FACTS.keys() == HOOKS.keys() - {"mesh", "parallelize_module"}  # of several places
    assert set(HOOKED_FACTS.values()) <= set(STANDARD_PARAMETERS)
