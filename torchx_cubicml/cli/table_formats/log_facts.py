"""Facts of a run that torchtitan and Megatron-LM print at its start: sizes, degrees, batch and memory."""

from __future__ import annotations

import json
import math
import re

from torchx_cubicml.cli.table_formats.records import cell_text
from torchx_cubicml.errors import RecordError
from torchx_cubicml.space.trainers import TRAINERS

OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|(?:CUDA|HIP|XPU)(?: error:)? out of memory|CUDA_ERROR_OUT_OF_MEMORY")
"""Text that a process prints when its device has no memory left."""

_HEAD = 2**23  # characters of a log in which the facts stand
_BETWEEN = re.compile(r"(?m)^ {0,8}(?:\[[^\]\n]{1,40}\]:|\d{1,6}:) ?|\x1b\[[0-9;]{0,40}m")  # rank prefixes, colours
# https://github.com/pytorch/torchtitan: trainer.py and distributed/parallel_dims.py
_CONFIG = re.compile(r"Running with (?:configs|args): (?=\{)")
_MESH = re.compile(r"Building device mesh with parallelism: ((?:\w{1,20}=\d{1,9}, ){0,11}\w{1,20}=\d{1,9})")
_OLD_MESH = re.compile(r"Building \d+-D device mesh with \[([^\]\n]{0,200})\], \[([\d, ]{1,200})\]")
_MODEL = re.compile(r"Model (\S+) (\S+) size: ([\d,]{1,24}) total parameters")
_BATCH = re.compile(
    r"local batch size (\d{1,9}), global batch size (\d{1,9}), (?:gradient accumulation steps (\d{1,9}), )?"
    r"sequence length (\d{1,9})"
)
_CHECKPOINTING = re.compile(r"Applied (full|selective)(?:AC)? activation checkpointing", re.IGNORECASE)
_START = "Training starts at step"
_MESH_NAMES = {
    "pp": "pp_degree",
    "dp_replicate": "dp_replicate_degree",
    "dp_shard": "dp_shard_degree",
    "cp": "cp_degree",
    "tp": "tp_degree",
    "ep": "ep_degree",
}
_TITAN_KEYS = {flag.key: name for name, flag in TRAINERS["torchtitan"].flags.items() if flag.key} | {
    "training.mixed_precision_param": "precision",
    "model_spec.model.dim": "d_model",
    "model_spec.model.vocab_size": "vocab_size",
}
# https://github.com/NVIDIA/Megatron-LM: megatron/training/arguments.py
_ARGUMENTS, _END_OF_ARGUMENTS = "- arguments -", "- end of arguments -"
_ARGUMENT = re.compile(r"(?m)^ {0,8}(\w{1,80}) \.+ (\S[^\n]{0,200})$")
_WORLD = re.compile(r"using world size: (\d{1,9}), data-parallel size: (\d{1,9})")
_MEGATRON_KEYS = {
    flag.flag.removeprefix("--").replace("-", "_"): name for name, flag in TRAINERS["megatron-lm"].flags.items()
} | {
    "num_layers": "n_layers",
    "world_size": "world_size",
    "data_parallel_size": "dp_degree",
    "padded_vocab_size": "vocab_size",
    "virtual_pipeline_model_parallel_size": "virtual_pp_degree",
    "optimizer": "optimizer",
}
_ONLY_WITH = {"n_kv_heads": "group_query_attention", "n_active_experts": "n_experts"}
_MEGATRON_MEMORY = re.compile(r"max allocated: (\d+(?:\.\d+)?)")  # in MiB


def torchtitan_facts(text: str) -> dict[str, str]:
    """Return standard name -> text of what torchtitan prints about a run.

    >>> line = "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=1"
    >>> torchtitan_facts(line)["world_size"], torchtitan_facts(line)["tp_degree"]
    ('8', '2')
    """
    text = _BETWEEN.sub("", text[:_HEAD])
    facts = _titan_config(text)
    mesh = _MESH.search(text)
    old = _OLD_MESH.search(text)
    if mesh:
        sizes = {name: int(size) for name, _, size in (part.partition("=") for part in mesh[1].split(", "))}
        facts |= {_MESH_NAMES[name]: str(size) for name, size in sizes.items() if name in _MESH_NAMES}
        facts["world_size"] = str(math.prod(size for name, size in sizes.items() if name != "ep"))
    elif old:
        degrees = [int(size) for size in old[2].split(",") if size.strip()]
        named = zip((name.strip(" '\"") for name in old[1].split(",")), degrees, strict=False)
        facts |= {_MESH_NAMES[name]: str(size) for name, size in named if name in _MESH_NAMES}
        facts["world_size"] = str(math.prod(degrees))
    model = _MODEL.search(text)
    if model:
        facts |= {"program": f"{model[1]} {model[2]}", "n_params": model[3].replace(",", "")}
    batch = _BATCH.search(text)
    if batch:
        facts |= {"micro_batch_size": batch[1], "global_batch_size": batch[2], "seq_len": batch[4]}
        facts |= {"gradient_accumulation_steps": batch[3]} if batch[3] else {}
    checkpointing = _CHECKPOINTING.search(text)
    if checkpointing or _START in text:
        facts["activation_checkpointing"] = checkpointing[1].lower() if checkpointing else "none"
    return facts


def _titan_config(text: str) -> dict[str, str]:
    """Return the facts of the config that ``--debug.print_config`` prints; older releases print no JSON."""
    found = _CONFIG.search(text)
    try:
        config, _ = json.JSONDecoder().raw_decode(text, found.end()) if found else ({}, 0)
        facts = {name: cell_text(_at(config, key)) for key, name in _TITAN_KEYS.items()}
        layers = _at(config, "model_spec.model.layers")
        facts["n_layers"] = str(len(layers)) if isinstance(layers, list) else ""
    except (RecordError, RecursionError, ValueError):
        return {}
    return {name: text for name, text in facts.items() if text and not text.startswith("-")}  # -1: what is left over


def _at(config: object, path: str) -> object:
    for key in path.split("."):
        config = config.get(key) if isinstance(config, dict) else None
    return None if isinstance(config, dict) else config


def megatron_facts(text: str) -> dict[str, str]:
    """Return standard name -> text of the arguments that Megatron-LM prints, and of its world size."""
    text = _BETWEEN.sub("", text[:_HEAD])
    _, _, block = text.partition(_ARGUMENTS)
    block, _, _ = block.partition(_END_OF_ARGUMENTS)
    arguments = {name: value.strip() for name, value in _ARGUMENT.findall(block)}
    facts = {name: arguments[key] for key, name in _MEGATRON_KEYS.items() if arguments.get(key, "None") != "None"}
    facts = {name: value for name, value in facts.items() if facts.get(_ONLY_WITH.get(name, ""), "True") != "False"}
    if "n_experts" not in facts:
        facts.pop("n_active_experts", None)
    if arguments:
        facts.setdefault("activation_checkpointing", "none")
        facts["precision"] = next((word for word in ("bf16", "fp16") if arguments.get(word) == "True"), "fp32")
        if "fp8" in facts:
            facts["precision"] = "fp8"
        facts.pop("fp8", None)
    world = _WORLD.search(text)
    if world:
        facts |= {"world_size": world[1], "dp_degree": world[2]}
    return facts


def peak_memory_gib(text: str) -> dict[str, str]:
    """Return the largest memory that was allocated on a device, if a line of Megatron-LM names it.

    torchtitan prints the memory that its allocator has reserved, which is more.

    >>> peak_memory_gib("| max allocated: 2048.0 |"), peak_memory_gib("step:  1  memory:  1.41GiB(1.79%)")
    ({'peak_memory_gib': '2'}, {})
    """
    sizes = [float(size) / 1024 for size in _MEGATRON_MEMORY.findall(text)]
    return {"peak_memory_gib": f"{max(sizes):.6g}"} if max(sizes, default=0.0) > 0 else {}
