"""Numbers as people write them in tables: separators, suffixes, units and marks of rounding."""

from __future__ import annotations

import math
import re

# The words that may follow a number without changing it.
_COUNTED = (
    r"(?:x?\s*(?:gpus?|devices?|ranks?|nodes?|accelerators?|tpus?|workers?|layers?|heads?|experts?|samples?|seqs?|"
    r"sequences?|tokens?|toks?|params?|parameters?|steps?|chunks?|stages?|way|ways)|[x\u00d7])"
)
_SUFFIXES = {"k": 1e3, "m": 1e6, "mn": 1e6, "b": 1e9, "bn": 1e9, "g": 1e9, "t": 1e12}
_BYTES_IN_GIB = {"kb": 2.0**-20, "kib": 2.0**-20, "mb": 2.0**-10, "mib": 2.0**-10, "gb": 1.0, "gib": 1.0}
_BYTES_IN_GIB |= {"tb": 2.0**10, "tib": 2.0**10, "bytes": 2.0**-30, "byte": 2.0**-30}
_SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "µs", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
}
_RATE = r"(?:(?:tokens?|toks?|samples?|seqs?|sequences?|images?|it|iters?|steps?)\s*(?:/|per)\s*(?:s|sec|second).*)"
_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?"
_WRITTEN = re.compile(rf"({_NUMBER})\s*(.*)", re.IGNORECASE)
_SPACES = r"[ \u00a0\u2009\u202f'\u2019_]"
_GROUPED = re.compile(rf"\d{{1,3}}(?:{_SPACES}\d{{3}})+(?!\d)")

SCALE_OF_BINARY = {"k": 2.0**10, "m": 2.0**20}
"""Suffixes of lengths and batches, which are powers of two: 4k is 4,096."""


def plain_number(text: str, *, decimal_comma: bool = False) -> float | None:
    """Return a number written with or without separators of thousands, ``None`` where the text is no number.

    Args:
        text: the cell.
        decimal_comma: whether a comma is the decimal sign, as in German or French tables.

    >>> [plain_number(text) for text in ("8", "1,024", "55 256.08", "1e3", "7B")]
    [8.0, 1024.0, 55256.08, 1000.0, None]
    >>> [plain_number(text, decimal_comma=True) for text in ("6907,01", "55.256,08")]
    [6907.01, 55256.08]
    """
    text = _without_marks(text)
    return _finite(text) if re.fullmatch(_NUMBER, text := _unseparated(text, decimal_comma), re.IGNORECASE) else None


def quantity(text: str, *, decimal_comma: bool = False) -> tuple[float, str] | None:
    """Return a number and the unit behind it, in lower case; ``None`` where the text does not begin with a number.

    >>> quantity("80GB"), quantity("~1.3 B"), quantity("512 GPUs"), quantity("53.3 %"), quantity("H100")
    ((80.0, 'gb'), (1.3, 'b'), (512.0, ''), (53.3, '%'), None)
    """
    found = _WRITTEN.fullmatch(_unseparated(_without_marks(text), decimal_comma))
    value = None if found is None else _finite(found[1])
    if found is None or value is None:
        return None
    unit = found[2].strip().lower()
    return value, "" if re.fullmatch(_COUNTED, unit) else unit


def scaled_number(text: str, *, binary: bool = False, decimal_comma: bool = False) -> float | None:
    """Return a number with an optional suffix (k, M, B, T) or a counted noun, ``None`` where the text is neither.

    Args:
        text: the cell.
        binary: whether k and M are powers of two.
        decimal_comma: whether a comma is the decimal sign.

    >>> [scaled_number(text) for text in ("7B", "350M", "1.3 billion", "50k tokens", "512 GPUs", "large")]
    [7000000000.0, 350000000.0, 1300000000.0, 50000.0, 512.0, None]
    >>> scaled_number("4k", binary=True)
    4096.0
    """
    found = quantity(text, decimal_comma=decimal_comma)
    if found is None:
        return None
    value, unit = found
    suffix = re.sub(rf"(?<=[a-z0-9])\s+{_COUNTED}$", "", unit)
    suffix = {"thousand": "k", "million": "m", "billion": "b", "trillion": "t"}.get(suffix, suffix)
    scales = {"": 1.0, **_SUFFIXES, **(SCALE_OF_BINARY if binary else {})}
    return value * scales[suffix] if suffix in scales else None


def gibibytes(text: str, *, unit: str = "gib", decimal_comma: bool = False) -> float | None:
    """Return a memory size in GiB, ``None`` where the text is none. GB counts as GiB, as most tools print it.

    Args:
        text: the cell.
        unit: of a bare number, as the heading says; GiB where it says another word, such as "rank 0".
        decimal_comma: whether a comma is the decimal sign.

    >>> [gibibytes(text) for text in ("38.3 GB", "40960MiB", "80", "large")], gibibytes("2048", unit="mb/gpu")
    ([38.3, 40.0, 80.0, None], 2.0)
    """
    found = quantity(text, decimal_comma=decimal_comma)
    if found is None:
        return None
    stated = {"g": "gb", "m": "mb", "b": "bytes"}.get(found[1], memory_unit(found[1]))
    scale = _BYTES_IN_GIB.get(stated if found[1] else memory_unit(unit) if is_memory_unit(unit) else "gib")
    return None if scale is None else found[0] * scale


def memory_unit(text: str) -> str:
    """Return a unit without the device that it is of, in lower case.

    >>> [memory_unit(text) for text in ("GiB/GPU", "MB per device", "GB")]
    ['gib', 'mb', 'gb']
    """
    return re.sub(r"\s*(?:/|per)\s*(?:gpu|device|rank|card|accelerator|chip|tpu)s?$", "", text.strip().lower())


def seconds(text: str, *, unit: str = "s", decimal_comma: bool = False) -> float | None:
    """Return a duration in seconds, ``None`` where the text is none.

    >>> [seconds(text) for text in ("1.5s", "500 ms", "2 min", "7 days")], seconds("250", unit="ms")
    ([1.5, 0.5, 120.0, None], 0.25)
    """
    found = quantity(text, decimal_comma=decimal_comma)
    scale = None if found is None else _SECONDS.get(re.sub(r"\s*(?:/|per)\s*\w+$", "", found[1]) or unit)
    return None if found is None or scale is None else found[0] * scale


def states_time(text: str) -> bool:
    """Return whether a cell is a duration with its unit, such as 1.2s or 350 ms.

    >>> [states_time(text) for text in ("350 ms", "1.2s", "41,000", "12 tokens/s")]
    [True, True, False, False]
    """
    found = quantity(text)
    return found is not None and re.sub(r"\s*(?:/|per)\s*\w+$", "", found[1]) in _SECONDS


def is_time_unit(word: str) -> bool:
    """Return whether a word is a unit of time."""
    return word in _SECONDS


def is_memory_unit(word: str) -> bool:
    """Return whether a word is a unit of memory."""
    return memory_unit(word) in _BYTES_IN_GIB


def rate(text: str, *, decimal_comma: bool = False) -> float | None:
    """Return a throughput, with or without its unit behind it; ``None`` where the text is none.

    >>> [rate(text) for text in ("41,000", "28.1k tokens/s", "12 tok/s/GPU", "OOM", "1.2s")]
    [41000.0, 28100.0, 12.0, None, None]
    """
    found = quantity(text, decimal_comma=decimal_comma)
    if found is None:
        return None
    unit = re.sub(rf"\s*{_RATE}$", "", found[1], flags=re.IGNORECASE)
    return found[0] * {"": 1.0, **_SUFFIXES}[unit] if unit in {"", "k", "m"} else None


def _without_marks(text: str) -> str:
    """Return a number without marks of rounding, error and footnotes."""
    text = re.sub(r"\s*(?:±|\+/-|\+-).*$", "", text.strip())
    return re.sub(r"[*†‡§¹²³]+$|\s*\[\d+\]$", "", text.lstrip("~≈≃ ")).strip()


def _unseparated(text: str, decimal_comma: bool) -> str:
    text = _GROUPED.sub(lambda found: re.sub(_SPACES, "", found[0]), text)
    if decimal_comma:
        return re.sub(r"(?<=\d)\.(?=\d{3}(?:\D|$))", "", text).replace(",", ".", 1)
    return re.sub(r"(?<=\d),(?=\d{3}(?:\D|$))", "", text)


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None
