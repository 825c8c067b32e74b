"""Headings of a table: the standard name or role that each one means, and its unit."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchx_cubicml.cli.jobs_table.column_roles import GLOBAL_BATCH_TOKENS, OUTCOME, PEAK_MEMORY, STEP_TIME, UNITS
from torchx_cubicml.cli.jobs_table.synonyms import AMBIGUOUS_HEADINGS, NAME_BY_HEADING, heading_key
from torchx_cubicml.cli.jobs_table.word_order import NAME_BY_WORDS, heading_words
from torchx_cubicml.cli.jobs_table.written_numbers import is_memory_unit, is_time_unit

_BRACKETED = re.compile(r"\s*[(\[{<]([^()\[\]{}<>]*)[)\]}>]\s*")
_COUNT_UNITS = {"k": 1e3, "thousand": 1e3, "thousands": 1e3, "m": 1e6, "million": 1e6, "millions": 1e6}
_COUNT_UNITS |= {"b": 1e9, "bn": 1e9, "billion": 1e9, "billions": 1e9, "t": 1e12, "trillion": 1e12}
_WORK_PER = re.compile(r"[km]?(?:tok|sample|seq|image|img|step|it)[a-z]*/")
_TOKENS = re.compile(r"(?:in\s+)?(?:[km]|million|thousand)?\s*(?:tokens?|toks?)")
_BANDWIDTH = re.compile(r"[kmgt]?i?b(?:it|ps|/s|it/s)s?")
_POWER = re.compile(r"(?:in\s+)?[x\u00d7*\u00b7]?\s*(?:10\s*\^?|1e\+?)\s*([369]|12)")  # such as 10^9
_SUPERSCRIPTS = str.maketrans("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079", "0123456789")
_COUNTED = re.compile(r"^in\s+|\s*(?:params?|parameters?|weights?|tokens?|toks?)$")
_AROUND = (
    r"(?:avg|average|mean|median|throughput|training|train|measured|achieved|total|global|aggregate|overall|steady|"
    r"cluster|whole|job|model|p50|max|end2end|e2e|perf|performance|speed|rate|in|of|all)*"
)
_WORK = (
    r"(?P<scale>k|kilo|thousand|m|mega|million)?"
    r"(?P<work>tokens?|toks?|tk|t|samples?|seqs?|sequences?|s|images?|imgs?|examples?|"
    r"(?:optim)?steps?|iters?|it|batch(?:es)?)"
)
_DEVICE = r"(?P<{name}>(?:per|p)?(?:gpus?|devices?|accelerators?|ranks?|chips?|cards?|tpus?))?"
_RATED = re.compile(_AROUND + _DEVICE.format(name="device") + _AROUND)
_SECOND = r"(?P<second>(?:per|p)?(?:seconds?|secs?|s))"
_RATE = re.compile(_AROUND + _WORK + _DEVICE.format(name="before") + _SECOND + _DEVICE.format(name="behind") + _AROUND)
_INVERSE = re.compile(
    rf"{_AROUND}(?P<unit>s|secs?|seconds?|ms|msecs?|milliseconds?)per(?:optim|train(?:ing)?|global)?"
    r"(?:its?|iters?|steps?|batch)"
)
_STEP_TIME = re.compile(
    rf"{_AROUND}(?=.*(?:time|timing|duration|latency|elapsed|wallclock))(?=.*(?:step|iter|batch))"
    r"(?:train|training|global|optim|step|iter|batch|time|timing|duration|latency|elapsed|wall|clock|per|s)+" + _AROUND
)
_PEAK_MEMORY = re.compile(
    r"(?=.*(?:max|peak|highwater))(?=.*(?:mem|alloc|vram|hbm))(?!.*(?:reserved|cached|retries|bandw|frac|pct)).*"
)
_PRECISION = re.compile(r"(?:params?|model|compute|train|training|torch|weights?|amp|base|default)*dtypes?")
_PREFIXES = re.compile(
    r"^(?:(?:num(?:ber)?s?|size|len|count|degree|type)of|num(?:ber)?|count(?:of)?|no(?:of)?|nb|n|total|use|enable|with|is|the|model)"
)
_SUFFIXES = re.compile(r"(?:size|sz|degree|deg|count|ways?|dim|enabled|used|mode|num|setting|value|type|policy)$")
_OUTCOME_WORDS = frozenset({"mfu", "hfu", "perplexity", "ppl", "loss", "speedup", "accuracy", "reserved"})
_SHARES = frozenset(
    {"%", "pct", "percent", "share", "fraction", "ratio", "relative", "rel", "rel.", "normalized", "norm."}
)
_OUTCOME_KEY = re.compile(r"flop|ofpeak|utili[sz]|gradnorm|gpuhours")
_UNIT_OF_DEVICE = re.compile(
    r"(.+?)[\s_-]+([KMGT]i?B|bytes)[\s_-]*(?:/|per[\s_-]?)[\s_-]*(?:gpu|device|rank)s?", re.IGNORECASE
)
_UNIT_BEHIND_SLASH = re.compile(
    r"(.+?)\s*/\s*([KMGT]i?B|bytes|m?s)", re.IGNORECASE
)  # a quantity over its unit, ISO 80000-1
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_TGS = {"tgs": "tokens_per_second_per_device"}  # tokens per GPU and second, as Megatron's and InternEvo's logs say


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """Meaning of a heading.

    Args:
        text: as it stands in the file.
        name: standard name or role; empty where it has none.
        choices: names that it may mean; empty where there is no doubt.
        unit: in brackets or behind the last underscore, in lower case; empty for none.
    """

    text: str
    name: str = ""
    choices: tuple[str, ...] = ()
    unit: str = ""

    @property
    def scale(self) -> float:
        """Factor of a count that is headed in thousands, millions or billions."""
        if self.name != "n_params" and self.unit in {"b", "t"}:  # batches and tokens, not billions and trillions
            return 1.0
        power = _POWER.fullmatch(self.unit.translate(_SUPERSCRIPTS))
        if power is not None:
            return 10.0 ** int(power[1])
        return _COUNT_UNITS.get(_COUNTED.sub("", self.unit), 1.0)


def read_heading(text: str) -> Heading:
    """Return the meaning of a heading.

    >>> [read_heading(text).name for text in ("Tensor Parallelism", "nGPUs", "mbz", "MicroBatchSize", "note")]
    ['tp_degree', 'world_size', 'micro_batch_size', 'micro_batch_size', '']
    >>> read_heading("Throughput (tok/s/GPU)").name, read_heading("step_time_ms").unit
    ('tokens_per_second_per_device', 'ms')
    >>> read_heading("Batch size").choices
    ('micro_batch_size', 'global_batch_size')
    """
    brackets = _BRACKETED.findall(text)
    bare = _BRACKETED.sub(" ", text).strip() or text
    said = [part.strip(" .").lower().removeprefix("in ") for each in brackets for part in each.split(",")]
    unit = brackets[-1].strip().lower() if brackets else ""
    units = [part for part in said if is_time_unit(part) or is_memory_unit(part)]
    unit = next((part for part in units if part != "min"), units[0] if units else unit)  # "min" may be a statistic
    forms = [*_bare_forms(bare, unit), (text, unit)]
    if "flop" in unit:
        return Heading(text=text, name=OUTCOME, unit=unit)
    for base, its_unit in forms:
        found = _rate_in_unit(text, base, its_unit) or _meaning(text, base, its_unit)
        if found is not None:
            return found
    if _states_outcome(text):
        return Heading(text=text, name=OUTCOME, unit=unit)
    ordered = _with_unit(text, NAME_BY_WORDS.get(heading_words(bare), ""), unit)
    if ordered is not None and ordered.name:
        return ordered
    tails = (_meaning(text, base, its_unit) for base, its_unit in _tail_forms(bare, unit))
    return next((found for found in tails if found is not None), Heading(text=text, unit=forms[0][1]))


def _states_outcome(text: str) -> bool:
    words = {word.lower() for word in _WORD.findall(text)}
    is_scale = "loss" in words and not words.isdisjoint({"scale", "scaling", "type", "weight"})  # a setting
    return _OUTCOME_KEY.search(heading_key(text)) is not None or not (is_scale or _OUTCOME_WORDS.isdisjoint(words))


def _tail_forms(bare: str, unit: str) -> list[tuple[str, str]]:
    """Return the readings of the ends of a path in a config, as experiment trackers write it."""
    if " " in bare or _RATE.fullmatch(heading_key(bare)) or _WORK_PER.match(bare.lower()):
        return []
    parts = re.split(r"[./:]|__", bare)
    tails = [" ".join(parts[start:]) for start in range(1, len(parts)) if parts[start].strip()]
    return [form for tail in tails for form in _bare_forms(tail, unit)]


def _bare_forms(bare: str, unit: str) -> list[tuple[str, str]]:
    """Return the readings of a heading without brackets: as it stands, and with its last word as the unit."""
    forms = [(bare, unit)]
    if "," in bare:
        base, _, behind = bare.rpartition(",")
        forms.append((base, behind.strip().lower()))
    words = re.split(r"\s/\s|[\s_-]+", bare)
    last = words[-1].lower()
    if len(words) > 1 and (is_memory_unit(last) or is_time_unit(last) or last in {*_COUNT_UNITS, "tokens"}):
        forms.insert(0, (" ".join(words[:-1]), unit or last))
    found = _UNIT_OF_DEVICE.fullmatch(bare) or _UNIT_BEHIND_SLASH.fullmatch(bare)
    if found and (is_memory_unit(found[2].lower()) or _STEP_TIME.fullmatch(heading_key(found[1]))):
        forms.insert(0, (found[1], unit or found[2].lower()))
    camel = re.fullmatch(r"(.+[a-z])(Ms|MS|GB|GiB|MB|MiB|Gb|Sec|Seconds|Tokens)", bare)
    if camel:
        forms.insert(0, (camel[1], unit or camel[2].lower()))
    return forms


def _meaning(text: str, base: str, unit: str) -> Heading | None:
    key = heading_key(base)
    single = len(key) == 1
    for each in dict.fromkeys((key, _SUFFIXES.sub("", key), _PREFIXES.sub("", key), _stripped(key))):
        if len(each) == 1 and not single:
            continue  # what is left of a word is no symbol
        if each in NAME_BY_HEADING and not (NAME_BY_HEADING[each] == "container" and key.endswith("size")):
            return _with_unit(text, NAME_BY_HEADING[each], unit)
        rated = _rate_of(text, each, unit) if "per" in each or re.search(r"sec|[\s_]s\b|^tgs$", base.lower()) else None
        if rated is not None:
            return rated
        if each in AMBIGUOUS_HEADINGS and each in {key, _PREFIXES.sub("", key)}:
            return _settled_by_unit(text, AMBIGUOUS_HEADINGS[each], unit)
    grammar = ((_STEP_TIME, STEP_TIME), (_PEAK_MEMORY, PEAK_MEMORY), (_PRECISION, "precision"))
    name = next((name for pattern, name in grammar if pattern.fullmatch(key)), "")
    return _with_unit(text, name, unit) if name else None


def _stripped(key: str) -> str:
    return _PREFIXES.sub("", _SUFFIXES.sub("", key))


def _with_unit(text: str, name: str, unit: str) -> Heading | None:
    """Return the meaning of a heading whose unit decides what is counted; ``None`` where the unit does not fit."""
    if not _is_legal_unit(name, unit):
        return None
    if name == "global_batch_size" and _TOKENS.fullmatch(unit):
        return Heading(text=text, name=GLOBAL_BATCH_TOKENS, unit=_COUNTED.sub("", unit))
    if name == STEP_TIME and is_time_unit(unit):
        return Heading(text=text, name="seconds_per_step", unit=unit)
    if name == STEP_TIME:
        asked = Heading(text=text, choices=("seconds_per_step", "milliseconds_per_step"))
        return _rate_of(text, heading_key(unit), "") or asked
    return Heading(text=text, name=name, unit=unit)


def _is_legal_unit(name: str, unit: str) -> bool:
    """Return whether a heading can mean ``name`` in its unit: GPU hours, GPUs in % and GPU in GB are no GPUs."""
    if name == OUTCOME:
        return True
    if is_time_unit(unit):
        return name == STEP_TIME
    if _BANDWIDTH.fullmatch(unit):
        return False
    if is_memory_unit(unit):
        return name in {PEAK_MEMORY, "device_memory_gib"}
    return unit not in _SHARES and not (name == "micro_batch_size" and unit in {"token", "tokens"})


def _rate_of(text: str, key: str, unit: str) -> Heading | None:
    if key in _TGS:
        return Heading(text=text, name=_TGS[key])
    inverse = _INVERSE.fullmatch(key)
    if inverse is not None:
        return Heading(text=text, name="seconds_per_step", unit="ms" if inverse["unit"].startswith("m") else "s")
    found = _RATE.fullmatch(key)
    if found is None or (found["work"] in {"s", "t", "k"} and "per" not in key):
        return None
    if found["second"] == "s" and (found["behind"] or "").startswith("per") and found["work"] in _SINGULARS:
        return None  # tokens per GPU are no tokens per second
    per_device = found["before"] or found["behind"]
    work = found["work"].removeprefix("optim")
    kind = "tokens" if work.startswith("t") else "samples" if work in {"s", *_SAMPLES} else "steps"
    if kind == "steps" and per_device:
        return None
    scale = {"k": "k", "t": "k", "m": "m"}.get((found["scale"] or " ")[0], "") or unit
    return Heading(text=text, name=f"{kind}_per_second{'_per_device' if per_device else ''}", unit=scale)


def _rate_in_unit(text: str, base: str, unit: str) -> Heading | None:
    """Return the meaning of a throughput whose unit is a rate: Throughput per GPU (tokens/s); ``None`` for others."""
    around = _RATED.fullmatch(heading_key(base))
    if around is None or "per" not in heading_key(unit):
        return None
    found = _rate_of(text, heading_key(unit) + (around["device"] or ""), "")
    return found if found is None or found.name in UNITS else None


_SINGULARS = frozenset(
    {"token", "sample", "seq", "sequence", "image", "img", "example", "step", "optimstep", "iter", "it", "batch"}
)
_SAMPLES = frozenset(
    {
        *("sample", "samples", "seq", "seqs", "sequence", "sequences", "image", "images"),
        *("img", "imgs", "example", "examples"),
    }
)


def _settled_by_unit(text: str, choices: tuple[str, ...], unit: str) -> Heading:
    """Return the meaning of an ambiguous heading, which its unit may settle."""
    if unit and "tokens_per_second" in choices:
        found = _rate_of(text, heading_key(unit), "")
        return Heading(text=text, choices=choices) if found is None else found
    if "per" in heading_key(unit) and "seconds_per_step" in choices:
        return _rate_of(text, heading_key(unit), "") or Heading(text=text, choices=choices, unit=unit)
    if is_time_unit(unit) and "seconds_per_step" in choices:
        return Heading(text=text, choices=("seconds_per_step", OUTCOME), unit=unit)
    if "global_batch_size" in choices and _TOKENS.fullmatch(unit):
        return _with_unit(text, "global_batch_size", unit) or Heading(text=text, choices=choices, unit=unit)
    return Heading(text=text, choices=choices, unit=unit)


def states_time_heading(heading: Heading) -> bool:
    """Return whether a heading names a duration."""
    choices = (heading.name, *heading.choices)
    return "seconds_per_step" in choices or (is_time_unit(heading.unit) and heading.name in {"", OUTCOME})


def is_certain_outcome(heading: Heading) -> bool:
    """Return whether a heading names an outcome of a run, which no predictor may see."""
    return heading.name in {OUTCOME, PEAK_MEMORY} or heading.name.partition("_per_")[2].startswith(
        ("second", "step", "micro")
    )
