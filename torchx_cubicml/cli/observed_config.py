"""Config of a launch without a space file, as it was observed in the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.records.standard_names import STANDARD_PARAMETERS

if TYPE_CHECKING:
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Value


def observed_config(trial: Trial) -> dict[str, Value]:
    """Return the parameters that were observed in the job of a trial without a requested config."""
    return {name: trial.observed[name] for name in STANDARD_PARAMETERS if name in trial.observed}
