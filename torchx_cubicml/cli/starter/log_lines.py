"""Proposal of a ``[log]`` section from the lines of a program that print its throughput or its step time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from torchx_cubicml.cli.starter.printed_lines import Field, printed_lines
from torchx_cubicml.cli.starter.toml_text import one_line, toml
from torchx_cubicml.launch.source_files import parsed_modules
from torchx_cubicml.recorder.logs.formats import LOG_FORMATS, declared_format, read_line
from torchx_cubicml.records.log_pattern import LogPattern

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torchx_cubicml.cli.starter.printed_lines import Template
    from torchx_cubicml.launch import Launch

_TOKENS = r"(?P<tokens>tok|toks|tokens?)"
_SAMPLES = r"(?P<samples>samples?|imgs?|images?|examples?|seqs?|sequences?)"
_PER_SECOND = r" ?(?:/|[ _]per[ _]) ?s(?:ec(?:ond)?s?)?(?![A-Za-z0-9])"
_PER_DEVICE = r"(?P<device>(?: ?/ ?|[ _]per[ _])(?:gpu|device|rank|chip|npu|card|accelerator)\b)?"
_RATE = rf"(?<![A-Za-z])(?:{_TOKENS}|{_SAMPLES}){_PER_SECOND}{_PER_DEVICE}"
_STEP = r"(?:it|iter|iteration|step)"
_STEP_TIME = rf"{_STEP}[ _]?(?:time|duration)|(?:time|duration)(?:[ _]per[ _]| ?/ ?){_STEP}|\bdt"
_UNIT = r"(?P<unit>ms|milliseconds|msec|s|secs?|seconds)"
_END = r"[)\]]?[\"']? ?(?:[:=]|->|is)? *$"
_RATE_AFTER = re.compile(rf"(?P<thousands> ?[kKMG](?= ))? ?{_RATE}", re.IGNORECASE)
_RATE_BEFORE = re.compile(rf"(?P<label>{_RATE}){_END}", re.IGNORECASE)
_TIME_AFTER = re.compile(rf" ?{_UNIT}(?: ?/ ?| per ){_STEP}\b", re.IGNORECASE)
_UNIT_AFTER = re.compile(rf" ?{_UNIT}\b", re.IGNORECASE)
_TIME_BEFORE = re.compile(rf"(?P<label>(?:{_STEP_TIME})(?:(?: ?[\[(]|[ _]){_UNIT}[\])]?)?){_END}", re.IGNORECASE)
_UNIT_STEP_BEFORE = re.compile(rf"(?<![A-Za-z])(?P<label>{_UNIT}(?: ?/ ?|[ _]per[ _]){_STEP}){_END}", re.IGNORECASE)
_STEP_BEFORE = re.compile(r"(?<![A-Za-z])(?P<label>(?:step|iter|iteration)s?[ :=#\[(]{0,3})$", re.IGNORECASE)
_EVALUATION = re.compile(r"(?<![A-Za-z])(?:val|valid|validation|eval|evaluation|test)(?![A-Za-z])", re.IGNORECASE)
_SPEC = re.compile(
    r"(?P<fill>.?[<>^=])?[ +-]?#?0?(?P<width>\d*)(?P<comma>,?)(?:\.(?P<digits>\d+))?(?P<kind>[dfFeEgG]?)"
)
_LABEL_END = re.compile(r"[)\]]?[\"']? ?(?:[:=]|->|is)? *")
_SAMPLE_VALUE = 1234.5
_ORDER = ("tokens_per_second", "samples_per_second", "step_time")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """Pattern for a printed line, with the reading that it captures and the line's place in the source."""

    reading: str
    pattern: str
    path: Path
    line: int


def log_section(launch: Launch) -> list[str]:
    """Return the commented lines of a ``[log]`` section; none where no printed line needs or fits one."""
    found: list[_Candidate] = []
    for path, tree in parsed_modules(launch):
        for line, template in printed_lines(tree):
            if _is_known(template):
                return []
            found += [
                _Candidate(reading=reading, pattern=pattern, path=path, line=line)
                for reading, pattern in _proposals(template)
            ]
    if not found:
        return []
    best = min(found, key=_rank)
    return _section(best)


def _rank(candidate: _Candidate) -> tuple[int, bool]:
    """Return a candidate's sort key: tokens before samples before step times; lines with a step number first."""
    place = next(index for index, name in enumerate(_ORDER) if candidate.reading.startswith(name))
    return place, "(?P<step>" not in candidate.pattern


def _section(best: _Candidate) -> list[str]:
    is_rate = not best.reading.startswith("step_time")
    what = "its throughput" if is_rate else "its step time"
    scope = "If it is the rate of one device, add _per_device to the name of the group."
    pattern = f"'{best.pattern}'" if "'" not in best.pattern and best.pattern.isprintable() else toml(best.pattern)
    return [
        f"# Line {best.line} of {one_line(str(best.path))} prints {what}. Uncomment to use it in place of step timing.",
        *([f"# {scope}"] if is_rate and not best.reading.endswith("_per_device") else []),
        "# [log]",
        f"# pattern = {pattern}",
    ]


def _is_known(template: Template) -> bool:
    """Return whether a line is read without a ``[log]`` section."""
    sample = _sample(template)
    return any(read_line(sample, log_format, devices=1) is not None for log_format in LOG_FORMATS)


def _proposals(template: Template) -> Iterator[tuple[str, str]]:
    """Yield reading and pattern for each field of a line that has a rate or a step time."""
    texts = ["", *template, ""]
    for place, field in enumerate(texts):
        if not isinstance(field, Field):
            continue
        if _EVALUATION.search("".join(text for text in texts[:place] if isinstance(text, str))):
            return
        reading, head, tail = _reading(field, texts[:place], texts[place + 1 :])
        number = _number(field)
        if not reading or not number:
            continue
        for start in (_step_start(texts[:place]), ""):
            pattern = (
                f"{start}{_escaped(head)}{' *' if head else ''}(?P<{reading}>{number}{tail[0]}){_after(field, tail[1])}"
            )
            if _fits(pattern, reading, texts, place):
                yield reading, pattern
                break


def _reading(field: Field, before: list[str | Field], after: list[str | Field]) -> tuple[str, str, tuple[str, str]]:
    """Return a field's reading, the text before it, and its suffix and the text after it; no reading if unclear."""
    label, unit = _text(before, -1), _text(after, 0)
    rate = _RATE_AFTER.match(unit)
    if rate is not None and not _is_label(unit[rate.end() :], label, has_next=len(after) > 2):
        thousands = rate["thousands"] or ""
        return _rate_name(rate), "", (thousands, unit[len(thousands) : rate.end()])
    rate = _RATE_BEFORE.search(label)
    if rate is not None and _is_clear(label, rate, before):
        return _rate_name(rate), label[rate.start("label") :].rstrip(" "), ("", "")
    return _step_time(field, label, unit)


def _is_label(rest: str, label: str, *, has_next: bool) -> bool:
    """Return whether a rate's name between two fields is the label of the later one, not the unit of the earlier one.

    Args:
        rest: text from the name to the later field.
        label: text before the earlier field.
        has_next: whether a field follows.
    """
    if not has_next or not _LABEL_END.fullmatch(rest):
        return False
    return bool(rest.strip()) or bool(re.search(r"\w[ :=]*$", label))


def _is_clear(label: str, rate: re.Match[str], before: list[str | Field]) -> bool:
    """Return whether a rate's name is surely the label of the field after it, not the unit of the field before it."""
    follows_field = len(before) > 1 and isinstance(before[-2], Field) and _RATE_AFTER.match(label) is not None
    is_marked = bool(label[rate.end("label") :].strip())
    return not follows_field or is_marked or bool(_STEP_BEFORE.search(_text(before, -3)))


def _step_time(field: Field, label: str, unit: str) -> tuple[str, str, tuple[str, str]]:
    time = _TIME_AFTER.match(unit)
    if time is not None:
        return _time_name(time["unit"], field), "", ("", unit[: time.end()])
    named = _TIME_BEFORE.search(label) or _UNIT_STEP_BEFORE.search(label)
    if named is None:
        return "", "", ("", "")
    after = _UNIT_AFTER.match(unit)
    name = _time_name(after["unit"] if after is not None else named["unit"] or "", field)
    return name, label[named.start("label") :].rstrip(" "), ("", unit[: after.end()] if after else "")


def _text(parts: list[str | Field], place: int) -> str:
    """Return a part that is a text; empty for a field, and outside of the line."""
    part = parts[place] if -len(parts) <= place < len(parts) else ""
    return part if isinstance(part, str) else ""


def _rate_name(match: re.Match[str]) -> str:
    name = "tokens_per_second" if match["tokens"] else "samples_per_second"
    return f"{name}_per_device" if match["device"] else name


def _time_name(unit: str, field: Field) -> str:
    """Return the reading of a step time; without a unit, a factor of 1000 in the source tells it."""
    is_ms = unit.lower().startswith("m") or (not unit and bool(re.search(r"\* ?(?:1000|1e3|1_000)\b", field.source)))
    return "step_time_ms" if is_ms else "step_time_s"


def _step_start(texts: list[str | Field]) -> str:
    """Return the pattern of the step number that precedes a field, and of all text in between; empty without one."""
    for before, field in pairwise(texts):
        label = _STEP_BEFORE.search(before) if isinstance(before, str) and isinstance(field, Field) else None
        if label is not None:
            return rf"{_escaped(label['label'].rstrip(' '))} *(?P<step>\d+)\b.*?"
    return ""


def _after(field: Field, text: str) -> str:
    """Return the pattern of the text after a number, which a width may have filled up with spaces."""
    spec = _SPEC.fullmatch(field.spec)
    is_padded = spec is not None and bool(spec["width"])
    return rf" *{_escaped(text.lstrip(' '))}" if is_padded and text else _escaped(text)


def _number(field: Field) -> str:
    """Return the pattern of a positive number in a field's format; empty where it is not known."""
    spec = _SPEC.fullmatch(field.spec)
    if spec is None:
        return ""
    kind, digits = spec["kind"], spec["digits"]
    whole = r"\d{1,3}(?:,\d{3})*" if spec["comma"] else r"\d+"
    if kind == "d" or (kind in {"f", "F"} and digits == "0"):
        return whole
    if kind in {"f", "F"}:
        return rf"{whole}\.\d+"
    return whole + r"(?:\.\d+)?(?:[eE][+-]?\d+)?"


def _fits(pattern: str, reading: str, parts: list[str | Field], place: int) -> bool:
    """Return whether a pattern is legal and finds the value of one field in a line as it would be printed."""
    try:
        log_format = declared_format(LogPattern(pattern=pattern))
    except ValueError:
        return False
    found = log_format.pattern.search(_sample(parts))
    return found is not None and found[reading].startswith(_sample_of(parts[place], place).strip())


def _sample(parts: Sequence[str | Field]) -> str:
    """Return a line as it would be printed, with a value of its own for each field."""
    return "".join(_sample_of(part, place) for place, part in enumerate(parts))


def _sample_of(part: str | Field, place: int) -> str:
    if isinstance(part, str):
        return part
    for value in (_SAMPLE_VALUE + place, int(_SAMPLE_VALUE) + place, "text"):
        try:
            return format(value, part.spec)
        except (ValueError, TypeError):
            continue
    return ""


def _escaped(text: str) -> str:
    return re.sub(r"\\([ #&~/:=\-<>,;'\"!@%])", r"\1", re.escape(text)).replace("\\\t", r"\t")
