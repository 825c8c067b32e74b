"""Coverage of trials by the roofline formulas, as a message for people."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.features.device_specs import precision_word
from torchx_cubicml.predictors.features.history import training_row
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.recommender_layout import RecommenderLayout, has_tables
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Value

# Facts that the formulas need; any name of a group is enough.
_NEEDED = (
    ("n_layers",),
    ("d_model", "n_params"),
    ("seq_len",),
    ("micro_batch_size",),
    ("world_size", "nnodes"),
)
_NEEDED_OF_RECOMMENDERS = (("micro_batch_size",), ("world_size", "nnodes"))
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
    if not rows:
        return ""
    recommenders = RecommenderLayout.from_rows(rows)
    covered = TrainingLayout.of(Facts.from_rows(rows)).covered | (recommenders.covered & recommenders.has_tables)
    uncovered = [row for row, is_covered in zip(rows, covered.tolist(), strict=True) if not is_covered]
    if not uncovered:
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
    rows = [row for row in map(training_row, trials) if not has_tables(row)]
    known = {name for row in rows for name in row}
    names = [group[0] for group in _ASSUMED if not known & {*group}]
    return f"no trial holds {', '.join(names)}: the roofline formulas assume a default" if names and rows else ""


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
    >>> missing_facts({"embedding_rows": (1000, 10), "micro_batch_size": 2, "world_size": 8})
    ['embedding_dims']
    """
    needed = _NEEDED_OF_RECOMMENDERS if has_tables(row) else _NEEDED
    lacking = [names[0] for names in needed if not any(isinstance(row.get(name), int | float) for name in names)]
    if has_tables(row):
        return [*lacking, *_lacking_sizes(row)]
    word = row.get("precision")
    unknown = isinstance(word, str) and precision_word(word) is None
    return [*lacking, f"a known precision instead of {word}"] if unknown else lacking


def _lacking_sizes(row: Mapping[str, Value]) -> list[str]:
    """Return the sizes of embedding tables that a recommender's formulas need and ``row`` does not tell."""
    sizes = ("embedding_rows", "embedding_dims") if "embedding_rows" in row else ("n_embedding_tables", "embedding_dim")
    kind = tuple if "embedding_rows" in row else int | float
    return [name for name in sizes if not isinstance(row.get(name), kind)]
