from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx_cubicml.tuner.unknown_names import unknown_names

COMPLAINTS = {
    "ValueError: Unknown config keys: depth, a-size": {"depth", "a_size"},
    "error: unrecognized arguments: --lr 3 --a-size=2 -1": {"lr", "a_size"},
    "error: unrecognized arguments: model.depth=2 a=b": {"model.depth", "a"},
    "Error: No such option: --depth (Possible options: --size)": {"depth"},
    "Error: No such option: --depth Did you mean --size?": {"depth"},
    "TypeError: f() got an unexpected keyword argument 'depth'. Did you mean 'size'?": {"depth"},
    "ValueError: Some keys are not used by the HfArgumentParser: ['depth', 'size']": {"depth", "size"},
    "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--depth', 'x']": {"depth"},
    "Could not override 'model.depth'.\nTo append use +model.depth\nKey 'depth' is not in struct": {
        "model.depth",
        "depth",
    },
    "FATAL: Unknown command line flag 'depth'": {"depth"},
    "unknown flag --depth": {"depth"},
    "Unknown key(s): depth": {"depth"},
    "Unknown config key: depth. Legal keys: size, width": {"depth"},
    "unknown value for option --depth": set(),
    "unknown depth setting: 3": set(),
    "Unknown option 'depth' for 'size'": set(),
    "Unknown config key: in depth": set(),
    "unknown flag in depth": set(),
    "error: argument --depth: invalid choice: 2 (choose from 1, 3)": set(),
}


@pytest.mark.parametrize("reason", COMPLAINTS)
def test_only_the_object_of_a_complaint_is_an_unknown_name(reason: str) -> None:
    assert unknown_names(reason) == COMPLAINTS[reason]
    assert unknown_names(f"Traceback\n  File x\n{reason}") == COMPLAINTS[reason]


NAMES = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)


@given(
    NAMES, NAMES, st.sampled_from(["unknown", "Unrecognized", "unexpected"]), st.sampled_from(["option", "argument"])
)
def test_a_value_that_is_unknown_never_names_its_flag(name: str, value: str, adjective: str, noun: str) -> None:
    for reason in (
        f"{adjective} {name} {noun} '{value}'",
        f"{adjective} {noun} '{value}' in --{name}",
        f"{adjective} {noun} --other {value} for {name}",
    ):
        assert name not in unknown_names(reason) or name in {value, "other"}


@given(st.text(max_size=200))
def test_any_text_is_read(reason: str) -> None:
    assert "" not in unknown_names(f"unknown option {reason}")


@pytest.mark.parametrize("reason", ["unknown option '-'", "unknown option: =", "unknown option: -", "unknown option:"])
def test_a_name_without_letters_is_none(reason: str) -> None:
    assert unknown_names(reason) == frozenset()
