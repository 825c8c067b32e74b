"""Pipeline schedules: the bubble that each leaves of 1F1B's, and the micro batches whose activations a stage holds.

With p stages, 1F1B and GPipe leave (p - 1)(F + B) idle per step (Narayanan et al., arXiv 2104.04473, section 2.2). F,
B and W are seconds of one micro batch on a stage: forward, the whole backward, and its part for the weights. Here
F = W = 1 and B = 2, or 3 where the forward pass is recomputed. The others:

- interleaved 1F1B, v chunks a stage: 1 / v of it (arXiv 2104.04473, section 2.2.2), and 1 + (p - 1) / (p v) times the
  activations (Korthikanti et al., arXiv 2205.05198, section 4.2.3);
- zero bubble with the memory of 1F1B (ZB-H1, ZB1P): (p - 1)(F + B - 2 W). With twice the memory (ZB-H2, ZB2P), or in a
  V shape with the memory of 1F1B (ZBV): (p - 1)(F + B - 3 W), which is none where F = B - W = W (Qi et al., arXiv
  2401.10241; the table in README.md of sail-sg/zero-bubble-pipeline-parallelism);
- DualPipe: (p / 2 - 1)(2 B + F - 3 W), p + 1 micro batches, two copies of the parameters; in a V shape, a device stands
  for two stages of half the size (README.md of deepseek-ai/DualPipe).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.predictors.roofline.facts import Facts

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

_KINDS = ("1f1b", "all forward", "zero bubble", "zero bubble, twice the memory", "zero bubble, v", "dual", "dual, v")


def schedule_kind(text: str) -> str:
    """Return the kind of a schedule, a word of ``_KINDS``, by any of its usual names; ``1f1b`` if it is none of them.

    >>> [schedule_kind(text) for text in ("ScheduleGPipe", "InterleavedZeroBubble", "ZBV", "DualPipeV", "interleaved")]
    ['all forward', 'zero bubble', 'zero bubble, v', 'dual, v', '1f1b']
    """
    word = "".join(letter for letter in text.lower() if letter.isalnum()).removeprefix("schedule")
    if "dual" in word:
        return "dual, v" if word.endswith("v") else "dual"
    if "zerobubble" in word or "zb" in word:
        if "zbv" in word or word.endswith("v"):
            return "zero bubble, v"
        return "zero bubble, twice the memory" if "h2" in word or "2p" in word else "zero bubble"
    return "all forward" if word in {"gpipe", "afab", "allforwardallbackward", "loopedbfs"} else "1f1b"


def pipeline_fields(facts: Facts, fields: dict[str, Array], full_recompute: Array) -> dict[str, Array]:
    """Return the fields of a layout that say how its pipeline is scheduled, float64 ``[n]`` each.

    Args:
        facts: of ``n`` trainings.
        fields: ``rounds`` and ``pp`` of their layouts.
        full_recompute: share of layers whose activations are recomputed.
    """
    rounds, pp = fields["rounds"], fields["pp"]
    texts = facts.shares.get("pp_schedule", {})

    def share(is_meant: Callable[[str], bool]) -> Array:
        return sum((of_text for text, of_text in texts.items() if is_meant(text)), np.zeros(facts.n))

    of_kind = {kind: share(lambda text, kind=kind: schedule_kind(text) == kind) for kind in _KINDS[1:]}  # type: ignore[misc]
    of_kind["1f1b"] = 1.0 - sum(of_kind.values(), np.zeros(facts.n))
    v_shaped = of_kind["zero bubble, v"] + of_kind["dual, v"]
    interleaved = share(lambda text: "interleaved" in text.lower() or "bfs" in text.lower())
    stages = np.maximum(facts.number("pp_stages", 1.0) / pp, 1.0)
    chunks = np.maximum(facts.number("virtual_pp_degree", stages), 1.0 + np.maximum(interleaved, v_shaped))
    held = {
        "1f1b": np.where(chunks > 1, pp + (pp - 1.0) / chunks, pp),
        "zero bubble": np.where(chunks > 1, pp + (pp - 1.0) / chunks, pp),
        "all forward": rounds,
        "zero bubble, twice the memory": 2.0 * pp - 1.0,
        "zero bubble, v": pp,
        "dual": pp + 1.0,
        "dual, v": pp + 1.0,
    }
    bubbles = _bubbles(pp, chunks, full_recompute)
    return {
        "chunks": chunks,
        "bubble": sum((of_kind[kind] * bubbles[kind] for kind in _KINDS), np.zeros(facts.n)),
        "in_flight": np.minimum(sum((of_kind[kind] * held[kind] for kind in _KINDS), np.zeros(facts.n)), rounds),
        "param_copies": np.where(pp > 1, 1.0 + of_kind["dual"], 1.0),
        "batches_overlap": np.where(pp > 1, of_kind["dual"] + of_kind["dual, v"], 0.0),
    }


def _bubbles(pp: Array, chunks: Array, full_recompute: Array) -> dict[str, Array]:
    """Return the bubble of each kind as a share of that of 1F1B without chunks."""
    backward = 2.0 + full_recompute
    whole = 1.0 + backward
    none_filled, both = 1.0 / chunks, (whole + backward - 3.0) / whole
    all_filled = (whole - 3.0) / whole
    return {
        "1f1b": none_filled,
        "all forward": none_filled,
        "zero bubble": (whole - 2.0) / whole / chunks,
        "zero bubble, twice the memory": all_filled,
        "zero bubble, v": all_filled,
        "dual": both * np.maximum(pp / 2.0 - 1.0, 0.0) / np.maximum(pp - 1.0, 1.0),
        "dual, v": both / 2.0,
    }
