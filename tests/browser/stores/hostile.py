"""Store whose every text is hostile: markup, scripts, control characters, reversed text, half surrogates, megabytes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml import State, Trial, TrialStore
from torchx_cubicml.records.values import MAX_TEXT

if TYPE_CHECKING:
    from pathlib import Path

MARKUP = "</script><script>alert(1)</script><img src=x onerror=alert(2)> ' \" & {{7*7}} javascript:alert(3)"
WORDS = (
    MARKUP,
    "</style></svg><svg onload=alert(4)><foreignObject>",
    "]]><!--<script>alert(5)//--><![CDATA[",
    "\x1b[31m\x00\x07\x7f\u0085 control",
    "\u202egnp.exe\u2066\u200f reversed",
    "half \udcff surrogate \ud800",
    "datum.value; data('source')[0].constructor.constructor('alert(6)')()",
    "__proto__",
    "constructor",
    "x" * MAX_TEXT,
    "W" * 300 + " " + "\u6f22\u5b57" * 200,
    "Z\u0351\u036b\u0343\u036a\u0302" * 200,
)
TRIALS = 40
_LONG = 60  # longest texts of each trial: with its other texts, over ten megabytes in all


def fill(url: Path) -> tuple[str, ...]:
    """Fill a store with over ten megabytes of texts, and with one object of ten megabytes, which no reader takes."""
    store = TrialStore(str(url))
    long = {f"long {place}": f"{place} {MARKUP * 99}"[:MAX_TEXT] for place in range(_LONG)}
    workload = {"program": MARKUP, "world_size": 8, WORDS[1][:128]: WORDS[2], "note": WORDS[4]}
    for number in range(TRIALS):
        word = WORDS[number % len(WORDS)]
        config = {name[:128]: WORDS[(number + place) % len(WORDS)] for place, name in enumerate(WORDS)}
        config = {"micro_batch_size": 1 + number % 5, **config, "sharding_strategy": (word[:100],) * 8}
        trial = Trial.completed(workload=workload, config=config, tokens_per_second=1000.0 + 37 * number % 101)
        trial = replace(trial, started_at=f"2026-01-01T00:{number:02d}:00Z")
        if number % 4 == 3:
            trial = replace(trial, measurement=None, state=State.OUT_OF_MEMORY, reason=f"{word} no memory")
        store.add(replace(trial, observed={f"fact {place}": each for place, each in enumerate(WORDS)} | long))
    (day,) = (url / "events").iterdir()
    (day / f"20260101T000000.000000Z-{0:016x}.json").write_text(f'{{"schema": 1, "reason": "{"x" * 10 * 2**20}"}}')
    return ()
