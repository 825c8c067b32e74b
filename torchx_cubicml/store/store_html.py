"""HTML of a store for notebooks: its latest trials, and how all of them ended."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.event import Event, trials_of
from torchx_cubicml.records.notebook import section_html, table_html
from torchx_cubicml.records.objective_units import RATES
from torchx_cubicml.records.value_text import config_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torchx_cubicml.records.trial import Trial

_LATEST = 20  # trials in the table
_MOST_S = 10.0  # of reading
_HEADINGS = ("started (UTC)", "program", "state", "throughput", "config", "reason")


def store_html(events: Iterable[Event], *, url: str, warnings: Callable[[], Sequence[str]]) -> str:
    """Return the HTML.

    Args:
        events: of the store, read as they are taken.
        url: of the store.
        warnings: of the reading, asked for after it.
    """
    end, read = time.monotonic() + _MOST_S, list[Event]()
    try:
        for event in events:
            read.append(event)
            if time.monotonic() > end:
                return section_html(f"Store {url}", f"Reading takes longer than {_MOST_S:g} s, so nothing is shown.")
    except StoreError as error:
        return section_html(f"Store {url}", f"The store cannot be read: {error}.")
    found = sorted(trials_of(read), key=lambda trial: (trial.started_at, trial.trial_id))
    counted = Counter(str(trial.state).replace("_", " ") for trial in found).most_common()
    ends = ", ".join(f"{count:,} {state}" for state, count in counted)
    latest = found[: -_LATEST - 1 : -1]
    shown = f"The latest {len(latest)} are shown." if len(latest) < len(found) else ""
    many = f"{len(found):,} trial{'s' if len(found) != 1 else ''}"
    table = table_html(_HEADINGS, [_row(trial) for trial in latest])
    return section_html(f"{many} in {url}", ends, table, shown, *warnings())


def _row(trial: Trial) -> tuple[str, ...]:
    return (
        trial.started_at[:19].replace("T", " "),
        str(trial.workload.get("program", "")),
        str(trial.state).replace("_", " "),
        _throughput(trial),
        config_text(trial.config),
        trial.reason,
    )


def _throughput(trial: Trial) -> str:
    rates = [(name.removesuffix("_per_second"), trial.throughput(name)) for name in RATES]
    return ", ".join(
        f"{rate:{',.0f' if rate >= 100.0 else '.3g'}} {work}/s" for work, rate in rates if rate is not None
    )
