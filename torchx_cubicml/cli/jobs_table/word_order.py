"""Headings as sets of words: the same words in another order, with or without fillers, mean the same."""

from __future__ import annotations

import re

from torchx_cubicml.cli.jobs_table.synonyms import PARAMETER_SYNONYMS, WORKLOAD_SYNONYMS, heading_key

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_FILLERS = frozenset({"size", "of", "the", "in", "degree", "a", "an"})


def heading_words(text: str) -> frozenset[str]:
    """Return the words of a heading in short form, without fillers.

    >>> sorted(heading_words("Batch size per GPU")), sorted(heading_words("perGPUBatch"))
    (['batch', 'gpu', 'per'], ['batch', 'gpu', 'per'])
    """
    words = (heading_key(word) for word in _WORD.findall(text.replace("/", " per ").replace("GPUs", "GPU")))
    return frozenset(word.removesuffix("s") if len(word) > 3 else word for word in words) - _FILLERS


def _names_by_words() -> dict[frozenset[str], str]:
    names: dict[frozenset[str], set[str]] = {}
    for table in (PARAMETER_SYNONYMS, WORKLOAD_SYNONYMS):
        for name, headings in table.items():
            for heading in (name, *headings):
                names.setdefault(heading_words(heading), set()).add(name)
    return {words: next(iter(found)) for words, found in names.items() if len(words) > 1 and len(found) == 1}


NAME_BY_WORDS: dict[frozenset[str], str] = _names_by_words()
"""Words of a heading, two or more -> standard name, where they belong to one name only."""
