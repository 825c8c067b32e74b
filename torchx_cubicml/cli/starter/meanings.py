"""Standard names of a program's flags and keys, and which unknown ones may change the speed alone."""

from __future__ import annotations

import re

from torchx_cubicml.facts.named_places import word_set
from torchx_cubicml.records.harmless_settings import is_harmless
from torchx_cubicml.records.redaction import names_secret
from torchx_cubicml.space.spelling import number, switch_value
from torchx_cubicml.space.trainers import CHANGES_TRAINING, FLAG_ALIASES

DATA_WORKERS = "data_workers"
_WORKERS = word_set(
    "num_workers n_workers nworkers workers data_workers dataloader_workers loader_workers data_loader_workers "
    "dataloader_num_workers num_data_workers num_dataloader_workers"
)
_EVALUATION = word_set("eval evaluation evaluator val valid validation test inference")
_TRAINED = word_set("model network net data dataset optim optimizer scheduler loss hydra")
_SPEED = word_set(
    "workers prefetch pin persistent bucket fused foreach channels flash offload overlap threads reshard "
    "prefetching cudnn benchmark graphs sync async"
)
"""Parts of a name that tell of speed; a key of a listed config is offered only with one of them."""
_OF_MODEL = word_set("classes depth width dim hidden heads layers vocab patch img chans")
"""Parts of a name that tell of the model or its input, unless another part tells of speed."""


def normalized(name: str) -> str:
    """Return a name in lower case, its parts joined by underscores.

    >>> normalized("--trainer.outputDir="), normalized("OUT_DIR")
    ('trainer_output_dir', 'out_dir')
    """
    separated = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.lstrip("-+").rstrip("="))
    return re.sub(r"[-.]", "_", separated).lower()


def meaning_of(name: str) -> str:
    """Return the standard name of a flag or key, by its whole name or its last part; empty if it has none.

    >>> [meaning_of(name) for name in ("--batch-size", "a.batch_size=", "eval.batch_size=", "a.num_workers=")]
    ['micro_batch_size', 'micro_batch_size', '', 'data_workers']
    """
    section, _, last = name.strip("-+=").rpartition(".")
    if not _EVALUATION.isdisjoint(normalized(section).split("_")):
        return ""
    for known in (normalized(name), normalized(last)):
        if known in FLAG_ALIASES or known in _WORKERS:
            return FLAG_ALIASES.get(known, DATA_WORKERS)
    return ""


def may_change_speed_alone(name: str, value: str, *, is_typed: bool) -> bool:
    """Return whether an unknown flag or key may be offered: a count or a switch that no table knows for something else.

    Args:
        name: flag with its dashes, or key with its ``=``.
        value: its value as text.
        is_typed: whether the command states it.

    >>> [may_change_speed_alone(name, "2", is_typed=True) for name in ("--prefetch", "--seed", "model.depth=", "--n")]
    [True, False, False, False]
    """
    section, _, last = name.strip("-+=").rpartition(".")
    known, sections = normalized(last), set(normalized(section).split("_"))
    parts = set(known.split("_"))
    if len(known) < 2 or names_secret(name) or not (_TRAINED | _EVALUATION).isdisjoint(sections):
        return False
    if is_harmless(name) or known in CHANGES_TRAINING or not _EVALUATION.isdisjoint(parts):
        return False
    is_count = isinstance(number(value), int) and re.fullmatch(r"[0-9]+", value) is not None
    is_switch = switch_value(value) is not None and number(value) is None
    may_tell = (is_typed and _OF_MODEL.isdisjoint(parts)) or not _SPEED.isdisjoint(parts)
    return may_tell and (is_count or is_switch)
