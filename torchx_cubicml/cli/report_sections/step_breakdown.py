"""Section of the breakdown: where the time of a step and the memory of a device go, config by config."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

from torchx_cubicml.launch.messages import worth_text
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.records.config_changes import changed_values
from torchx_cubicml.records.redaction import mask, printable
from torchx_cubicml.records.trial import short_id
from torchx_cubicml.records.value_text import value_text
from torchx_cubicml.report.markup import Html, element, joined
from torchx_cubicml.report.sections.breakdown_bars import PartsBar, breakdown_html, chooser_html

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.advisor.breakdown import Breakdown, Breakdowns
    from torchx_cubicml.advisor.first_launch import Interval
    from torchx_cubicml.cli.report_sections.view import WorkloadView
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config

_ORDINALS = ("2nd", "3rd", "4th", "5th", "6th", "7th", "8th", "9th")  # of the best configs that can be compared
_LATEST = 3  # launches whose configs can be
_SHORT_S = 1.0  # longest step that is shown in milliseconds
_MOST_LETTERS = 120  # of a config
_NEGLIGIBLE_OUTSIDE = 0.001


def section(view: WorkloadView) -> Html:
    """Return the bars and tables; one sentence where the formulas do not cover the workload."""
    from torchx_cubicml.advisor.breakdown_text import breakdown_lines

    first, others = _configs(view)
    configs, found = _estimated(view, first, others)
    if found is None:
        return Html("")
    title = element("h3", "Where the time and the memory go")
    if not found.of:
        return joined(title, *(element("p", line, class_="note") for line in breakdown_lines(found)))
    told = {name: _short(configs[name], than=first.get("your config")) for name in configs}
    facts = [_rates(view, configs), *_waits(list(found.of.values()))]
    return joined(title, *_parts(found, told, [name for name in configs if name in others], facts))


def data(view: WorkloadView) -> dict[str, Any]:
    """Return name of each config -> its parts as JSON values; none where the formulas do not cover the workload."""
    _, found = _estimated(view, *_configs(view))
    return {name: asdict(each) for name, each in found.of.items()} if found is not None else {}


def _estimated(
    view: WorkloadView, first: Mapping[str, Config], others: Mapping[str, Config]
) -> tuple[dict[str, Config], Breakdowns | None]:
    """Return the configs with a value of each parameter, and their breakdowns; ``None`` where none can be made."""
    from torchx_cubicml.advisor.breakdown import Breakdowns

    current = view.own or view.best or next(iter(others.values()), None)
    study = view.study or (view.study_of(current) if current is not None else None)
    if study is None:
        return {}, None
    names = {parameter.name for parameter in study.posterior.space.parameters}
    configs = {name: config for name, config in {**first, **others}.items() if names <= config.keys()}
    return configs, Breakdowns.estimate(study, configs) if configs else None


def _parts(
    found: Breakdowns, told: Mapping[str, str], others: Sequence[str], facts: Sequence[Sequence[str]]
) -> Iterable[Html]:
    """Yield the sentence, the box, both breakdowns and the notes.

    Args:
        found: covers all configs.
        told: name of a config -> its values in few words.
        others: names of the further ones.
        facts: further rows of the table of times, with a heading and a text for each config.
    """
    from torchx_cubicml.advisor.breakdown_text import basis_text, unplanned_lines

    longest = max(each.step_s for each in found.of.values())
    unit, factor = ("ms", 1000.0) if longest < _SHORT_S else ("s", 1.0)
    how = (
        "Each bar is one step of the whole job, part by part, by formulas of the hardware; a vertical line is what was "
        "measured. A thin bar below is communication under computation: no step waits for it. The formulas know no "
        "time between steps, in which the program loads data or logs: the table has the measured share. A step of a "
        "larger batch does more work, so that throughput tells which config is better."
    )
    yield element("p", how, class_="note")
    if others:
        yield chooser_html([f"{name}: {told[name]}" if told[name] else name for name in others])
    yield element("h4", "Time of a step")
    times = [_time_bar(name, found, told[name], factor=factor, is_choice=name in others) for name in found.of]
    yield breakdown_html(times, unit=unit, label="Parts of the time of a step", facts=facts)
    yield element("p", f"Time: {basis_text(found, 'step')}.", class_="note")
    sizes = [
        _memory_bar(name, found, told[name], is_choice=name in others)
        for name, each in found.of.items()
        if each.memory_gib
    ]
    if sizes:
        yield element("h4", "Memory of the fullest device at its peak")
        yield breakdown_html(sizes, unit="GiB", label="Parts of the memory of a device")
        yield element("p", f"Memory: {basis_text(found, 'peak')}.", class_="note")
    for line in (*unplanned_lines(found), *found.first_launch.lines):
        yield element("p", printable(line), class_="note")


def _time_bar(name: str, found: Breakdowns, config: str, *, factor: float, is_choice: bool) -> PartsBar:
    each, ratio = found.of[name], found.first_launch.throughput.get(name)
    return PartsBar(
        name=name,
        config=config,
        parts=_named(each.seconds, factor),
        hidden=_named(each.hidden, factor),
        measured=None if each.measured_s is None else factor * each.measured_s,
        interval=None if ratio is None else _step_interval(each, ratio, factor),
        is_choice=is_choice,
    )


def _step_interval(each: Breakdown, throughput: Interval, factor: float) -> tuple[float, float]:
    """Return the interval of a step: the work is the same, so a step takes less as throughput is higher."""
    low, middle, high = throughput
    return factor * each.step_s * middle / high, factor * each.step_s * middle / low


def _memory_bar(name: str, found: Breakdowns, config: str, *, is_choice: bool) -> PartsBar:
    each, interval = found.of[name], found.first_launch.peak_gib.get(name)
    return PartsBar(
        name=name,
        config=config,
        parts=_named(each.memory_gib, 1.0),
        measured=each.measured_gib,
        interval=None if interval is None else (interval[0], interval[2]),
        is_choice=is_choice,
    )


def _named(parts: Mapping[str, float], factor: float) -> dict[str, float]:
    return {name.replace("_", " "): factor * amount for name, amount in parts.items()}


def _rates(view: WorkloadView, configs: Mapping[str, Config]) -> list[str]:
    """Return the row of the measured throughput, median over the launches of each config."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for trial in view.trials:
        value = trial.throughput(view.objective)
        if value is not None and trial.config:
            found[config_key(trial.config)].append(value)
    rates = [found[config_key(config)] for config in configs.values()]
    texts = [worth_text(median(values), view.objective) if values else "-" for values in rates]
    return [f"{view.objective.replace('_', ' ')}, measured", *texts]


def _waits(breakdowns: Sequence[Breakdown]) -> list[list[str]]:
    """Return the row of the measured time outside steps; none where no launch tells it."""
    shares = [each.measured_outside for each in breakdowns]
    if not any(share is not None and share >= _NEGLIGIBLE_OUTSIDE for share in shares):
        return []
    texts = ["-" if share is None else f"{100.0 * share:.1f} %" for share in shares]
    return [["between steps, measured", *texts]]


def _configs(view: WorkloadView) -> tuple[dict[str, Config], dict[str, Config]]:
    """Return name -> config of the user's own and the best one, and of the further ones that can be compared."""
    own, best = view.own, view.best
    if own is not None and best is not None and config_key(own) == config_key(best):
        first = {"your config, the best found": own}
    else:
        named = {"your config": own, "best found": best}
        first = {name: config for name, config in named.items() if config is not None}
    taken = {config_key(config) for config in first.values()}
    others: dict[str, Config] = {}
    for name, config in _further(view):
        if config_key(config) not in taken:
            taken.add(config_key(config))
            others[name] = config
    return first, others


def _further(view: WorkloadView) -> Iterable[tuple[str, Config]]:
    """Yield name and config of the chosen trial, of the fastest configs, and of the latest launches."""
    with_config = [trial for trial in view.trials if trial.config]
    for trial in with_config:
        if view.chosen and trial.trial_id == view.chosen:
            yield f"trial {printable(mask(short_id(view.chosen)))}", trial.config
    groups: defaultdict[str, list[float]] = defaultdict(list)
    configs: dict[str, Config] = {}
    for trial in with_config:
        value = trial.throughput(view.objective)
        if value is not None:
            key = config_key(trial.config)
            groups[key].append(value)
            configs[key] = trial.config
    ranked = sorted(groups, key=lambda key: -median(groups[key]))
    names = ("best measured", *(f"{place} best" for place in _ORDINALS))
    for name, key in zip(names, ranked, strict=False):
        yield name, configs[key]
    dated = sorted((trial for trial in with_config if trial.started_at), key=lambda trial: trial.started_at)
    for back, trial in enumerate(reversed(dated[-_LATEST:])):
        yield f"the latest launch{f' but {back}' if back else ''}{_end(trial)}", trial.config


def _end(trial: Trial) -> str:
    return "" if trial.measurement is not None else f" ({str(trial.state).replace('_', ' ')})"


def _short(config: Config, *, than: Config | None) -> str:
    """Return the values of a config that differ from another one's; all of them without one."""
    differ = config if than is None else changed_values(config, than)
    text = ", ".join(f"{printable(name)} {value_text(value)}" for name, value in differ.items())
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1]}…"
