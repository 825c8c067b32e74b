"""Config of a launch as its lists and tables show it: as requested, and as observed in the job where that differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.records.config_changes import config_values, short_name
from torchx_cubicml.records.standard_names import STANDARD_PARAMETERS
from torchx_cubicml.records.value_text import value_text
from torchx_cubicml.records.workload import collapsed

if TYPE_CHECKING:
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Value


def observed_config(trial: Trial) -> dict[str, Value]:
    """Return the parameters that were observed in the job of a trial without a requested config."""
    return {name: trial.observed[name] for name in STANDARD_PARAMETERS if name in trial.observed}


def differing_values(trial: Trial) -> dict[str, str]:
    """Return the text of each value that was observed otherwise than requested, with both.

    >>> from dataclasses import replace
    >>> from torchx_cubicml.records.trial import Trial
    >>> asked = {"micro_batch_size": 4, "compile": True}
    >>> run = Trial.completed(workload={}, config=asked, tokens_per_second=9.0)
    >>> differing_values(replace(run, observed={"micro_batch_size": 8, "compile": True}))
    {'micro_batch_size': '4 (observed 8)'}
    """
    from torchx_cubicml.predictors.features.history import training_row

    row = training_row(trial) if trial.observed else trial.config
    pairs = {name: (collapsed(value), collapsed(row[name])) for name, value in trial.config.items()}
    return {
        name: f"{value_text(one)} (observed {value_text(other)})"
        for name, (one, other) in pairs.items()
        if one != other
    }


def config_texts(trial: Trial) -> list[str]:
    """Return the text of each value of a trial's config, with its short name and what was observed if that differs."""
    config, differing = trial.config or observed_config(trial), differing_values(trial)
    known = {name: f"{short_name(name, config)} {text}" for name, text in differing.items()}
    return [known.get(name, text) for name, text in zip(config, config_values(config), strict=True)]
