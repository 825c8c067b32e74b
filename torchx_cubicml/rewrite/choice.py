"""Choice of the config that an ordinary launch runs: the advisor's suggestion, checked against the user's rules.

A config consists of literals from the user's own space file, whatever a store contains.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch import migrated_trials, same_value, with_measured_objective
from torchx_cubicml.launch.bindings.spelling import spell
from torchx_cubicml.launch.command_texts import PROGRAM
from torchx_cubicml.launch.going_on import ResumeSigns
from torchx_cubicml.launch.messages import better_word, per_cost_text
from torchx_cubicml.launch.objective import of_one_size
from torchx_cubicml.launch.present_command import PresentCommand
from torchx_cubicml.launch.same_training import batch_lines, can_change_batch, kept_batch, with_fixed_batch
from torchx_cubicml.launch.same_work import with_same_work
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
from torchx_cubicml.records.workload import is_informative, is_same_program, is_same_workload, passed_over, recency
from torchx_cubicml.rewrite.rules import (
    batch_change_reason,
    expected_device_hours,
    explored_device_hours,
    explores,
    held,
    rejection_reason,
    with_equal_frozen_values,
)
from torchx_cubicml.space import BindingKind
from torchx_cubicml.space.fixed import with_fixed_values

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Workload
    from torchx_cubicml.space import SearchSpace

_EXPLORE_AMONG = 8  # suggestions, of which the first that clears ``min_fit`` is tried


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionContext:
    """Input of the decision on one launch.

    Args:
        space: search space as the user wrote it.
        workload: facts of the launch.
        current: config of the command as typed.
        trials: trials of the store.
        predictor: name of the predictor chosen for the store; empty for the default.
        lines: messages to the user on the trials.
        command: command as typed, which tells whether its work is that of earlier launches.
        digest_keys: keys of the store's digests.
        unseen: reason why the command is another job than the earlier ones until it has run; empty where it is not.
        kept: global batch size that the script keeps, see ``kept_batch``.
        signs: signs in the command and around it that it goes on with an earlier training.
        goes_on: whether the launch goes on with an earlier training, so that what touches its state stays.
        starts_again: whether the job can start as typed if it turns out to go on with another training.
    """

    space: SearchSpace
    workload: Workload
    current: Config
    trials: Sequence[Trial] = ()
    predictor: str = ""
    lines: tuple[str, ...] = ()
    command: PresentCommand = field(default_factory=PresentCommand)
    digest_keys: tuple[str, ...] = ()
    unseen: str = ""
    kept: Workload = field(default_factory=dict)
    signs: ResumeSigns = field(default_factory=ResumeSigns)
    goes_on: bool = False
    starts_again: bool = False

    def migrated(self) -> DecisionContext:
        """Return this case with the trials of its work in the terms of the space file, and with their objective.

        The objective is fixed: it follows from the searched space, and from the trials that are compared in it. See
        ``migrated_trials`` and ``with_measured_objective``.
        """
        trials = migrated_trials(
            self.trials, self.space, workload=self.workload, current=self.current, digest_keys=self.digest_keys
        )
        known = with_same_work(trials, self.command, space=self.space, workload=self.workload, keys=self.digest_keys)
        trials = of_one_size(self.space, known.trials, self.workload, self.current)
        case = replace(self, trials=trials, unseen=known.reason)
        passed = passed_over(self.trials, self.workload)
        searched = case.searched_space()
        compared = with_equal_frozen_values(trials, searched, workload=self.workload, current=self.current)
        found, line = with_measured_objective(searched, compared, workload=self.workload)
        space = replace(self.space, objective=found.objective, is_objective_stated=True)
        lines = (*known.lines, *filter(None, [passed, line]), *case.hook_refusals())
        return replace(case, space=space, lines=lines, kept=kept_batch(case.own_trials(), current=case.current))

    def hook_refusals(self) -> tuple[str, ...]:
        """Return the parameters that hooks cannot set in the program, as its launches have shown, one line each."""
        if not any(
            each.binding is not None and each.binding.kind == BindingKind.HOOK for each in self.space.parameters
        ):
            return ()
        from torchx_cubicml.advisor.hook_refusals import hook_refusals

        return tuple(hook_refusals(self.space, self.current, self.own_trials()).texts())

    def held(self) -> tuple[str, ...]:
        """Return the names of the parameters that this launch leaves as typed."""
        return held(self.space, goes_on=self.goes_on)

    def frozen_space(self) -> SearchSpace:
        """Return the space in which each parameter that stays as typed by the user's rules has its current value."""
        return with_fixed_values(self.space, self.current, self.held())

    def searched_space(self) -> SearchSpace:
        """Return the frozen space in which what changes the global batch size, as trials show, stays as typed, too."""
        return with_fixed_values(self.space, self.current, {*self.held(), *self.batch_lines()})

    def own_trials(self) -> list[Trial]:
        """Return the trials of the workload."""
        return [trial for trial in self.trials if is_same_workload(trial, self.workload)]

    def batch_lines(self) -> dict[str, str]:
        """Return the parameters that change the global batch size, or may do so, as launches of the workload show.

        Each comes with the message that it stays.
        """
        return batch_lines(self.space, self.own_trials(), current=self.current)

    def changed_batch(self, config: Config) -> str:
        """Return a message if a config changes the global batch size without permission; empty if it does not."""
        facts = {**self.workload, **self.kept}
        return batch_change_reason(self.space, workload=facts, current=self.current, config=config)


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


def earlier_launch(case: DecisionContext) -> tuple[bool, Trial | None]:
    """Return whether a launch goes on with an earlier training, and the launch whose checkpoint it loads, if known."""
    signs, keys = case.signs, case.digest_keys
    found = savers(case.trials, case.workload, digested(signs.places - {UNSEEN}, keys))
    if not found and UNSEEN in signs.places:
        unseen = savers(case.own_trials(), case.workload, digested([UNSEEN], keys))
        # One as typed needs no more: a job that goes on from there as another config starts again as typed.
        found = unseen if unseen and unseen[-1].origin in {Origin.REWRITE, Origin.EXPLORE} else []
    if not found and signs.job:
        of_job = (trial for trial in case.trials if trial.observed.get("job_id") == signs.job)
        found = sorted((trial for trial in of_job if is_same_program(trial, case.workload)), key=recency)
    if (signs.says and not (signs.is_blind and _may_begin(case))) or signs.job:
        return True, found[-1] if found else None
    code, own = case.command.texts.get(PROGRAM), savers(case.trials, case.workload)
    program = {text_digest(code, key) for key in keys} if code is not None else ()
    if starts_anew(found or own, case.command.arguments, program):
        return False, None
    may_hold_training = bool(signs.holds) and not saves_weights_alone(case.trials, case.workload)
    return bool(found) or may_hold_training, found[-1] if found else None


def _may_begin(case: DecisionContext) -> bool:
    """Return whether a job that does not begin anew after all notices that, and can start again as typed."""
    size = case.workload.get("world_size")
    return case.starts_again and all(trial.observed.get("world_size", size) == size for trial in case.own_trials())


def going_on_line(case: DecisionContext, earlier: Trial | None, config: Config) -> str:
    """Return the message that a launch goes on, with ``config``, with an earlier training."""
    if earlier is None:
        said = case.signs.says or (f"job {case.signs.job}" if case.signs.job else f"in {case.signs.holds}")
        return f"goes on from a checkpoint ({said}) of no known launch: batch and layout stay as typed"
    step = earlier.observed.get(SAVED_STEP)
    later = "" if earlier.state is State.COMPLETED else " or later"  # it may have been killed before it told
    where = "" if step is None else f"step {step}{later} of "
    kept = "keeping its batch and layout" if has_same_state(earlier.config, config) else "with the config as typed now"
    if not (case.signs.says or case.signs.job) and digested([UNSEEN], case.digest_keys) & {*folders(earlier)}:
        kept += " in case (its checkpoints are out of sight)"
    return f"goes on from {where}launch {short_id(earlier.trial_id)}, {kept}"


def resumed_choice(case: DecisionContext, earlier: Trial | None) -> Choice | None:
    """Return the config of the launch whose checkpoint this one loads; ``None`` if the command stays as typed.

    It stays where the earlier launch ran as typed, too, and where the user has since typed another batch or job.

    Raises:
        SpaceError: a value of the earlier config is none of the space.
        LaunchError: the earlier config may not run.
    """
    if earlier is None or earlier.origin is Origin.USER:
        return None
    (earlier,) = migrated_trials(
        [earlier], case.space, workload=case.workload, current=case.current, digest_keys=case.digest_keys
    )
    if not is_same_workload(earlier, case.workload):
        return None
    names = held(case.space, goes_on=True)
    wanted = {**case.current, **{name: earlier.config[name] for name in names if name in earlier.config}}
    config = _from_own_literals(case, case.space, wanted)
    if config is case.current or case.changed_batch(config):
        return None
    reason = f"goes on from {short_id(earlier.trial_id)}"
    suggestion = Suggestion(
        config=config, throughput=None, low=None, high=None, probability_to_fit=1.0, reason=reason, n_trials=0
    )
    return Choice(config=config, suggestion=suggestion, origin=Origin.REWRITE, resumes=earlier.trial_id)


def advise(case: DecisionContext) -> Suggestion | None:
    """Return the incumbent among the configs that an ordinary launch may run; ``apply_rules`` must check it.

    Only trials that ended or were measured count: a launch in flight has no effect before its first measurement.

    Raises:
        SpaceError: the space cannot be bound to the workload, or what is frozen leaves no legal config.
    """
    if not is_program_measured(case):
        return None
    from torchx_cubicml.advisor import best_known

    space = case.searched_space()
    informative = filter(is_informative, case.trials)
    trials = with_equal_frozen_values(informative, space, workload=case.workload, current=case.current)

    def known(space: SearchSpace) -> Suggestion | None:
        return best_known(space, workload=case.workload, current=case.current, trials=trials, predictor=case.predictor)

    best = known(space)
    if best is None or not case.changed_batch(_from_own_literals(case, space, best.config)):
        return best
    kept = known(with_fixed_batch(space, workload={**case.workload, **case.kept}, current=case.current))
    return best if kept is None or _is_own(case, kept.config) else kept


def other_submission_note(case: DecisionContext) -> str:
    """Return a message if other options of the scheduler, which this launch cannot set, are surely better; else empty.

    Raises:
        SpaceError: see ``advise``.
    """
    options = case.space.scheduler_options
    if not options or not is_program_measured(case):
        return ""
    from torchx_cubicml.advisor import best_known

    fixed = {*case.held(), *case.batch_lines()} - options.keys()
    space, current, workload = with_fixed_values(case.space, case.current, fixed), case.current, case.workload
    informative = filter(is_informative, case.trials)
    trials = with_equal_frozen_values(informative, space, workload=workload, current=current)
    best = best_known(space, workload=workload, current=current, trials=trials, predictor=case.predictor)
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


def keeps_own(case: DecisionContext, suggestion: Suggestion | None) -> bool:
    """Return whether a suggestion is the user's own config."""
    return suggestion is not None and _is_own(case, suggestion.config)


def apply_rules(case: DecisionContext, suggestion: Suggestion, *, unsure: str = "") -> Choice:
    """Turn a suggestion into a choice under the user's rules; the trials of the case are not used.

    Args:
        case: input of the decision.
        suggestion: for the launch.
        unsure: why the user's own config stays although another measured faster; empty if none did.

    Raises:
        LaunchError: the suggested config may not run.
    """
    config = _from_own_literals(case, case.frozen_space(), suggestion.config)
    better = f"no recorded launch suggests a {better_word(case.space.objective)} config that this launch may run"
    same = better if config is case.current else ""
    why = case.changed_batch(config) or (same and unsure) or same or rejection_reason(suggestion, case.space.rewrite)
    return Choice(config=config, suggestion=suggestion, origin=Origin.REWRITE, rejection_reason=why)


def explore(case: DecisionContext, *, now: datetime) -> tuple[Choice | None, str]:
    """Choose an untried config if this launch explores, and return it with a message to the user.

    Args:
        case: input of the decision.
        now: present time, up to which launches in flight are charged to the exploration budget.

    Raises:
        SpaceError: see ``advise``.
    """
    rules = case.space.rewrite
    if not rules.explore or case.unseen or not is_program_measured(case):
        return None, ""
    n_trials = n_launched(case)
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


def n_launched(case: DecisionContext) -> int:
    """Return the number of known launches of the workload, those in flight included."""
    return len(case.own_trials())


def is_program_measured(case: DecisionContext) -> bool:
    """Return whether a launch of the program was measured; before that, no predictor needs to be loaded."""
    return any(trial.measurement is not None and is_same_program(trial, case.workload) for trial in case.trials)


def _untried(case: DecisionContext, *, seed: int) -> Choice | None:
    from torchx_cubicml.advisor import suggest

    space = case.searched_space()
    trials = with_equal_frozen_values(case.trials, space, workload=case.workload, current=case.current)
    if can_change_batch(case.space, workload=case.workload, current=case.current):
        space = with_fixed_batch(space, workload={**case.workload, **case.kept}, current=case.current)
    found = suggest(
        space,
        workload=case.workload,
        current=case.current,
        trials=trials,
        count=_EXPLORE_AMONG,
        seed=seed,
        predictor=case.predictor,
    )
    for suggestion in found:
        config = _from_own_literals(case, space, suggestion.config)
        fits = suggestion.probability_to_fit >= case.space.rewrite.min_fit
        if fits and config is not case.current and not case.changed_batch(config):
            return Choice(config=config, suggestion=suggestion, origin=Origin.EXPLORE)
    return None


def _is_own(case: DecisionContext, suggested: Config) -> bool:
    return all(name in case.current and same_value(value, case.current[name]) for name, value in suggested.items())


def _from_own_literals(case: DecisionContext, space: SearchSpace, suggested: Config) -> Config:
    """Rebuild a suggested config from the literals of the user's own space file and command.

    Whatever a store contains, only positions in the user's lists of choices are used; derived values are computed here.
    """
    if _is_own(case, suggested):
        return case.current
    bound = space.without_rules().bind(workload=case.workload, current=case.current)
    config = bound.decode(bound.encode(suggested))
    if config is None:
        raise LaunchError("the suggested config is not legal in the space file")
    frozen = {name: case.current[name] for name in case.held() if name in case.current}
    config = {**{name: value for name, value in frozen.items() if name not in config}, **config}
    changed = [name for name, value in frozen.items() if not same_value(config[name], value)]
    if changed:
        raise LaunchError(f"the suggested config changes {', '.join(changed)}, which this launch may not change")
    return config
