"""Notes of a generated training for its judge: the samples of each micro batch, and each checkpoint.

A copy lies beside each generated script, with a file ``label`` that names the launch, and ``hold`` with the step before
which it waits to be killed.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_HERE = Path(__file__).resolve().parent
_RANK = os.environ.get("RANK", "0")
_LABEL = (_HERE / "label").read_text()
_HOLD = int((_HERE / "hold").read_text()) if (_HERE / "hold").exists() else -1


def saw(step: int, accumulation: int, ids: Iterable[int]) -> None:
    """Note the samples of one micro batch of this rank, as the model receives them."""
    numbers = list(map(int, ids))
    _note("seen", {"step": step, "layout": [len(numbers), accumulation], "ids": numbers})


def saved(step: int, path: str | os.PathLike[str]) -> None:
    """Note a checkpoint after ``step`` steps."""
    if _RANK == "0":
        _note("saved", {"step": step, "path": str(Path(path).absolute())})


def hold(step: int) -> None:
    """Wait for the end of this process, if it is to be killed before this step."""
    if step == _HOLD:
        (_HERE / f"held-{_RANK}").touch()
        time.sleep(600)


def _note(kind: str, note: object) -> None:
    with (_HERE / f"{_LABEL}-{kind}-{_RANK}").open("a") as file:
        file.write(f"{json.dumps(note)}\n")
