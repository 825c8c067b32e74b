"""Section of efficiency: the share of the peak (MFU) and the energy that launches reached, where they are known."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from torchx_cubicml.launch.messages import number_text
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.predictors.roofline.utilisation import utilisation_of
from torchx_cubicml.records.objective_units import PER_JOULE
from torchx_cubicml.records.value_text import config_text
from torchx_cubicml.report.figures.launch_values import BEST, OTHER, OWN, launch_values
from torchx_cubicml.report.markup import Html, element, joined
from torchx_cubicml.report.sections.figures import figures_html
from torchx_cubicml.report.sections.small_table import small_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchx_cubicml.cli.report_sections.view import WorkloadView
    from torchx_cubicml.records.trial import Trial

_MOST = 300  # launches: the latest measured ones
_MOST_LETTERS = 100  # of a config beside a point
_TFLOPS = 1e12
_PER_CENT = 100.0


def section(view: WorkloadView) -> Html:
    """Return the figures and a table of the own and the best config; nothing where no launch tells either."""
    launches = list(_launches(view))
    per_joule = next((name for name in PER_JOULE if any(each.trial.throughput(name) for each in launches)), "")
    if not per_joule and not any(each.mfu is not None or each.stated is not None for each in launches):
        return Html("")
    figures = Html("")
    if view.colours is not None:
        drawn = [_mfu_figure(launches), _energy_figure(launches, per_joule)]
        figures = figures_html([each for each in drawn if each], colours=view.colours, name=f"use-{view.place}")
    notes = [element("p", text, class_="note") for text in (*_mfu_notes(launches), _power_note(launches)) if text]
    return joined(element("h3", "How well the hardware was used"), *notes, figures, _table(launches, per_joule))


def data(view: WorkloadView) -> list[dict[str, Any]]:
    """Return the efficiency of each launch as JSON values."""
    names = ("launch", "kind", "mfu", "peak", "precision", "why_unknown", "stated")
    return [
        {"trial_id": each.trial.trial_id, **{name: getattr(each, name) for name in names}} for each in _launches(view)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LaunchUse:
    """Efficiency of one measured launch.

    Args:
        launch: its number among all launches in the order of their start, from 1.
        kind: whose config it ran: ``OWN``, ``BEST`` or ``OTHER``.
        trial: its record.
        mfu: share of the peak; ``None`` where not known.
        peak: FLOP/s of one device that it is a share of, likewise.
        precision: number format of that peak; empty where not known.
        why_unknown: the reason in words; empty where it is known.
        stated: MFU that an imported table states; ``None`` for none.
    """

    launch: int
    kind: str
    trial: Trial
    mfu: float | None
    peak: float | None
    precision: str
    why_unknown: str
    stated: float | None


def _launches(view: WorkloadView) -> Iterator[_LaunchUse]:
    kinds = {config_key(config): kind for kind, config in ((BEST, view.best), (OWN, view.own)) if config is not None}
    ordered = sorted(view.trials, key=lambda trial: (trial.started_at, trial.trial_id))
    measured = [(number, trial) for number, trial in enumerate(ordered, start=1) if trial.measurement is not None]
    for number, trial in measured[-_MOST:]:
        found = utilisation_of(trial)
        yield _LaunchUse(
            launch=number,
            kind=kinds.get(config_key(trial.config), OTHER) if trial.config else OTHER,
            trial=trial,
            mfu=found.value,
            peak=found.peak_flops,
            precision=found.precision,
            why_unknown=found.why_unknown,
            stated=trial.measurement.stated_mfu if trial.measurement is not None else None,
        )


def _mfu_figure(launches: Sequence[_LaunchUse]) -> dict[str, Any] | None:
    computed = [(each, each.mfu) for each in launches if each.mfu is not None]
    stated = [(each, each.stated) for each in launches if each.stated is not None]
    rows = [_row(each, _PER_CENT * value, "% of the peak") for each, value in computed or stated]
    how = (
        "model FLOPs over the peak of the devices, as PaLM defines it"
        if computed
        else "as the imported table states it"
    )
    return launch_values(
        rows, title="Model FLOPs utilisation (MFU)", note=how, axis="MFU, % of the peak", largest=_PER_CENT
    )


def _energy_figure(launches: Sequence[_LaunchUse], per_joule: str) -> dict[str, Any] | None:
    if not per_joule:
        return None
    unit = per_joule.replace("_", " ")
    known = [(each, value) for each in launches if (value := each.trial.throughput(per_joule)) is not None]
    rows = [_row(each, value, unit) for each, value in known]
    return launch_values(rows, title="Work per joule", note=f"{unit}, of {_power_of(launches)} alone", axis=unit)


def _row(each: _LaunchUse, value: float, unit: str) -> dict[str, Any]:
    config = config_text(each.trial.config)[:_MOST_LETTERS]
    texts = (f"launch {each.launch:,}", f"{number_text(value)} {unit}", each.kind, config)
    return {"launch": each.launch, "value": value, "kind": each.kind, "label": "; ".join(filter(None, texts))}


def _mfu_notes(launches: Sequence[_LaunchUse]) -> Iterator[str]:
    """Yield the meaning of the MFU, and the reason for launches without it."""
    peaks = Counter((each.peak, each.precision) for each in launches if each.mfu is not None and each.peak)
    for (peak, precision), _ in peaks.most_common(1):
        more = " Launches in other formats have other peaks." if len(peaks) > 1 else ""
        yield f"The peak is {number_text((peak or 0.0) / _TFLOPS)} TFLOP/s of each device in {precision}.{more}"
    unknown = Counter(each.why_unknown for each in launches if each.mfu is None and each.why_unknown)
    for why, count in unknown.most_common(1):
        yield f"The MFU of {count:,} of {len(launches):,} measured launches is not known: {why}."


def _power_note(launches: Sequence[_LaunchUse]) -> str:
    count = sum(each.trial.measurement is not None and each.trial.measurement.power is not None for each in launches)
    if not count:
        return ""
    return f"Power is of {_power_of(launches)} alone, and recorded of {count:,} of {len(launches):,} measured launches."


def _power_of(launches: Sequence[_LaunchUse]) -> str:
    words = Counter(
        each.trial.measurement.power_of or "unknown parts"
        for each in launches
        if each.trial.measurement is not None and each.trial.measurement.power is not None
    )
    return " or ".join(words)


def _table(launches: Sequence[_LaunchUse], per_joule: str) -> Html:
    """Return a row for the own config, the best one and all others, with medians over their launches."""
    names = ["MFU", *(["power", "energy of a step", per_joule.replace("_", " ")] if per_joule else [])]
    rows = []
    for kind, label in ((OWN, OWN), (BEST, BEST), (OTHER, "other configs")):
        group = [each for each in launches if each.kind == kind]
        if group:
            energy = _energy_texts(group, per_joule) if per_joule else []
            rows.append([label, f"{len(group):,}", _mfu_text(group), *energy])
    return small_table(["median over", "launches", *names], rows, label="Efficiency by config")


def _mfu_text(group: Sequence[_LaunchUse]) -> str:
    known = [each.mfu for each in group if each.mfu is not None]
    stated = [each.stated for each in group if each.stated is not None]
    if known:
        return f"{_PER_CENT * median(known):.1f} %"
    return f"{_PER_CENT * median(stated):.1f} % stated" if stated else "-"


def _energy_texts(group: Sequence[_LaunchUse], per_joule: str) -> list[str]:
    measured = [each.trial.measurement for each in group if each.trial.measurement is not None]
    watts = [each.power for each in measured if each.power is not None]
    joules = [each.joules_per_step for each in measured if each.joules_per_step is not None]
    work = [value for each in group if (value := each.trial.throughput(per_joule)) is not None]
    found = ((watts, " W"), (joules, " J"), (work, ""))
    return [f"{number_text(median(values))}{unit}" if values else "-" for values, unit in found]
