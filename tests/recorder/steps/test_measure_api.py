from __future__ import annotations

from torchx_cubicml.recorder.steps.measure_api import Measure


def test_outside_of_a_recorded_launch_a_step_is_ignored() -> None:
    Measure().step(samples=8, tokens=512)


def test_each_step_goes_to_the_listener() -> None:
    heard: list[tuple[float | None, float | None]] = []
    measure = Measure()
    measure.listen(lambda samples, tokens: heard.append((samples, tokens)))
    measure.step(samples=8)
    measure.step(tokens=512)
    measure.listen(None)
    measure.step(samples=9)
    assert heard == [(8, None), (None, 512)]
