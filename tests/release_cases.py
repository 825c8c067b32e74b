"""Generated commands of each trainer, legal and illegal, that its release's own checks and our rules both judge."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.launch import Launch, read_config, with_rule_facts
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.records.values import Scalar

DOCUMENTED = {"megatron-lm": ("microbatches_by_pp", "experts_with_tp")}
"""Rules whose check runs on GPUs alone, in the first step: their cases are documented, not generated."""

PROGRAMS = {"megatron-lm": "pretrain_gpt.py", "torchtitan": "torchtitan.train"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseCase:
    """One command that a tune might launch in the place of another.

    Args:
        trainer: name of the trainer.
        world_size: processes of the job.
        fixed: flags that no tune changes, with their values; ``None`` for a switch.
        own: values of the tuned parameters in the user's command.
        proposed: values of the tuned parameters in the other command.
    """

    trainer: str
    world_size: int
    fixed: Mapping[str, Scalar | None]
    own: Mapping[str, Scalar]
    proposed: Mapping[str, Scalar]

    def command(self, values: Mapping[str, Scalar]) -> list[str]:
        """The program's arguments with these values of the parameters."""
        return _WRITERS[self.trainer](self.fixed, values)


def is_legal(case: ReleaseCase, *, ignored: tuple[str, ...] = ()) -> bool:
    """Whether our space of the user's command holds the proposed values."""
    lines = [f'trainer = "{case.trainer}"', f"ignore_rules = {list(ignored)}" if ignored else "", "[parameters]"]
    names = list(case.own)
    choices = [list(dict.fromkeys((case.own[name], case.proposed[name]))) for name in names]
    lines += [f"{name} = {_toml(values)}" for name, values in zip(names, choices, strict=True)]
    space = parse_space("\n".join(lines), where="case.toml")
    launch = Launch(
        program=PROGRAMS[case.trainer], script_args=tuple(case.command(case.own)), world_size=case.world_size
    )
    workload, current = read_config(launch, space)
    bound = with_rule_facts(launch, space).bind(workload=workload, current=current)
    assert not bound.in_force.set_aside, bound.in_force.set_aside
    assert current in bound
    indices = [values.index(case.proposed[name]) for name, values in zip(names, choices, strict=True)]
    return bound.decode(indices) is not None


def generated(trainer: str, seed: int) -> ReleaseCase:
    """A case drawn from a seed; the user's command may be illegal, too."""
    rng = random.Random(seed)
    return _MAKERS[trainer](rng)


def _megatron(rng: random.Random) -> ReleaseCase:
    world = rng.choice([1, 2, 4, 6, 8, 12, 16])
    heads = rng.choice([4, 6, 8, 12, 16, 20, 32])
    layers = rng.choice([4, 6, 8, 10, 12, 16, 24, 30, 32])
    fixed: dict[str, Scalar | None] = {
        "--num-layers": layers,
        "--hidden-size": heads * 64,
        "--num-attention-heads": heads,
        "--seq-length": (seq := rng.choice([1000, 1024, 1536, 2048, 2052])),
        "--max-position-embeddings": seq,
        "--global-batch-size": world * rng.choice([1, 2, 3, 4, 6, 8]),
    }
    if rng.random() < 0.4:
        kv_heads = [count for count in (1, 2, 3, 4, 6, 8) if heads % count == 0]
        fixed |= {"--group-query-attention": None, "--num-query-groups": rng.choice(kv_heads)}
    if rng.random() < 0.4:
        fixed["--num-experts"] = rng.choice([2, 4, 6, 8])
        fixed |= {"--expert-tensor-parallel-size": 1} if rng.random() < 0.3 else {}
        fixed |= {"--disable-bias-linear": None} if rng.random() < 0.7 else {}
    split = rng.random()
    if split < 0.2:
        fixed["--num-layers-per-virtual-pipeline-stage"] = rng.choice([1, 2, 3])
    elif split < 0.4:
        fixed["--num-virtual-stages-per-pipeline-rank"] = rng.choice([1, 2, 3])
    if split > 0.3 and rng.random() < 0.4:
        fixed["--decoder-first-pipeline-num-layers"] = rng.choice([1, 2, 3, 4])
        fixed |= {"--decoder-last-pipeline-num-layers": rng.choice([1, 2, 4])} if rng.random() < 0.5 else {}
    elif rng.random() < 0.2:
        fixed |= {"--account-for-embedding-in-pipeline-split": None}
        fixed |= {"--account-for-loss-in-pipeline-split": None} if rng.random() < 0.7 else {}
    fixed |= {"--no-overlap-p2p-communication": None} if rng.random() < 0.15 else {}
    fixed |= {"--tp-comm-overlap": None} if rng.random() < 0.05 else {}
    fixed |= {"--num-distributed-optimizer-instances": 2} if rng.random() < 0.1 else {}
    if "--num-distributed-optimizer-instances" in fixed:
        fixed["--use-distributed-optimizer"] = None
    return ReleaseCase(
        trainer="megatron-lm",
        world_size=world,
        fixed=fixed,
        own=(own := _megatron_own(rng, fixed)),
        proposed=_megatron_proposed(rng, own),
    )


def _megatron_own(rng: random.Random, fixed: Mapping[str, Scalar | None]) -> dict[str, Scalar]:
    tp = 2 if "--tp-comm-overlap" in fixed or rng.random() < 0.2 else 1
    staged = any("virtual" in flag or "pipeline-num-layers" in flag for flag in fixed)
    few = 3 if "--decoder-last-pipeline-num-layers" in fixed or "--no-overlap-p2p-communication" in fixed else 2
    return {
        "tp_degree": tp,
        "pp_degree": few if staged else rng.choice([1, 1, 1, 2]),
        "cp_degree": 1,
        "ep_degree": 2 if "--num-experts" in fixed and rng.random() < 0.2 else 1,
        "micro_batch_size": 1,
        "sequence_parallel": tp > 1,
    }


def _megatron_proposed(rng: random.Random, own: Mapping[str, Scalar]) -> dict[str, Scalar]:
    proposed = dict(own)
    for name in rng.sample(["tp_degree", "pp_degree", "cp_degree", "ep_degree", "micro_batch_size"], rng.randint(1, 3)):
        proposed[name] = rng.choice([1, 2, 2, 3, 4, 4, 8])
    proposed["sequence_parallel"] = proposed["tp_degree"] != 1 and rng.random() < 0.6
    return proposed


_MEGATRON_FLAGS = {
    "tp_degree": "--tensor-model-parallel-size",
    "pp_degree": "--pipeline-model-parallel-size",
    "cp_degree": "--context-parallel-size",
    "ep_degree": "--expert-model-parallel-size",
    "micro_batch_size": "--micro-batch-size",
}


def _megatron_command(fixed: Mapping[str, Scalar | None], values: Mapping[str, Scalar]) -> list[str]:
    words = _words(fixed)
    for name, flag in _MEGATRON_FLAGS.items():
        words += [flag, str(values[name])]
    return [*words, "--sequence-parallel"] if values["sequence_parallel"] and values["tp_degree"] != 1 else words


def _torchtitan(rng: random.Random) -> ReleaseCase:
    world = rng.choice([1, 2, 4, 6, 8, 12, 16])
    fixed: dict[str, Scalar | None] = {
        "--training.seq_len": 12288,  # the mesh does not read the sequence and the batch: they divide always
        "--training.global_batch_size": world * 24,
        "--parallelism.data_parallel_shard_degree": rng.choice([-1, -1, -1, world]),
    }
    return ReleaseCase(
        trainer="torchtitan",
        world_size=world,
        fixed=fixed,
        own=(own := {**dict.fromkeys(_TORCHTITAN_FLAGS, 1)}),
        proposed=own | {name: rng.choice([1, 2, 2, 3, 4, 8]) for name in rng.sample(list(own), rng.randint(1, 4))},
    )


_TORCHTITAN_FLAGS = {
    "tp_degree": "--parallelism.tensor_parallel_degree",
    "pp_degree": "--parallelism.pipeline_parallel_degree",
    "cp_degree": "--parallelism.context_parallel_degree",
    "ep_degree": "--parallelism.expert_parallel_degree",
    "dp_replicate_degree": "--parallelism.data_parallel_replicate_degree",
    "micro_batch_size": "--training.local_batch_size",
}


def _torchtitan_command(fixed: Mapping[str, Scalar | None], values: Mapping[str, Scalar]) -> list[str]:
    words = _words(fixed)
    for name, flag in _TORCHTITAN_FLAGS.items():
        words += [flag, str(values[name])]
    return words


def _words(fixed: Mapping[str, Scalar | None]) -> list[str]:
    return [word for flag, value in fixed.items() for word in ([flag] if value is None else [flag, str(value)])]


def _toml(values: list[Scalar]) -> str:
    return f"[{', '.join(str(value).lower() for value in values)}]"


_MAKERS = {"megatron-lm": _megatron, "torchtitan": _torchtitan}
_WRITERS = {"megatron-lm": _megatron_command, "torchtitan": _torchtitan_command}
