"""Statuses of jobs: which words say that a job ran, and which that it ran out of memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchx_cubicml.records.standard_words import squashed, switch_value
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from collections.abc import Iterable

_RAN = frozenset(
    {
        *("ok", "okay", "done", "success", "successful", "succeeded", "complete", "completed", "finished", "finish"),
        *(
            "pass",
            "passed",
            "ran",
            "measured",
            "valid",
            "good",
            "ran2completion",
            "exited0",
            "fits",
            "fit",
            "converged",
        ),
        *("rantocompletion", "nerror", "noerror", "healthy", "true", "yes", "y", "\u2713", "\u2714"),
    }
)
_OUT_OF_MEMORY = re.compile(r"oom(?:ed|kill(?:ed)?|error)?$|^oom|out_?of_?memory|cudaoom|outofgpumemory|memoryerror")
_BAD = re.compile(r"oom|outofmemory|fail|error|crash")  # a heading under which "yes" is bad news
_FAILED = re.compile(
    r"fail|crash|error|timeout|timedout|killed|cancel|abort|preempt|nan|hang|hung|lost|x+$|\u00d7$|\u2717$|\u2718$|died|dead|invalid|"
    r"nodefail|segfault|notrun|skipped|incomplete|exception|unstable|diverged|terminated|stopped|interrupted|infeasible|"
    r"dnf|didnotfinish|unfinished"
)


def state_of_word(text: str, *, heading: str = "") -> State | None:
    """Return the state that a status names: completed, out of memory, or unknown for another failure.

    ``None`` where the word is not understood. Under a heading such as ``OOM`` or ``failed``, yes is bad.

    >>> [str(state_of_word(text)) for text in ("OK", "OOM", "timeout", "exit 0")]
    ['completed', 'out_of_memory', 'unknown', 'completed']
    >>> [str(state_of_word(text, heading="OOM?")) for text in ("yes", "no")]
    ['out_of_memory', 'completed']
    """
    word, about = squashed(text), squashed(heading)
    switch = switch_value(text)
    if switch is not None and _BAD.search(about):
        bad = State.OUT_OF_MEMORY if _OUT_OF_MEMORY.search(about) else State.UNKNOWN
        return bad if switch else State.COMPLETED
    if "exit" in about or "return" in about or re.fullmatch(r"exit(?:code|status)?-?\d+", word):
        return State.COMPLETED if re.fullmatch(r"\D*0+", word) else State.UNKNOWN
    if switch is not None:
        return State.COMPLETED if switch else State.UNKNOWN
    if word in _RAN:
        return State.COMPLETED
    if _OUT_OF_MEMORY.search(word):
        return State.OUT_OF_MEMORY
    return State.UNKNOWN if _FAILED.search(word) else None


def states_of_words(texts: Iterable[str], *, heading: str) -> dict[str, State | None]:
    """Return status -> state for the distinct statuses of a column."""
    return {text: state_of_word(text, heading=heading) for text in sorted(set(texts)) if text}
