"""Facts of a command of Hugging Face's trainers: the model's config, and the training arguments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.launch.command_facts.fact_names import known_facts
from torchx_cubicml.launch.command_facts.published_models import DEFAULTS, FAMILIES, published_sizes
from torchx_cubicml.launch.command_facts.stated_settings import Setting, read_document, typed_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.launch.command_facts.stated_settings import StatedSettings
    from torchx_cubicml.records.trial import Scalar

_MODEL = ("config_name", "model_name_or_path", "model_name", "model", "pretrained_model_name_or_path")
_CACHE = Path(".cache/huggingface/hub")
_OTHER_KEYS = {
    "num_local_experts": "n_experts",
    "num_experts": "n_experts",
    "n_inner": "d_ff",
    "attention_bias": "qkv_bias",
    "head_dim": "head_dim",
}


def hugging_face_facts(settings: StatedSettings) -> dict[str, Setting]:
    """Return what the command tells of a model of ``transformers`` and of ``TrainingArguments``."""
    return {**_training_facts(settings), **_model_facts(settings)}


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
    facts = {fact: each for fact, each in known_facts(plain).items() if isinstance(each, bool | int | float)}
    facts.pop("seq_len", None)
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
