"""Result of a workload for the report: of its latest finished tune, else of what was recorded."""

from __future__ import annotations

import shlex
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from torchx_cubicml.cli.component_command import run_words
from torchx_cubicml.launch.messages import batches_text, best_word, better_word, interval_text, per_cost_text, rate_text
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.records.config_changes import changed_values
from torchx_cubicml.records.kept_command import command_notes, command_text
from torchx_cubicml.records.objective_units import OBJECTIVES
from torchx_cubicml.records.redaction import MASK, excerpt, mask, printable
from torchx_cubicml.records.value_text import value_text
from torchx_cubicml.report.sections.headline import Headline, headline_html

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.advisor.comparison import Comparison, Repeats
    from torchx_cubicml.cli.report_sections.view import WorkloadView
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.report.markup import Html
    from torchx_cubicml.tuner.results import RecordedResult
    from torchx_cubicml.tuner.unconfirmed import Unconfirmed

_MOST_LETTERS = 600  # of a value


def section(view: WorkloadView) -> Html:
    """Return the result as a card."""
    return headline_html(headline_of(view))


def headline_of(view: WorkloadView) -> Headline:
    """Return the result of one workload."""
    trials, objective, result = view.trials, view.objective, view.result
    is_sure_since = view.unconfirmed is not None and view.unconfirmed.comparison.claims_gain
    if result is not None and result.comparison is not None and not is_sure_since:
        n_tunes = sum(any(map(each.made, trials)) for each in view.notes.results)
        return _of_tune(result, result.comparison, n_tunes=n_tunes, store=view.store, seen=view.unconfirmed)
    best = view.fastest
    if best is None:
        is_measured = any(trial.throughput(objective) for trial in trials)  # by launches that had no space file
        what = "No measured launch had a space file" if is_measured else "No config was measured"
        return Headline(meaning=what, sentence=_ends_text(trials), facts=_launches(trials))
    if view.comparison is None:
        return _without_own(best, trials, objective=objective, store=view.store)
    key = config_key(view.comparison.best.config)
    best = max((each for each in trials if config_key(each.config) == key), key=lambda each: each.started_at)
    return _of_records(view.comparison, best, trials, store=view.store)


def summary_of(headline: Headline) -> str:
    """Return a result in few words."""
    return " ".join(filter(None, (headline.figure, headline.meaning)))


def _of_tune(
    result: RecordedResult, comparison: Comparison, *, n_tunes: int, store: str, seen: Unconfirmed | None
) -> Headline:
    objective = comparison.objective
    is_own = comparison.best.config == comparison.baseline.config
    earlier = f"The latest of {n_tunes} tunes of this workload is shown. " if n_tunes > 1 else ""
    ended = f"{earlier}The tune {result.tune_id} ended on {result.time[:16].replace('T', ' at ')} UTC: {result.ending}."
    cost = ("cost to find", _launches_text(result.launches), f"{result.device_hours:.2f} device hours")
    facts = [*_sides(comparison, comparison.label), cost]
    if is_own and seen is not None:
        return _seen(seen, cost=cost, ended=ended)
    if is_own:
        none = f"No config was confirmed {better_word(objective)} than yours"
        return Headline(meaning=none, facts=facts, notes=[_shown(ended)])
    if result.confidence is not None:
        than = f"that no other measured config is more than 1 % {better_word(objective)}"
        facts.append(("probability", f"{result.confidence:.0%}", than))
    words = run_words(result.scheduler, result.scheduler_args, result.command, store=store)
    command = _shown(shlex.join(words)) if result.command and comparison.claims_gain else ""
    return replace(
        _compared(comparison),
        is_claimed=comparison.claims_gain,
        facts=facts,
        command=command,
        notes=[
            *_secret_note(command),
            *([_shown(str(seen))] if seen else []),
            _shown(ended),
        ],
    )


def _seen(seen: Unconfirmed, *, cost: tuple[str, str, str], ended: str) -> Headline:
    """Return the result of a tune that confirmed no config: the fastest measured one, and why it is not sure."""
    return replace(
        _compared(seen.comparison),
        figure="",
        meaning="No gain confirmed yet",
        sentence=_shown(str(seen)),
        interval=None,
        facts=[*_sides(seen.comparison, seen.label), cost],
        best_label=seen.label,
        notes=[_shown(ended)],
    )


def _of_records(comparison: Comparison, best: Trial, trials: Sequence[Trial], *, store: str) -> Headline:
    """Return the comparison of recorded launches: its best config was chosen by the measurements it is compared by."""
    seen = f"{best_word(comparison.objective)} seen"
    label = comparison.label if comparison.claims_gain else seen
    facts = [*_sides(comparison, label), *_launches(trials)]
    if comparison.best.config == comparison.baseline.config:
        return Headline(meaning=f"Your own config is the {seen}", facts=facts)
    why = "It was chosen by the same measurements that are compared here. A tune measures both again."
    found = replace(_compared(comparison), facts=facts, is_claimed=comparison.claims_gain, best_label=label)
    return _repeating(found, best, why, store=store)


def _value(value: object) -> str:
    return excerpt(value_text(value), most=_MOST_LETTERS)


def _without_own(best: Trial, trials: Sequence[Trial], *, objective: str, store: str) -> Headline:
    rate, doubt = best.throughput(objective), interval_text(best.uncertainty(objective))
    measured = f"{rate_text(rate, objective)} {doubt}".rstrip() if rate is not None else ""
    why = "No launch of your own config was measured, so nothing is compared."
    found = Headline(
        figure=measured,
        meaning=f"by the {best_word(objective)} config, in its latest launch",
        facts=_launches(trials),
        best_label=f"{best_word(objective)} seen",
        changes=[(printable(name), "", _value(value)) for name, value in best.config.items()],
    )
    return _repeating(found, best, why, store=store)


def _compared(comparison: Comparison) -> Headline:
    before, after = comparison.baseline.config, comparison.best.config
    batches = batches_text([comparison.baseline.global_batch, comparison.best.global_batch])
    changes = [
        (printable(name), _value(before[name]), _value(value)) for name, value in changed_values(after, before).items()
    ]
    return Headline(
        figure=f"{comparison.gain:.2f}x",
        meaning=_meaning(comparison.objective),
        sentence=f"{comparison} {batches}".rstrip(),
        interval=(comparison.gain, comparison.gain_low, comparison.gain_high),
        changes=changes,
        best_label=comparison.label,
        unchanged=sum(before.get(name) == value for name, value in after.items()),
    )


def _meaning(objective: str) -> str:
    if objective in OBJECTIVES:
        return "the throughput of your own config"
    return f"your own config {per_cost_text(objective)}"


def _sides(comparison: Comparison, label: str) -> list[tuple[str, str, str]]:
    sides = {"your config": comparison.baseline}
    if comparison.best.config != comparison.baseline.config:
        sides = {label: comparison.best, **sides}
    return [(label, rate_text(side.middle, comparison.objective), _repeats_text(side)) for label, side in sides.items()]


def _repeats_text(repeats: Repeats) -> str:
    count = len(repeats.throughputs)
    many = f"median of {count} launches" if count > 1 else "one launch"
    doubt = interval_text(median(repeats.uncertainties)) if repeats.uncertainties else ""
    each = "each " if count > 1 else ""
    return f"{many}, {each}{doubt}" if doubt else many


def _repeating(headline: Headline, trial: Trial, why: str, *, store: str) -> Headline:
    """Return a result with the kept command of a trial, or the one that repeats it, and notes."""
    from torchx_cubicml.cli.repeat_text import repeat_lines

    kept = command_text(trial.command)
    lines = [] if kept else repeat_lines(trial, store=store)
    typed = [line for line in lines if line.startswith("torchx ")]
    told = "; ".join(line for line in lines if line not in typed)
    notes = [*command_notes(trial.command), *([f"To repeat it: {told}."] if told else []), why]
    return replace(
        headline,
        command=_shown(kept or "".join(typed)),
        command_label="Command of the best launch" if kept else "To repeat the best launch",
        notes=[_shown(note) for note in notes],
    )


def _launches(trials: Sequence[Trial]) -> list[tuple[str, str, str]]:
    return [("recorded", _launches_text(len(trials)), _ends_text(trials))]


def _launches_text(count: int) -> str:
    return f"{count:,} launch{'es' if count != 1 else ''}"


def _ends_text(trials: Sequence[Trial]) -> str:
    counts: dict[str, int] = {}
    for trial in trials:
        counts[str(trial.state)] = counts.get(str(trial.state), 0) + 1
    ordered: Mapping[str, int] = dict(sorted(counts.items(), key=lambda item: -item[1]))
    return ", ".join(f"{count:,} {state.replace('_', ' ')}" for state, count in ordered.items())


def _secret_note(command: str) -> list[str]:
    return [f"{MASK} stands for a secret: give your own."] if MASK in command else []


def _shown(text: str) -> str:
    return printable(mask(text))
