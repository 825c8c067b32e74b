"""Facts of a command of Hugging Face's trainers: the model's config, and the training arguments."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.launch.command_facts.fact_names import fact_name, known_facts
from torchx_cubicml.launch.command_facts.published_models import DEFAULTS, FAMILIES, published_sizes
from torchx_cubicml.launch.command_facts.source_literals import class_fields, constants, literal
from torchx_cubicml.launch.command_facts.stated_settings import Setting, read_document, typed_value
from torchx_cubicml.launch.source_files import dotted, nodes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.launch.command_facts.stated_settings import StatedSettings
    from torchx_cubicml.launch.source_files import SourceFile
    from torchx_cubicml.records.values import Scalar

_MODEL = ("config_name", "model_name_or_path", "model_name", "model", "pretrained_model_name_or_path")
_CACHE = Path(".cache/huggingface/hub")
_FAMILY_OF_CONFIG = {
    "GPT2Config": "gpt2",
    "OPTConfig": "opt",
    "GPTNeoXConfig": "gpt_neox",
    "LlamaConfig": "llama",
    "MistralConfig": "mistral",
    "MixtralConfig": "mixtral",
    "Qwen2Config": "qwen2",
    "BertConfig": "bert",
}
_OTHER_KEYS = {
    "num_local_experts": "n_experts",
    "num_experts": "n_experts",
    "n_inner": "d_ff",
    "attention_bias": "qkv_bias",
    "head_dim": "head_dim",
}


def hugging_face_facts(settings: StatedSettings, files: Sequence[SourceFile]) -> dict[str, Setting]:
    """Return the facts of a ``transformers`` model and of ``TrainingArguments``, from the command and its source."""
    facts = {**_training_facts(settings), **_source_model(settings, files), **_model_facts(settings)}
    width = facts.get("d_model")
    is_known = "d_ff" not in facts and facts.keys() >= {"gated_mlp", "n_layers"}
    if is_known and width is not None and isinstance(width.value, int):  # GPT-2's own rule
        facts["d_ff"] = Setting(value=4 * width.value, source=width.source)
    for file in files:
        if "ForMaskedLM" in file.text:
            facts["head_transform"] = Setting(value=True, source=f"ForMaskedLM in {file.path.name}")
    return facts


def _source_model(settings: StatedSettings, files: Sequence[SourceFile]) -> dict[str, Setting]:
    """Return the facts of the only config or published model of ``transformers`` that a source names."""
    found: list[dict[str, Setting]] = []
    for file in (each for each in files if each.tree is not None):
        tree = file.tree
        fields = {name: value for each in class_fields(tree).values() for name, value in each.items()} if tree else {}
        names = {**fields, **(constants(tree.body) if tree else {})}
        for node in (each for each in nodes_of(tree) if isinstance(each, ast.Call)) if tree else ():
            called = dotted(node.func).rpartition(".")
            family = _FAMILY_OF_CONFIG.get(called[2])
            if family is not None:
                stated = {each.arg: _keyword_value(each.value, settings, names) for each in node.keywords if each.arg}
                found.append(_with_source(_config_call(family, stated), f"{called[2]} in {file.path.name}"))
            elif called[2] == "from_pretrained" and node.args and isinstance(name := literal(node.args[0], names), str):
                found.append(_named_model(name, f"source of {file.path.name}"))
    different = [each for each in found if each]
    return different[0] if different and all(each == different[0] for each in different) else {}


def _keyword_value(node: ast.expr, settings: StatedSettings, names: Mapping[str, object]) -> object:
    """Return the value of a keyword: a literal, or what the command or a field states under the attribute's name."""
    if isinstance(node, ast.Attribute):
        setting = settings.arguments.get(node.attr.lower())
        return setting.value if setting is not None else names.get(node.attr)
    return literal(node, names)


def _config_call(family: str, stated: Mapping[str, object]) -> dict[str, object]:
    """Return the facts of a config class; a value that is not known hides its default."""
    plain = {_OTHER_KEYS.get(key, key): value for key, value in stated.items()}
    unknown = {fact_name(key) for key, value in plain.items() if value is None}
    known = known_facts({key: each for key, each in plain.items() if isinstance(each, bool | int | float | str)})
    known.pop("seq_len", None)
    facts = {**FAMILIES[family], **DEFAULTS[family], **known}
    return {fact: value for fact, value in facts.items() if fact not in unknown}


def _model_facts(settings: StatedSettings) -> dict[str, Setting]:
    named = settings.find(*_MODEL)
    kind = settings.find("model_type")
    facts: dict[str, Setting] = {}
    if named is not None and isinstance(named.value, str):
        facts = _named_model(named.value, named.source)
    elif kind is not None and kind.value in DEFAULTS:
        source = f"default of {kind.value}, {kind.source}"
        facts = _with_source({**FAMILIES[str(kind.value)], **DEFAULTS[str(kind.value)]}, source)
    overrides = settings.find("config_overrides")
    if overrides is not None and facts:
        pairs = (each.partition("=") for each in str(overrides.value).split(","))
        stated = {key.strip(): typed_value(value.strip()) for key, _, value in pairs}
        facts |= _with_source(known_facts(stated), overrides.source)
    return facts


def _named_model(name: str, flag: str) -> dict[str, Setting]:
    """Return the facts of a model by the config file in its folder or in the cache, or as published."""
    for path in _config_files(name):
        document = read_document(path)
        if document:
            return _with_source(config_facts(document), str(path))
    sizes = published_sizes(name)
    return _with_source(sizes, f"published config of {name}, {flag}") if sizes else {}


def _config_files(name: str) -> list[Path]:
    path = Path(name)
    local = path if path.suffix == ".json" else path / "config.json"
    try:
        cached = (Path.home() / _CACHE / f"models--{name.replace('/', '--')}").glob("snapshots/*/config.json")
        return [local, *sorted(cached)]
    except (OSError, RuntimeError, ValueError):
        return [local]


def config_facts(document: Mapping[str, object]) -> dict[str, Scalar]:
    """Return the facts that a config of ``transformers`` states; a type without a table tells sizes alone.

    >>> facts = config_facts({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100})
    >>> facts["d_model"], facts["gated_mlp"], facts["tied_embeddings"]
    (64, True, False)
    """
    plain = {_OTHER_KEYS.get(key, key): each for key, each in document.items() if isinstance(each, bool | int | float)}
    kind = str(document.get("model_type", ""))
    facts: dict[str, Scalar] = {
        fact: each for fact, each in known_facts(plain).items() if isinstance(each, int | float | str)
    }
    facts.pop("seq_len", None)
    positions = facts.get("n_positions")
    if kind == "opt" and isinstance(positions, int):
        facts["n_positions"] = positions + 2  # its table of positions begins with two that are never used
    return {**FAMILIES.get(kind, {}), **DEFAULTS.get(kind, {}), **facts} if kind in FAMILIES else facts


def _training_facts(settings: StatedSettings) -> dict[str, Setting]:
    """Return precision, sharding and length as ``TrainingArguments`` and the usual scripts have them."""
    found: dict[str, Setting] = {}
    for word in ("bf16", "fp16"):
        setting = settings.find(word, f"{word}.enabled")
        if setting is not None and setting.value is True:
            found["precision"] = Setting(value=word, source=setting.source)
    mixed = settings.find("mixed_precision")
    if mixed is not None and mixed.value in {"bf16", "fp16"}:
        found.setdefault("precision", Setting(value=mixed.value, source=mixed.source))
    found.setdefault("precision", Setting(value="fp32", source="default of the trainer"))
    if (
        settings.find("fsdp", "deepspeed", "deepspeed_config", "zero_optimization.stage", "zero_stage", "use_fsdp")
        is None
    ):
        found["sharding_strategy"] = Setting(value="DDP", source="default of the trainer")
    stage = settings.find("zero_optimization.stage", "deepspeed_config.zero_stage", "zero_stage")
    if stage is not None and isinstance(stage.value, int) and not isinstance(stage.value, bool):
        found["zero_stage"] = stage
    length = settings.find("block_size", "max_seq_length", "max_length")
    if length is not None and isinstance(length.value, int):
        found["seq_len"] = Setting(value=length.value, source=length.source)
    found["attention_kernel"] = Setting(value="sdpa", source="default of transformers", is_assumed=True)
    return found


def _with_source(facts: Mapping[str, object], source: str) -> dict[str, Setting]:
    plain = ((fact, value) for fact, value in facts.items())
    return {
        fact: Setting(value=value, source=source)
        for fact, value in plain
        if isinstance(value, bool | int | float | str)
    }
