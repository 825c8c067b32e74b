"""Values of ``key=value`` arguments as Hydra reads them: quotes, sweeps, references to other keys."""

from __future__ import annotations

import re

_QUOTED = re.compile(r"(?P<quote>['\"])(?P<inner>[^'\"\\]*)(?P=quote)")
_BRACKETED = re.compile(r"[\[{].*[\]}]", re.DOTALL)
_COMPUTED = re.compile(r"\$\{|[A-Za-z_]+\(.*\)", re.DOTALL)


def is_key(flag: str) -> bool:
    """Return whether a flag of a binding is the key of a bare ``key=value`` argument.

    >>> is_key("model.depth="), is_key("--depth=")
    (True, False)
    """
    return flag.endswith("=") and not flag.startswith("-")


def unquoted(text: str) -> str:
    """Return a value without the quotes around it; a value with quotes or backslashes inside stays.

    >>> unquoted("'FULL_SHARD'"), unquoted("4"), unquoted("'it''s'")
    ('FULL_SHARD', '4', "'it''s'")
    """
    match = _QUOTED.fullmatch(text)
    return match["inner"] if match else text


def quoted_like(text: str, typed: str) -> str:
    """Return a value in the quotes of another one.

    >>> quoted_like("NO_SHARD", "'FULL_SHARD'"), quoted_like("8", "4")
    ("'NO_SHARD'", '8')
    """
    match = _QUOTED.fullmatch(typed)
    return f"{match['quote']}{text}{match['quote']}" if match else text


def is_one_value(text: str) -> bool:
    """Return whether a value is one value as written: no sweep, no reference and no function.

    >>> [is_one_value(text) for text in ("4", "1,2", "'1,2'", "[1,2]", "${lr}", "range(1,4)")]
    [True, False, True, True, False, False]
    """
    if _QUOTED.fullmatch(text) or (_BRACKETED.fullmatch(text) and not _COMPUTED.match(text)):
        return True
    return "," not in text and not _COMPUTED.match(text)
