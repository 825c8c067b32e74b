"""Space of recorded launches whose space file is not at hand."""

from __future__ import annotations

from torchx_cubicml import Trial
from torchx_cubicml.space.observed_space import observed_space


def trial(**config: object) -> Trial:
    return Trial.completed(workload={"program": "gpt.py"}, config=config, tokens_per_second=1.0)  # type: ignore[arg-type] # values of configs


def test_each_recorded_value_is_a_choice() -> None:
    space = observed_space(
        [trial(batch=4, layers=("a", "b")), trial(batch=2, layers=("a", "a"))], objective="tokens_per_second"
    )
    assert space is not None
    batch, layers = space.parameters
    assert (batch.choices, layers.choices, layers.per_layer) == ((2, 4), ("a", "b"), 2)


def test_trials_with_other_parameters_are_left_out() -> None:
    space = observed_space([trial(batch=1), trial(batch=2), trial(other=True, batch=9)], objective="samples_per_second")
    assert space is not None
    assert [(each.name, each.choices) for each in space.parameters] == [("batch", (1, 2))]
    assert space.objective == "samples_per_second"


def test_values_that_no_parameter_can_have_give_no_space() -> None:
    for pair in (
        [],
        [trial(batch=1), trial(batch="one")],
        [trial(kinds=("a",)), trial(kinds=("a", "b"))],
        [trial(batch=1)],
    ):
        assert observed_space(pair, objective="tokens_per_second") is None
