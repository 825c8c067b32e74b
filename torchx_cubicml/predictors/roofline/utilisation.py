"""Model FLOPs utilisation (MFU) of a measured trial, as PaLM defines it (Chowdhery et al., arXiv 2204.02311, app. B).

It is the FLOP/s that the model needs at the measured throughput, over the peak of the devices: tokens per second times
``6 N + 12 L H Q T``, over devices times peak. ``N`` are the parameters that a token multiplies with, ``L`` the layers,
``H Q`` the width of all heads' queries, ``T`` the tokens of a sequence. Causal attention counts in full, recomputation
not at all. The embedding of the input is looked up, not multiplied with: where the record says that the output has a
matrix of its own, it does not count. Where the record does not say so, it does, as in PaLM, where both are one. Experts
that a token is not sent to do not count. The peak is the dense one of the data sheet, in the number format of the
training. No other unknown is assumed: then the MFU is not known, and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.features.device_specs import find_hardware, precision_word
from torchx_cubicml.predictors.features.history import training_row
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.model_shape import model_fields
from torchx_cubicml.predictors.roofline.recommender_layout import has_tables
from torchx_cubicml.records.standard_words import switch_value
from torchx_cubicml.space.constraints import is_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Value

_NEEDED = ("n_layers", "d_model", "seq_len", "world_size")
_FROZEN = 0.999  # share of trained parameters below which backward needs fewer FLOPs than the formula says
_MOST = 1.5  # above it, a fact must be wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """MFU of one trial.

    Args:
        value: share of the peak; ``None`` where it is not known.
        why_unknown: the reason in words; empty where it is known.
        flops_per_token: of the model, forward and backward; ``None`` where not known.
        peak_flops: FLOP/s of one device in the number format of the training; ``None`` where not known.
        precision: that format; empty where not known.
    """

    value: float | None = None
    why_unknown: str = ""
    flops_per_token: float | None = None
    peak_flops: float | None = None
    precision: str = ""


def utilisation_of(trial: Trial) -> Utilisation:
    """Return the MFU of a trial, or why it is not known.

    >>> from torchx_cubicml.records.trial import Trial
    >>> sizes = {"n_layers": 2, "d_model": 64, "seq_len": 8, "n_params": 100_000}
    >>> facts = {**sizes, "world_size": 2, "device": "cpu", "precision": "fp32"}
    >>> utilisation_of(Trial.completed(workload=facts, config={}, tokens_per_second=1.0)).why_unknown
    'a CPU has no peak in the table of devices'
    """
    row = training_row(trial)
    flops, why = _flops_per_token(row)
    peak, precision, why_no_peak = _peak(row)
    rate = trial.throughput("tokens_per_second")
    why = why or why_no_peak or ("" if rate is not None else "its tokens per second were not measured")
    if why or rate is None or flops is None or peak is None:
        return Utilisation(why_unknown=why, flops_per_token=flops, peak_flops=peak, precision=precision)
    value = rate * flops / (peak * int(str(row["world_size"])))
    why = f"it would be {100.0 * value:,.0f} % of the peak, so a recorded fact is wrong" if value > _MOST else ""
    return Utilisation(
        value=None if why else value,
        why_unknown=why,
        flops_per_token=flops,
        peak_flops=peak,
        precision=precision,
    )


def _flops_per_token(row: Mapping[str, Value]) -> tuple[float | None, str]:
    """Return the FLOPs of forward and backward for one token, or ``None`` and why they are not known."""
    why = _why_no_flops(row)
    if why:
        return None, why
    facts = Facts.from_rows([row])
    with np.errstate(invalid="ignore", divide="ignore"):
        fields = {name: float(values[0]) for name, values in model_fields(facts).items()}
    words, layers = fields["vocabulary"] * fields["width"], fields["layers"]
    idle = layers * (fields["layer_params"] - fields["active_params"])  # in experts that a token is not sent to
    total = float(facts.number("n_params", layers * fields["layer_params"] + words)[0])
    untied = is_count(row.get("n_params")) and switch_value(str(row.get("tied_embeddings", True))) is False
    multiplied = total - idle - words * untied
    attention = 12.0 * layers * fields["queries"] * fields["width"] * float(facts.number("seq_len")[0])
    flops = 6.0 * multiplied + attention
    return (flops, "") if np.isfinite(flops) and multiplied > 0 else (None, "the sizes of its model do not fit")


def _why_no_flops(row: Mapping[str, Value]) -> str:
    if has_tables(row):
        return "its model has embedding tables, which the formula of transformers does not count"
    lacking = [name for name in _NEEDED if not is_count(row.get(name))]
    if not is_count(row.get("n_params")) and not (is_count(row.get("d_ff")) and is_count(row.get("vocab_size"))):
        lacking.append("n_params")
    experts = row.get("n_experts")
    if isinstance(experts, int) and experts > 1 and not is_count(row.get("n_active_experts")):
        lacking.append("n_active_experts")
    if lacking:
        return f"{', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not recorded"
    total, trained = row.get("n_params"), row.get("n_trainable_params")
    if isinstance(total, int) and isinstance(trained, int) and trained < _FROZEN * total:
        return "some of its parameters are not trained, and the formula counts a backward pass of all"
    return ""


def _peak(row: Mapping[str, Value]) -> tuple[float | None, str, str]:
    """Return the peak FLOP/s of one device and the number format, or ``None`` and why the peak is not known."""
    device, text = row.get("device"), row.get("precision")
    if not isinstance(device, str):
        return None, "", "its device is not recorded"
    hardware = find_hardware(device)
    if hardware is None:
        return None, "", f"the peak of the device {device:.60} is not known"
    if hardware.name == "cpu":
        return None, "", "a CPU has no peak in the table of devices"
    word = precision_word(text) if isinstance(text, str) else None
    if word is None:
        shown = f"the peak in the number format {text!s:.60} is not known"
        return None, "", shown if text is not None else "its number format is not recorded"
    return hardware.peak(word), word, ""
