"""``suggest`` learns from launches that did the same work."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.cli import suggest
from torchx_cubicml.launch import ComponentLaunch, read_config
from torchx_cubicml.records.arguments import KEY_ID, digested_arguments, text_digest
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space.toml import load_space
from torchx_cubicml.store import TrialStore
from torchx_cubicml.store.digest_key import made_digest_key

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("length", "is_used"), [("512", False), ("2048", True)])
def test_launches_with_another_undeclared_setting_are_left_out(tmp_path: Path, length: str, is_used: bool) -> None:
    space, url = tmp_path / "space.toml", str(tmp_path / "store")
    space.write_text("[parameters.micro_batch_size]\nchoices = [1, 2]\nflag = '--batch'\n")
    words = ("--batch", "1", "--seq_len")
    component = ComponentLaunch.parse("dist.ddp", ("-j", "1x2", "--script", "train.py", "--", *words, "2048"))
    workload, config = read_config(component.launch, load_space(str(space)))
    key = made_digest_key(url)
    trial = replace(
        Trial.completed(workload=workload, config=config, tokens_per_second=9.0),
        arguments=digested_arguments((*words, length), key),
        digests={KEY_ID: text_digest("", key)},
    )
    TrialStore(url).add(trial)
    found = suggest._read_context(component, argparse.Namespace(space=str(space), store=url))
    assert [each.trial_id for each in found.trials] == ([trial.trial_id] if is_used else [])
