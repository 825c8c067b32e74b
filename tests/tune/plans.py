"""Plans of a tune by its trials alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.tuner import plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.advisor.comparison import Comparison
    from torchx_cubicml.records.suggestion import Suggestion
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.tuner import Prepared


def next_launch(prepared: Prepared, trials: Sequence[Trial], **given: object) -> tuple[str, Suggestion] | None:
    """Purpose and suggestion of the next launch; ``None`` where there is none."""
    planned = plan.plan_launch(prepared, prepared.history(trials), **given)
    return None if isinstance(planned, str) else planned


def winner_of(
    prepared: Prepared, trials: Sequence[Trial], **given: object
) -> tuple[Suggestion | None, Comparison | None]:
    """Winner and its comparison."""
    return plan.winner_of(prepared, prepared.history(trials), **given)
