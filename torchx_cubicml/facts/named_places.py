"""Places that a command names: what a program writes, reads, or goes on from, by name and value of an argument.

A name is taken apart at dots, underscores, hyphens and capital letters, and words such as ``logdir`` into their two.
A place has a name that ends like one (``_dir``), says nothing else (``--save``), or has a path for a value.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class NamedPlace(Enum):
    """Verdict on an argument: how a program uses its value."""

    OUTPUT = auto()  # a file or folder that it writes; a checkpoint too, where no word tells that it is read
    LABEL = auto()  # a name under which it files what it writes, such as that of a run
    RESUME = auto()  # a training that it goes on from, and may write to
    INPUT = auto()  # a file or folder that it reads
    CACHE = auto()  # a folder that launches share, such as that of downloads
    NONE = auto()  # a number, a switch, how often or how to save


def word_set(words: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(words.split())


# Words of names: what they tell, the first that tells something counting most.
_RESUMES = word_set("resume resuming resumed autoresume")
_CONTINUES = _RESUMES | word_set("restore restart continue load")
_NO_TRAINING = word_set("download lr log logs logging wandb mlflow tensorboard tb")  # may be resumed, too
_NEGATIONS = word_set("no not dont never without skip ignore disable")
_CACHES = word_set("cache caches tmp temp scratch")
_FIXED = word_set("config configs cfg recipe from")
_OUT = word_set("out output outputs")
_WRITES = _OUT | word_set(
    "save saves saving dump dumps export result results artifact artifacts push hub "
    "log logs logging tensorboard tb wandb mlflow"
)
_READS = word_set(
    "data dataset datasets input inputs init initial pretrained finetune weights tokenizer model base teacher vocab"
)
_SPLITS = word_set("train training val valid validation eval evaluation test")  # no sections: train.run_dir is written
_STATES = word_set("checkpoint checkpoints ckpt ckpts snapshot snapshots")
_RUNS = word_set("run runs exp exps experiment experiments")
_FILED = word_set(
    "saved job work working workspace project profile profiler profiling trace traces tracker trackers tracking "
    "metrics report outcome sweep hydra"
)
RUN_WORDS = _WRITES | _STATES | _RUNS | _FILED
"""Words of names that tell of a run or of what it writes."""

_PATHS = word_set("dir dirs dirname dirpath directory folder path root workspace file filename prefix to")
_NAMES = word_set("name id tag tags group project entity suffix uri url")
_INPUTS = _FIXED | _READS
_KNOWN = {
    "default_root_dir": NamedPlace.OUTPUT,  # Lightning
    "project_root": NamedPlace.NONE,  # of the source, in templates for Lightning and Hydra
    "report_to": NamedPlace.NONE,  # names of trackers, in the HF Trainer
    "checkpointer_checkpoint_dir": NamedPlace.INPUT,  # torchtune, whose output is checkpointer.output_dir
}
"""Names whose trainer gives them another meaning than their words have."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_FUSED = re.compile(rf"({'|'.join(RUN_WORDS | _CACHES)})({'|'.join(_PATHS | _NAMES)})")
_PATH = re.compile(r"[^\s%]*(?:/|\.[A-Za-z]\w{0,11}$)")
_SURE_PATH = re.compile(r"[^\s%]*(?:/|\.(?:pt|pth|ckpt))|(?:~|\.{0,2})/[^\s%]*")
_OFF = re.compile(r"none|null|no|n|off|false|f|0|/dev/null", re.IGNORECASE)
_ON = re.compile(r"|true|t|yes|y|on", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?[\d._,]*\d(?:e[-+]?\d+)?", re.IGNORECASE)
_SERVICE = re.compile(r"(?:https?|wss?|grpc|tcp|udp)://", re.IGNORECASE)
_REMOTE = re.compile(rf"(?!file:|{_SERVICE.pattern})[a-z][a-z\d+.-]*://", re.IGNORECASE)
_NAMED = re.compile(r"(?P<name>--?[A-Za-z][^=]*|\+{0,2}[A-Za-z_][\w.-]*(?==))(?:=(?P<value>.*))?", re.DOTALL)


def words_of(name: str) -> tuple[str, ...]:
    """Return the words of a name, in lower case.

    >>> words_of("defaultRootDir"), words_of("LR0"), words_of("--save-every=")
    (('default', 'root', 'dir'), ('lr', '0'), ('save', 'every'))
    """
    return tuple(part.lower() for part in _WORD.findall(name))


def is_remote(value: str) -> bool:
    """Return whether a value is a URL of a store, which is not on this machine and no service's address."""
    return _REMOTE.match(value) is not None


def is_path(value: str) -> bool:
    """Return whether a value is a path, and no id of a model on a hub, as ``team/model`` may be.

    >>> [value for value in ("run.pt", "/a", "./a", "runs/", "~ab.pt", "team/a-1.3b", "full") if is_path(value)]
    ['run.pt', '/a', './a', 'runs/', '~ab.pt']
    """
    return _SURE_PATH.fullmatch(value) is not None


def named_values(arguments: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield name and value of each flag and ``key=value`` argument, in order; a flag alone has an empty value.

    >>> [*named_values(["a.py", "--out", "s3://b/x=1", "--lr=0.1", "-v", "+run.dir=o", "--n", "-1"])]
    [('--out', 's3://b/x=1'), ('--lr', '0.1'), ('-v', ''), ('+run.dir', 'o'), ('--n', '-1')]
    """
    for word, following in pairwise((*arguments, "--")):
        found = _NAMED.fullmatch(word)
        if found is not None:
            is_alone = following == "--" or _NAMED.fullmatch(following) is not None
            yield found["name"], found["value"] if found["value"] is not None else "" if is_alone else following


def places_in(arguments: Iterable[str], *places: NamedPlace) -> list[tuple[str, str]]:
    """Return name and value of the arguments that are one of ``places``.

    >>> places_in(["--save_dir", "runs", "--save_every=5", "--resume"], NamedPlace.OUTPUT, NamedPlace.RESUME)
    [('--save_dir', 'runs'), ('--resume', '')]
    """
    return [(name, value) for name, value in named_values(arguments) if place_of(name, value) in places]


@lru_cache(maxsize=4096)
def place_of(name: str, value: str | None = None) -> NamedPlace:
    """Return the use that a program makes of the value of a flag, key or variable.

    Args:
        name: with or without dashes and ``=``; dots between sections.
        value: as typed; empty for a flag alone. Without it, a verdict holds for each value that is a text.

    >>> place_of("--workDir", "s3://b/a").name, place_of("job.resume_from", "a.pt").name, place_of("--save_every").name
    ('OUTPUT', 'RESUME', 'NONE')
    """
    section, _, key = name.strip("-+=").rpartition(".")
    last, outer, text = _parts(key), _parts(section), value or ""
    if not last or last[0] in _NEGATIONS or _OFF.fullmatch(text):
        return NamedPlace.NONE
    known = _KNOWN.get("_".join(last), _KNOWN.get("_".join((*outer, *last))))
    place = known or _place_of_words(last, frozenset(outer), value)
    is_on = value is not None and _ON.fullmatch(text) is not None
    if place is NamedPlace.RESUME or (is_on and place is NamedPlace.OUTPUT and _WRITES.issuperset(last)):
        return place  # a switch may say so: --resume, --tensorboard
    is_service = place is not NamedPlace.INPUT and _SERVICE.match(text) is not None
    return NamedPlace.NONE if is_on or is_service or _NUMBER.fullmatch(text) else place


def _parts(text: str) -> tuple[str, ...]:
    """Return the words of a name, those written as one taken apart, without ``use`` and ``enable``."""
    found = ((word, _FUSED.fullmatch(word)) for word in words_of(text))
    parts = [part for word, fused in found for part in (fused.groups() if fused else (word,))]
    return tuple(part for part in parts if part not in {"use", "enable"})


def _place_of_words(last: tuple[str, ...], outer: frozenset[str], value: str | None) -> NamedPlace:
    """Return the verdict on a value that is a text, or on a name alone."""
    words, text = outer.union(last), value or ""
    is_place = last[-1] in _PATHS or _PATH.match(text) is not None
    goes_on = (words & _CONTINUES and not words & _NO_TRAINING) or ("from" in words and words & _STATES)
    if text.lower() == "resume" or (goes_on and not words & _INPUTS - {"from", "model"}):
        return NamedPlace.RESUME if is_place or _says_to_continue(last, words, text) else NamedPlace.NONE
    if words & _CACHES:
        return NamedPlace.CACHE if is_place else NamedPlace.NONE
    if goes_on or _is_read(words.intersection(last), outer):
        return NamedPlace.INPUT if is_place or words <= _INPUTS | _SPLITS | _STATES | _NAMES else NamedPlace.NONE
    return _written_place(last, words, value)


def _says_to_continue(last: tuple[str, ...], words: frozenset[str], text: str) -> bool:
    """Return whether this is no name such as ``load_in_8bit`` or ``restart_policy``; ``init_from=resume`` says it."""
    is_plain = _CONTINUES.union(_STATES, _SPLITS, {"from", "model"}).issuperset(last)
    return is_plain or bool(words & _RESUMES) or text.lower() == "resume"


def _is_read(last: frozenset[str], outer: frozenset[str]) -> bool:
    return bool(last & _FIXED or (not last & _WRITES and ((last | outer) & _INPUTS or last & _SPLITS)))


def _written_place(last: tuple[str, ...], words: frozenset[str], value: str | None) -> NamedPlace:
    is_path, is_sure = _PATH.match(value or "") is not None, value is not None or _OUT.issuperset(last)
    if not words & RUN_WORDS:
        return NamedPlace.NONE
    if last[-1] in _PATHS or (is_path and RUN_WORDS.issuperset(last)):
        return NamedPlace.OUTPUT
    if last[-1] in _NAMES or _RUNS.issuperset(last):
        return NamedPlace.OUTPUT if is_remote(value or "") else NamedPlace.LABEL
    is_alone = is_sure and (_WRITES | _STATES).issuperset(last)
    return NamedPlace.OUTPUT if is_alone or (is_path and words & (_WRITES | _STATES)) else NamedPlace.NONE
