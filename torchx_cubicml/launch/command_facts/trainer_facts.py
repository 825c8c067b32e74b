"""Facts that the flags of a known trainer state, with the defaults that the trainer itself has."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.launch.command_facts.fact_names import fact_value
from torchx_cubicml.launch.command_facts.hugging_face_facts import hugging_face_facts
from torchx_cubicml.launch.command_facts.megatron_facts import megatron_facts_of_command
from torchx_cubicml.launch.command_facts.stated_settings import Setting
from torchx_cubicml.launch.command_facts.torchtitan_facts import torchtitan_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.launch.command_facts.known_facts import CommandFacts
    from torchx_cubicml.launch.command_facts.stated_settings import StatedSettings
    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.launch.source_files import SourceFile
    from torchx_cubicml.space.trainers import Trainer


_MEGATRON_PARSER = re.compile(
    r"^\s*(?:from|import)\s+megatron(?:\.(?:training|arguments|initialize|global_vars)\b|\s+import\b)", re.MULTILINE
)
"""Import of what parses Megatron-LM's flags; a program of Megatron-Core alone parses its own."""
_CONDITIONAL = frozenset({"n_kv_heads", "n_active_experts"})
"""Facts whose default counts only with another flag."""


def trainer_facts(
    trainer: Trainer, launch: Launch, settings: StatedSettings, files: Sequence[SourceFile]
) -> list[dict[str, Setting]]:
    """Return tables of facts of a trainer's command: what its flags state, what else it implies, and its defaults.

    A program with Megatron-LM's flags and a parser of its own implies nothing, and has no defaults.
    """
    stated = _stated(trainer, settings)
    texts = [file.text for file in files if file.text]
    if trainer.name == "megatron-lm" and texts and not any(map(_MEGATRON_PARSER.search, texts)):
        return [stated, {}, {}]
    own = {
        "megatron-lm": lambda: megatron_facts_of_command(launch, settings),
        "torchtitan": lambda: torchtitan_facts(launch, settings),
        "hf": lambda: hugging_face_facts(settings, files),
        "accelerate": lambda: hugging_face_facts(settings, files),
        "deepspeed": lambda: hugging_face_facts(settings, files),
    }
    implied = own[trainer.name]() if trainer.name in own else {}
    # Megatron-LM's own arithmetic on its flags, such as the padding of the vocabulary, counts more than a flag.
    first, second = (implied, stated) if trainer.name == "megatron-lm" else (stated, implied)
    return [first, second, _defaults(trainer)]


def _stated(trainer: Trainer, settings: StatedSettings) -> dict[str, Setting]:
    """Return the facts of the trainer's table that the command or its files state."""
    found: dict[str, Setting] = {}
    for fact, flag in trainer.flags.items():
        names = [each.strip("-=").replace("-", "_").lower() for each in (flag.flag, *flag.aliases) if each]
        setting = settings.find(*names, *([flag.key.replace("-", "_").lower()] if flag.key else []))
        if setting is None:
            continue
        words = {text: value for value, text in (*flag.words, *flag.file_words)}
        value = words.get(str(setting.value), setting.value)
        if setting.value is True and flag.bare is not None:
            value = flag.bare
        legal = fact_value(fact, value)
        if legal is not None:
            found[fact] = replace(setting, value=legal)
    return found


def _defaults(trainer: Trainer) -> dict[str, Setting]:
    """Return the defaults of the trainer's table, as far as they are facts."""
    source = f"default of {trainer.name}"
    defaults = {fact: flag.default for fact, flag in trainer.flags.items() if fact not in _CONDITIONAL}
    legal = {fact: fact_value(fact, default) for fact, default in defaults.items() if default is not None}
    return {fact: Setting(value=value, source=source) for fact, value in legal.items() if value is not None}


def with_rules_of(trainer: Trainer | None, known: CommandFacts) -> CommandFacts:
    """Return the facts as the formulas count them: accumulation per rank, and the number format of nanoGPT on a CPU."""
    if trainer is None:
        return known
    facts, sources = dict(known.facts), dict(known.sources)
    rounds, world = facts.get("gradient_accumulation_steps"), facts.get("world_size")
    if trainer.accumulation == "whole job" and isinstance(rounds, int) and isinstance(world, int):
        facts["gradient_accumulation_steps"] = max(rounds // world, 1)
        sources["gradient_accumulation_steps"] += f", over {world} ranks"
    if trainer.accumulation == "implied" and not facts.keys() & {"gradient_accumulation_steps", "global_batch_size"}:
        facts["gradient_accumulation_steps"] = 1
        sources["gradient_accumulation_steps"] = f"{trainer.name} without a global batch size"
    width = facts.get("d_model")
    if trainer.name == "nanogpt" and "d_ff" not in facts and isinstance(width, int):
        facts["d_ff"], sources["d_ff"] = 4 * width, "nanoGPT"
    if trainer.name == "nanogpt" and "device" in facts and (facts["device"] == "cpu" or "precision" not in facts):
        on_cpu = facts["device"] == "cpu"
        facts["precision"] = "fp32" if on_cpu else "bf16"
        sources["precision"] = f"nanoGPT on a {'CPU' if on_cpu else 'GPU'}"
    return replace(known, facts=facts, sources=sources)
