"""Notices of a tune on the hooks of its space before the first launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.advisor.hook_check import HookCheck
from torchx_cubicml.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.history.hook_refusals import HookRefusals
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.tuner.request import Prepared

_ANEW = "as an earlier launch told; to check again, launch the command once with this space file"


def hook_notices(
    prepared: Prepared, refusals: HookRefusals, *, recorded: Sequence[Trial] | None, own: Sequence[Trial]
) -> list[str]:
    """Return notices of the hooks that earlier launches refused, and of those that the first launch checks.

    Args:
        prepared: the checked request.
        refusals: of earlier launches.
        recorded: trials as recorded; ``None`` for a tune that has made launches, which have told.
        own: trials of the same workload and work from before the tune, in the terms of the space.

    Raises:
        LaunchError: a hook cannot serve the program, by its source.
    """
    told = [f"{text} ({_ANEW})" for text in refusals.texts()]
    if recorded is None:
        return told
    launch, space = prepared.component.launch, prepared.space
    check = HookCheck.of(launch, space, prepared.current, recorded=recorded, own=own)
    if refusal := check.refusal(prepared.request.space):
        raise LaunchError(refusal)
    return [*told, *filter(None, [check.open_text()])]
