"""Hides what looks like a secret before a text reaches a record or a terminal."""

from __future__ import annotations

import re

MASK = "***"

# "tokens" is a word of the trade and no secret: seq_tokens=4096, tokens_per_second: 812.5.
_SECRET_WORDS = frozenset(
    "token secret password passwd passphrase pwd credential credentials auth key apikey authorization".split()
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_HOLDS_WORD = rf"[\w.-]*(?:{'|'.join(sorted(_SECRET_WORDS))})[\w.-]*"
_NAMED = re.compile(
    rf"""(?P<name>--?{_HOLDS_WORD}(?:=|[ ]+)             # a flag and its value
        | {_HOLDS_WORD}["']?[ ]*[=:][ ]*)                # name=value, "name": value
        (?P<quote>["']?)(?P<value>[^\s"',;&)}}\]]+)""",
    re.VERBOSE | re.IGNORECASE,
)
_SHAPED = re.compile(
    r"""
    (?<=://)[^/\s@]+(?=@)                        # user:password in a URL
    | \bAKIA[0-9A-Z]{16}\b                       # AWS access key id
    | \bgh[pousr]_[A-Za-z0-9]{20,}\b             # GitHub
    | \bhf_[A-Za-z0-9]{20,}\b                    # Hugging Face
    | \bsk-[A-Za-z0-9_-]{16,}\b                  # OpenAI and others
    | \bxox[abprs]-[A-Za-z0-9-]{10,}\b           # Slack
    | \beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*        # JSON web token
    | -----BEGIN[ A-Z]*PRIVATE[ ]KEY-----[\s\S]*?(?:-----END[ A-Z]*PRIVATE[ ]KEY-----|\Z)
    | (?<=\bBearer\s)\S+
    """,
    re.VERBOSE,
)


def mask(text: str) -> str:
    """Return ``text`` with the values of secrets replaced by ``***``.

    >>> mask("login failed: password=hunter2 for https://me:hunter2@host/x")
    'login failed: password=*** for https://***@host/x'
    >>> mask("12 tokens_per_second: 4096")
    '12 tokens_per_second: 4096'
    """
    return _NAMED.sub(_mask_named, _SHAPED.sub(MASK, text))


def names_secret(name: str) -> bool:
    """Whether a flag, a variable or a key of this name holds a secret by the look of it.

    >>> names_secret("WANDB_API_KEY"), names_secret("--authToken"), names_secret("--max_tokens")
    (True, True, False)
    """
    return any(word.lower() in _SECRET_WORDS for word in _WORD.findall(name))


def _mask_named(match: re.Match[str]) -> str:
    if not names_secret(match["name"]) or match["value"].startswith("-"):
        return match[0]
    return f"{match['name']}{match['quote']}{MASK}"
