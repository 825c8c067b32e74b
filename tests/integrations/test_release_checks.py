"""The rules of trainers' tables against the trainers' own checks, where the release can be imported.

What the release refuses is never proposed, and what it accepts is not excluded. ``RENEW_GOLDEN=1`` writes the verdicts
of the release to ``tests/data/release_checks.json``, which ``tests/space/trainers/test_release_checks.py`` reads.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integrations.release_checks import CHECKS, deepspeed_batch, hugging_face_precision
from tests.release_cases import DOCUMENTED, generated, is_legal
from torchx_cubicml.space.trainers import TRAINERS

if TYPE_CHECKING:
    from tests.release_cases import ReleaseCase

GOLDEN = Path(__file__).parents[1] / "data" / "release_checks.json"
PACKAGES = {"megatron-lm": ("megatron.training.arguments", "megatron-core"), "torchtitan": ("torchtitan", "torchtitan")}
N_CASES = int(os.environ.get("CASES", "60"))


def judged(trainer: str, n_cases: int) -> list[tuple[ReleaseCase, str | None]]:
    """Cases whose own command the release accepts, with its verdict on the proposed one."""
    check, found = CHECKS[trainer], []
    for seed in count():
        case = generated(trainer, seed)
        if check(case.command(case.own), case.world_size) is None:
            found.append((case, check(case.command(case.proposed), case.world_size)))
        if len(found) == n_cases:
            return found
    return []


@pytest.mark.parametrize("trainer", CHECKS)
def test_our_rules_agree_with_the_release(trainer: str) -> None:
    module, package = PACKAGES[trainer]
    pytest.importorskip(module)
    verdicts = judged(trainer, N_CASES)
    agreed = Counter[tuple[bool, bool]]()
    for case, refused in verdicts:
        legal = is_legal(case, ignored=DOCUMENTED.get(trainer, ()))
        assert legal == (refused is None), (case, refused)
        agreed[refused is None, legal] += 1
    assert min(agreed.values()) > N_CASES // 10
    if os.environ.get("RENEW_GOLDEN"):
        known = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
        assert version(package) in TRAINERS[trainer].release.version
        cases = [{**asdict(case), "refused": refused} for case, refused in verdicts]
        GOLDEN.write_text(json.dumps(known | {trainer: cases}, indent=None) + "\n")


@pytest.mark.parametrize("micro_batch", [1, 2, 3, 4, 5, 6, 8, 12, 24, 48])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_deepspeed_takes_the_batches_that_we_derive(micro_batch: int, world_size: int) -> None:
    pytest.importorskip("deepspeed")
    accepted = deepspeed_batch(24, micro_batch, world_size)
    assert accepted == (24 % (micro_batch * world_size) == 0)


@pytest.mark.parametrize(("bf16", "fp16"), [(False, False), (True, False), (False, True), (True, True)])
def test_transformers_takes_one_half_precision(bf16: bool, fp16: bool) -> None:
    pytest.importorskip("transformers")
    assert hugging_face_precision(bf16=bf16, fp16=fp16) == (not (bf16 and fp16))
