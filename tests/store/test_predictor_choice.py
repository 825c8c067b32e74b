from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from torchx_cubicml.store.predictor_choice import append_choice, latest_choice


def put(store: Path, name: str, content: bytes) -> None:
    day = store / "choices" / "events" / "2026-01-01"
    day.mkdir(parents=True, exist_ok=True)
    (day / name).write_bytes(content)


def test_the_latest_choice_counts(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    assert latest_choice(url) == ""
    append_choice(url, "forest", why={"rank": 0.5})
    append_choice(f"{url}/", "linear", why={})
    assert latest_choice(url) == latest_choice(f"{url}//") == "linear"
    first, second = sorted(Path(url, "choices", "events").glob("*/*.json"))
    assert first.read_bytes() == b'{"schema": 1, "predictor": "forest", "why": {"rank": 0.5}}\n'
    assert json.loads(second.read_text())["predictor"] == "linear"
    assert re.fullmatch(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{16}\.json", first.name)
    assert first.name[:8] == first.parent.name.replace("-", "")


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (json.dumps({"predictor": "x" * 64}).encode(), "x" * 64),
        (json.dumps({"predictor": "x" * 65}).encode(), ""),
        (b'{"predictor": "a.b"}', ""),
        (b'{"predictor": ""}', ""),
        (b'{"predictor": 5}', ""),
        (b'{"predictors": "a"}', ""),
        (b'["predictor"]', ""),
        (b"{", ""),
        (b"[" * 100_000, ""),
        (b"\xff", ""),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_only_a_legal_name_is_returned(tmp_path: Path, content: bytes, name: str) -> None:
    put(tmp_path, "1.json", b'{"predictor": "earlier"}')
    assert latest_choice(str(tmp_path)) == "earlier"
    put(tmp_path, "2.json", content)
    assert latest_choice(str(tmp_path)) == name


def test_an_unreadable_choice_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "1.json", b'{"predictor": "a"}')
    monkeypatch.setattr("torchx_cubicml.store.local._read_file", lambda _: OSError(5, "Input/output error"))
    assert latest_choice(str(tmp_path)) == ""
