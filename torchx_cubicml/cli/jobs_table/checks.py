"""Cross-checks of imported rows: facts that cannot all be true together."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.cli.jobs_table.rates import count, dp_degree, known_world_size, model_parallel, stated_dp_degree
from torchx_cubicml.predictors.features.device_specs import find_hardware, precision_word

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Scalar, Value

_NAMED = 2  # rows that a remark names; the others of its kind are counted
_SIZE_FACTOR = 1.5  # between parameters and dimensions; biases, gates and positions make up less
_BATCH_TOLERANCE = 0.01
_MEMORY_FACTOR = 1.05  # a device of "80 GB" has up to 80 GiB
_FLOPS_PER_TOKEN = 6.0  # and parameter, forward and backward
_GIGABYTE = 1e9


def disagreements(trials: Sequence[Trial], labels: Sequence[str]) -> list[str]:
    """Return a sentence for each row whose facts disagree; of many alike the first are named and the rest counted.

    Args:
        trials: of the rows.
        labels: of the rows, such as ``line 3``.
    """
    found: defaultdict[str, list[str]] = defaultdict(list)
    for trial, label in zip(trials, labels, strict=True):
        facts = _facts(trial)
        for kind, check in _CHECKS.items():
            text = check(facts, trial)
            if text:
                found[kind].append(f"{label}: {text}")
    remarks: list[str] = []
    for texts in found.values():
        remarks += texts[:_NAMED]
        if len(texts) > _NAMED:
            remarks.append(f"and {len(texts) - _NAMED} more rows that disagree in the same way")
    return remarks


def without_impossible_peak(trial: Trial) -> Trial:
    """Return a trial without a peak memory that its device does not have."""
    if trial.measurement is None or not _memory(_facts(trial), trial):
        return trial
    return replace(trial, measurement=replace(trial.measurement, peak_memory_gib=None))


def _facts(trial: Trial) -> dict[str, Scalar]:
    both: dict[str, Value] = {**trial.workload, **trial.config}
    return {name: value for name, value in both.items() if not isinstance(value, tuple)}


def _degrees(facts: Mapping[str, Scalar], trial: Trial) -> str:
    world, shared = count(facts, "world_size"), model_parallel(facts)
    stated = stated_dp_degree(facts)
    if world is None:
        return ""
    names = [name for name in ("dp_degree", "tp_degree", "pp_degree", "cp_degree") if count(facts, name) is not None]
    if stated is not None and "dp_degree" not in names:
        names = ["dp_replicate_degree", "dp_shard_degree", *names]
    shown = " x ".join(f"{name} {facts[name]}" for name in names if name in facts)
    if stated is not None and stated * shared != world:
        return f"{shown} = {stated * shared:g}, but world_size is {world:g}"
    if stated is None and world % shared:
        return f"{shown} = {shared:g} does not divide world_size {world:g}"
    return ""


def _nodes(facts: Mapping[str, Scalar], trial: Trial) -> str:
    world, nodes, per_node = (count(facts, name) for name in ("world_size", "nnodes", "nproc_per_node"))
    if world is None or nodes is None or per_node is None or world == nodes * per_node:
        return ""
    return f"nnodes {nodes:g} x nproc_per_node {per_node:g} = {nodes * per_node:g}, but world_size is {world:g}"


def _size(facts: Mapping[str, Scalar], trial: Trial) -> str:
    total, layers, width = (count(facts, name) for name in ("n_params", "n_layers", "d_model"))
    if total is None or layers is None or width is None or (count(facts, "n_experts") or 0.0) > 1:
        return ""
    heads = count(facts, "n_heads")
    kv_share = min((count(facts, "n_kv_heads") or heads or 1.0) / (heads or 1.0), 1.0)
    inner = count(facts, "d_ff") or 4.0 * width
    vocabulary = (count(facts, "vocab_size") or 0.0) * width
    least = layers * ((2 + 2 * kv_share) * width**2 + 2 * width * inner) / _SIZE_FACTOR
    most = (layers * (4 * width**2 + 3 * width * inner) + 2 * vocabulary) * _SIZE_FACTOR
    if least <= total <= most or (vocabulary == 0 and total > most and total < 3 * most):
        return ""
    middle = layers * (4 * width**2 + 2 * width * inner) + vocabulary
    return f"n_params is {total:.3g}, but n_layers {layers:g} x d_model {width:g} make about {middle:.2g}"


def _memory(facts: Mapping[str, Scalar], trial: Trial) -> str:
    peak = None if trial.measurement is None else trial.measurement.peak_memory_gib
    hardware = find_hardware(str(facts.get("device", "")))
    stated = count(facts, "device_memory_gib")
    listed = None if hardware is None or hardware.name == "cpu" else hardware.memory / _GIGABYTE
    limit = listed if stated is None else stated
    if peak is None or limit is None or peak <= _MEMORY_FACTOR * limit:
        return ""
    return (
        f"peak memory is {peak:.4g} GiB, but {facts.get('device', 'the device')} has {limit:.4g}; the peak is left out"
    )


def _batch(facts: Mapping[str, Scalar], trial: Trial) -> str:
    whole = count(facts, "global_batch_size")
    micro, rounds, dp = count(facts, "micro_batch_size"), count(facts, "gradient_accumulation_steps"), dp_degree(facts)
    if whole is None or micro is None or rounds is None or dp is None or not dp.is_integer():
        return ""
    product = micro * rounds * dp
    if abs(product - whole) <= _BATCH_TOLERANCE * whole:
        return ""
    factors = f"micro_batch_size {micro:g} x gradient_accumulation_steps {rounds:g} x dp_degree {dp:g}"
    return f"{factors} = {product:g}, but global_batch_size is {whole:g}"


def _heads(facts: Mapping[str, Scalar], trial: Trial) -> str:
    width, heads, kv_heads = (count(facts, name) for name in ("d_model", "n_heads", "n_kv_heads"))
    if heads is not None and kv_heads is not None and heads % kv_heads:
        return f"n_kv_heads {kv_heads:g} does not divide n_heads {heads:g}"
    if width is None or heads is None or count(facts, "head_dim") is not None or width % heads == 0:
        return ""
    return f"n_heads {heads:g} does not divide d_model {width:g}"


def _peak_rate(facts: Mapping[str, Scalar], trial: Trial) -> str:
    """Compare the throughput with the peak of the devices: 6 FLOPs per token and parameter."""
    tokens = None if trial.measurement is None else trial.measurement.tokens_per_second
    hardware, word = find_hardware(str(facts.get("device", ""))), precision_word(str(facts.get("precision", "bf16")))
    total, world = count(facts, "n_params"), known_world_size(facts)
    if tokens is None or hardware is None or total is None or world is None or word is None:
        return ""
    if (count(facts, "n_experts") or 0.0) > 1 or hardware.name == "cpu":
        return ""
    share = _FLOPS_PER_TOKEN * total * tokens / (world * hardware.peak(word))
    if share <= 1.0:
        return ""
    return (
        f"{tokens:,.0f} tokens/s of the whole job are {share:.0%} of the peak of {world:g} x {hardware.name} in {word}"
    )


_CHECKS: dict[str, Callable[[Mapping[str, Scalar], Trial], str]] = {
    "degrees": _degrees,
    "nodes": _nodes,
    "size": _size,
    "memory": _memory,
    "batch": _batch,
    "heads": _heads,
    "rate": _peak_rate,
}
"""Kind of disagreement -> check that returns it as a sentence, empty where the facts agree or are unknown."""
