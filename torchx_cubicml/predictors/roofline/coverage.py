"""Coverage of trials by the roofline formulas, as a message for people."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.features.device_specs import precision_word
from torchx_cubicml.predictors.features.history import training_row
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.recommender import Recommender
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.records.trial import Trial, Value

# Facts that the formulas need; any name of a group is enough.
_NEEDED = (
    ("n_layers",),
    ("d_model", "n_params"),
    ("seq_len",),
    ("micro_batch_size",),
    ("world_size", "nnodes"),
)
# Facts with a default; any name of a group is enough.
_ASSUMED = (
    ("tp_degree",),
    ("pp_degree",),
    ("gradient_accumulation_steps", "global_batch_size"),
    ("activation_checkpointing",),
    ("precision",),
    ("device",),
)


def missing_roofline_facts(trials: Sequence[Trial]) -> str:
    """Return a message on the coverage of the ``roofline`` formulas and on missing facts; empty if nothing is missing.

    >>> from torchx_cubicml.records.trial import Trial
    >>> facts = {"n_layers": 32, "d_model": 4096, "world_size": 8}
    >>> trial = Trial.completed(workload=facts, config={"micro_batch_size": 2}, tokens_per_second=1.0)
    >>> print(missing_roofline_facts([trial]))
    the roofline formulas cover 0 of 1 trials; the others lack seq_len (1): give --map COLUMN=NAME or --fact NAME=VALUE
    """
    rows = [training_row(trial) for trial in trials]
    covered = TrainingLayout.of(Facts.from_rows(rows)).covered.tolist()
    uncovered = [
        row for row, is_covered in zip(rows, covered, strict=True) if not is_covered and Recommender.of(row) is None
    ]
    if not rows or not uncovered:
        return ""
    text = f"the roofline formulas cover {len(rows) - len(uncovered)} of {len(rows)} trials; the others lack"
    lacking = Counter(name for row in uncovered for name in missing_facts(row))
    names = ", ".join(f"{name} ({count})" for name, count in lacking.most_common()) or "degrees that divide world_size"
    return f"{text} {names}: give --map COLUMN=NAME or --fact NAME=VALUE"


def assumed_roofline_facts(trials: Sequence[Trial]) -> str:
    """Return a message on the facts that no trial holds and for which the formulas assume a default.

    >>> from torchx_cubicml.records.trial import Trial
    >>> known = {"device": "H100", "precision": "bf16", "tp_degree": 1, "pp_degree": 1, "global_batch_size": 64}
    >>> print(assumed_roofline_facts([Trial.completed(workload=known, config={"seq_len": 1}, tokens_per_second=1.0)]))
    no trial holds activation_checkpointing: the roofline formulas assume a default
    """
    known = {name for trial in trials for name in training_row(trial)}
    names = [group[0] for group in _ASSUMED if not known & {*group}]
    return f"no trial holds {', '.join(names)}: the roofline formulas assume a default" if names and trials else ""


def estimated_roofline_facts(trials: Sequence[Trial]) -> str:
    """Return a message on facts that covered trials lack and the formulas estimate; empty if they lack none.

    >>> from torchx_cubicml.records.trial import Trial
    >>> facts = {"n_layers": 32, "d_model": 4096, "world_size": 1, "vocab_size": 50_000, "micro_batch_size": 1}
    >>> trial = Trial.completed(workload=facts, config={"seq_len": 2048}, tokens_per_second=1.0)
    >>> print(estimated_roofline_facts([trial]))
    the roofline formulas estimate what trials do not state: attention_kernel (1)
    """
    layout = TrainingLayout.of(Facts.from_rows([training_row(trial) for trial in trials]))
    of_each = {
        "attention_kernel": layout.unknown_attention,
        "zero_stage or sharding_strategy": layout.unknown_sharding * (layout.dp > 1.0),
        "vocab_size": np.maximum(layout.unknown_words, layout.embedded_words > 0.0),
    }
    counts = {name: int(unknown[layout.covered].sum()) for name, unknown in of_each.items()}
    names = ", ".join(f"{name} ({count})" for name, count in counts.items() if count)
    return f"the roofline formulas estimate what trials do not state: {names}" if names else ""


def missing_facts(row: Mapping[str, Value]) -> list[str]:
    """Return the facts that the formulas need and a row does not tell; empty if it tells them all.

    >>> missing_facts({"n_layers": 32, "n_params": 7_000_000_000, "micro_batch_size": 2, "world_size": 8})
    ['seq_len']
    """
    lacking = [names[0] for names in _NEEDED if not any(isinstance(row.get(name), int | float) for name in names)]
    word = row.get("precision")
    unknown = isinstance(word, str) and precision_word(word) is None
    return [*lacking, f"a known precision instead of {word}"] if unknown else lacking
