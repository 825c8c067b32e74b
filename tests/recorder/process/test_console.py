from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.process.console import notice, warn

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    notice("recording to /store")
    warn("the store\nsays token=abc")
    assert capsys.readouterr().err == (
        "torchx-cubicml: recording to /store\ntorchx-cubicml: warning: the store says token=***\n"
    )


def test_a_closed_stderr_is_harmless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    closed = (tmp_path / "x").open("w")
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    warn("unheard")
    monkeypatch.setattr(sys, "stderr", None)
    warn("unheard")
