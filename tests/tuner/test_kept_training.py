from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.tune.cluster import SimulatedCluster
from tests.tune.draws import Draws, go, prepare_in, suggestion_of
from tests.tune.plans import next_launch, winner_of
from torchx_cubicml.errors import LaunchError, SpaceError
from torchx_cubicml.records.trial import Origin, Trial
from torchx_cubicml.rewrite.rules import batch_change_reason
from torchx_cubicml.space.toml import load_space
from torchx_cubicml.store import TrialStore
from torchx_cubicml.tuner import Budget, Ended, Notice, Prepared, TuneRequest, prepare
from torchx_cubicml.tuner.kept_training import with_kept_batch

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.advisor import Suggestion
    from torchx_cubicml.tuner.proposer import Snapshot

MICRO = '[parameters.micro_batch_size]\nchoices = [2, 4, 8, 16, 32]\nflag = "--micro-batch-size"\n'
ACCUMULATION = '[parameters.gradient_accumulation_steps]\nchoices = [1, 2, 4, 8, 16]\nflag = "--accumulate"\n'
DERIVED = (
    '[parameters.gradient_accumulation_steps]\nderive = "global_batch_size / (micro_batch_size * dp_degree)"\n'
    'flag = "--accumulate"\n'
)
WORKERS = '[parameters.num_workers]\nchoices = [0, 1]\nflag = "--num-workers"\n'
DTYPE = '[parameters.dtype]\nchoices = ["fp32", "bf16"]\nflag = "--dtype"\n'
ALLOWED = "changes_training = true\n"
WORDS = ("--micro-batch-size", "2", "--accumulate", "16", "--num-workers", "0", "--dtype", "fp32")


def prepared(folder: Path, space: str, *words: str) -> Prepared:
    (folder / "space.toml").write_text(space)
    request = TuneRequest(
        component="dist.ddp",
        component_args=("-j", "1x2", "--script", "train.py", "--", *(words or WORDS)),
        space=str(folder / "space.toml"),
        store=str(folder / "store"),
        scheduler="local_cwd",
        budget=Budget(launches=12),
    )
    return prepare(request)


def simulate(tune: Prepared) -> list[Trial]:
    """A larger batch is faster, whatever the accumulation."""
    trials: list[Trial] = []
    for left in range(12, 0, -1):
        planned = next_launch(tune, trials, launches_left=left)
        if planned is None:
            break
        speed = 1000.0 * int(planned[1].config["micro_batch_size"]) + len(trials)
        done = Trial.completed(workload=tune.workload, config=planned[1].config, tokens_per_second=speed)
        trials.append(replace(done, origin=Origin.TUNE))
    return trials


def batches(trials: list[Trial]) -> set[int]:
    return {t.config["micro_batch_size"] * t.config["gradient_accumulation_steps"] * 2 for t in trials}


def test_a_tune_proposes_configs_of_the_same_global_batch_alone(tmp_path: Path) -> None:
    tune = prepared(tmp_path, MICRO + ACCUMULATION)
    assert tune.notices == ()
    trials = simulate(tune)
    assert batches(trials) == {64}
    assert {t.config["micro_batch_size"] for t in trials} == {2, 4, 8, 16, 32}
    best, comparison = winner_of(tune, trials, known=frozenset())
    assert best is not None
    assert comparison is not None
    assert comparison.claims_gain
    assert best.config == {"micro_batch_size": 32, "gradient_accumulation_steps": 1}
    space = load_space(tune.request.space)
    facts = {"workload": tune.workload, "current": tune.current}
    assert all(batch_change_reason(space, config=t.config, **facts) == "" for t in trials)


def test_what_is_permitted_is_tried(tmp_path: Path) -> None:
    trials = simulate(prepared(tmp_path, MICRO + ALLOWED + ACCUMULATION + ALLOWED))
    assert len(batches(trials)) > 1


def test_a_permission_of_one_size_is_none_of_the_other(tmp_path: Path) -> None:
    trials = simulate(prepared(tmp_path, MICRO + ALLOWED + ACCUMULATION))
    assert len(batches(trials)) > 1
    assert all(t.config["gradient_accumulation_steps"] == 16 for t in trials if t.config["micro_batch_size"] == 2)


@pytest.mark.parametrize("space", [MICRO + DERIVED, MICRO + ALLOWED, WORKERS], ids=["derived", "allowed", "no-batch"])
def test_other_spaces_stay_as_written(tmp_path: Path, space: str) -> None:
    tune = prepared(tmp_path, space)
    assert tune.notices == ()
    assert tune.space.parameters == load_space(tune.request.space).parameters
    assert tune.space.constraints == ()


def test_a_micro_batch_alone_stays_and_the_notice_has_lines_to_paste(tmp_path: Path) -> None:
    tune = prepared(tmp_path, MICRO + WORKERS)
    (notice,) = tune.notices
    assert notice.startswith("keeping micro_batch_size: another value changes the global batch; to keep it, add to ")
    assert notice.endswith("To allow that, set changes_training = true on micro_batch_size.")
    bound = tune.space.bind(workload=tune.workload, current=tune.current)
    assert [config["micro_batch_size"] for config in bound.configs()] == [2, 2]
    pasted = "\n".join(notice.splitlines()[1:-1])
    mended = prepared(tmp_path, f"{MICRO}{WORKERS}{pasted}\n")
    assert mended.notices == ()
    assert mended.current["gradient_accumulation_steps"] == 16
    assert mended.space.bind(workload=mended.workload, current=mended.current).size() == 10


def test_nothing_left_to_tune_is_refused_before_any_launch(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="nothing is left to tune: keeping micro_batch_size: another value") as error:
        prepared(tmp_path, MICRO)
    assert 'flag = "--accumulate"' in str(error.value)
    with pytest.raises(LaunchError, match="with a script that accumulates gradients"):
        prepared(tmp_path, MICRO, "--micro-batch-size", "2")
    with pytest.raises(LaunchError, match="to allow that, set changes_training = true on gradient_accumulation_steps"):
        prepared(tmp_path, ACCUMULATION)
    with pytest.raises(LaunchError, match="nothing is left to tune: keeping dtype: it changes what is trained"):
        prepared(tmp_path, DTYPE)


def test_choices_without_the_own_batch_are_refused(tmp_path: Path) -> None:
    space = MICRO.replace("[2, 4, 8, 16, 32]", "[3, 5]") + ACCUMULATION
    with pytest.raises(
        LaunchError,
        match=r"no config of .*space.toml keeps the training of your command; add its own values .* to keep it",
    ):
        prepared(tmp_path, space)
    with pytest.raises(SpaceError):
        prepared(tmp_path, f'{space}[[constraints]]\nrequire = "micro_batch_size > 5"\n')


def test_what_changes_the_training_stays_and_the_rest_is_tuned(tmp_path: Path) -> None:
    tune = prepared(tmp_path, DTYPE + WORKERS)
    assert [notice.partition(":")[0] for notice in tune.notices] == ["keeping dtype"]
    configs = list(tune.space.bind(workload=tune.workload, current=tune.current).configs())
    assert configs == [{"dtype": "fp32", "num_workers": 0}, {"dtype": "fp32", "num_workers": 1}]
    allowed = prepared(tmp_path, DTYPE + ALLOWED + WORKERS)
    assert allowed.space.bind(workload=allowed.workload, current=allowed.current).size() == 4


def test_ranks_count_for_the_product(tmp_path: Path) -> None:
    sizes = '[parameters.nproc_per_node]\nchoices = [1, 2, 4]\ntorchrun = "--nproc_per_node"\n'
    tune = prepared(tmp_path, sizes + MICRO + ACCUMULATION)
    configs = list(tune.space.bind(workload=tune.workload, current=tune.current).configs())
    products = {c["nproc_per_node"] * c["micro_batch_size"] * c["gradient_accumulation_steps"] for c in configs}
    assert products == {64}
    assert {config["nproc_per_node"] for config in configs} == {1, 2, 4}


def test_a_batch_of_another_name_is_known_by_its_flag(tmp_path: Path) -> None:
    tune = prepared(tmp_path, MICRO.replace("micro_batch_size", "sequences") + WORKERS)
    assert tune.notices[0].startswith("keeping sequences: another value changes the global batch")
    assert 'derive = "global_batch_size / (sequences * dp_degree)"' in tune.notices[0]


def test_launches_show_what_changes_the_batch_under_any_name(tmp_path: Path) -> None:
    """Two recorded launches differ in the width alone, and were observed with other global batches."""
    tune = prepare_in(tmp_path)
    tune = replace(tune, request=replace(tune.request, budget=Budget(launches=6), parallel=1))
    for width in (1, 2):
        config = {**tune.current, "width": width}
        done = Trial.completed(workload=tune.workload, config=config, samples_per_second=10.0)
        TrialStore(tune.store_url).add(replace(done, observed={"global_batch_size": 8 * width}))
    cluster = SimulatedCluster(seed=1, fates=("done",))
    steps = go(tune, cluster, Legal())
    notices = [step.text for step in steps if isinstance(step, Notice)]
    assert any(text.startswith("keeping width: launches that differ in it had different") for text in notices)
    launched = [step.trial.config for step in steps if isinstance(step, Ended)]
    assert len({config["micro_batch_size"] for config in launched}) > 2
    assert {config["width"] for config in launched} == {1}


def test_a_batch_that_launches_show_leaves_no_config_in_a_space_without_the_own_one(tmp_path: Path) -> None:
    text = '[[constraints]]\nrequire = "width > 1"\n'
    space = '[parameters.width]\nchoices = [1, 2, 4]\nflag = "--width"\n' + WORKERS + text
    tune = prepared(tmp_path, space, "--width", "1", "--num-workers", "0")
    case = {"workload": tune.workload, "current": tune.current, "where": tune.request.space}
    assert with_kept_batch(tune.space, ["num_workers"], **case).parameters[1].choices == (0,)
    with pytest.raises(LaunchError, match=r"depends on width, and no config of .*space\.toml has width = 1 as your"):
        with_kept_batch(tune.space, ["width"], **case)


def test_a_micro_batch_of_a_script_that_keeps_the_global_batch_is_tuned(tmp_path: Path) -> None:
    words = ("--micro-batch-size", "2")
    with pytest.raises(LaunchError, match="nothing is left to tune"):
        prepared(tmp_path, MICRO, *words)
    for micro in (2, 8):
        done = Trial.completed(
            workload={"program": "train.py", "world_size": 2},
            config={"micro_batch_size": micro},
            samples_per_second=9.0,
        )
        seen = {"micro_batch_size": micro, "global_batch_size": 32}
        TrialStore(str(tmp_path / "store")).add(
            replace(done, trial_id=f"{micro}", observed=seen, arguments=("--micro-batch-size", f"{micro}"))
        )
    tune = prepared(tmp_path, MICRO, *words)
    assert tune.notices == ()
    bound = tune.space.bind(workload=tune.workload, current=tune.current)
    assert [config["micro_batch_size"] for config in bound.configs()] == [2, 4, 8, 16]


def test_a_total_in_tokens_frees_the_micro_batch_before_any_launch(tmp_path: Path) -> None:
    facts = '[workload]\nscript_batch_tokens = { flag = "--total" }\nseq_len = 128\n'
    tune = prepared(tmp_path, facts + MICRO, "--micro-batch-size", "2", "--total", "2048")
    bound = tune.space.bind(workload=tune.workload, current=tune.current)
    assert [config["micro_batch_size"] for config in bound.configs()] == [2, 4, 8]


def test_a_tune_ends_where_its_first_launch_had_another_batch_than_computed(tmp_path: Path) -> None:
    default = f"{MICRO}default = 2\n{DERIVED}default = 1\n"
    tune = prepared(tmp_path, default, "--num-workers", "0")
    seen = {"world_size": 2, "micro_batch_size": 4, "gradient_accumulation_steps": 2, "global_batch_size": 16}
    cluster = SimulatedCluster(seed=1, fates=("done",), observed=seen)
    with pytest.raises(LaunchError) as error:
        go(tune, cluster, Legal())
    assert "has batch 2, accumulation 1, global batch 4, but its launch had batch 4" in str(error.value)
    assert "global batch 16" in str(error.value)
    assert len(cluster.jobs) == 1


class Legal(Draws):
    """A quick advisor: draws legal configs."""

    def suggest(self, snapshot: Snapshot) -> list[Suggestion]:
        bound = snapshot.space.bind(workload=snapshot.workload, current=snapshot.current)
        return [suggestion_of(config) for config in bound.sample(1, rng=np.random.default_rng(snapshot.seed))]
