from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from torchx_cubicml.records.iso_time import parse_time, time_now


@pytest.mark.parametrize("text", ["", "yesterday", "2026-01-01", "2026-01-01T00:00:00", "2026-13-01T00:00:00Z"])
def test_a_text_without_a_time_and_a_zone_is_none(text: str) -> None:
    assert parse_time(text) is None


@pytest.mark.parametrize("text", ["2026-01-01T02:30:00Z", "2026-01-01T04:30:00+02:00", "2026-01-01T02:30:00.000+00:00"])
def test_a_time_with_a_zone_is_read(text: str) -> None:
    assert parse_time(text) == datetime(2026, 1, 1, 2, 30, tzinfo=UTC)


def test_the_present_time_is_told_in_utc_to_the_millisecond() -> None:
    now = time_now()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", now)
    told = parse_time(now)
    assert told is not None
    assert told.utcoffset() == timedelta(0)
