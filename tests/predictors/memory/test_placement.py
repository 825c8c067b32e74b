from __future__ import annotations

import numpy as np
import pytest

from torchx_cubicml.predictors.features.rows import FactRows
from torchx_cubicml.predictors.memory.dominance import DominanceRules
from torchx_cubicml.predictors.memory.order import MemoryOrder
from torchx_cubicml.predictors.memory.placement import OutcomeSpace
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.encoding import drawn_rows
from torchx_cubicml.space.expression import parse_expression

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "mine")
WORKLOAD = {"program": "a.py", "world_size": 2, "seq_len": 512, "global_batch_size": 32}
IF_LARGE = "micro_batch_size > 1"
SPACE = SearchSpace(
    parameters=(
        Parameter(name="micro_batch_size", choices=(1, 2, 4, 8)),
        Parameter(name="sharding_strategy", choices=STRATEGIES, per_layer=4, groups=2),
        Parameter(name="backends", choices=("a", "b"), per_layer=2),
        Parameter(
            name="offload",
            choices=(False, True),
            when=parse_expression("micro_batch_size > 1", where=""),
            default=False,
        ),
        Parameter(
            name="gradient_accumulation_steps",
            derive=parse_expression("global_batch_size // (micro_batch_size * world_size)", where=""),
        ),
    )
)
CURRENT = {
    "micro_batch_size": 2,
    "sharding_strategy": ("FULL_SHARD",) * 4,
    "backends": ("a", "a"),
    "offload": False,
    "gradient_accumulation_steps": 8,
}


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_choices_are_placed_as_rows_of_values(seed: int) -> None:
    rng = np.random.default_rng(seed)
    space = SPACE.bind(workload=WORKLOAD, current=CURRENT)
    order = MemoryOrder.of_space(space.parameters, workload=WORKLOAD, own=CURRENT)
    source = FactRows(space, facts=WORKLOAD, instead={"backends": ("a", "b")} if seed % 2 else {})
    vectors = np.vstack([drawn_rows(space, 150, rng=rng), space.encode(CURRENT)])
    rows = source.at(vectors)
    plain = [dict(row) for row in rows]
    outcomes = [(row, bool(rng.random() < 0.5), f"t{at}") for at, row in enumerate(plain[:: 5 + seed])]
    if seed == 3:  # one value for all layers, and no launch against the rule
        first = [{**row, "sharding_strategy": row["sharding_strategy"][0]} for row, _, _ in outcomes]
        outcomes = [(row, False, "t") for row in first]
    rules = DominanceRules.of(outcomes, order=order)
    assert rules.verdicts(rows) == pytest.approx(rules.verdicts(plain), nan_ok=True)
    among, of_values = rules.space.place(rows), rules.space.place(plain)
    assert (among.group >= 0).sum() > 10
    for name in ("group", "low", "high"):
        assert np.array_equal(getattr(among, name), getattr(of_values, name)), name
    assert np.array_equal(rules.space.is_own(rows), rules.space.is_own(plain))
    assert rules.space.is_own(rows)[-1] == (seed % 2 == 0)


def test_rows_that_no_outcome_equals_have_no_group() -> None:
    order = MemoryOrder.of_names(["kind", "micro_batch_size"])
    space = OutcomeSpace.of([{"kind": "a", "micro_batch_size": 1}, {"micro_batch_size": "auto"}], order)
    rows = [
        {"kind": "a", "micro_batch_size": 7},
        {"kind": "b", "micro_batch_size": 7},
        {"micro_batch_size": "auto"},
        {"micro_batch_size": "none"},
        {"kind": "a"},
    ]
    assert space.place(rows).group.tolist() == [0, -1, 1, -1, -1]
