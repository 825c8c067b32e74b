from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.errors import ContractError, SpaceError
from torchx_cubicml.recorder.logs.formats import LogReading, declared_format, read_line
from torchx_cubicml.records.bounded_pattern import BoundedPattern
from torchx_cubicml.records.contract import Contract, decode_contract, encode_contract
from torchx_cubicml.records.log_pattern import READINGS, LogPattern
from torchx_cubicml.space.toml import load_space, parse_space

if TYPE_CHECKING:
    from pathlib import Path

REST = '[parameters.a]\nchoices = [1, 2]\nflag = "--a"\n[log]\n'


@pytest.mark.parametrize(
    ("log", "line", "reading"),
    [
        (
            r"pattern = 'it (?P<step>\d+) .*speed (?P<tokens_per_second>\S+)'",
            "x it 7 loss 3 speed 41,500",
            LogReading(tokens_per_second=41_500.0, step=7.0),
        ),
        (
            "pattern = 'speed (\\S+) tok'\ngroups = { tokens_per_second_per_device = 1 }",
            "\x1b[32mspeed 41.5k tok/s/gpu\x1b[0m",
            LogReading(tokens_per_second=166_000.0),
        ),
        (
            "pattern = 'ips (?P<ips>\\S+) (?P<ms>\\S+) ms'\n"
            "groups = { samples_per_second_per_device = 'ips', step_time_ms = 'ms' }",
            "ips 2.5 400 ms",
            LogReading(samples_per_second=10.0, step_s=0.4),
        ),
        (
            "pattern = 'batch (?P<samples>\\d+) of (?P<tokens>\\d+) took (?P<step_time_s>\\S+)s'",
            "batch 8 of 4096 took 0.5s",
            LogReading(samples_per_second=16.0, tokens_per_second=8192.0, step_s=0.5),
        ),
        ("pattern = 'speed (?P<samples_per_second>\\S+)'", "speed n/a", LogReading()),
        ("pattern = 'speed (?P<samples_per_second>\\S+)'", "speed nan", LogReading()),
        ("pattern = 'speed (?P<samples_per_second>\\S+)'", "speed 41,5", LogReading()),
        ("pattern = 'speed (?P<samples_per_second>\\S+)'", "pace 3", None),
    ],
    ids=["named", "numbered", "renamed", "amounts", "words", "nan", "other comma", "other line"],
)
def test_a_declared_format_reads_a_line_of_four_devices(log: str, line: str, reading: LogReading | None) -> None:
    declared = parse_space(f"{REST}{log}", where="s.toml").log
    assert declared is not None
    assert read_line(line, declared_format(declared), devices=4) == reading
    assert decode_contract(encode_contract(Contract(store="/s", log=declared))).log == declared


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("pattern = 3", "log.pattern: must be a string"),
        ("", "log.pattern: must be a regular expression, such as"),
        ("pattern = '('", r"log.pattern: invalid regular expression: .*, got '\('"),
        (
            "pattern = '(a+)+(?P<step_time_s>\\d)'",
            "log.pattern: a repeat or an alternative within a repeat could backtrack exponentially",
        ),
        (
            "pattern = 'x (?P<tokens_per_secnd>.)'",
            "log.pattern: unknown group 'tokens_per_secnd' \\(choose from tokens_per_second",
        ),
        ("pattern = 'x (?P<step>.)'", "log.pattern: at least one group must capture one of tokens_per_second, "),
        ("pattern = 'x (.)'\ngroups = { loss = 1 }", "log.groups: unknown group 'loss'"),
        (
            "pattern = 'x (.)'\ngroups = { step_time_s = 2 }",
            r"log.groups: step_time_s names group 2, .* no such group \(it has 1\)",
        ),
        ("pattern = 'x (.)'\ngroups = { step_time_s = 'it' }", "log.groups: step_time_s names group 'it'"),
        (
            "pattern = 'x (.)'\ngroups = { step_time_s = true }",
            "log.groups.step_time_s: must be the number or the name",
        ),
        ("pattern = 'x (.)'\ngroups = [1]", "log.groups: must be a table"),
        (
            "pattern = 'x (?P<step_time_s>.) (?P<step_time_ms>.)'",
            "log.pattern: groups cannot capture both step_time_s and step_time_ms",
        ),
        ("patern = 'x'", r"log: unknown key 'patern'; did you mean 'pattern'\?"),
    ],
    ids=lambda value: value[:24] if value.startswith("log") else None,
)
def test_a_mistake_is_reported_with_key_and_rule(log: str, message: str) -> None:
    with pytest.raises(SpaceError, match=f"^s.toml: {message}") as raised:
        parse_space(f"{REST}{log}", where="s.toml")
    assert "\n" not in str(raised.value)


def test_a_file_without_a_log_section_declares_no_log(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(REST.removesuffix("[log]\n"))
    assert load_space(tmp_path / "s.toml").log is None


def test_a_contract_with_a_pattern_that_is_not_legal_is_damaged() -> None:
    whole = encode_contract(Contract(store="/s", log=LogPattern(pattern="x (.)", groups={"step_time_s": 1})))
    assert decode_contract(whole).log is not None
    broken = Contract(store="/s")
    for log in ({"pattern": "(a+)+", "groups": {}}, {"pattern": 3, "groups": {}}, "x (.)"):
        object.__setattr__(broken, "log", log)
        with pytest.raises(ContractError, match="damaged"):
            decode_contract(encode_contract(broken))


RATES = (
    "tokens_per_second",
    "tokens_per_second_per_device",
    "samples_per_second",
    "samples_per_second_per_device",
    "step_time_s",
    "step_time_ms",
)
AMOUNTS = ("samples", "tokens", "step")


def test_the_readings_are_these() -> None:
    assert (*RATES, *AMOUNTS) == READINGS


@pytest.mark.parametrize("reading", RATES)
def test_a_pattern_of_one_throughput_is_enough(reading: str) -> None:
    for pattern in (LogPattern(pattern=f"(?P<{reading}>.)"), LogPattern(pattern="(.)", groups={reading: 1})):
        assert pattern.readings(BoundedPattern(pattern.pattern)) == {reading: 1}


@pytest.mark.parametrize("reading", AMOUNTS)
def test_a_pattern_without_a_throughput_is_refused(reading: str) -> None:
    rule = f"^at least one group must capture one of {', '.join(RATES)}$"
    for fields in ({"pattern": f"(?P<{reading}>.)"}, {"pattern": "(.)", "groups": {reading: 1}}, {"pattern": "."}):
        with pytest.raises(ValueError, match=rule):
            LogPattern(**fields)


@pytest.mark.parametrize("pair", [RATES[:2], RATES[2:4], RATES[4:]], ids=" ".join)
def test_two_readings_of_one_number_are_refused(pair: tuple[str, str]) -> None:
    for more in ("", "(?P<step>.)"):
        with pytest.raises(ValueError, match=f"^groups cannot capture both {pair[0]} and {pair[1]}$"):
            LogPattern(pattern=f"(?P<{pair[0]}>.)(?P<{pair[1]}>.){more}")


@pytest.mark.parametrize(
    ("pattern", "groups", "readings"),
    [
        ("(.)(.)(?P<step_time_s>.)", {}, {"step_time_s": 3}),
        ("(.)(.)(.)", {"step_time_s": 3, "step": 1}, {"step_time_s": 3, "step": 1}),
        ("(.)(?P<ms>.)", {"step_time_ms": "ms"}, {"step_time_ms": 2}),
        ("(?P<step>.)(?P<ms>.)", {"step_time_ms": "ms"}, {"step": 1, "step_time_ms": 2}),
        ("(?P<step>.)(.)", {"step_time_ms": 2, "step": 2}, {"step": 2, "step_time_ms": 2}),
    ],
)
def test_a_group_has_its_own_name_or_that_of_the_table(
    pattern: str, groups: dict[str, int | str], readings: dict[str, int]
) -> None:
    declared = LogPattern(pattern=pattern, groups=groups)
    assert declared.readings(BoundedPattern(pattern)) == readings


@pytest.mark.parametrize(
    ("pattern", "groups", "rule"),
    [
        ("(.)(.)", {"step_time_s": 0}, "step_time_s names group 0, but the pattern has no such group (it has 2)"),
        ("(.)(.)", {"step_time_s": 3}, "step_time_s names group 3, but the pattern has no such group (it has 2)"),
        ("(.)(.)", {"step_time_s": True}, "step_time_s names group True, but the pattern has no such group (it has 2)"),
        (".", {"step_time_s": 1}, "step_time_s names group 1, but the pattern has no such group (it has none)"),
        ("(.)", {"step_time_s": "s"}, "step_time_s names group 's', but the pattern has no such group (it has 1)"),
        ("(.)", {"loss": 1}, f"unknown group 'loss' (choose from {', '.join(READINGS)})"),
        ("(?P<loss>.)(.)", {"step_time_s": 2}, f"unknown group 'loss' (choose from {', '.join(READINGS)})"),
    ],
)
def test_an_unknown_group_is_refused(pattern: str, groups: dict[str, int | str], rule: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(rule)}$"):
        LogPattern(pattern=pattern, groups=groups)
