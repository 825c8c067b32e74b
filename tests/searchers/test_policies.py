from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import chisquare

from torchx_cubicml.searchers.policies import Policies, _pick
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.encoding import legal_rows, vectors_of
from torchx_cubicml.space.expression import parse_expression

FALSE_ALARM = 1e-4  # of each statistical test


def space_of(*constraints: str, n_layers: int = 3) -> SearchSpace:
    return SearchSpace(
        parameters=(
            Parameter(name="layers", choices=("a", "b"), per_layer=n_layers),
            Parameter(name="batch", choices=(1, 2, 4, 8)),
            Parameter(name="degree", choices=(1, 2, 4)),
        ),
        constraints=tuple(parse_expression(text, where="constraints") for text in constraints),
    ).bind(workload={"world_size": 8}, current={})


SPACES = pytest.mark.parametrize(
    "space",
    [space_of(), space_of("batch * degree <= 8"), space_of("batch < 8 or degree == 1", "batch * degree <= 8")],
    ids=["free", "tied", "two rules"],
)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def policies_of(space: SearchSpace, n_searches: int = 2) -> Policies:
    return Policies(space, n_searches=n_searches, learning_rate=0.1)


@SPACES
def test_uniform_policies_draw_legal_configs_uniformly(space: SearchSpace, rng: np.random.Generator) -> None:
    drawn = policies_of(space).draw(6000, rng)
    for search in drawn:
        counts = Counter(map(tuple, search.tolist()))
        assert len(counts) == space.size()
        assert chisquare(list(counts.values())).pvalue > FALSE_ALARM


def test_legal_draws_follow_the_policies(rng: np.random.Generator) -> None:
    space = space_of("batch * degree <= 8")
    policies = policies_of(space, n_searches=1)
    policies.logits = policies.logits + rng.normal(size=policies.logits.shape)
    rows = vectors_of(space, list(space.configs()))
    chances = policies.probabilities[0][np.arange(rows.shape[1]), rows].prod(axis=1)
    counts = Counter(map(tuple, policies.draw(20_000, rng)[0].tolist()))
    seen = np.array([counts[tuple(row)] for row in rows.tolist()])
    assert chisquare(seen, 20_000 * chances / chances.sum()).pvalue > FALSE_ALARM


def test_policies_settled_on_illegal_values_draw_legal_configs(rng: np.random.Generator) -> None:
    space = space_of("batch * degree <= 8")
    policies = policies_of(space)
    policies.logits[:, -2, 3] = policies.logits[:, -1, 2] = 2000.0  # batch 8 and degree 4
    assert legal_rows(space, policies.draw(50, rng).reshape(100, -1)).all()


def test_uncountable_constraints_hold_too(rng: np.random.Generator) -> None:
    space = SearchSpace(
        parameters=(Parameter(name="sizes", choices=tuple(range(1, 40)), per_layer=30),),
        constraints=(parse_expression("max(sizes) < 39", where="constraints"),),
    )
    bound = space.bind(workload={"world_size": 8}, current={})
    policies = Policies(bound, n_searches=2, learning_rate=0.1)
    policies._without_diagram, policies._diagrams, policies._free = [list(range(30))], [], []
    drawn = policies.draw(60, rng).reshape(120, -1)
    assert legal_rows(bound, drawn).all()
    assert len(np.unique(drawn, axis=0)) > 110


def test_learning_makes_what_was_better_likelier(rng: np.random.Generator) -> None:
    policies = policies_of(space_of())
    for _ in range(60):
        drawn = policies.draw(64, rng)
        worth = np.stack([drawn[0, :, 0] == 1, drawn[1, :, 3] == 2]).astype(float)
        policies.learn(drawn, worth - worth.mean(axis=1, keepdims=True), entropy=0.0)
    assert policies.probabilities[0, 0, 1] > 0.9
    assert policies.probabilities[1, 3, 2] > 0.9
    assert policies.probabilities[1, 0, 1] < 0.9  # searches learn from their own draws alone


def test_the_gradient_is_that_of_the_expected_score(rng: np.random.Generator) -> None:
    space = space_of("batch * degree <= 8", n_layers=1)
    policies = policies_of(space, n_searches=1)
    policies.logits = policies.logits + 0.5 * rng.normal(size=policies.logits.shape)
    rows = vectors_of(space, list(space.configs()))
    worth = rng.normal(size=len(rows))

    def expected(logits: np.ndarray) -> float:
        policies.logits = logits
        chances = policies.probabilities[0][np.arange(rows.shape[1]), rows].prod(axis=1)
        return float(chances @ worth / chances.sum())

    start = policies.logits.copy()
    gradient = np.zeros_like(start)
    for place in zip(*np.nonzero(np.isfinite(start)), strict=True):
        moved = start.copy()
        moved[place] += 1e-5
        gradient[place] = (expected(moved) - expected(start)) / 1e-5
    policies.logits = start
    index = {tuple(row): number for number, row in enumerate(rows.tolist())}
    drawn = policies.draw(200_000, rng)
    scores = np.array([[worth[index[tuple(row)]] for row in drawn[0].tolist()]])
    taken: list[np.ndarray] = []
    policies._ascend = taken.append
    policies.learn(drawn, scores - scores.mean(), entropy=0.0)
    np.testing.assert_allclose(taken[0], gradient, atol=0.015)  # five standard errors of 200,000 draws


def test_entropy_keeps_policies_from_settling(rng: np.random.Generator) -> None:
    policies = policies_of(space_of())
    policies.logits[:, 0, 1] = 3.0
    before = policies.probabilities[:, 0, 1]
    drawn = policies.draw(8, rng)
    policies.learn(drawn, np.zeros(drawn.shape[:2]), entropy=0.1)
    assert (policies.probabilities[:, 0, 1] < before).all()
    assert np.isneginf(policies.logits[:, 0, 2]).all()  # a choice that a layer lacks


def test_uncountable_groups_follow_their_policies(rng: np.random.Generator) -> None:
    space = SearchSpace(
        parameters=tuple(Parameter(name=name, choices=tuple(range(1, 801))) for name in "abcd"),
        constraints=tuple(parse_expression(text, where="constraints") for text in ("a + b >= 100", "c + d >= 100")),
    ).bind(workload={"world_size": 1}, current={})
    policies = Policies(space, n_searches=1, learning_rate=0.1)
    policies.logits[:, :, 700] = 50.0
    assert (policies.draw(20, rng) == 700).all()


def entropies(policies: Policies) -> np.ndarray:
    """Entropy of each search's policies."""
    chances = policies.probabilities
    return -np.where(chances > 0, chances * np.log(np.maximum(chances, 1e-300)), 0.0).sum(axis=(1, 2))


def test_the_second_gradient_is_that_of_the_entropy(rng: np.random.Generator) -> None:
    policies = policies_of(space_of())
    policies.logits = policies.logits + rng.normal(size=policies.logits.shape)
    start, drawn = policies.logits.copy(), policies.draw(8, rng)
    gradient = np.zeros_like(start)
    for place in zip(*np.nonzero(np.isfinite(start)), strict=True):
        up, down = start.copy(), start.copy()
        up[place], down[place] = start[place] + 1e-5, start[place] - 1e-5
        policies.logits = up
        above = entropies(policies)
        policies.logits = down
        gradient[place] = (above - entropies(policies))[place[0]] / 2e-5
    policies.logits = start
    taken: list[np.ndarray] = []
    policies._ascend = taken.append
    policies.learn(drawn, np.zeros(drawn.shape[:2]), entropy=0.3)
    np.testing.assert_allclose(taken[0], 0.3 * gradient, atol=1e-7)


def test_steps_are_those_of_adam() -> None:
    policies = policies_of(space_of(n_layers=1))
    start = policies.logits.copy()
    gradients = np.random.default_rng(1).normal(size=(4, *start.shape))
    first = second = np.zeros_like(start)
    wanted = start
    for step, gradient in enumerate(gradients, start=1):
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        wanted = wanted + 0.1 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        policies._ascend(gradient)
        np.testing.assert_allclose(policies.logits, wanted, rtol=1e-9, atol=1e-9)


def test_a_choice_without_weight_is_never_picked() -> None:
    weights = np.array([[0.0, 1.0, 3.0, 0.0]] * 5)
    assert _pick(weights, np.array([0.0, 0.2, 0.25, 0.3, 1 - 2**-53])).tolist() == [1, 1, 2, 2, 2]


def test_long_chains_of_ties_do_not_underflow(rng: np.random.Generator) -> None:
    names = [f"p{number}" for number in range(60)]
    space = SearchSpace(
        parameters=tuple(Parameter(name=name, choices=(1, 2, 3)) for name in names),
        constraints=tuple(
            parse_expression(f"{one} + {other} <= 4", where="constraints") for one, other in pairwise(names)
        ),
    ).bind(workload={"world_size": 1}, current={})
    policies = policies_of(space, n_searches=3)
    assert legal_rows(space, policies.draw(50, rng).reshape(150, -1)).all()
    policies.logits[1, :, 2] = 2000.0  # two large neighbours break each rule
    policies.logits[2, :, 1] = 2000.0
    drawn = policies.draw(50, rng)
    assert legal_rows(space, drawn.reshape(150, -1)).all()
    assert (drawn[2] == 1).all()


def test_rejection_gives_up_for_a_few_uniform_rows(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    space = SearchSpace(
        parameters=tuple(Parameter(name=name, choices=tuple(range(1, 801))) for name in "abcd"),
        constraints=tuple(parse_expression(text, where="constraints") for text in ("a + b >= 100", "c + d >= 100")),
    ).bind(workload={"world_size": 1}, current={})
    policies = policies_of(space)
    policies.logits[1, :, 0] = 2000.0  # nothing but ones
    asked: list[int] = []

    def counted(space: SearchSpace, rows: np.ndarray, *, within: list[int]) -> np.ndarray:
        asked.append(len(rows))
        return legal_rows(space, rows, within=within)

    monkeypatch.setattr("torchx_cubicml.searchers.policies.legal_rows", counted)
    drawn = policies.draw(100, rng)
    assert legal_rows(space, drawn.reshape(200, -1)).all()
    pairs = [{tuple(row) for row in drawn[1][:, columns].tolist()} for columns in ([0, 1], [2, 3])]
    assert [len(each) for each in pairs] == [64, 64]
    assert len(asked) == 10  # five times each group
    assert asked[0] == asked[5] == 200
    assert asked[1] < 110
