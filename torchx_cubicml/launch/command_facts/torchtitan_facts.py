"""Facts of a command of torchtitan: the model's sizes in its registry, and the options of its config function."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.launch.command_facts.fact_names import fact_name, fact_value
from torchx_cubicml.launch.command_facts.source_literals import constants, literal
from torchx_cubicml.launch.command_facts.stated_settings import Setting
from torchx_cubicml.user_files import read_python

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torchx_cubicml.launch.command_facts.stated_settings import StatedSettings
    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.records.values import Scalar

_LLAMA: Mapping[str, Scalar] = {
    "gated_mlp": True, "linear_bias": False, "norm_bias": False, "positions": "rotary",
}  # fmt: skip
_ARCHITECTURES: Mapping[str, Mapping[str, Scalar]] = {"llama3": _LLAMA}
_OPTIONS = {"local_batch_size": "micro_batch_size", "global_batch_size": "global_batch_size", "seq_len": "seq_len"}
_DEGREES = {
    "tensor_parallel_degree": "tp_degree",
    "pipeline_parallel_degree": "pp_degree",
    "context_parallel_degree": "cp_degree",
    "expert_parallel_degree": "ep_degree",
    "data_parallel_replicate_degree": "dp_replicate_degree",
}
_RECOMPUTATIONS = {"SelectiveAC": "selective", "FullAC": "full"}


def torchtitan_facts(launch: Launch, settings: StatedSettings) -> dict[str, Setting]:
    """Return the facts of the model and of the config function that a command names, where torchtitan can be read.

    The package is that beside the command, or that installed where the command is typed: the job's may differ.
    """
    del launch
    module, function = settings.find("module"), settings.find("config")
    facts = _usual(settings)
    if module is not None and function is not None:
        folder = _package(f"models/{module.value}")
        if folder is not None:
            facts |= _registered(folder, str(module.value), str(function.value))
    name, flavour = settings.find("model.name"), settings.find("model.flavor")
    if name is not None and flavour is not None:
        folder = _package(f"models/{name.value}")
        if folder is not None:
            facts |= _sizes(folder, str(name.value), str(flavour.value))
    return facts


def _usual(settings: StatedSettings) -> dict[str, Setting]:
    source = "default of torchtitan"
    words = {"precision": "bf16", "sharding_strategy": "FULL_SHARD", "attention_kernel": "sdpa"}
    facts = {fact: Setting(value=word, source=source, is_assumed=True) for fact, word in words.items()}
    param = settings.find("training.mixed_precision_param")
    if param is not None and (word := fact_value("precision", param.value)) is not None:
        facts["precision"] = Setting(value=word if isinstance(word, str) else "bf16", source=param.source)
    return facts


def _package(inner: str) -> Path | None:
    """Return a folder of the package: in the working folder, else where Python would import it from."""
    places = [Path(), *(Path(each) for each in sys.path if each)]
    return next((place / "torchtitan" / inner for place in places if (place / "torchtitan" / inner).is_dir()), None)


def _functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def _registered(folder: Path, module: str, function: str) -> dict[str, Setting]:
    """Return the facts of a function of ``config_registry``: its options, and the sizes of its flavour."""
    tree = read_python(folder / "config_registry.py")[1]
    functions = _functions(tree) if tree is not None else {}
    facts: dict[str, Setting] = {}
    for node in _line(functions, function):
        place = f"{node.name} in torchtitan's registry"
        facts |= {fact: Setting(value=value, source=place) for fact, value in _options(node)}
        flavour = next(_flavours(node), "")
        if flavour:
            facts |= _sizes(folder, module, flavour)
    return facts


def _line(functions: Mapping[str, ast.FunctionDef], name: str) -> list[ast.FunctionDef]:
    """Return a config function and those that it starts from, the last of these first."""
    found: list[ast.FunctionDef] = []
    while (node := functions.get(name)) is not None and node not in found:
        found.insert(0, node)
        calls = (
            each.func.id for each in ast.walk(node) if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
        )
        name = next((each for each in calls if each in functions), "")
    return found


def _options(function: ast.FunctionDef) -> Iterator[tuple[str, Scalar]]:
    names = {**_OPTIONS, **_DEGREES}
    for node in ast.walk(function):
        if isinstance(node, ast.keyword) and node.arg == "activation_checkpoint":
            word = next((word for key, word in _RECOMPUTATIONS.items() if key in ast.unparse(node.value)), None)
            yield from [("activation_checkpointing", word)] if word is not None else []
            yield from [("selective_recompute", "op")] if word == "selective" else []
        elif isinstance(node, ast.keyword) and node.arg in names:
            yield from _legal(names[node.arg], literal(node.value))
        elif (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Attribute)
            and node.targets[0].attr in names
        ):
            yield from _legal(names[node.targets[0].attr], literal(node.value))


def _legal(fact: str, value: object) -> Iterator[tuple[str, Scalar]]:
    if isinstance(value, bool | int | float | str):
        legal = fact_value(fact, value)
        if isinstance(legal, bool | int | float | str):
            yield fact, legal


def _flavours(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "model_registry" and node.args:
            value = literal(node.args[0])
            if isinstance(value, str):
                yield value


def _sizes(folder: Path, module: str, flavour: str) -> dict[str, Setting]:
    """Return the sizes of one flavour of a model, as the function or the call in the registry states them."""
    tree = read_python(folder / "__init__.py")[1]
    if tree is None:
        return {}
    built = _flavour_node(tree, flavour)
    functions = _functions(tree)
    function = functions.get(built.id) if isinstance(built, ast.Name) else None
    source: ast.AST | None = function if function is not None else built
    if source is None or not isinstance(source, ast.FunctionDef | ast.Call):
        return {}
    names = {**constants(tree.body), **(constants(function.body) if function is not None else {})}
    place = f"{flavour} of torchtitan's {module}"
    facts: dict[str, Scalar] = dict(_ARCHITECTURES.get(module, {}))
    if facts:
        facts["tied_embeddings"] = False
    for node in ast.walk(source):
        if isinstance(node, ast.keyword) and node.arg:
            facts |= _size(node.arg, node.value, names)
    return {fact: Setting(value=value, source=place) for fact, value in facts.items()}


def _flavour_node(tree: ast.Module, flavour: str) -> ast.expr | None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == flavour:
                    return value
    return None


def _size(key: str, node: ast.expr, names: Mapping[str, object]) -> dict[str, Scalar]:
    if key == "hidden_dim":
        inner = _inner_width(node, names)
        return {"d_ff": inner} if inner is not None else {}
    fact = fact_name(key)
    if fact not in {"n_layers", "d_model", "n_heads", "n_kv_heads", "vocab_size", "tied_embeddings", "head_dim"}:
        return {}
    if fact == "d_model" and key != "dim":
        return {}
    value = literal(node, names)
    legal = dict(_legal(fact, value))
    return legal if not (fact == "d_model" and isinstance(node, ast.BinOp)) else {}


def _inner_width(node: ast.expr, names: Mapping[str, object]) -> int | None:
    """Return the inner width of an MLP, stated or by torchtitan's ``compute_ffn_hidden_dim``."""
    stated = literal(node, names)
    if isinstance(stated, int) or not isinstance(node, ast.Call):
        return stated if isinstance(stated, int) else None
    options = {each.arg: literal(each.value, names) for each in node.keywords if each.arg}
    width = literal(node.args[0], names) if node.args else options.get("dim")
    multiple, factor = options.get("multiple_of", 1), options.get("ffn_dim_multiplier", 1.0)
    if not isinstance(width, int) or not isinstance(multiple, int) or not isinstance(factor, int | float):
        return None
    inner = int(factor * int(2 * 4 * width / 3))
    return -(-inner // multiple) * multiple
