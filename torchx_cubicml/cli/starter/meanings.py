"""Flags and keys of a program, and what a name tells: a meaning, an output, or an effect on the speed alone."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchx_cubicml.facts.named_places import NamedPlace, place_of, word_set
from torchx_cubicml.records.harmless_settings import is_harmless
from torchx_cubicml.records.redaction import names_secret
from torchx_cubicml.space.spelling import number, switch_value
from torchx_cubicml.space.trainers import CHANGES_TRAINING, FLAG_ALIASES

DATA_WORKERS = "data_workers"
WRITTEN = frozenset({NamedPlace.OUTPUT, NamedPlace.LABEL})
_WORKERS = word_set("num n data loader dataloader workers nworkers")
_EVALUATION = word_set("eval evaluation evaluator val valid validation test inference")
_TRAINED = word_set("model network net data dataset optim optimizer scheduler loss hydra")
_SPEED = word_set(
    "workers prefetch pin persistent bucket fused foreach channels flash offload overlap threads reshard "
    "prefetching cudnn benchmark graphs sync async"
)
"""Parts of a name that tell of speed; a key of a listed config is offered only with one of them."""
_OF_MODEL = word_set("classes depth width dim hidden heads layers vocab patch img chans")
"""Parts of a name that tell of the model or its input, unless another part tells of speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFlag:
    """Flag of a command or of its script, or key of a config file of the command.

    Args:
        name: name of the flag with its dashes, or dotted key.
        meaning: standard name; empty where unknown.
        present: value in the command as typed, empty for a switch; ``None`` where absent.
        is_switch: whether the flag takes no value.
        choices: legal values that the script lists.
        default: value where the command has none; ``None`` where unknown.
        text: description from the script.
        file: label of the key's config file (see ``from_keys``); empty for a flag.
        destination: whether it names an output, which a profiling launch redirects.
        place: key of a space file for it: ``flag``, ``env`` for a variable, or ``hook``.
        evidence: what recorded launches tell of its meaning, in words; empty where the name alone tells it.
        is_guess: whether the evidence leaves doubt, such as one value alone.
        kept: global batch size that the script keeps whatever its value, as recorded launches tell.
    """

    name: str
    meaning: str = ""
    present: str | None = None
    is_switch: bool = False
    choices: tuple[str, ...] = ()
    default: str | None = None
    text: str = ""
    file: str = ""
    destination: bool = False
    place: str = "flag"
    evidence: str = ""
    is_guess: bool = False
    kept: int | None = None

    @property
    def value(self) -> str | None:
        """Value under this command, else the default; ``None`` where unknown."""
        return self.present if self.present is not None else self.default


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
        if known in FLAG_ALIASES or (known.endswith("workers") and _WORKERS.issuperset(known.split("_"))):
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


def is_destination(name: str, value: str | None) -> bool:
    """Return whether a typed flag or key with this value names an output of its own, and nothing that is read."""
    return bool(value) and switch_value(value or "") is None and place_of(name, value) in WRITTEN


def is_offered_destination(name: str) -> bool:
    """Return whether a flag that is not typed surely names an output, whatever its default."""
    return place_of(name) is NamedPlace.OUTPUT


def is_path_key(name: str, text: str) -> bool:
    """Return whether a key with this value names an output, but not as ``save: true`` or ``save_strategy: epoch``."""
    return is_destination(name, text) and ("/" in text or is_offered_destination(name))
