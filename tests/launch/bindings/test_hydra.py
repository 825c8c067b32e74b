from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch import Launch, read_config, write_config
from torchx_cubicml.launch.bindings.argv import set_flag
from torchx_cubicml.launch.bindings.hydra import is_one_value, quoted_like, unquoted
from torchx_cubicml.space.toml import parse_space

SPACE = """
[parameters.micro_batch_size]
choices = [1, 2, 4, 8]
flag = "trainer.loader.batch_size="
[parameters.mode]
choices = ["fast", "slow"]
flag = "mode="
[parameters.pin]
choices = [false, true]
flag = "pin="
"""
NUMBERS, MODES, SWITCHES = st.sampled_from([1, 2, 4, 8]), st.sampled_from(["fast", "slow"]), st.booleans()
PREFIXES = st.sampled_from(["", "+", "++"])
QUOTES = st.sampled_from(["", "'", '"'])
OTHERS = st.lists(
    st.sampled_from(["-m", "lr=0.1,0.2", "~a.b", "db/engine=fast", "+x@y=1", "c=[1,2]", "d={a: 1}", "e=${lr}", "f=''"]),
    max_size=4,
)


@given(number=NUMBERS, mode=MODES, pin=SWITCHES, prefix=PREFIXES, quote=QUOTES, others=OTHERS, data=st.data())
def test_a_word_is_rewritten_in_the_form_in_which_it_was_typed(
    number: int, mode: str, pin: bool, prefix: str, quote: str, others: list[str], data: st.DataObject
) -> None:
    def words(number: int, mode: str, pin: bool) -> list[str]:
        typed = [f"{prefix}trainer.loader.batch_size={number}", f"{prefix}mode={quote}{mode}{quote}", f"pin={pin}"]
        return [*others[:2], typed[0], *others[2:], *typed[1:]]

    space = parse_space(SPACE, where="x.toml")
    launch = Launch(program="train.py", script_args=tuple(words(number, mode, pin)), world_size=1)
    _, config = read_config(launch, space)
    assert config == {"micro_batch_size": number, "mode": mode, "pin": pin}
    other = {"micro_batch_size": data.draw(NUMBERS), "mode": data.draw(MODES), "pin": data.draw(SWITCHES)}
    written = write_config(launch, space, other)
    assert list(written.script_args) == words(*other.values())
    assert read_config(written, space)[1] == other


@pytest.mark.parametrize("word", ["mode=fast,slow", "mode=${other}", "mode=choice(fast,slow)", "mode=glob(*)"])
def test_a_sweep_and_a_reference_stay(word: str) -> None:
    launch = Launch(program="train.py", script_args=("trainer.loader.batch_size=1", word, "pin=true"), world_size=1)
    with pytest.raises(
        LaunchError, match=r"mode= of parameter mode is '.*' in the command: a sweep or a reference has"
    ):
        read_config(launch, parse_space(SPACE, where="x.toml"))


def test_two_spellings_of_a_key_are_two_occurrences() -> None:
    launch = Launch(
        program="train.py", script_args=("trainer.loader.batch_size=1", "mode=fast", "++mode=slow", "pin=1")
    )
    space = parse_space(SPACE, where="x.toml")
    assert read_config(launch, space)[1]["mode"] == "slow"
    with pytest.raises(LaunchError, match=r"mode= of parameter mode occurs 2 times in the command; give it once"):
        write_config(launch, space, {"micro_batch_size": 1, "mode": "fast", "pin": True})


@pytest.mark.parametrize(
    ("args", "written"),
    [
        ((), ("out.dir=x",)),
        (("out.dir=a", "b=1"), ("out.dir=x", "b=1")),
        (("+out.dir=a",), ("+out.dir=x",)),
        (("out.dir=a", "++out.dir=b"), ("out.dir=a", "++out.dir=x")),
    ],
)
def test_a_key_is_set_in_its_spelling(args: tuple[str, ...], written: tuple[str, ...]) -> None:
    assert set_flag(args, "out.dir=", "x") == written


@given(st.text(alphabet="ab'\"\\\\,$ {}()[]", max_size=8))
def test_quotes_are_taken_off_and_put_back(text: str) -> None:
    assert quoted_like(unquoted(text), text) == text
    if unquoted(text) != text:
        assert is_one_value(text)
