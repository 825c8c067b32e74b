"""What is claimed of gains where every measurement is off by chance; each test states its false-alarm rate."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.history.history import History
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.rewrite.choice import Choice, advise, apply_rules
from torchx_cubicml.rewrite.rules import held
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Config, Value

SPACE = parse_space(
    "[parameters.a]\nchoices = [1, 2, 4, 8]\nflag = '--a'\n[parameters.b]\nchoices = ['x', 'y', 'z']\nflag = '--b'\n",
    where="space.toml",
)
CONFIGS: list[Config] = [{"a": a, "b": b} for a, b in product([1, 2, 4, 8], "xyz")]
WORKLOAD: dict[str, Value] = {"program": "train.py", "world_size": 2}
STORES = 20


def launched(seed: int, *, noise: float, n_configs: int, repeats: int, gain: float = 1.0) -> tuple[Choice, Config]:
    """Return what is chosen from measurements of configs of one speed, and the one config that is faster by ``gain``.

    Which configs were run is drawn, and so is the user's own.
    """
    rng = np.random.default_rng(seed)
    own, faster, *others = (CONFIGS[index] for index in rng.permutation(len(CONFIGS))[:n_configs])
    trials = [
        Trial.completed(
            workload=WORKLOAD,
            config=config,
            tokens_per_second=1000.0 * (gain if config is faster else 1.0) * float(np.exp(rng.normal(0, noise))),
        )
        for config in (own, faster, *others)
        for _ in range(repeats)
    ]
    case = History(space=SPACE, held=held(SPACE), workload=WORKLOAD, current=own, trials=trials)
    suggestion = advise(case)
    assert suggestion is not None
    return apply_rules(case, suggestion), faster


@pytest.mark.parametrize(
    ("noise", "n_configs", "repeats"),
    [(0.02, 12, 1), (0.05, 12, 1), (0.1, 4, 4)],
    ids=["quiet, each once", "noisy, each once", "loud, four times"],
)
def test_without_gains_nine_in_ten_stay_as_typed(noise: float, n_configs: int, repeats: int) -> None:
    """Six or more of 20 happen to a rule of one in ten once in 90 times (binomial), and the seeds are fixed."""
    changed = sum(
        not launched(seed, noise=noise, n_configs=n_configs, repeats=repeats)[0].rejection_reason
        for seed in range(STORES)
    )
    assert changed <= 5


@pytest.mark.parametrize(
    ("noise", "n_configs", "repeats", "gain"),
    [(0.02, 6, 1, 1.6), (0.05, 6, 4, 1.25)],
    ids=["quiet, each once", "noisy, four times"],
)
def test_a_real_gain_is_found_within_its_interval(noise: float, n_configs: int, repeats: int, gain: float) -> None:
    """A rule that finds nine in ten misses six or more of 20 once in 90 times."""
    found = [launched(seed, noise=noise, n_configs=n_configs, repeats=repeats, gain=gain) for seed in range(STORES)]
    assert sum(not choice.rejection_reason and choice.config == faster for choice, faster in found) >= 15
    claims = [choice.suggestion for choice, _ in found if not choice.rejection_reason]
    gains = [np.log(claim.gain / gain) for claim in claims if claim.gain]
    assert -0.1 < np.mean(gains) < 0.03, "on the average the promise is right, or modest"
