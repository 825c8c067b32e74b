"""Choice of the config that an ordinary launch runs: the advisor's suggestion, checked against the user's rules.

A config consists of literals from the user's own space file, whatever a store contains.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.history.passes import keeping_batch, migrated, searched
from torchx_cubicml.history.present_command import PROGRAM
from torchx_cubicml.history.same_training import batch_lines, can_change_batch
from torchx_cubicml.launch.messages import better_word, per_cost_text
from torchx_cubicml.records.arguments import text_digest
from torchx_cubicml.records.resumption import (
    SAVED_STEP,
    UNSEEN,
    digested,
    folders,
    has_same_state,
    savers,
    saves_weights_alone,
    starts_anew,
)
from torchx_cubicml.records.suggestion import Suggestion
from torchx_cubicml.records.trial import Origin, State, short_id
from torchx_cubicml.records.workload import is_informative, is_same_program, is_same_workload, recency
from torchx_cubicml.rewrite.rules import (
    batch_change_reason,
    expected_device_hours,
    explored_device_hours,
    explores,
    held,
    rejection_reason,
)
from torchx_cubicml.space.spelling import same_value, spell

if TYPE_CHECKING:
    from datetime import datetime

    from torchx_cubicml.history.history import History
    from torchx_cubicml.launch.going_on import ResumeSigns
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.space import SearchSpace

_EXPLORE_AMONG = 8  # suggestions, of which the first that clears ``min_fit`` is tried


def changed_batch(history: History, config: Config) -> str:
    """Return a message if a config changes the global batch size without permission; empty if it does not."""
    facts = {**history.workload, **history.kept}
    return batch_change_reason(history.space, workload=facts, current=history.current, config=config)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Config for a launch, with the reason for rejecting it if there is one.

    Args:
        config: complete config, derived values included.
        suggestion: suggestion with the predictions for it.
        origin: purpose of the choice: rewriting or exploring.
        rejection_reason: why the user's own config runs instead, in words; empty if this one runs.
        note: further message to the user; empty for none.
        resumes: id of the launch whose training goes on with this config; empty for a choice by speed.
    """

    config: Config
    suggestion: Suggestion
    origin: Origin
    rejection_reason: str = ""
    note: str = ""
    resumes: str = ""


def earlier_launch(case: History, signs: ResumeSigns) -> tuple[bool, Trial | None]:
    """Return whether a launch goes on with an earlier training, and the launch whose checkpoint it loads, if known."""
    keys = case.keys
    found = savers(case.trials, case.workload, digested(signs.places - {UNSEEN}, keys))
    if not found and UNSEEN in signs.places:
        unseen = savers(case.own, case.workload, digested([UNSEEN], keys))
        # One as typed needs no more: a job that goes on from there as another config starts again as typed.
        found = unseen if unseen and unseen[-1].origin in {Origin.REWRITE, Origin.EXPLORE} else []
    if not found and signs.job:
        of_job = (trial for trial in case.trials if trial.observed.get("job_id") == signs.job)
        found = sorted((trial for trial in of_job if is_same_program(trial, case.workload)), key=recency)
    if (signs.says and not (signs.is_blind and _may_begin(case, signs))) or signs.job:
        return True, found[-1] if found else None
    code, own = case.command.texts.get(PROGRAM), savers(case.trials, case.workload)
    program = {text_digest(code, key) for key in keys} if code is not None else ()
    if starts_anew(found or own, case.command.arguments, program):
        return False, None
    may_hold_training = bool(signs.holds) and not saves_weights_alone(case.trials, case.workload)
    return bool(found) or may_hold_training, found[-1] if found else None


def _may_begin(case: History, signs: ResumeSigns) -> bool:
    """Return whether a job that does not begin anew after all notices that, and can start again as typed."""
    size = case.workload.get("world_size")
    return signs.starts_again and all(trial.observed.get("world_size", size) == size for trial in case.own)


def going_on_line(case: History, signs: ResumeSigns, earlier: Trial | None, config: Config) -> str:
    """Return the message that a launch goes on, with ``config``, with an earlier training."""
    if earlier is None:
        said = signs.says or (f"job {signs.job}" if signs.job else f"in {signs.holds}")
        return f"goes on from a checkpoint ({said}) of no known launch: batch and layout stay as typed"
    step = earlier.observed.get(SAVED_STEP)
    later = "" if earlier.state is State.COMPLETED else " or later"  # it may have been killed before it told
    where = "" if step is None else f"step {step}{later} of "
    kept = "keeping its batch and layout" if has_same_state(earlier.config, config) else "with the config as typed now"
    if not (signs.says or signs.job) and digested([UNSEEN], case.keys) & {*folders(earlier)}:
        kept += " in case (its checkpoints are out of sight)"
    return f"goes on from {where}launch {short_id(earlier.trial_id)}, {kept}"


def resumed_choice(case: History, earlier: Trial | None) -> Choice | None:
    """Return the config of the launch whose checkpoint this one loads; ``None`` if the command stays as typed.

    It stays where the earlier launch ran as typed, too, and where the user has since typed another batch or job.

    Raises:
        SpaceError: a value of the earlier config is none of the space.
        LaunchError: the earlier config may not run.
    """
    if earlier is None or earlier.origin is Origin.USER:
        return None
    (earlier,) = migrated(replace(case, trials=[earlier])).trials
    if not is_same_workload(earlier, case.workload):
        return None
    names = held(case.space, goes_on=True)
    wanted = {**case.current, **{name: earlier.config[name] for name in names if name in earlier.config}}
    config = _from_own_literals(case, case.space, wanted)
    if config is case.current or changed_batch(case, config):
        return None
    reason = f"goes on from {short_id(earlier.trial_id)}"
    suggestion = Suggestion(
        config=config, throughput=None, low=None, high=None, probability_to_fit=1.0, reason=reason, n_trials=0
    )
    return Choice(config=config, suggestion=suggestion, origin=Origin.REWRITE, resumes=earlier.trial_id)


def advise(case: History) -> Suggestion | None:
    """Return the incumbent among the configs that an ordinary launch may run; ``apply_rules`` must check it.

    Only trials that ended or were measured count: a launch in flight has no effect before its first measurement.

    Raises:
        SpaceError: the space cannot be bound to the workload, or what is frozen leaves no legal config.
    """
    if not case.is_measured:
        return None
    from torchx_cubicml.advisor import incumbent

    found = searched(case.where(is_informative))
    best = incumbent(found)
    if best is None or not changed_batch(case, _from_own_literals(case, found.space, best.config)):
        return best
    kept = incumbent(keeping_batch(found))
    return best if kept is None or _is_own(case, kept.config) else kept


def other_submission_note(case: History) -> str:
    """Return a message if other options of the scheduler, which this launch cannot set, are surely better; else empty.

    Raises:
        SpaceError: see ``advise``.
    """
    options = case.space.scheduler_options
    if not options or not case.is_measured:
        return ""
    from torchx_cubicml.advisor import incumbent

    found = case.where(is_informative).holding({*case.held, *batch_lines(case)} - options.keys())
    best, space, current = incumbent(found), found.space, case.current
    if best is None or best.gain is None or rejection_reason(best, case.space.rewrite):
        return ""
    chosen = {option: best.config[name] for name, option in options.items() if best.config[name] != current.get(name)}
    if not chosen:
        return ""
    words = ",".join(f"{option}={spell(value)}" for option, value in chosen.items())
    gain = f"{best.gain - 1:+.0%} {per_cost_text(space.objective)}".rstrip()
    return (
        f"the best known config has -cfg {words} and a predicted gain of {gain}; this launch cannot set the "
        "scheduler's options (torchx cubicml suggest prints the whole command)"
    )


def keeps_own(case: History, suggestion: Suggestion | None) -> bool:
    """Return whether a suggestion is the user's own config."""
    return suggestion is not None and _is_own(case, suggestion.config)


def apply_rules(case: History, suggestion: Suggestion, *, unsure: str = "") -> Choice:
    """Turn a suggestion into a choice under the user's rules; the trials of the case are not used.

    Args:
        case: input of the decision.
        suggestion: for the launch.
        unsure: why the user's own config stays although another measured faster; empty if none did.

    Raises:
        LaunchError: the suggested config may not run.
    """
    config = _from_own_literals(case, case.frozen_space, suggestion.config)
    better = f"no recorded launch suggests a {better_word(case.space.objective)} config that this launch may run"
    same = better if config is case.current else ""
    why = changed_batch(case, config) or (same and unsure) or same or rejection_reason(suggestion, case.space.rewrite)
    return Choice(config=config, suggestion=suggestion, origin=Origin.REWRITE, rejection_reason=why)


def explore(case: History, *, now: datetime) -> tuple[Choice | None, str]:
    """Choose an untried config if this launch explores, and return it with a message to the user.

    Args:
        case: input of the decision.
        now: present time, up to which launches in flight are charged to the exploration budget.

    Raises:
        SpaceError: see ``advise``.
    """
    rules = case.space.rewrite
    if not rules.explore or case.unseen or not case.is_measured:
        return None, ""
    n_trials = len(case.own)
    if not explores(case.space, workload=case.workload, n_trials=n_trials):
        return None, ""
    spent = explored_device_hours(case.trials, workload=case.workload, now=now)
    of_budget = f"{spent:.3g} of {rules.explore_budget_device_hours:g} device hours used"
    if max(spent, spent + expected_device_hours(case.trials, case.workload)) >= rules.explore_budget_device_hours:
        return None, f"this launch is due to explore, but could exceed the exploration budget: {of_budget}"
    found = _untried(case, seed=n_trials)
    if found is None:
        return None, "this launch is due to explore, but no untried config reaches min_fit"
    return found, f"this launch explores (explore = {rules.explore:g}): {of_budget}"


def _untried(case: History, *, seed: int) -> Choice | None:
    from torchx_cubicml.advisor import Study

    history = searched(case)
    if can_change_batch(case.space, workload=case.workload, current=case.current):
        history = keeping_batch(history)
    study = Study.fitted(history, seed=seed)
    for suggestion in study.suggest(count=_EXPLORE_AMONG):
        config = _from_own_literals(case, history.space, suggestion.config)
        fits = suggestion.probability_to_fit >= case.space.rewrite.min_fit
        if fits and config is not case.current and not changed_batch(case, config):
            return Choice(config=config, suggestion=suggestion, origin=Origin.EXPLORE)
    return None


def _is_own(case: History, suggested: Config) -> bool:
    return all(name in case.current and same_value(value, case.current[name]) for name, value in suggested.items())


def _from_own_literals(case: History, space: SearchSpace, suggested: Config) -> Config:
    """Rebuild a suggested config from the literals of the user's own space file and command.

    Whatever a store contains, only positions in the user's lists of choices are used; derived values are computed here.
    """
    if _is_own(case, suggested):
        return case.current
    bound = space.without_rules().bind(workload=case.workload, current=case.current)
    config = bound.decode(bound.encode(suggested))
    if config is None:
        raise LaunchError("the suggested config is not legal in the space file")
    frozen = {name: case.current[name] for name in case.held if name in case.current}
    config = {**{name: value for name, value in frozen.items() if name not in config}, **config}
    changed = [name for name, value in frozen.items() if not same_value(config[name], value)]
    if changed:
        raise LaunchError(f"the suggested config changes {', '.join(changed)}, which this launch may not change")
    return config
