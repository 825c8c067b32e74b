from __future__ import annotations

import pytest

from torchx_cubicml.predictors.features.device_specs import PRECISIONS, precision_word
from torchx_cubicml.records.standard_names import STANDARD_WORDS
from torchx_cubicml.records.standard_words import SPELLINGS, standard_word, switch_value, zero_stage

PRECISION_WORDS = {
    "bf16": ("BF16", "bfloat16", "torch.bfloat16", "amp_bf16", "bf16-mixed", "bf16-true", "bf16/fp32", "BF16 (AMP)"),
    "fp16": ("fp16", "float16", "16-mixed", "half", "16", "amp_fp16", "16bit"),
    "fp32": ("fp32", "float32", "32-true", "32", "single"),
    "tf32": ("tf32", "TF32"),
    "fp8": ("fp8", "amp_fp8", "FP8-hybrid", "float8_e4m3fn", "bf16 + fp8", "FP8 (AMP)"),
    "nvfp4": ("nvfp4", "NVFP4", "nvfp4-mixed"),
    "mxfp8": ("mxfp8", "MXFP8"),
    "int8": ("int8",),
}


@pytest.mark.parametrize(("word", "text"), [(word, each) for word, texts in PRECISION_WORDS.items() for each in texts])
def test_a_precision_has_one_word(word: str, text: str) -> None:
    assert standard_word("precision", text) == word
    assert precision_word(text) == (word if word in PRECISIONS else None)


@pytest.mark.parametrize("text", ["mixed", "O2", "default", "0.16", "", "116"])
def test_what_names_no_format_is_none(text: str) -> None:
    assert standard_word("precision", text) is None


def test_each_spelling_has_one_word() -> None:
    for name, words in SPELLINGS.items():
        for word, spellings in words.items():
            assert {standard_word(name, spelling) for spelling in (word, *spellings)} == {word}, (name, word)


def test_the_observed_words_are_standard() -> None:
    for name, words in STANDARD_WORDS.items():
        for word in words:
            assert standard_word(name, word) == word


@pytest.mark.parametrize(
    ("text", "stage"),
    [("ZeRO-3", 3), ("stage 2", 2), ("zero_stage_1", 1), ("0", 0), ("1.0", 1), ("off", 0), ("4", None)],
)
def test_a_stage_of_zero(text: str, stage: int | None) -> None:
    assert zero_stage(text) == stage


@pytest.mark.parametrize(("text", "value"), [("✓", True), ("✗", False), ("On", True), ("DISABLED", False), ("2", None)])
def test_a_switch(text: str, *, value: bool | None) -> None:
    assert switch_value(text) is value
