"""When failures end a tune: told by the user's own config at once, and by those that a tune chooses in a row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tune.cluster import SimulatedCluster
from tests.tune.draws import go
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.records.trial import Measurement, State, Trial
from torchx_cubicml.tuner import Budget, Ended, Prepared, TuneResult
from torchx_cubicml.tuner.launch_state import FinishedLaunch, PendingLaunch
from torchx_cubicml.tuner.polling import SystemClock
from torchx_cubicml.tuner.stopping import check_abort

NOW = SystemClock().now()
CHOSEN = {"micro_batch_size": 7, "width": 7}


def refuse(prepared: Prepared, state: State, *, own: bool, awaits_own: bool = False, row: int = 1) -> None:
    config = prepared.current if own else CHOSEN
    measured = Measurement(tokens_per_second=9.0, steps_counted=20) if state is State.COMPLETED else None
    trial = Trial(trial_id="t", workload={}, config=config, state=state, reason="why", measurement=measured)
    pending = PendingLaunch(launch_id="l", number=1, purpose="search", config=config, submitted_at=NOW)
    finished = FinishedLaunch(pending=pending, trial=trial, last_lines=("its last line",))
    check_abort(prepared, finished, [trial] * row, measured_before=False, awaits_own=awaits_own)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (State.USER_ERROR, "the first launch failed: why; last lines of stderr:\n  its last line"),
        (State.UNKNOWN, "why; last lines of stderr:\n  its last line"),
        (
            State.COMPLETED,
            'samples_per_second cannot be measured in this training; set objective = "tokens_per_second"',
        ),
    ],
    ids=str,
)
def test_a_failing_user_config_ends_a_tune(prepared: Prepared, state: State, words: str) -> None:
    with pytest.raises(LaunchError) as raised:
        refuse(prepared, state, own=True)
    assert str(raised.value).startswith(words)


@pytest.mark.parametrize("state", [State.USER_ERROR, State.UNKNOWN, State.COMPLETED], ids=str)
def test_a_chosen_config_cannot_end_a_tune_early(prepared: Prepared, state: State) -> None:
    refuse(prepared, state, own=False, awaits_own=True)


@pytest.mark.parametrize("awaits_own", [True, False])
def test_a_row_of_chosen_configs_that_fail_ends_a_tune(prepared: Prepared, awaits_own: bool) -> None:
    parallel = prepared.request.parallel
    refuse(prepared, State.USER_ERROR, own=False, awaits_own=awaits_own, row=parallel - 1)
    with pytest.raises(LaunchError, match=rf"{parallel} launches in a row ended as user_error: .* Last: why"):
        refuse(prepared, State.USER_ERROR, own=False, awaits_own=awaits_own, row=parallel)


def test_an_unmeasurable_objective_ends_a_tune(prepared: Prepared) -> None:
    with pytest.raises(LaunchError, match="samples_per_second cannot be measured"):
        refuse(prepared, State.COMPLETED, own=False)


def test_a_chosen_config_that_fails_first_ends_no_tune(prepared: Prepared) -> None:
    asked = replace(prepared, request=replace(prepared.request, budget=Budget(launches=20), parallel=4))
    cluster = SimulatedCluster(seed=4, fates=("done",), fates_of={2: "refuses"})
    steps = go(asked, cluster)
    first = next(step for step in steps if isinstance(step, Ended))
    assert first.trial.state is State.USER_ERROR
    assert first.trial.config != asked.current
    assert isinstance(steps[-1], TuneResult)
    assert steps[-1].launches == 20
    assert steps[-1].comparison is not None
