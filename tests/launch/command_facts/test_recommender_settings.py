"""Facts of a recommender's command: from its arguments and the defaults in its source, each with its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.launch.command_facts.command_facts import facts_of_command
from torchx_cubicml.launch.command_facts.recorded_commands import with_command_facts
from torchx_cubicml.launch.launch import Launch
from torchx_cubicml.records.trial import State, Trial

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """
import argparse
from torchrec.datasets.criteo import DEFAULT_CAT_NAMES, DEFAULT_INT_NAMES
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.models.dlrm import DLRM
parser = argparse.ArgumentParser()
parser.add_argument("--num_embeddings", type=int, default=100_000)
parser.add_argument("--num_embeddings_per_feature", type=str, default=None)
parser.add_argument("--embedding_dim", type=int, default=64)
parser.add_argument("--dense_arch_layer_sizes", type=str, default="512,256,64")
parser.add_argument("--over_arch_layer_sizes", type=str, default="512,512,256,1")
parser.add_argument("--batch_size", type=int, default=32)
"""


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    (tmp_path / "dlrm_main.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    words = ("--num_embeddings", "2000", "--batch_size=128")
    return Launch(program="dlrm_main.py", script_args=words, world_size=2, scheduler="local_cwd")


def test_facts_come_with_their_places(launch: Launch) -> None:
    found = facts_of_command(launch)
    assert found.facts["embedding_rows"] == (2000,) * 26
    assert found.facts["embedding_dims"] == (64,) * 26
    dense, over = 14 * 512 + 513 * 256 + 257 * 64, (64 + 26 + 325 + 1) * 512 + 513 * 512 + 513 * 256 + 257
    assert found.facts["n_params"] == 2000 * 64 * 26 + dense + over
    assert found.facts["micro_batch_size"] == 128
    assert found.sources["embedding_rows"] == "--num_embeddings, default in dlrm_main.py"
    assert found.unknown == ("device",)
    assert not found.facts.keys() & {"vocab_size", "d_model", "n_layers"}


def test_tables_that_a_user_states_make_any_program_a_recommender(launch: Launch) -> None:
    (stated,) = [{"embedding_rows": (10, 20), "embedding_dims": (4, 4)}]
    found = facts_of_command(Launch(program="other.py", world_size=1), stated=stated)
    assert found.sources["embedding_rows"] == "--fact"
    assert "n_layers" not in found.unknown
    assert "layer_n_params" in found.unknown


def test_recorded_launches_get_the_facts_of_their_own_commands(launch: Launch) -> None:
    words = ("--num_embeddings", "50", "--batch_size=8")

    def trial(program: str, observed: dict[str, int]) -> Trial:
        workload = {"program": program, "world_size": 1}
        return Trial(
            trial_id=program, workload=workload, config={}, observed=observed, arguments=words, state=State.COMPLETED
        )

    own, other = with_command_facts([trial("dlrm_main.py", {"micro_batch_size": 4}), trial("x.py", {})], launch)
    assert own.observed["embedding_rows"] == (50,) * 26
    assert own.observed["micro_batch_size"] == 4  # as it was observed
    assert "embedding_rows" not in other.observed
