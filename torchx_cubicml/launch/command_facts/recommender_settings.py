"""Facts of a recommender read from its command and its source, each with where it was read; nothing is run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.launch.command_facts.recommender_model import IMPORTS_TORCHREC, recommender_model
from torchx_cubicml.launch.command_facts.source_literals import is_plain, parser_flags
from torchx_cubicml.launch.command_facts.stated_settings import Setting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.launch.command_facts.recommender_model import RecommenderModel
    from torchx_cubicml.launch.command_facts.stated_settings import StatedSettings
    from torchx_cubicml.launch.source_files import SourceFile

RECOMMENDER_ASKED = (
    *("embedding_rows", "embedding_dims", "embedding_pooling", "embedding_sharding", "layer_n_params"),
    *("micro_batch_size", "world_size", "device"),
)
"""Facts of a recommender that count, named where they are unknown."""
OF_RECOMMENDERS = frozenset(
    {
        *("n_embedding_tables", "embedding_rows", "embedding_dims", "embedding_pooling", "embedding_sharding"),
        *("layer_n_params", "n_params", "micro_batch_size", "global_batch_size", "sharding_strategy", "optimizer"),
        *("gradient_accumulation_steps", "world_size", "nnodes", "nproc_per_node", "device", "precision", "compile"),
    }
)
"""Facts that a recommender has; others are those of transformers, whose flags may have the same names."""


def recommender_settings(
    settings: StatedSettings, files: Sequence[SourceFile], *, world_size: int | None
) -> dict[str, Setting] | None:
    """Return the facts of a recommender; ``None`` where the command is not that of one.

    A program that imports TorchRec is one, even if none of its options is known.
    """
    options = _options(settings, files)
    source = "\n".join(file.text for file in files).lower()
    model = recommender_model(
        {name: setting.value for name, setting in options.items()}, source=source, world_size=world_size
    )
    if model is None:
        return {} if IMPORTS_TORCHREC.search(source) else None
    place = f"source of {files[0].path.name}" if files else "the source"
    found = {name: _setting(name, model, options, place) for name in model.facts}
    if "sharding_strategy" not in found and "embedding_rows" in found:
        # The dense part is trained on samples of each rank's own.
        found["sharding_strategy"] = Setting(value="DDP", source=place, is_assumed=True)
    return found


def _options(settings: StatedSettings, files: Sequence[SourceFile]) -> dict[str, Setting]:
    """Return the options of a program: the defaults in its source, then config files, then arguments."""
    found: dict[str, Setting] = {}
    for file in files:
        flags = parser_flags(file.tree) if file.tree is not None else {}
        for name, flag in flags.items():
            if flag.default is not None and is_plain(flag.default):
                found.setdefault(name, Setting(value=flag.default, source=f"default in {file.path.name}"))
    for table in (settings.files, settings.arguments):
        found |= {name.rpartition(".")[2]: setting for name, setting in table.items()}
    return found


def _setting(name: str, model: RecommenderModel, options: Mapping[str, Setting], place: str) -> Setting:
    origins = [options[each].source for each in model.origins.get(name, ()) if each in options]
    value, doubt = model.facts[name], model.assumed.get(name, "")
    source = ", ".join(dict.fromkeys(origins)) or place
    return Setting(value=value, source=f"{source}, if {doubt}" if doubt else source, is_assumed=bool(doubt))
