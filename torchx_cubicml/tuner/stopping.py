"""Rules that end a launch early (``stop_reason``) and rules that abort the whole tune (``check_abort``)."""

from __future__ import annotations

import json
import math
from statistics import fmean
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.history.hook_refusals import refused_change
from torchx_cubicml.history.objective import COUNT_WORK, changer_of_work
from torchx_cubicml.launch.messages import best_word, unit_text, worth_text
from torchx_cubicml.launch.scheduler import store_doubt
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.predictors.measurement_error import repeat_noise
from torchx_cubicml.records.objective_units import OBJECTIVES, PER_COST, PER_JOULE, RATES, counted_rate
from torchx_cubicml.records.redaction import mask
from torchx_cubicml.records.trial import State
from torchx_cubicml.tuner.certain_failures import repeated_failure
from torchx_cubicml.tuner.launch_state import NO_REPORT, program_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.records.measurement import Measurement
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.tuner.certain_failures import CertainFailures
    from torchx_cubicml.tuner.launch_state import FinishedLaunch
    from torchx_cubicml.tuner.request import Prepared


_IN_A_ROW = 3
_NO_POWER = "no power was recorded: that takes NVML by pynvml, or a readable /sys/class/powercap, for some seconds"
_LINES_SHOWN = 15
_DIAGNOSIS = {
    State.USER_ERROR: "the training itself fails: check that the script allows the values that were tried",
    State.INFRASTRUCTURE: "the machines fail: check the cluster, then run the same command again",
    State.TIMEOUT: "launches do not end in time: raise --trial-timeout, or end them after a few steps with --steps",
    State.UNKNOWN: "launches end without reporting: something outside the training kills them",
    State.OUT_OF_MEMORY: "no config fits in memory: start from a smaller config",
}


def check_abort(
    prepared: Prepared,
    finished: FinishedLaunch,
    own: Sequence[Trial],
    *,
    known: Sequence[Trial],
    measured_before: bool,
    awaits_own: bool,
) -> None:
    """Abort a tune if no launch can be measured, or one kind of failure repeats.

    Args:
        prepared: the checked request.
        finished: the launch that has just ended.
        own: trials of this tune, in the order of their ends.
        known: all trials of the store.
        measured_before: true if another trial has measured the workload.
        awaits_own: true if the user's own config is in flight.

    Raises:
        LaunchError: the tune must end; the message contains the script's own last lines.
    """
    trial = finished.trial
    if trial.state is State.STOPPED_EARLY:
        return
    if not measured_before:
        _check_measurable(prepared, finished, known, awaits_own=awaits_own)
    row = _in_a_row(own, trial.state)
    if trial.state not in _DIAGNOSIS or finished.refused:
        _check_refusals(finished, own)
        return
    # A broken node ends all launches in flight at once. If launches can succeed, rows of failures also occur by chance.
    limit = max(_IN_A_ROW, prepared.request.parallel) * (2 if measured_before else 1)
    if trial.state is State.OUT_OF_MEMORY:
        limit *= 3
    if row >= limit and not (measured_before and trial.state is State.OUT_OF_MEMORY):
        sentence = (
            f"stopping: {row} launches in a row ended as {trial.state}: {_DIAGNOSIS[trial.state]}. Last: {trial.reason}"
        )
        raise LaunchError(with_last_lines(sentence, finished.last_lines))


def check_repeated(certain: CertainFailures, finished: FinishedLaunch) -> None:
    """Abort a tune of which two launches failed in the same way, where no single parameter explains it.

    Raises:
        LaunchError: the tune must end; the message contains the script's own last lines.
    """
    if certain.repeated is not None:
        sentence = f"stopping: {repeated_failure(certain.repeated)}"
        raise LaunchError(with_last_lines(sentence, finished.last_lines))


def with_last_lines(sentence: str, last_lines: Sequence[str]) -> str:
    """Append the last lines of the log that the training itself wrote, to ``sentence``."""
    lines = program_lines(last_lines)[-_LINES_SHOWN:]
    if not lines:
        return sentence
    return "\n".join([f"{sentence}; last lines of the log:", *(f"  {mask(line)}" for line in lines)])


def _check_measurable(
    prepared: Prepared, finished: FinishedLaunch, known: Sequence[Trial], *, awaits_own: bool
) -> None:
    """Abort if the first launches show that the command cannot be measured.

    Only a failure of the user's own config counts against the command. The tuner chose the values of other configs, so
    only a row of their failures counts.
    """
    first = finished.trial
    if finished.refused:
        raise LaunchError(first.reason)
    if config_key(finished.pending.config) == config_key(prepared.current):
        _check_own_config(prepared, finished)
    elif awaits_own:
        return
    if first.state is not State.COMPLETED:
        return
    objectives = filter(None, (prepared.space.objective, prepared.space.second_objective))
    unmeasured = next((name for name in objectives if first.throughput(name) is None), None)
    if unmeasured is None:
        return
    others = [name for name in OBJECTIVES if first.measurement and first.measurement.throughput(name) is not None]
    only_steps = not set(others) & set(RATES)
    if others and only_steps and (changer := changer_of_work(prepared.space, known, workload=prepared.workload)):
        raise LaunchError(
            f"neither tokens nor samples can be counted in this training, and steps per second do not compare as "
            f"{changer}; {COUNT_WORK}"
        )
    if others:
        raise LaunchError(_cannot_be_measured(prepared, unmeasured, first.measurement, others))
    raise LaunchError(
        "the first launch completed, but no steady state was measured: it makes too few optimizer steps, or none that "
        "can be observed (report them with torchx_cubicml.measure)"
    )


def _cannot_be_measured(
    prepared: Prepared, unmeasured: str, measurement: Measurement | None, rates: Sequence[str]
) -> str:
    """Return the message that the objective ``unmeasured`` cannot be measured, but ``rates`` can."""
    space, file = prepared.space, prepared.request.space
    if space.job is not None:
        unit = rates[0].removesuffix("_per_second")
        return f"{space.rate} cannot be measured in this training; count the job in {unit} in [job] of {file}"
    has_power = measurement is not None and measurement.power_watts is not None
    stated = filter(None, (space.objective, space.second_objective))
    wanted = list(dict.fromkeys(_measured_objective(name, rates, has_power=has_power) for name in stated))
    text = f'"{wanted[0]}"' if len(wanted) == 1 else json.dumps(wanted)
    why = f" ({_NO_POWER})" if unmeasured in PER_JOULE and not has_power else ""
    return f"{unmeasured} cannot be measured in this training{why}; set objective = {text} in {file}"


def _measured_objective(stated: str, rates: Sequence[str], *, has_power: bool) -> str:
    """Return the objective to state instead, of the measured ``rates``: per cost as the stated one, where possible."""
    per = stated.partition("_per_")[2]
    alike = [name for name in (stated, *PER_COST) if name.endswith(f"_per_{per}") and counted_rate(name) in rates]
    known = [name for name in alike if has_power or name not in PER_JOULE]
    rate = counted_rate(stated)
    return next(iter(known), rate if rate in rates else rates[0])


def _check_own_config(prepared: Prepared, finished: FinishedLaunch) -> None:
    first = finished.trial
    if first.state is State.USER_ERROR:
        raise LaunchError(with_last_lines(f"the first launch failed: {first.reason}", finished.last_lines))
    if first.state is State.UNKNOWN and not first.observed:
        reason = first.reason.replace(NO_REPORT, " without starting the recorder")
        if doubt := store_doubt(prepared.store_url, prepared.component.launch):
            reason = f"{reason}, or its record is elsewhere: {doubt}"
        raise LaunchError(with_last_lines(reason, finished.last_lines))


def _check_refusals(finished: FinishedLaunch, own: Sequence[Trial]) -> None:
    row = _in_a_row(own, State.INFRASTRUCTURE)
    if finished.refused and row >= _IN_A_ROW:
        raise LaunchError(f"stopping: {row} launches in a row were rejected: {finished.trial.reason}")


def _in_a_row(own: Sequence[Trial], state: State) -> int:
    row = 0
    for trial in reversed([trial for trial in own if trial.state is not State.STOPPED_EARLY]):
        if trial.state is not state or trial.measurement is not None:
            break
        row += 1
    return row


_FEWEST_STEPS = 10  # counted after warm-up
_LEAST_SIGMAS = 3.0  # least distance below the best, in noise; before repeats, the noise is taken as large
_LEAST_LOG_GAP = 0.1  # least log distance below the best: a slightly slower config is worth its whole measurement
_UNKNOWN_ERROR = 0.1  # standard deviation of a log throughput without any estimate of its error


def stop_reason(prepared: Prepared, trial: Trial, others: Sequence[Trial]) -> str:
    """Return the reason to end a running trial: its values were refused, or it is slow; empty for none.

    Trials whose values a hook refused ran at the program's own speed, so none is compared as a run of its config. With
    two objectives, a trial is slow where one other surpasses it far in both.

    Args:
        prepared: the checked request.
        trial: running trial, with its measurement so far.
        others: other trials of the tune.
    """
    space, current = prepared.space, prepared.current
    if refusal := refused_change(trial, space, current):
        return f"ended early: {refusal}"
    as_requested = [other for other in others if not refused_change(other, space, current)]
    if space.second_objective:  # what is slow may be the best in the other one
        second = space.second_objective
        as_requested = [other for other in as_requested if early_stop_reason(trial, [other], objective=second)]
    return early_stop_reason(trial, as_requested, objective=space.objective)


def early_stop_reason(trial: Trial, others: Sequence[Trial], *, objective: str) -> str:
    """Return the reason for early stopping of a running trial far below the best measured config; empty for none.

    Args:
        trial: running trial, with its measurement so far.
        others: trials to compare with.
        objective: name of the throughput.
    """
    if trial.measurement is None or trial.measurement.steps_counted < _FEWEST_STEPS:
        return ""
    own, best = trial.throughput(objective), _best(others, objective)
    if own is None or best is None:
        return ""
    between = repeat_noise(others, objective=objective)
    noise = math.hypot(trial.measurement.uncertainty or _UNKNOWN_ERROR, between * math.sqrt(2))
    behind = math.log(best / own)
    if behind < max(_LEAST_SIGMAS * noise, _LEAST_LOG_GAP):
        return ""
    return (
        f"ended early: {worth_text(own, objective)} {unit_text(objective)} after "
        f"{trial.measurement.steps_counted} steps, "
        f"{1 - own / best:.0%} below the {best_word(objective)} seen ({behind / noise:.0f} times the noise)"
    )


def _best(trials: Sequence[Trial], objective: str) -> float | None:
    """Return the throughput of the fastest config, as the geometric mean of its repeats."""
    groups: dict[str, list[float]] = {}
    for trial in trials:
        value = trial.throughput(objective) if trial.state.ended else None
        if value is not None:
            groups.setdefault(config_key(trial.config), []).append(math.log(value))
    return max((math.exp(fmean(values)) for values in groups.values()), default=None)
