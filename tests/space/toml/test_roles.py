from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.launch import Launch, read_config
from torchx_cubicml.space.toml import parse_space

DERIVE = "global_batch_size / ({micro} * dp_degree)"


def text_of(
    micro: str, accumulation: str, *, flags: tuple[str, str] = ("--b", "--a"), derive: str = DERIVE, more: str = ""
) -> str:
    return f"""
    [parameters.{micro}]
    choices = [1, 2, 4, 8]
    flag = "{flags[0]}"

    [parameters.{accumulation}]
    derive = "{derive.format(micro=micro)}"
    flag = "{flags[1]}"
    {more}
    """


@pytest.mark.parametrize(
    ("micro", "accumulation", "flags"),
    [
        ("micro_batch_size", "accum", ("--b", "--gradient_accumulation_steps")),
        ("per_gpu", "gradient_accumulation_steps", ("--per_device_train_batch_size", "--a")),
        ("bs", "acc", ("--b", "--a")),
        ("mbs", "acc", ("--b", "--a")),
        ("bs", "ga", ("--b", "--a")),
    ],
    ids=["flag of the accumulation", "flag of the batch", "derivation alone", "name of the batch", "name of the other"],
)
def test_the_batch_is_known_by_flag_name_or_derivation(micro: str, accumulation: str, flags: tuple[str, str]) -> None:
    space = parse_space(text_of(micro, accumulation, flags=flags), where="space.toml")
    assert [item.name for item in space.parameters] == ["micro_batch_size", "gradient_accumulation_steps"]
    typed = [item.label or item.name for item in space.parameters]
    assert typed == [micro, accumulation]
    assert [item.was for item in space.parameters] == [
        (name,) if name != item.name else () for name, item in zip(typed, space.parameters, strict=True)
    ]


def test_observe_tells_what_a_parameter_is() -> None:
    text = text_of("x", "y", derive="global_batch_size / {micro}", more='observe = "gradient_accumulation_steps"')
    text = text.replace('flag = "--b"', 'flag = "--b"\n    observe = "micro_batch_size"')
    names = [item.name for item in parse_space(text, where="space.toml").parameters]
    assert names == ["micro_batch_size", "gradient_accumulation_steps"]


@pytest.mark.parametrize(
    "derive",
    [
        "global_batch_size / {micro}",
        "global_batch_size * {micro}",
        "global_batch_size / ({micro} * 2)",
        "{micro} + global_batch_size",
    ],
)
def test_an_unclear_part_of_the_batch_is_refused(derive: str) -> None:
    expected = (
        r"^space.toml: parameters.acc.derive: it reads global_batch_size, but it is not clear what acc and bs are to "
        r'the batch: set observe = "micro_batch_size" or "gradient_accumulation_steps", or use these names$'
    )
    with pytest.raises(SpaceError, match=expected):
        parse_space(text_of("bs", "acc", derive=derive), where="space.toml")


def test_a_number_of_steps_may_follow_from_the_batch() -> None:
    space = parse_space(text_of("micro_batch_size", "steps", derive="1024 / global_batch_size"), where="space.toml")
    assert [item.name for item in space.parameters] == ["micro_batch_size", "steps"]


def test_a_standard_name_in_use_is_not_given_twice() -> None:
    text = text_of("bs", "accumulate", flags=("--batch_size", "--a"), derive="{micro} * 2")
    text = f"[workload]\nmicro_batch_size = 4\n{text}"
    names = [item.name for item in parse_space(text, where="space.toml").parameters]
    assert names == ["bs", "gradient_accumulation_steps"]


def test_conditions_constraints_and_rules_keep_the_names_of_the_file() -> None:
    more = """
    [parameters.overlap]
    choices = [false, true]
    flag = "--overlap"
    default = false
    when = "bs > 1"

    [[constraints]]
    require = "bs <= 4 and 'bs' != 'b'"

    [rewrite]
    freeze = ["bs", "overlap"]
    """
    space = parse_space(text_of("bs", "acc", more=more), where="space.toml")
    assert space.rewrite.freeze == ("micro_batch_size", "overlap")
    assert space.constraints[0].source == "bs <= 4 and 'bs' != 'b'"
    bound = space.bind(
        workload={"world_size": 2}, current={"micro_batch_size": 2, "gradient_accumulation_steps": 4, "overlap": False}
    )
    assert {config["micro_batch_size"] for config in bound.configs()} == {1, 2, 4}
    reason = bound.why_illegal({"micro_batch_size": 8, "gradient_accumulation_steps": 1, "overlap": False})
    assert reason is not None
    assert "bs <= 4" in reason


_NAMES = st.from_regex(r"[a-z]{2,6}_?[a-z]?", fullmatch=True).filter(
    lambda name: name not in {"in", "is", "or", "and", "not", "if", "else", "for", "as", "min", "max", "abs", "len"}
)


@given(
    micro=_NAMES,
    accumulation=_NAMES,
    flags=st.sampled_from([("--b", "--a"), ("--batch_size", "--x"), ("--x", "--grad-accum"), ("--bs", "--trainer.a")]),
    form=st.sampled_from(
        [DERIVE, "global_batch_size // {micro} // dp_degree", "global_batch_size / world_size / {micro}"]
    ),
    sizes=st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4])),
)
def test_whatever_its_names_a_file_keeps_the_global_batch(
    micro: str, accumulation: str, flags: tuple[str, str], form: str, sizes: tuple[int, int, int]
) -> None:
    if micro == accumulation:
        return
    try:
        space = parse_space(text_of(micro, accumulation, flags=flags, derive=form), where="space.toml")
    except SpaceError as error:
        assert any(text in str(error) for text in ("not clear", "invalid name", "unknown name"))  # noqa: PT017
        return
    batch, steps, world_size = sizes
    args = (flags[0], str(batch), flags[1], str(steps))
    launch = Launch(program="train.py", script_args=args, world_size=world_size)
    workload, current = read_config(launch, space)
    for config in space.bind(workload=workload, current=current).configs():
        assert math.prod(config.values()) == batch * steps
