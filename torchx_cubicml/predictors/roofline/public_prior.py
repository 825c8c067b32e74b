"""Public prior: constants of the formulas learned from public measured trainings, with the variance between sources.

The file beside this module holds constants only; ``scripts/learn-public-prior`` writes it. A source is one table of
measurements or the pages of one repository. Sources differ in more than the formulas know: cluster, software, tuning.
So the variance between them sets the width of a prediction for a person without any launch. Two numbers of that width
are learned by predicting each source without itself: a wait per micro batch across nodes, and one factor for all.

Nothing is predicted outside what the sources cover. Two kinds of layout have no predicted throughput. With tensor
parallelism across nodes, the two sources that have it have one and eight network cards a node, and intervals held half
of one. Of other layouts, no more than the order of magnitude is known.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from torchx_cubicml.errors import LaunchError, RecordError
from torchx_cubicml.predictors.base import Prediction
from torchx_cubicml.predictors.features.device_specs import find_hardware
from torchx_cubicml.predictors.intervals import FEWEST
from torchx_cubicml.predictors.roofline.constants import HAND_SET, NAMES, ConstantsPrior
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.memory import memory_parts
from torchx_cubicml.predictors.roofline.step_doubt import log_step_seconds
from torchx_cubicml.predictors.roofline.step_time import step_time
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout
from torchx_cubicml.settings import option
from torchx_cubicml.user_files import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.records.values import Value

SHIPPED = Path(__file__).with_name("public_prior.json")
OPTION = "public_prior"
RANGE_COLUMNS = ("layers", "width", "sequence", "micro", "rounds", "world", "tp", "pp", "cp", "ep", "experts")
"""Fields of a layout in which nothing is predicted outside the range of the sources."""
_OFFLOADED = ("offloaded_params", "offloaded_optimizer", "offloaded_activations")  # by no source
_MOST_SPREAD = math.log(10.0) / 1.2816  # an 80 % interval of ten times as much either way tells nothing
_FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublicPrior:
    """Random-effects summary of the formulas' constants over public sources.

    Args:
        sources: their names.
        devices: short names of the devices that they used.
        ranges: name of ``RANGE_COLUMNS`` -> least and most over the sources.
        constants: mean over the sources, with the standard deviation of a new source around it.
        error: log error of one training around the formulas calibrated on its source.
        widening: factor on spreads with which 80 % intervals held on each source that was left out.
        wait_s: seconds that a micro batch across nodes may wait besides, as jobs of some clusters do: a deviation.
        held: name of a source -> share of its trainings in their 80 % intervals, predicted without it; empty where the
            file does not say it.
        memory_sources: names of the sources that state peak memory.
        memory: logarithm of measured over predicted peak: mean over these, and its deviation for a new training.
    """

    sources: tuple[str, ...]
    devices: frozenset[str]
    ranges: Mapping[str, tuple[float, float]]
    constants: ConstantsPrior
    error: float
    widening: float
    wait_s: float
    held: Mapping[str, float]
    memory_sources: tuple[str, ...]
    memory: tuple[float, float]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the prior in a file of ``scripts/learn-public-prior``.

        Raises:
            RecordError: the file is missing, or not such a file.
        """
        try:
            return cls.of(json.loads(read_text(path)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            cause = error if isinstance(error, LaunchError) else "its content is another one"
            raise RecordError(f"{path} is no file of scripts/learn-public-prior: {cause}") from error

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """Return the prior in the JSON of such a file.

        Raises:
            ValueError: it is of another format; ``KeyError`` or ``TypeError`` where it is no such table.
        """
        if table["format"] != _FORMAT:
            raise ValueError(f"format {table['format']}, not {_FORMAT}")
        if unknown := {*table["ranges"]} - {*RANGE_COLUMNS}:
            raise ValueError(f"ranges of {', '.join(sorted(unknown))}")
        # A constant of another version keeps its hand-set prior.
        learned, medians, numbers = table["constants"], HAND_SET.medians, table["numbers"]
        hand_set = zip(NAMES, HAND_SET.width.tolist(), strict=True)
        pairs = {name: learned.get(name, [medians[name], width]) for name, width in hand_set}
        return cls(
            sources=tuple(table["sources"]),
            devices=frozenset(table["devices"]),
            ranges={name: (low, high) for name, (low, high) in table["ranges"].items()},
            constants=ConstantsPrior(
                medians={name: float(median) for name, (median, _) in pairs.items()},
                width=np.array([width for _, width in pairs.values()], dtype=np.float64),
            ),
            error=float(numbers["error"]),
            widening=float(numbers["widening"]),
            wait_s=float(numbers["wait_s"]),
            held={name: float(share) for name, share in table["held"].items()},
            memory_sources=tuple(table["memory_sources"]),
            memory=(float(numbers["memory_mean"]), float(numbers["memory_spread"])),
        )

    def knows_devices(self, facts: Facts) -> NDArray[np.bool_]:
        """Return whether each training runs on devices of the sources alone, bool ``[n]``."""
        known = np.zeros(facts.n)
        for name, share in facts.shares.get("device", {}).items():
            hardware = find_hardware(name)
            if hardware is not None and hardware.name in self.devices:
                known = known + share
        return np.asarray(known > 1.0 - 1e-9)

    def covers(self, facts: Facts, layout: TrainingLayout) -> NDArray[np.bool_]:
        """Return whether trainings are inside what the sources cover, bool ``[n]``."""
        inside = layout.covered & self.knows_devices(facts)
        for name, (low, high) in self.ranges.items():
            value = getattr(layout, name)
            inside = inside & (value >= low * (1.0 - 1e-9)) & (value <= high * (1.0 + 1e-9))
        return np.asarray(inside & (np.sum([getattr(layout, name) for name in _OFFLOADED], axis=0) == 0.0))

    def covers_collectives(self, layout: TrainingLayout) -> NDArray[np.bool_]:
        """Return whether tensor parallelism stays inside a node, bool ``[n]``."""
        return np.asarray(layout.tp <= layout.per_node)

    def uncovered(self, row: Mapping[str, Value]) -> str:
        """Return the facts of a training of which sources do not tell enough, in words; empty where they do."""
        facts = Facts.from_rows([row])
        layout = TrainingLayout.of(facts)
        if not layout.covered[0]:
            return "this kind of model"
        if not self.knows_devices(facts)[0]:
            return f"the device {row['device']!s:.60}" if "device" in row else "a device that is not told"
        for name, (low, high) in self.ranges.items():
            value = float(getattr(layout, name)[0])
            if not low * (1.0 - 1e-9) <= value <= high * (1.0 + 1e-9):
                return f"{_WORDS.get(name, name)} of {value:g} (only {low:g} to {high:g})"
        if not self.covers(facts, layout)[0]:
            return "offloading"
        return self._too_unsure(row, layout)

    def _too_unsure(self, row: Mapping[str, Value], layout: TrainingLayout) -> str:
        """Return the reason for which a covered training has no predicted throughput; empty where it has one."""
        if not self.covers_collectives(layout)[0]:
            return "tensor parallelism across nodes"
        if np.isnan(self.tokens_per_second([row]).logarithm[0]):
            seconds = float(step_time(layout, self.constants.medians).micro_batch[0])
            return f"micro batches of {seconds:.1g} s across nodes, each of which may wait for longer"
        return ""

    def tokens_per_second(self, rows: Sequence[Mapping[str, Value]]) -> Prediction:
        """Return the prediction of whole jobs on a machine without any launch, ``[n]``; NaN where it is not covered."""
        facts = Facts.from_rows(rows)
        layout = TrainingLayout.of(facts)
        covered = self.covers(facts, layout) & self.covers_collectives(layout)
        logarithm, spread = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
        if covered.any():
            chosen = layout.rows(covered)
            seconds, deviation = self.log_seconds(chosen)
            told = self.widening * deviation <= _MOST_SPREAD
            logarithm[covered] = np.where(told, np.log(chosen.tokens_per_step) - seconds, np.nan)
            spread[covered] = np.where(told, self.widening * deviation, np.nan)
        return Prediction.of_measurement(logarithm, spread)

    def after_few_launches(
        self, prediction: Prediction, rows: Sequence[Mapping[str, Value]], *, n_launches: int
    ) -> Prediction:
        """Return a prediction after a few launches with the spread that it has without any, ``[n]``.

        Where that is not told, its own spread counts, with the wait across nodes. From ``FEWEST`` launches on, their
        own errors have set the spread, and it stays.
        """
        if n_launches >= FEWEST:
            return prediction
        waiting = np.nan_to_num(self.waiting(TrainingLayout.of(Facts.from_rows(rows))))
        first = self.tokens_per_second(rows).spread
        return replace(prediction, spread=np.where(np.isnan(first), np.hypot(prediction.spread, waiting), first))

    def peak_gib(self, rows: Sequence[Mapping[str, Value]]) -> Prediction:
        """Return the prediction of the peak memory of one device in GiB, ``[n]``; NaN where it is not covered."""
        facts = Facts.from_rows(rows)
        layout = TrainingLayout.of(facts)
        covered = self.covers(facts, layout) & (len(self.memory_sources) > 1)
        with np.errstate(all="ignore"):
            total = np.log(sum(memory_parts(layout).values(), np.zeros(len(rows))) / 2.0**30)
        mean, spread = self.memory
        return Prediction(logarithm=np.where(covered, total + mean, np.nan), spread=np.where(covered, spread, np.nan))

    def log_seconds(self, layout: TrainingLayout) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the logarithm of the seconds of a step, and its deviation before it is widened, ``[n]`` each."""
        logarithm, of_constants = log_step_seconds(layout, self.constants)
        return logarithm, np.asarray(np.sqrt(of_constants**2 + self.error**2 + self.waiting(layout) ** 2))

    def waiting(self, layout: TrainingLayout) -> NDArray[np.float64]:
        """Return by how much a step may be longer as its micro batches wait across nodes, as a logarithm, ``[n]``."""
        lasting = step_time(layout, self.constants.medians).micro_batch
        return np.where(layout.world > layout.per_node, np.log1p(self.wait_s / lasting), 0.0)


_WORDS = {
    "layers": "n_layers",
    "width": "d_model",
    "sequence": "seq_len",
    "micro": "micro_batch_size",
    "rounds": "gradient_accumulation_steps",
    "world": "world_size",
    "experts": "n_experts",
    **{axis: f"{axis}_degree" for axis in ("tp", "pp", "cp", "ep")},
}


def public_prior() -> PublicPrior | None:
    """Return the public prior; ``None`` where ``TORCHX_CUBICML_PUBLIC_PRIOR`` is ``off``.

    That variable may name a file of ``scripts/learn-public-prior`` instead.

    Raises:
        RecordError: it names something else.
    """
    named = option(OPTION)
    try:
        return _read(named or str(SHIPPED))
    except RecordError as error:
        text = f"{error} (TORCHX_CUBICML_PUBLIC_PRIOR names it; with off there is no prior)" if named else str(error)
        raise RecordError(text) from error


@lru_cache(maxsize=32)
def _read(path: str) -> PublicPrior | None:
    return None if path == "off" else PublicPrior.read(Path(path))


def prior_of(facts: Facts) -> ConstantsPrior:
    """Return the prior of the constants for trainings: the public one where it knows all devices, else the hand-set."""
    known = public_prior()
    return known.constants if known is not None and facts.n and known.knows_devices(facts).all() else HAND_SET
