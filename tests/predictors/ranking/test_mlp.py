from __future__ import annotations

import numpy as np
import pytest
import torch

from torchx_cubicml.predictors.features.columns import Columns
from torchx_cubicml.predictors.features.history import TrainingTable
from torchx_cubicml.predictors.ranking.mlp import IsotonicCurve, RankingMLP
from torchx_cubicml.predictors.ranking.networks import AMSGrad, RankingSettings, ranking_loss, train_networks
from torchx_cubicml.predictors.ranking.one_hot import OneHot, _Indicators
from torchx_cubicml.records.trial import Trial


def history_of(speeds: dict[int, float], *, repeats: int = 1) -> TrainingTable:
    trials = [
        Trial.completed(workload={"program": "a.py"}, config={"micro_batch_size": size}, tokens_per_second=speed)
        for size, speed in speeds.items()
        for _ in range(repeats)
    ]
    return TrainingTable.from_trials(trials, objective="tokens_per_second")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_the_loss_is_torchs_own(margin: float) -> None:
    source = torch.Generator().manual_seed(0)
    scores, target = torch.randn(12, 3, generator=source, requires_grad=True), torch.randn(12, generator=source)
    ours = ranking_loss(scores, target, torch.ones(12, 3), margin=margin)
    one, other = torch.triu_indices(12, 12, offset=1)
    sign = torch.sign(target[one] - target[other])
    criterion = torch.nn.MarginRankingLoss(margin=margin)
    theirs = sum(criterion(scores[one, member], scores[other, member], sign) for member in range(3))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(loss, scores, retain_graph=True)[0] for loss in (ours, theirs)))


def test_the_optimizer_is_torchs_own() -> None:
    source = torch.Generator().manual_seed(0)
    ours = torch.randn(4, 3, generator=source)
    theirs = ours.clone().requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=0.05, weight_decay=0.1, amsgrad=True)
    same = AMSGrad([ours], learning_rate=0.05, weight_decay=0.1)
    for step in range(20):
        gradient = torch.randn(4, 3, generator=source) / (1.0 + step)
        theirs.grad = gradient.clone()
        optimizer.step()
        same.step([gradient])
    torch.testing.assert_close(ours, theirs.detach())


def test_equal_pairs_and_trials_outside_the_bag_are_ignored() -> None:
    scores = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
    target, member = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    # The first network: pairs 0-2 and 1-2, both the wrong way round, by 2 and 1. The second: pair 0-2 alone.
    assert ranking_loss(scores, target, member, margin=0.5).item() == pytest.approx((2.5 + 1.5) / 2 + 2.5)
    assert ranking_loss(scores, torch.ones(3), member, margin=0.5).item() == 0.0


def test_numbers_are_one_hot_and_shared_between_neighbours() -> None:
    rows = [{"size": 1}, {"size": 4}, {"size": 16}]
    columns = Columns.from_rows(rows)
    one_hot = OneHot.of(columns.encode(rows), columns, knots=(8,))
    assert one_hot.encode(columns.encode(rows)).tolist() == np.eye(3).tolist()
    asked = columns.encode([{"size": 2}, {"size": 64}, {"size": 0.5}, {}])
    encoded = one_hot.encode(asked)
    np.testing.assert_allclose(encoded, [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0] * 3], atol=1e-6)


def test_two_values_give_a_trend_that_levels_off() -> None:
    columns = Columns.from_rows([{"size": 1}, {"size": 4}])
    one_hot = OneHot.of(columns.encode([{"size": 1}, {"size": 4}]), columns, knots=(2, 4))
    assert one_hot.width == 2  # the finer set would be the same
    encoded = one_hot.encode(columns.encode([{"size": 2}, {"size": 8}, {"size": 4096}, {"size": -1}]))
    np.testing.assert_allclose(encoded, [[0.5, 0.5], [-0.5, 1.5], [-1.0, 2.0], [1.0, 0.0]], atol=1e-6)


def test_many_numbers_share_few_indicators() -> None:
    rows = [{"size": size} for size in range(1, 100)]
    columns = Columns.from_rows(rows)
    one_hot = OneHot.of(columns.encode(rows), columns, knots=(2, 5))
    encoded = one_hot.encode(columns.encode(rows))
    assert one_hot.width == 7
    np.testing.assert_allclose(encoded[:, :2].sum(axis=1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(encoded[:, 2:].sum(axis=1), 0.3, rtol=1e-6)


def test_categories_missing_values_and_layers() -> None:
    rows = [{"word": "a", "seen": True, "layers": ("x", "y")}, {"word": "b", "layers": ("y", "y")}, {"word": "a"}]
    columns = Columns.from_rows(rows)
    one_hot = OneHot.of(columns.encode(rows), columns, knots=(2, 4))
    by_name = {columns.names[item.index]: item for item in one_hot.sets}
    assert by_name["seen"].missing
    assert by_name["word"].weight == 1.0
    assert by_name["layers[0]"].weight == by_name["layers[1]"].weight == pytest.approx(0.5**0.5)
    unknown = one_hot.encode(columns.encode([{"word": "c", "seen": True, "layers": ("z", "z")}]))
    start = sum(item.width for item in one_hot.sets if columns.names[item.index] < "word")
    assert unknown[0, start : start + 2].tolist() == [0.0, 0.0]


def test_constant_columns_have_no_indicator() -> None:
    rows = [{"size": 4, "word": "a", "other": 1}, {"size": 4, "word": "a", "other": 2}]
    columns = Columns.from_rows(rows)
    assert [columns.names[item.index] for item in OneHot.of(columns.encode(rows), columns, knots=(4,)).sets] == [
        "other"
    ]


def test_the_curve_rises_through_what_was_measured(rng: np.random.Generator) -> None:
    scores = rng.normal(size=200)
    curve = IsotonicCurve.through(scores, 2.0 * scores + 0.1 * rng.normal(size=200), np.ones(200))
    asked = np.linspace(-6.0, 6.0, 500)
    assert (np.diff(curve(asked)) > 0).all()
    np.testing.assert_allclose(curve(asked), 2.0 * asked, atol=0.3)


def test_the_curve_pools_what_falls() -> None:
    curve = IsotonicCurve.through(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 2.0, 1.0, 3.0]), np.ones(4))
    assert curve.scores.tolist() == [0.0, 1.5, 3.0]
    assert curve.values.tolist() == [0.0, 1.5, 3.0]


def test_constant_scores_give_the_mean() -> None:
    curve = IsotonicCurve.through(np.zeros(4), np.array([1.0, 2.0, 3.0, 4.0]), np.ones(4))
    assert curve(np.array([0.0])).tolist() == pytest.approx([2.5])
    assert curve(np.array([1.0])) > curve(np.array([0.0]))


def test_each_network_learns_from_its_bag_alone(rng: np.random.Generator) -> None:
    inputs, target = np.eye(8, dtype=np.float32), np.arange(8.0)
    settings = RankingSettings(networks=4, epochs=60, dropout=0.0)
    bags = np.ones((4, 8))
    bags[0, 4:] = 0.0
    scores = train_networks(inputs, target, bags, settings=settings, seed=0).scores(inputs)
    assert (np.diff(scores[:, 1:], axis=0) > 0).all()
    assert (np.diff(scores[:4, 0]) > 0).all()
    assert not (np.diff(scores[:, 0]) > 0).all()


def test_every_trial_is_left_out_by_some_network(rng: np.random.Generator) -> None:
    from torchx_cubicml.predictors.ranking.mlp import _bags

    bags = _bags(RankingSettings(networks=10, bag=0.8), 50, rng)
    assert ((~bags).sum(axis=0) == 2).all()
    assert ((~_bags(RankingSettings(networks=3, bag=1.0), 50, rng)).sum(axis=0) == 1).all()


def test_order_and_throughput_are_learned(rng: np.random.Generator) -> None:
    history = history_of({size: 1000.0 * size**0.5 for size in (1, 2, 4, 8, 16, 32, 64)}, repeats=4)
    predicted = RankingMLP().fit(history, rng=rng).predict(history.features)
    assert (np.diff(predicted.throughput)[np.diff(history.throughput) > 0] > 0).all()
    assert np.abs(np.log(predicted.throughput / history.throughput)).max() < 0.1
    inside = (predicted.quantile(0.1) <= history.throughput) & (history.throughput <= predicted.quantile(0.9))
    assert inside.mean() > 0.7


def test_the_programs_torch_is_left_as_it_was(rng: np.random.Generator) -> None:
    history = history_of({1: 10.0, 2: 20.0, 4: 30.0, 8: 50.0})
    before, state = torch.get_num_threads(), torch.random.get_rng_state()
    with torch.no_grad():
        RankingMLP(RankingSettings(epochs=2)).fit(history, rng=rng)
        assert not torch.is_grad_enabled()
    assert torch.get_num_threads() == before
    assert torch.equal(torch.random.get_rng_state(), state)


def test_long_histories_take_a_bounded_number_of_steps(rng: np.random.Generator) -> None:
    inputs = np.ones((1000, 2), dtype=np.float32)
    settings = RankingSettings(networks=2, hidden=2, epochs=1000, most_steps=5, batch_size=10)
    from torchx_cubicml.predictors.ranking.networks import _batches

    batches = list(_batches(len(inputs), settings, torch.Generator().manual_seed(0)))
    assert [len(batch) for batch in batches] == [10] * 5


def test_missing_values_and_numbers_have_their_indicators() -> None:
    words = _Indicators(
        index=0, knots=np.array([1.0, 2.0, 3.0]), categorical=True, logarithmic=False, missing=True, weight=0.5
    )
    out = np.zeros((4, words.width), dtype=np.float32)
    words.fill(np.array([np.nan, 2.0, 3.0, 9.0]), out)
    assert out.tolist() == [[0, 0, 0, 0.5], [0, 0.5, 0, 0], [0, 0, 0.5, 0], [0, 0, 0, 0]]
    numbers = _Indicators(
        index=0, knots=np.array([0.0, 1.0, 3.0]), categorical=False, logarithmic=False, missing=False, weight=1.0
    )
    out = np.zeros((5, 3), dtype=np.float32)
    numbers.fill(np.array([0.0, 0.25, 1.0, 2.5, 9.0]), out)
    assert out.tolist() == [[1, 0, 0], [0.75, 0.25, 0], [0, 1, 0], [0, 0.25, 0.75], [0, 0, 1]]
