"""A tune learns from earlier launches only if they did the same work."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.tune.cluster import SimulatedCluster
from tests.tune.draws import Draws, go, prepare_in, stored
from torchx_cubicml import settings
from torchx_cubicml.launch.config_io import present_command
from torchx_cubicml.records.arguments import KEY_ID, digested_arguments, text_digest
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.store import TrialStore
from torchx_cubicml.store.digest_key import made_digest_key
from torchx_cubicml.tuner import Budget, Launching, Prepared, prepare

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.advisor import Suggestion
    from torchx_cubicml.tuner.proposer import Snapshot


class Watching(Draws):
    """Advisor that notes the trials that it is asked with."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def suggest(self, snapshot: Snapshot) -> list[Suggestion]:
        self.seen |= {trial.trial_id for trial in snapshot.trials}
        return super().suggest(snapshot)


def launched_before(prepared: Prepared, width: int, *words: str) -> Trial:
    key = made_digest_key(prepared.store_url)
    trial = Trial.completed(
        workload=prepared.workload, config={"micro_batch_size": 1, "width": width}, samples_per_second=100.0 * width
    )
    arguments = digested_arguments(("--batch_size", "1", "--width", str(width), *words), key)
    command = present_command(prepared.component.launch, prepared.space)  # the variables of this machine are the same
    digests = {name: text_digest(text, key) for name, text in {KEY_ID: "", **command.texts}.items()}
    trial = replace(trial, arguments=arguments, digests=digests)
    TrialStore(prepared.store_url).add(trial)
    return trial


@pytest.mark.parametrize("variable", ["", "KMP_INIT_AT_FORK"])  # a library may have set it in this process
@pytest.mark.parametrize(("length", "is_learned_from"), [("512", False), ("2048", True)])
def test_launches_with_another_undeclared_setting_are_not_learned_from(
    tmp_path: Path, length: str, is_learned_from: bool, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable:
        monkeypatch.setattr(settings, "_NOT_SET_AT_START", ())
        monkeypatch.setenv(variable, "FALSE")
    request = prepare_in(tmp_path).request
    words = (*request.component_args, "--seq_len", "2048")
    prepared = prepare(replace(request, component_args=words, budget=Budget(launches=4), parallel=1))
    earlier = {launched_before(prepared, width, "--seq_len", length).trial_id for width in (1, 64)}
    advisor = Watching()
    cluster = SimulatedCluster(seed=1, fates=("done",), run_s=(5.0, 20.0))
    steps = go(prepared, cluster, advisor)
    assert (earlier <= advisor.seen) is is_learned_from
    assert (not earlier & advisor.seen) is not is_learned_from
    first = next(step.purpose for step in steps if isinstance(step, Launching))
    assert (first == "search") is is_learned_from  # the own config was measured before
    assert advisor.seen - earlier <= {trial.trial_id for trial in stored(prepared)}
