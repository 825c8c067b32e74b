"""Text and JSON forms of what a trial's hardware did: its share of the peak (MFU) and its power, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.launch.messages import number_text, rate_text
from torchx_cubicml.records.objective_units import PER_JOULE

if TYPE_CHECKING:
    from torchx_cubicml.records.measurement import Measurement
    from torchx_cubicml.records.trial import Trial

_T = 1e12


def efficiency_lines(trial: Trial) -> list[str]:
    """Return lines on MFU and power of a measured trial, and why either is not known; none for an unmeasured one."""
    if trial.measurement is None:
        return []
    stated = trial.measurement.stated_mfu
    lines = [_mfu_line(trial), f"MFU {100.0 * stated:.1f} % as the imported table states it" if stated else ""]
    return [line for line in [*lines, _power_line(trial)] if line]


def mfu_text(trial: Trial) -> str:
    """Return the MFU of a trial in few words; empty where it is not known."""
    from torchx_cubicml.predictors.roofline.utilisation import utilisation_of

    value = utilisation_of(trial).value if trial.measurement is not None else None
    return "" if value is None else f"MFU {100.0 * value:.1f} %"


def power_text(measurement: Measurement | None) -> str:
    """Return the power of a launch with what it covers; empty where it is not known.

    >>> from torchx_cubicml.records.trial import Measurement
    >>> power_text(Measurement(tokens_per_second=1.0, power_watts=5600.0, power_of="GPUs"))
    '5,600 W (GPUs only)'
    """
    if measurement is None or measurement.power_watts is None:
        return ""
    return f"{number_text(measurement.power_watts)} W ({measurement.power_of or 'of unknown parts'} only)"


def efficiency_json(trial: Trial) -> dict[str, object]:
    """Return MFU and energy of a trial as JSON values; ``None`` where not known, with the reason."""
    from torchx_cubicml.predictors.roofline.utilisation import utilisation_of

    measured = trial.measurement
    if measured is None:
        return {}
    found = utilisation_of(trial)
    return {
        "mfu": found.value,
        "mfu_unknown": found.why_unknown or None,
        "stated_mfu": measured.stated_mfu,
        "power_watts": measured.power_watts,
        "power_of": measured.power_of or None,
        "joules_per_step": measured.joules_per_step,
        **{name: trial.throughput(name) for name in PER_JOULE},
    }


def _mfu_line(trial: Trial) -> str:
    from torchx_cubicml.predictors.roofline.utilisation import utilisation_of

    found = utilisation_of(trial)
    if found.value is None or found.peak_flops is None:
        return f"MFU not known: {found.why_unknown}"
    peak = f"{number_text(found.peak_flops / _T)} TFLOP/s of each device in {found.precision}"
    return f"MFU {100.0 * found.value:.1f} % of {peak}"


def _power_line(trial: Trial) -> str:
    measured = trial.measurement
    if measured is None or not (power := power_text(measured)):
        return ""
    rates = ((trial.throughput(name), name) for name in PER_JOULE)
    per_joule = next((rate_text(value, name) for value, name in rates if value is not None), "")
    step = f"{number_text(measured.joules_per_step)} J a step" if measured.joules_per_step is not None else ""
    return ", ".join(filter(None, (power, step, per_joule)))
