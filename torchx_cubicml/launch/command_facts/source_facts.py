"""Facts that the source of a program states: defaults of flags and fields, constants, and calls of torch."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from torchx_cubicml.launch.command_facts.fact_names import SIZES, known_facts
from torchx_cubicml.launch.command_facts.source_literals import (
    call_keywords,
    class_fields,
    constants,
    is_plain,
    parser_flags,
)
from torchx_cubicml.launch.command_facts.stated_settings import Setting
from torchx_cubicml.launch.source_files import dotted, nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.launch.command_facts.stated_settings import StatedSettings
    from torchx_cubicml.launch.source_files import SourceFile
    from torchx_cubicml.records.values import Scalar

_FUSED = frozenset({"scaled_dot_product_attention", "MultiheadAttention", "TransformerEncoderLayer", "flash_attn_func"})
_CHECKPOINTS = frozenset(
    {"checkpoint", "checkpoint_wrapper", "apply_activation_checkpointing", "checkpoint_sequential"}
)
_CASTS = frozenset({"autocast", "MixedPrecision", "MixedPrecisionPolicy", "GradScaler", "half", "bfloat16"})


def default_facts(files: Sequence[SourceFile]) -> dict[str, Setting]:
    """Return the facts that a source states where the command does not: each with the place, the strongest first.

    The default of a flag counts more than a constant of the script, this more than an argument of a call in it, and
    this more than the default of a class's field. Two places of one strength that differ tell nothing.
    """
    found: dict[str, Setting] = {}
    for table in _tables(files):
        for fact, setting in table.items():
            found.setdefault(fact, setting)
    return {fact: setting for fact, setting in found.items() if setting.source}


def _tables(files: Sequence[SourceFile]) -> Iterable[dict[str, Setting]]:
    parsed = [(file.path.name, file.tree) for file in files if file.tree is not None]
    for name, tree in parsed:
        flags = {flag: each.default for flag, each in parser_flags(tree).items() if each.default is not None}
        yield _named(flags, f"default in {name}")
    for name, tree in parsed[:1]:
        yield _of_constants(constants(tree.body), f"constant in {name}")
        functions = [node for node in nodes_of(tree) if isinstance(node, ast.FunctionDef)]
        yield _agreeing([_plain_facts(constants(node.body)) for node in functions], f"constant in {name}")
        yield _agreeing([_sizes(keywords) for _, keywords in call_keywords(tree)], f"call in {name}")
    for name, tree in parsed:
        fields = [_sizes(each) for each in class_fields(tree).values()]
        yield {
            fact: replace(setting, is_assumed=True) for fact, setting in _agreeing(fields, f"field in {name}").items()
        }


def _of_constants(values: Mapping[str, object], place: str) -> dict[str, Setting]:
    """Return the facts among a script's constants; one in capitals need not be that of the model, and is assumed."""
    found = _named(values, place)
    capitals = _named({name: value for name, value in values.items() if name.isupper()}, place)
    return {fact: replace(setting, is_assumed=fact in capitals) for fact, setting in found.items()}


def _plain_facts(values: Mapping[str, object]) -> dict[str, object]:
    plain = {name: value for name, value in values.items() if isinstance(value, bool | int | float | str)}
    return dict(known_facts(plain))


def _sizes(values: Mapping[str, object]) -> dict[str, object]:
    """Return the values of a call or class that describes a model: it tells depth or width, and another size.

    The longest sequence that a model can take is not that of the training.
    """
    facts = _plain_facts({name: value for name, value in values.items() if not name.startswith("max_")})
    is_model = bool(facts.keys() & {"n_layers", "d_model"}) and len(facts.keys() & SIZES) > 1
    return dict(facts) if is_model else {}


def _named(values: Mapping[str, object], place: str) -> dict[str, Setting]:
    return {
        fact: Setting(value=value, source=place)
        for fact, value in known_facts({name: each for name, each in values.items() if is_plain(each)}).items()
    }


def _agreeing(tables: Sequence[Mapping[str, object]], place: str) -> dict[str, Setting]:
    """Return the facts on which tables agree; one on which they do not has an empty source, and hides weaker ones."""
    values: dict[str, set[object]] = {}
    for table in tables:
        for fact, value in table.items():
            values.setdefault(fact, set()).add(value)
    found = {}
    for fact, each in values.items():
        value = next(iter(each))
        if isinstance(value, bool | int | float | str):
            found[fact] = Setting(value=value, source=place if len(each) == 1 else "")
    return found


def called_names(files: Sequence[SourceFile]) -> Counter[str]:
    """Return the number of calls of each function in the source, by the last part of its name."""
    trees = [file.tree for file in files if file.tree is not None]
    calls = (node for tree in trees for node in nodes_of(tree) if isinstance(node, ast.Call))
    return Counter(dotted(node.func).rpartition(".")[2] for node in calls)


def observed_facts(files: Sequence[SourceFile], stated: StatedSettings) -> dict[str, Setting]:
    """Return the facts that follow from which functions of torch a source calls; nothing where it calls rivals."""
    calls, where = called_names(files), f"calls in {files[0].path.name}" if files else ""
    if not any(file.tree is not None for file in files):
        return {}
    found: dict[str, Scalar | None] = {
        "sharding_strategy": _sharding(files, calls),
        "attention_kernel": _attention(files, calls),
    }
    if not any(calls[name] for name in _CHECKPOINTS):
        found["activation_checkpointing"] = "none"
    is_typed = any(
        "precision" in name or "amp" in name or "fp16" in name or "bf16" in name for name in stated.arguments
    )
    if not any(calls[name] for name in _CASTS) and not is_typed and not _mentions(files, "bfloat16", "float16", "half"):
        found["precision"] = "fp32"
    if not calls["compile"]:
        found["compile"] = False
    if not any("accum" in name.lower() for name in _identifiers(files)):
        found["gradient_accumulation_steps"] = 1
    return {
        fact: Setting(value=value, source=where, is_assumed=True) for fact, value in found.items() if value is not None
    }


def _sharding(files: Sequence[SourceFile], calls: Mapping[str, int]) -> str | None:
    ways = {
        "DDP": calls.get("DistributedDataParallel", 0) + calls.get("DDP", 0),
        "FSDP": calls.get("fully_shard", 0) + calls.get("FullyShardedDataParallel", 0) + calls.get("FSDP", 0),
        "deepspeed": calls.get("initialize", 0) if _mentions(files, "deepspeed") else 0,
    }
    used = [name for name, count in ways.items() if count]
    if used == ["DDP"]:
        return "DDP"
    has_other = _mentions(files, "reshard_after_forward", "sharding_strategy", "ShardingStrategy")
    return "FULL_SHARD" if used == ["FSDP"] and not has_other else None


def _attention(files: Sequence[SourceFile], calls: Mapping[str, int]) -> str | None:
    if any(calls.get(name, 0) for name in _FUSED):
        return "sdpa"
    return "math" if calls.get("softmax", 0) and not _mentions(files, "flash", "xformers") else None


def _mentions(files: Sequence[SourceFile], *names: str) -> bool:
    return not _identifiers(files).isdisjoint(names)


def _identifiers(files: Sequence[SourceFile]) -> set[str]:
    return {name for file in files if file.tree is not None for name in _names_in(file.tree)}


@lru_cache(maxsize=128)
def _names_in(tree: ast.Module) -> frozenset[str]:
    return frozenset(
        node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else str(node.arg)
        for node in nodes_of(tree)
        if isinstance(node, ast.Name | ast.Attribute | ast.keyword)
    )
