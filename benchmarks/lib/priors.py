"""Public priors without some of their sources, for benchmarks on these sources.

A function that reads a table calls ``leave_out``, so that no predictor of the process, or of one that it starts, uses a
prior that was learned with it. The files hold constants alone; ``scripts/learn-public-prior`` writes them.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "priors"
VARIABLE = "TORCHX_CUBICML_PUBLIC_PRIOR"
_PREFIX = "without-"


def prior_without(*names: str) -> Path:
    """Return the file of the prior without some sources, which may not exist."""
    return FOLDER / f"{_PREFIX}{'-and-'.join(sorted(set(names)))}.json"


def use_prior_without(*names: str) -> None:
    """Let predictors use the prior without exactly these sources.

    Raises:
        FileNotFoundError: there is no such file.
    """
    path = prior_without(*names)
    if not path.exists():
        without = " ".join(f"--without {name}" for name in sorted(set(names)))
        raise FileNotFoundError(f"{path} is not there: write it with scripts/learn-public-prior {without}")
    os.environ[VARIABLE] = str(path)


def use_hand_set() -> None:
    """Let predictors use the hand-set constants alone."""
    os.environ[VARIABLE] = "off"


def leave_out(name: str) -> None:
    """Let predictors use a prior without this source, and without those that were left out before."""
    stem = Path(os.environ.get(VARIABLE, "")).stem
    before = stem.removeprefix(_PREFIX).split("-and-") if stem.startswith(_PREFIX) else []
    use_prior_without(name, *before)
