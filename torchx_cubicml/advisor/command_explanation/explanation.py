"""Explanation of a command before its launch: parameters, memory, step time, the bound, and changes that tell most."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from torchx_cubicml.advisor.command_explanation.doubtful_facts import alternatives, with_doubt
from torchx_cubicml.advisor.command_explanation.estimates import Estimate
from torchx_cubicml.advisor.command_explanation.history_rows import HistoryRows
from torchx_cubicml.advisor.command_explanation.levers import usual_levers
from torchx_cubicml.advisor.command_explanation.memory_forecast import MemoryForecast
from torchx_cubicml.advisor.command_explanation.recommender_forecast import RecommenderTimeForecast
from torchx_cubicml.advisor.command_explanation.recommender_levers import recommender_levers
from torchx_cubicml.advisor.command_explanation.time_forecast import TimeForecast
from torchx_cubicml.launch.command_facts.parameter_formula import open_facts, parameter_range
from torchx_cubicml.predictors.features.device_specs import CPU, find_hardware
from torchx_cubicml.predictors.roofline.coverage import missing_facts
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.recommender_layout import (
    RecommenderLayout,
    has_tables,
    tables_of_unknown_plan,
)
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout
from torchx_cubicml.predictors.roofline.utilisation import utilisation_of
from torchx_cubicml.records.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.advisor.command_explanation.doubtful_facts import OtherValue
    from torchx_cubicml.advisor.command_explanation.estimates import LogNormal
    from torchx_cubicml.advisor.command_explanation.levers import Lever
    from torchx_cubicml.launch.command_facts.known_facts import CommandFacts
    from torchx_cubicml.records.values import Value

_GIB = float(1 << 30)
_USABLE = 0.92  # share of a device's memory that a training can use: see ``MemoryCalibration``
_SHOWN = 3  # changes
_LEAST_GAIN = 0.01  # of a logarithm: a smaller one tells nothing
_TABLES = ("embedding_rows", "embedding_dims", "micro_batch_size", "world_size")  # that a recommender needs
_COUNTED_AS = {
    "d_ff": "counted as four times d_model; the intervals are wider without it",
    "n_heads": "counted as one per 128 of d_model",
    **dict.fromkeys(("tp_degree", "pp_degree", "cp_degree"), "counted as 1, though the source calls its functions"),
}
_NO_FIT = 0.5  # probability to fit below which a change is worth nothing

_BOUNDS = {
    "compute": "matrix products and attention",
    "memory_traffic": "memory traffic of activations",
    "recomputation": "recomputation of activations",
    "tensor_parallel": "communication of tensor parallelism",
    "context_parallel": "communication of context parallelism",
    "expert_parallel": "communication of expert parallelism",
    "pipeline_parallel": "communication between pipeline stages",
    "data_parallel": "communication of data parallelism and sharding",
    "bubble": "the pipeline's bubble",
    "optimizer": "the optimizer's pass through memory",
    "offload": "transfers to the host's memory",
    "overhead": "the host, which issues kernels too slowly",
    "embedding_lookup": "memory traffic of embedding lookups",
    "embedding_imbalance": "the rank with the most lookups, for which all wait",
    "embedding_input": "the exchange of indices between ranks",
    "embedding_exchange": "the exchange of embeddings between ranks",
    "embedding_replicas": "replicated tables: their gradients and updates",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeForecast:
    """Forecast of one change of the command.

    Args:
        before: fact -> value now, of the facts that change.
        after: fact -> value after the change.
        note: what else it changes; empty for nothing.
        gain: throughput after the change over that of the command.
        peak_gib: peak memory of the fullest device after the change; ``None`` where unknown.
        fits: probability that this fits; ``None`` where unknown.
    """

    before: Mapping[str, Value | None]
    after: Mapping[str, Value]
    note: str
    gain: Estimate
    peak_gib: Estimate | None = None
    fits: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandExplanation:
    """Explanation of a command.

    Args:
        known: facts of the command, with their sources.
        parameters: of the whole model; ``None`` where unknown.
        peak_gib: peak memory of the fullest device; ``None`` where unknown, and so below.
        memory_gib: part -> GiB; they add up to the median of the peak.
        device_gib: memory of one device.
        fits: probability that the peak fits into what a training can use of it.
        step_s: seconds of a step.
        why_no_step: why it is not told, in words, though the formulas cover it: its interval is too wide. Then what
            follows from it is not told either; empty otherwise.
        seconds: part -> seconds; they add up to the median of the step.
        throughput: of the whole job.
        unit: of the throughput.
        mfu: model FLOPs utilisation.
        bound: what the step runs into, in words; empty where unknown.
        changes: changes that tell most, the most telling first.
        unknown: fact that nothing tells -> what it makes unknown or wider, in words.
    """

    known: CommandFacts
    parameters: Estimate | None = None
    peak_gib: Estimate | None = None
    memory_gib: Mapping[str, float] = field(default_factory=dict)
    device_gib: float | None = None
    fits: float | None = None
    step_s: Estimate | None = None
    why_no_step: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    throughput: Estimate | None = None
    unit: str = "tokens_per_second"
    mfu: Estimate | None = None
    bound: str = ""
    changes: tuple[ChangeForecast, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return everything as JSON values."""
        table = asdict(self)
        table["known"] = {
            fact: {"value": value, "source": self.known.sources[fact], "assumed": fact in self.known.assumed}
            for fact, value in self.known.facts.items()
        }
        table["unread"] = self.known.unread
        return table


def explain_command(
    known: CommandFacts,
    *,
    program: str = "",
    project: Value | None = None,
    trials: Iterable[Trial] = (),
    levers: Sequence[Lever] | None = None,
    device_gib: float | None = None,
) -> CommandExplanation:
    """Return the explanation of a transformer's or a recommender's command.

    Args:
        known: facts of the command.
        program: its program, as a workload has it: launches of it count more than others.
        project: identities of its project, likewise; ``None`` where they are not known.
        trials: recorded launches.
        levers: changes to forecast; ``None`` for the usual ones.
        device_gib: memory of one device, if the device itself tells it; else that of its data sheet counts.
    """
    row: dict[str, Value] = {**known.facts, **({"program": program} if program else {})}
    launches = HistoryRows.of(trials, row, project=project)
    parameters = _parameters(known)
    if parameters is not None and parameters.low == parameters.high:
        row["n_params"] = int(parameters.middle)
    unknown = _unknown(known, row, parameters)
    work, unit = _work(row)
    device_gib = device_gib or _device_gib(row)
    if not work:
        return CommandExplanation(known=known, parameters=parameters, device_gib=device_gib, unknown=unknown)
    forecasts = _Forecasts.of(row, known, launches, device_gib)
    step = forecasts.step(row)
    why_no_step = _why_not_told(step, forecasts.time)
    step = None if why_no_step else step
    peak = forecasts.peak(row)
    seconds = forecasts.time.parts(row, step.middle) if step is not None else {}
    throughput = step.of_inverse(work) if step is not None else None
    usual = usual_levers if unit == "tokens_per_second" else recommender_levers
    chosen = usual(row) if levers is None else levers
    return CommandExplanation(
        known=known,
        parameters=parameters,
        peak_gib=peak,
        memory_gib=forecasts.memory.parts(row, peak.middle) if peak is not None else {},
        device_gib=device_gib,
        fits=forecasts.fits(row),
        step_s=step,
        why_no_step=why_no_step,
        seconds=seconds,
        throughput=throughput,
        unit=unit,
        mfu=_mfu(row, throughput),
        bound=_bound(seconds),
        changes=_most_telling([forecasts.change(row, each) for each in chosen], forecasts.fits(row)),
        unknown=unknown,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forecasts:
    """Forecasts of rows that differ from a command in a few facts, with the doubt of its facts."""

    time: TimeForecast | RecommenderTimeForecast
    memory: MemoryForecast
    others: list[OtherValue]
    device_gib: float | None

    @classmethod
    def of(
        cls, row: Mapping[str, Value], known: CommandFacts, launches: HistoryRows, device_gib: float | None
    ) -> _Forecasts:
        kind = TimeForecast if TrainingLayout.of(Facts.from_rows([row])).covered[0] else RecommenderTimeForecast
        return cls(
            time=kind.of(row, launches),
            memory=MemoryForecast.of(row, launches),
            others=alternatives(known),
            device_gib=device_gib,
        )

    def step(self, row: Mapping[str, Value]) -> Estimate | None:
        found = with_doubt(self.time.log_step, row, self.others)
        return None if found is None else Estimate.log_normal(found.logarithm, found.spread, self.time.basis)

    def log_peak(self, row: Mapping[str, Value]) -> LogNormal | None:
        return with_doubt(self.memory.log_peak, row, self.others)

    def peak(self, row: Mapping[str, Value]) -> Estimate | None:
        found = self.log_peak(row)
        return None if found is None else Estimate.log_normal(found.logarithm, found.spread, self.memory.basis)

    def fits(self, row: Mapping[str, Value]) -> float | None:
        found = self.log_peak(row)
        if found is None or self.device_gib is None:
            return None
        return found.probability_below(_USABLE * self.device_gib)

    def change(self, row: Mapping[str, Value], lever: Lever) -> ChangeForecast | None:
        """Return the forecast of a change; ``None`` where the formulas do not cover it or see none."""
        changed = {**row, **lever.values}
        others = [each for each in self.others if each.fact not in lever.values]

        def gain_of(facts: Mapping[str, Value]) -> LogNormal | None:
            return self.time.log_gain(facts, {**facts, **lever.values})

        gain = with_doubt(gain_of, row, others)
        if gain is None:
            return None
        return ChangeForecast(
            before={name: row.get(name) for name in lever.values},
            after=lever.values,
            note=lever.note,
            gain=Estimate.log_normal(gain.logarithm, gain.spread, self.time.basis),
            peak_gib=self.peak(changed),
            fits=self.fits(changed),
        )


def _why_not_told(step: Estimate | None, forecast: TimeForecast | RecommenderTimeForecast) -> str:
    """Return why a step time is not told; empty where it is, or where there is none."""
    if step is None or step.high <= forecast.widest * step.low:
        return ""
    if forecast.n_own:
        cause = "its launches and the known facts leave it open"
    else:
        cause = (
            "no launch of this program is recorded" if forecast.history else "no launch on such a device is recorded"
        )
    ratio = step.high / step.low
    return f"its 80 % interval would span a factor of {ratio:,.{1 if ratio < 100.0 else 0}f}, as {cause}"


def _work(row: Mapping[str, Value]) -> tuple[float, str]:
    """Return the work of a step of the whole job, and the unit of its throughput; 0.0 where no formula covers it."""
    layout = TrainingLayout.of(Facts.from_rows([row]))
    if layout.covered[0]:
        return float(layout.tokens_per_step[0]), "tokens_per_second"
    recommender = RecommenderLayout.from_rows([row])
    is_covered = bool(recommender.covered[0] and recommender.has_tables[0])
    return float(recommender.samples[0] * recommender.ranks[0]) if is_covered else 0.0, "samples_per_second"


def _parameters(known: CommandFacts) -> Estimate | None:
    stated = known.facts.get("n_params")
    if isinstance(stated, int | float):
        return Estimate(low=stated, middle=stated, high=stated, basis=known.sources["n_params"])
    found = parameter_range(known.facts)
    if found is None:
        return None
    low, high = found
    return Estimate(low=low, middle=math.sqrt(low * high), high=high, basis="formulas")


def _unknown(known: CommandFacts, row: Mapping[str, Value], parameters: Estimate | None) -> dict[str, str]:
    """Return the facts that nothing tells, each with its consequence in words."""
    is_recommender = "embedding_rows" in known.unknown
    missing = [fact for fact in _TABLES if fact not in row] if is_recommender else missing_facts(row)
    found = dict.fromkeys(missing, "no forecast of time and memory without it")
    wider = "the intervals are wider without it"
    found |= {fact: _COUNTED_AS.get(fact, wider) for fact in known.unknown if fact not in found}
    if parameters is not None and parameters.low < parameters.high:
        found |= dict.fromkeys(open_facts(known.facts), "the number of parameters is a range without it")
    if unplanned := tables_of_unknown_plan(row):
        text = f"the planner's choice for {unplanned} tables, which no launch has shown; counted as spread evenly"
        found["embedding_plan"] = f"{text} over the ranks"
    return found


def _device_gib(row: Mapping[str, Value]) -> float | None:
    hardware = find_hardware(str(row.get("device", "")))
    return None if hardware is None or hardware is CPU else hardware.memory / _GIB


def _mfu(row: Mapping[str, Value], throughput: Estimate | None) -> Estimate | None:
    if throughput is None or has_tables(row):
        return None
    trial = Trial.completed(workload=row, config={}, tokens_per_second=throughput.middle)
    value = utilisation_of(trial).value
    return None if value is None else throughput.times(value / throughput.middle)


def _bound(seconds: Mapping[str, float]) -> str:
    """Return the largest part of a step in words; empty without one."""
    words = {_BOUNDS[name]: part for name, part in seconds.items()}
    return max(words, key=lambda name: words[name], default="")


def _most_telling(changes: Sequence[ChangeForecast | None], fits: float | None) -> tuple[ChangeForecast, ...]:
    """Return the changes with the largest gains that are likely to fit; first those that make a command fit at all."""

    def worth(change: ChangeForecast) -> tuple[bool, float]:
        makes_fit = fits is not None and change.fits is not None and fits < _NO_FIT <= change.fits
        chance = 1.0 if change.fits is None else change.fits
        gain = math.log(change.gain.middle)
        return makes_fit, gain * chance if gain > 0.0 else gain

    telling = [each for each in changes if each is not None and abs(math.log(each.gain.middle)) > _LEAST_GAIN]
    telling.sort(key=worth, reverse=True)
    return tuple(telling[:_SHOWN])
