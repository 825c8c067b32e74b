"""Results of the tunes of a store, read back from its journal as each tune wrote them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.advisor.comparison import Comparison, Repeats, launches_lacking
from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.json_fields import items_of, number_of, object_of, text_of, texts_of, whole_number_of
from torchx_cubicml.records.values import freeze_values
from torchx_cubicml.tuner.journal import Journal, Note, NoteKind
from torchx_cubicml.tuner.lease import launch_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchx_cubicml.records.trial import Trial

_MOST_LETTERS = 4096  # of a text of the result
_MOST_WORDS = 4096  # of a command
_BASELINE = "baseline"  # purpose of a launch of the user's own config


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedResult:
    """Result of a finished tune; its fields are those of ``TuneResult``.

    Args:
        tune_id: name of the tune.
        time: of its end, ISO 8601 in UTC.
        comparison: of the winner with the user's own config; ``None`` if either was not measured.
        confidence: probability that no measured config is faster by more than one per cent; ``None`` if unknown.
        launches: launches made.
        device_hours: hours that their jobs ran, times their world size.
        command: component and arguments with the winner's config; empty without a winner.
        scheduler: scheduler of its jobs; empty if unknown.
        scheduler_args: its options with the winner's config.
        ending: used part of the budget, and why the tune ended, in words.
    """

    tune_id: str
    time: str
    comparison: Comparison | None
    confidence: float | None
    launches: int
    device_hours: float
    command: tuple[str, ...]
    scheduler: str
    scheduler_args: str
    ending: str

    def made(self, trial: Trial) -> bool:
        """Return whether the tune launched a trial."""
        return trial.launch_id.startswith(launch_prefix(self.tune_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneNotes:
    """Facts of the journal of a store.

    Args:
        results: of the finished tunes, the latest last.
        baselines: ids of the launches by which tunes measured the user's own config.
    """

    results: tuple[RecordedResult, ...] = ()
    baselines: frozenset[str] = frozenset()


def read_results(store_url: str) -> TuneNotes:
    """Read the results of all finished tunes; one that cannot be read is left out.

    Raises:
        StoreError: the store cannot be reached.
    """
    return results_of(Journal(store_url).read())


def results_of(notes: Sequence[Note]) -> TuneNotes:
    """Return the results that notes tell of; see ``read_results``."""
    submitted = [note for note in notes if note.kind is NoteKind.SUBMITTED]
    schedulers = {note.tune_id: note.text("handle").partition("://")[0] for note in submitted}
    results = []
    for note in notes:
        if note.kind is NoteKind.FINISHED and "result" in note.facts:
            with suppress(RecordError):
                results.append(_result(note, schedulers.get(note.tune_id, "")))
    baselines = (note.launch_id for note in submitted if note.text("purpose") == _BASELINE)
    return TuneNotes(results=tuple(results), baselines=frozenset(baselines))


def _result(note: Note, scheduler: str) -> RecordedResult:
    given = object_of(note.facts["result"], "result")
    comparison, confidence = given.get("comparison"), given.get("confidence")
    return RecordedResult(
        tune_id=note.tune_id,
        time=note.time,
        comparison=_comparison(object_of(comparison, "comparison")) if comparison is not None else None,
        confidence=number_of(confidence, "confidence") if confidence is not None else None,
        launches=whole_number_of(given.get("launches"), "launches"),
        device_hours=number_of(given.get("device_hours"), "device_hours"),
        command=texts_of(given.get("command", []), "command", most=_MOST_WORDS, most_characters=_MOST_LETTERS),
        scheduler=scheduler,
        scheduler_args=text_of(given.get("scheduler_args", ""), "scheduler_args", most=_MOST_LETTERS),
        ending=text_of(given.get("ending", ""), "ending", most=_MOST_LETTERS),
    )


def _comparison(given: dict[str, object]) -> Comparison:
    sides = [_repeats(object_of(given.get(name), name)) for name in ("baseline", "best")]
    gain, low, high = (_positive([given.get(name)], name)[0] for name in ("gain", "gain_low", "gain_high"))
    return Comparison(
        objective=text_of(given.get("objective"), "objective", most=_MOST_LETTERS),
        baseline=sides[0],
        best=sides[1],
        gain=gain,
        gain_low=low,
        gain_high=high,
        faster=number_of(faster, "faster") if (faster := given.get("faster")) is not None else None,
        launches_lacking=launches_lacking(*(len(each.throughputs) for each in sides)),
    )


def _repeats(given: dict[str, object]) -> Repeats:
    uncertainties = items_of(given.get("uncertainties", []), "uncertainties")
    return Repeats(
        config=freeze_values(given.get("config"), where="config"),
        throughputs=_positive(items_of(given.get("throughputs"), "throughputs"), "throughputs"),
        uncertainties=tuple(number_of(value, "uncertainties") for value in uncertainties),
    )


def _positive(values: Iterable[object], name: str) -> tuple[float, ...]:
    found = tuple(float(number_of(value, name)) for value in values)
    if not all(found):
        raise RecordError(f"{name} must be > 0")
    return found
