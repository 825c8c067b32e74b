"""What a search for a batch is given, and which of its configs are picked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np
import pytest

from tests.advisor.by_hand import Process, Trees, of, places_of, study_of
from torchx_cubicml.advisor.batch import ProposalMethod, searched
from torchx_cubicml.searchers import SEARCHERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.advisor.posterior import Posterior
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.searchers import Score
    from torchx_cubicml.space import SearchSpace


@dataclass
class Listed:
    """Searcher that returns configs chosen by hand, one list for each search, and remembers how it was called."""

    found: list[list[Config]]
    counts: list[int] = field(default_factory=list)
    rngs: list[np.random.Generator] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)

    def search(self, space: SearchSpace, score: Score, *, count: int, rng: np.random.Generator) -> list[Config]:
        del space
        self.scores.append(score)
        self.counts.append(count)
        self.rngs.append(rng)
        return self.found[len(self.counts) - 1]


@dataclass
class Started(Listed):
    """The same, with a warm start."""

    starts: list[list[int]] = field(default_factory=list)

    def with_start(self, start: tuple[Config, ...]) -> Self:
        self.starts.append(places_of(start))
        return self


def posterior_of(surrogate: Trees, measured: Mapping[int, float], **given: object) -> Posterior:
    return study_of(surrogate, measured, **given).posterior


def use(monkeypatch: pytest.MonkeyPatch, searcher: Listed, name: str = "random") -> ProposalMethod:
    monkeypatch.setitem(SEARCHERS, name, lambda: searcher)
    return ProposalMethod(searcher=name)


RNG = np.random.default_rng(0)


class TestOfAProcess:
    MEASURED = dict.fromkeys((3, 9, 1, 7, 5, 8, 2), 100.0)

    def test_each_pick_starts_where_the_last_one_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = [of(50, 51, 52, 53, 54), of(60, 61, 62, 63, 64), of(70, 71)]
        surrogate, searcher = Process(speeds=lambda place: place + 1.0), Started(found)
        posterior = posterior_of(surrogate, self.MEASURED, running=[40])
        picked = searched(posterior, of(30), use(monkeypatch, searcher), count=3, rng=RNG)
        assert places_of(picked) == [50, 60, 70]
        best = [9, 8, 7, 5, 3]  # of the measured ones, by prediction
        assert searcher.starts == [best, [*best, 51, 52, 53, 54], [*best, 61, 62, 63, 64]]
        assert searcher.counts == [5, 5, 5]
        assert searcher.rngs == [RNG] * 3
        assert surrogate.log == ["optimistic", [30, 40], [50], [60], [70]]

    def test_what_is_picked_is_under_way_in_the_next_search(self, monkeypatch: pytest.MonkeyPatch) -> None:
        searcher = Started([of(50), of(60)])
        posterior = posterior_of(Process(speeds=lambda place: place + 1.0), self.MEASURED, running=[40])
        searched(posterior, of(30), use(monkeypatch, searcher), count=2, rng=RNG)
        first, second = (np.isfinite(score(of(30, 40, 50, 60, 9))).tolist() for score in searcher.scores)
        assert first == [False, False, True, True, False]
        assert second == [False, False, False, True, False]

    def test_equally_fast_starts_keep_their_order(self, monkeypatch: pytest.MonkeyPatch) -> None:
        order = np.random.default_rng(0).permutation(90).tolist()
        searcher = Started([of(95)])
        posterior = posterior_of(Process(speeds=lambda place: 2.0 + place % 2), dict.fromkeys(order, 100.0))
        searched(posterior, [], use(monkeypatch, searcher), count=1, rng=RNG)
        assert searcher.starts == [[place for place in order if place % 2][:5]]

    def test_a_search_without_a_result_ends_the_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        searcher = Started([of(50), [], of(70)])
        posterior = posterior_of(Process(speeds=lambda place: place + 1.0), self.MEASURED)
        assert places_of(searched(posterior, [], use(monkeypatch, searcher), count=3, rng=RNG)) == [50]

    def test_evolution_is_the_searcher_by_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        searcher = Started([of(50)])
        use(monkeypatch, searcher, "evolution")
        posterior = posterior_of(Process(speeds=lambda place: place + 1.0), self.MEASURED)
        assert places_of(searched(posterior, [], ProposalMethod(), count=1, rng=RNG)) == [50]

    def test_one_list_serves_the_whole_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        searcher = Listed([of(20, 60, 9, 40, 80)])
        posterior = posterior_of(Process(speeds=lambda place: place + 1.0), self.MEASURED, running=[40])
        assert places_of(searched(posterior, [], use(monkeypatch, searcher), count=4, rng=RNG)) == [80, 60, 20]
        assert (searcher.counts, searcher.rngs) == ([160], [RNG])

    def test_equally_good_configs_keep_their_order(self, monkeypatch: pytest.MonkeyPatch) -> None:
        order = np.random.default_rng(0).permutation(np.arange(10, 100)).tolist()
        posterior = posterior_of(Process(speeds=lambda place: 2.0 + place % 2), self.MEASURED)
        found = searched(posterior, [], use(monkeypatch, Listed([of(*order)])), count=45, rng=RNG)
        assert places_of(found) == [place for place in order if place % 2]

    def test_an_empty_list_gives_no_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        posterior = posterior_of(Process(speeds=lambda place: place + 1.0), self.MEASURED)
        assert searched(posterior, [], use(monkeypatch, Listed([[]])), count=2, rng=RNG) == []

    def test_a_thompson_sample_ranks_the_list(self, monkeypatch: pytest.MonkeyPatch) -> None:
        use(monkeypatch, Listed([of(20, 60, 40)]))
        posterior = posterior_of(Process(speeds=lambda place: place + 1.0), self.MEASURED)
        method = ProposalMethod(searcher="random", acquisition="thompson")
        assert places_of(searched(posterior, [], method, count=1, rng=RNG)) == [20]


class TestOfTrees:
    def test_a_pool_is_asked_for_with_room_for_what_is_taken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        measured = {place: 100.0 + place for place in range(25)}
        surrogate, searcher = Trees(speeds=lambda place: place + 1.0), Started([of(30, 35, 40, 60, 90)])
        posterior = posterior_of(surrogate, measured, running=[40, 41])
        picked = searched(posterior, of(90), use(monkeypatch, searcher), count=2, rng=RNG)
        assert places_of(picked) == [60, 35]
        assert searcher.starts == [list(range(24, 4, -1))]  # the 20 fastest
        assert (searcher.counts, searcher.rngs) == ([83], [RNG])
        assert surrogate.log == [[90, 40, 41], "all"]

    @pytest.mark.parametrize(("count", "asked"), [(1, "one"), (2, "all"), (3, "all")])
    def test_a_single_config_comes_from_one_surrogate(
        self, count: int, asked: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        surrogate = Trees(speeds=lambda place: place + 1.0)
        searched(posterior_of(surrogate, {}), [], use(monkeypatch, Listed([of(3)])), count=count, rng=RNG)
        assert surrogate.log == [asked]

    def test_the_pools_of_all_surrogates_are_picked_from_in_turn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        other = Trees(speeds=lambda place: 200.0 - place)
        surrogate = Trees(speeds=lambda place: place + 1.0, members=(other,))
        searcher = Listed([of(95, 70), of(2, 30)])
        found = searched(posterior_of(surrogate, {}), [], use(monkeypatch, searcher), count=3, rng=RNG)
        assert places_of(found) == [95, 2, 70]

    def test_what_is_under_way_lowers_its_neighbours(self, monkeypatch: pytest.MonkeyPatch) -> None:
        speeds = {50: 100.0, 10: 90.0}
        surrogate = Trees(speeds=lambda place: speeds.get(place, 1.0))
        for running, first in (((), 50), ((51,), 10)):
            posterior = posterior_of(surrogate, {}, running=running)
            (found,) = searched(posterior, [], use(monkeypatch, Listed([of(50, 10)])), count=1, rng=RNG)
            assert found == {"place": first}

    def test_an_empty_pool_gives_no_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        posterior = posterior_of(Trees(speeds=lambda place: place + 1.0), {}, running=[7])
        assert searched(posterior, [], use(monkeypatch, Listed([[]])), count=2, rng=RNG) == []
        assert searched(posterior, [], use(monkeypatch, Listed([of(7)])), count=2, rng=RNG) == []

    def test_a_thompson_sample_ranks_the_pool(self, monkeypatch: pytest.MonkeyPatch) -> None:
        use(monkeypatch, Listed([of(20, 60, 40)]))
        posterior = posterior_of(Trees(speeds=lambda place: place + 1.0), {3: 100.0})
        method = ProposalMethod(searcher="random", acquisition="thompson")
        assert places_of(searched(posterior, [], method, count=1, rng=RNG)) == [20]

    @pytest.mark.parametrize(("n_choices", "name"), [(20_000, "exhaustive"), (20_001, "evolution")])
    def test_a_small_space_is_listed_by_default(
        self, n_choices: int, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use(monkeypatch, Started([of(3)]), name)
        use(monkeypatch, Listed([]), {"exhaustive": "evolution", "evolution": "exhaustive"}[name])
        posterior = posterior_of(Trees(speeds=lambda place: place + 1.0), {}, n_choices=n_choices)
        assert searched(posterior, [], ProposalMethod(), count=1, rng=RNG) == of(3)


@pytest.mark.parametrize("given", [{"acquisition": "hope"}, {"searcher": "luck"}])
def test_an_unknown_method_names_what_is_unknown(given: dict[str, str]) -> None:
    ((kind, name),) = given.items()
    with pytest.raises(ValueError, match=f"^unknown {kind} '{name}'; choose from "):
        ProposalMethod(**given)
