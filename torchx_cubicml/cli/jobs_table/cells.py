"""Cells of a table: the value of a fact, by what the fact is."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from torchx_cubicml.cli.jobs_table.column_roles import DEVICE_BATCH, GLOBAL_BATCH_TOKENS, PRECISION_SWITCH
from torchx_cubicml.cli.jobs_table.source import MISSING
from torchx_cubicml.cli.jobs_table.written_numbers import (
    SCALE_OF_BINARY,
    gibibytes,
    plain_number,
    quantity,
    scaled_number,
)
from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.standard_words import SPELLINGS, SWITCHES, standard_word, switch_value, zero_stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.cli.jobs_table.headings import Heading
    from torchx_cubicml.records.values import Scalar

DEGREES = frozenset(
    {
        *("tp_degree", "pp_degree", "dp_degree", "cp_degree", "ep_degree", "dp_replicate_degree", "dp_shard_degree"),
        "virtual_pp_degree",
    }
)
COUNTS = DEGREES | {
    *("d_ff", "d_model", "global_batch_size", "gradient_accumulation_steps", "head_dim", "micro_batch_size"),
    *("n_active_experts", "n_experts", "n_heads", "n_kv_heads", "n_layers", "n_params", "nnodes", "nproc_per_node"),
    *("seq_len", "vocab_size", "world_size", GLOBAL_BATCH_TOKENS, DEVICE_BATCH),
}
"""Facts that are whole numbers >= 1."""

TEXTS = frozenset({"device", "program", "container", "optimizer"})
_BINARY = frozenset(
    {"seq_len", "micro_batch_size", "global_batch_size", GLOBAL_BATCH_TOKENS, DEVICE_BATCH}
)  # 4k is 4,096
_BINARY_MULTIPLE = {"k": 32.0, "m": 0.5}
"""Multiples of thousands and millions of tokens that are powers of two: 512k is 2**19, but 262.1k is 262,100."""

_MAY_BE_ZERO = frozenset({"n_experts", "n_active_experts"})
_RELEASE_HEADING = re.compile(
    r"version|release|container|image|(?<![a-z])tag(?![a-z])|driver|commit|(?<![a-z])sha(?![a-z])|build", re.IGNORECASE
)
_RELEASE = re.compile(r"(?:1[89]|2\d|3\d)\.(?:0[1-9]|1[0-2])")  # such as 25.09: a year and a month
_WHOLE = 2**53
_OFF: dict[str, Scalar] = {
    **dict.fromkeys(SWITCHES, False),
    "activation_checkpointing": "none",
    "attention_kernel": "math",
    "zero_stage": 0,
}
"""Facts that tables leave empty, or fill with a dash, where they are off."""


def is_text_column(name: str, heading: str, cells: Sequence[str]) -> bool:
    """Return whether the cells of a column are texts whatever they look like: names, versions and releases.

    >>> is_text_column("stack", "stack", ["25.09", "26.10"]), is_text_column("tp_degree", "tp", ["25.09"])
    (True, False)
    """
    if name in TEXTS or name.endswith("_version"):
        return True
    if name in COUNTS or is_vocabulary(name):
        return False
    return _RELEASE_HEADING.search(heading) is not None or (bool(cells) and all(map(_RELEASE.fullmatch, cells)))


def blank_value(name: str, cells: Sequence[str]) -> Scalar | None:
    """Return the value of an empty cell or a dash: off, in a column whose other cells all say on; else ``None``.

    >>> blank_value("zero_stage", ["ZeRO-1", "-"]), blank_value("compile", ["yes", ""])
    (0, False)
    """
    known = {_word(name, cell) for cell in cells if cell.lower() not in MISSING}
    has_blanks = any(cell.lower() in MISSING for cell in cells)
    if len(known) != 1 or not has_blanks or name not in _OFF:
        return None
    (value,) = known
    return _OFF[name] if value not in {None, _OFF[name]} else None


def read_cell(name: str, text: str, heading: Heading, *, decimal_comma: bool = False) -> tuple[Scalar | None, bool]:
    """Return the value of the fact ``name``, and whether it is a known word or a number; ``None`` for no value.

    Raises:
        RecordError: the fact cannot have this value.

    >>> from torchx_cubicml.cli.jobs_table.headings import read_heading
    >>> read_cell("activation_checkpointing", "every_layer", read_heading("AC"))
    ('full', True)
    >>> read_cell("n_params", "7", read_heading("Params (B)")), read_cell("precision", "odd", read_heading("dtype"))
    ((7000000000, True), ('odd', False))
    """
    if text.lower() in MISSING:
        return None, True
    if name in COUNTS:
        return _count(name, text, heading, decimal_comma=decimal_comma)
    if name == "device_memory_gib":
        size = gibibytes(text, unit=heading.unit or "gib", decimal_comma=decimal_comma)
        return (text, False) if size is None else (_plain(size), True)
    value = _word(name, text)
    if value is None and name == "sharding_strategy" and shards_parameters(heading.text) and switch_value(text):
        value = "FULL_SHARD"
    if value is not None:
        return value, True
    return own_value(text, decimal_comma=decimal_comma), not is_vocabulary(name)


def shards_parameters(heading: str) -> bool:
    """Return whether a heading is a switch of sharded parameters: on is FULL_SHARD, off may be several strategies.

    >>> [shards_parameters(text) for text in ("Shard params", "FSDP", "sharding")]
    [True, True, False]
    """
    return re.search(r"param|fsdp", heading.lower()) is not None


def is_vocabulary(name: str) -> bool:
    """Return whether a fact has standard words, so that any other word is unknown."""
    return name in SPELLINGS or name in SWITCHES or name in {"precision", "zero_stage"}


def _word(name: str, text: str) -> Scalar | None:
    """Return the standard word, switch or stage of a fact that has such values, ``None`` for any other text."""
    if name.startswith(PRECISION_SWITCH):  # such as none, hybrid and e4m3 for the format of fp8
        return switch_value(text) is not False
    if name == "zero_stage":
        stage = zero_stage(text)
        return 1 if stage is None and switch_value(text) else stage  # a distributed optimizer is stage 1
    if name in SWITCHES:
        return switch_value(text)
    return standard_word(name, text) if is_vocabulary(name) else None


def own_value(text: str, *, decimal_comma: bool = False) -> Scalar:
    """Return a value that has no standard name: a boolean, a number or a text.

    >>> [own_value(text) for text in ("8", "8.0", "0.5", "True", "bf16", "inf", "1,024", "53.3 %")]
    [8, 8, 0.5, True, 'bf16', 'inf', 1024, 53.3]
    """
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    number = plain_number(text, decimal_comma=decimal_comma)
    if number is None and text.endswith("%"):
        found = quantity(text, decimal_comma=decimal_comma)
        number = found[0] if found is not None and found[1] == "%" else None
    return text if number is None else _plain(number)


def _count(name: str, text: str, heading: Heading, *, decimal_comma: bool) -> tuple[Scalar | None, bool]:
    number = scaled_number(text, binary=name in _BINARY, decimal_comma=decimal_comma)
    if number is None:
        if name in DEGREES and switch_value(text) is False:
            return 1, True
        return text, False
    if name in DEGREES and number == 0:  # how some trainers write "off"
        return 1, True
    if plain_number(text, decimal_comma=decimal_comma) is not None and name not in DEGREES:
        number *= _scale(name, number, heading)
    number = round(number) if number >= 1e6 or math.isclose(number, round(number), rel_tol=1e-12) else number
    if number != int(number) or number < (0 if name in _MAY_BE_ZERO else 1):
        raise RecordError(f"{name} must be a whole number >= 1, got {text!r:.60} in column {heading.text!r:.60}")
    return _plain(number), True


def _scale(name: str, number: float, heading: Heading) -> float:
    """Return the factor of a bare number by its heading; 4 million tokens of a batch are 4 x 2**20."""
    suffix = heading.unit[:1]
    multiple = _BINARY_MULTIPLE.get(suffix, 0.0)
    if name == GLOBAL_BATCH_TOKENS and multiple and (number / multiple).is_integer():
        return SCALE_OF_BINARY[suffix]
    return heading.scale


def _plain(number: float) -> Scalar:
    return int(number) if float(number).is_integer() and abs(number) < _WHOLE else number
