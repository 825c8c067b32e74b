"""Redaction of secrets and control characters before a text reaches a record or a terminal.

A value is masked for its shape, or for the name before it. Machine-learning terms (``tokens_per_second``,
``eos_token``, ``num_key_value_heads``) are not secrets. Nor is an ordinary word after ``key:`` or ``token:``, as in
``Unknown config key: prefetch_factor``. In other doubt a text is masked.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MASK = "***"
_MOST_READ = 4096  # characters of an excerpt in which secrets are looked for

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_STRONG = re.compile(
    r"passw(?:or)?d|passphrase|passcode|credential|(?:^|_)[a-z]*secrets?(?:_|$)|(?:^|_)(?:pwd|auth|authorization)(?:_|$)"
    r"|(?:api|access|account|auth|bearer|private|secret|ssh)_?(?:key|token)"
    r"|^pass$|(?:^|_)(?:admin|database|db|ftp|git|http|key|ldap|login|mail|mongo|my|mysql|pg|postgres|proxy|redis|root"
    r"|smtp|sql|ssh|sudo|user)_?pass$"
)
_WEAK = re.compile(r"(?:^|_)(?:token|key)$")
_NOT_SECRET = re.compile(
    r"(?:^|_)(?:bos|cache|cls|dict|end|eos|first|foreign|group|image|mask|max|n|next|num|pad|per|primary|prng|public|query"
    r"|rng|sep|sort|special|start|state|stop|unk|video)_(?:token|key)$"
)

_OWNER = re.compile(  # before a key or token, as in "API key: ..."
    r"(?<![a-z])(?:access|account|api|auth|bearer|encryption|licen[cs]e|master|personal|private|secret|session|signing|ssh)"
    r"['\"]?[ \t]{1,4}\Z",
    re.IGNORECASE,
)
# An identifier or a number, as a program names its own keys and tokens; secrets are longer, or mix letters and digits.
_PLAIN_WORD = re.compile(
    r"(?=.{1,40}\Z)(?:[A-Z]?[a-z]{1,16}|[A-Z]{1,12})(?:[_.-](?:[A-Z]?[a-z]{1,16}|[A-Z]{1,12}|\d{1,3}))*\.?"
    r"|[-+]?\d{1,5}(?:\.\d{1,6})?"
)
_PLAIN_KEY = re.compile(  # of a config, as in "key: conv2d_1"
    r"(?=.{1,40}\Z)(?:[A-Z]?[a-z]{1,16}\d{0,2}[a-z]?|[A-Z]{1,12})"
    r"(?:[_.-](?:[A-Z]?[a-z]{1,16}\d{0,2}[a-z]?|[A-Z]{1,12}|\d{1,3}))*\.?"
)
_MOST_PARTS = 6  # of an ordinary word

_COMPOUND = re.compile(r"_|[a-z][A-Z]")  # an identifier, as opposed to a word of a sentence

# A name and its separator from the value. Possessive, so that a long word costs one pass and no backtracking.
_NAMED = re.compile(
    r"""
    (?<![\w.-])(?P<name>[\w.-]++)
    (?:
        ["']?\]?[ \t]*(?:=>|:=|={1,2}|:)[ \t]*+      # name=value, "name": "value", environ['NAME'] = 'value'
        | (?P<space>["']?,?[ \t]++)(?!-)             # --name value, the same as a printed list, api_key value
    )
    """,
    re.VERBOSE,
)
_VALUE = re.compile(
    r"""
    b?(?P<quote>["'])(?:\\.|(?!(?P=quote))[^\\])*+(?P=quote)?
    | (?:(?i:basic|bearer|digest|token)[ ]++)?(?:[^\s"'&,;)\]}]|[,;)\]}](?=[^\s"',;)\]}]))++
    """,
    re.VERBOSE,
)
# A possible value after `api_key `: a word that neither continues a sentence nor is itself the name of a value.
_BARE_VALUE = re.compile(
    r"""
    (?!(?:and|are|arguments?|as|at|be|but|by|can|cannot|could|does|env|environment|expired|fields?|files?|flags?|for
        |from|given|has|have|header|in|incorrect|invalid|is|isn|mismatch|missing|must|needed|not|of|on|options?|or
        |parameters?|provided|rejected|required|set|should|to|unset|values?|variables?|was|wasn|were|will|with)\b)
    [^\s"'=]++(?<!:)(?:=*+(?=[\s,;)\]}]|\Z)|(?=["']))
    """,
    re.VERBOSE | re.IGNORECASE,
)
_SHAPED = re.compile(
    r"""
    (?<=://)[^/\s"']+(?=@)                           # user:password in a URL
    | \bA[KS]IA[0-9A-Z]{16}\b                        # AWS access key id
    | \bAIza[\w-]{35}                                # Google
    | \bya29\.[\w.-]{10,}
    | \bgh[pousr]_[A-Za-z0-9]{20,}\b                 # GitHub
    | \bgithub_pat_\w{20,}
    | \bglpat-[\w-]{16,}                             # GitLab
    | \bhf_[A-Za-z0-9]{20,}\b                        # Hugging Face
    | \bnvapi-[\w-]{20,}                             # NVIDIA
    | \bnpm_[A-Za-z0-9]{20,}\b
    | \bpypi-[\w-]{16,}
    | \b[sr]k[-_][A-Za-z0-9_-]{16,}                  # OpenAI, Stripe and others
    | \bxox[abeprs]-[A-Za-z0-9-]{10,}                # Slack
    | (?<=hooks\.slack\.com/services/)[\w/]+
    | \bdapi[0-9a-f]{32}                             # Databricks
    | (?<![\w-])eyJ[\w-]{10,}\.[\w-]{10,}(?:\.[\w-]*)? # JSON web token
    | -----BEGIN[ A-Z]*PRIVATE[ ]KEY-----[\s\S]*?(?:-----END[ A-Z]*PRIVATE[ ]KEY-----|\Z)
    | (?<=\b[Bb]earer[ ])[^\s"',;]{8,}
    """,
    re.VERBOSE,
)
_HARMLESS = re.compile(  # times, words shorter than any secret, and ids of this package: most texts of a large store
    r"[0-9TZ:.+-]*|[\w.,+]{0,13}|(?:import|launch|trial|tune)-[0-9a-f]{16}(?:-\d{1,9})?", re.ASCII
)
_SIGNED = re.compile(r"(?P<name>[?&](?:sig|[\w-]*[Ss]ignature)=)[^&\s\"']+")  # signed URLs of Azure, AWS and Google


def mask(text: str) -> str:
    """Return ``text`` with the values of secrets replaced by ``***``.

    >>> mask("login failed: password=hunter2 for https://me:hunter2@host/x")
    'login failed: password=*** for https://***@host/x'
    >>> mask("12 tokens_per_second: 4096")
    '12 tokens_per_second: 4096'
    >>> mask("Unknown config key: prefetch_factor; key: 9f2c61d07e1b4a55")
    'Unknown config key: prefetch_factor; key: ***'
    """
    if _HARMLESS.fullmatch(text):
        return text
    return _mask_named(_SIGNED.sub(rf"\g<name>{MASK}", _SHAPED.sub(MASK, text)))


def masked_words(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command with the values of secrets replaced by ``***``.

    >>> masked_words(["t.py", "--api_key", "x", "--auth_token=y", "a b"])
    ('t.py', '--api_key', '***', '--auth_token=***', 'a b')
    """
    pairs = zip(("", *words), words, strict=False)
    return tuple(
        MASK if "=" not in previous and names_secret(previous) else _masked_word(word) for previous, word in pairs
    )


def _masked_word(word: str) -> str:
    name, joined, _ = word.partition("=")
    return f"{name}={MASK}" if joined and names_secret(name) else mask(word)


def printable(text: str) -> str:
    r"""Return ``text`` with a question mark for each character that could steer a terminal; line ends stay.

    Half a surrogate, which stands for a byte of a file name that is no UTF-8, becomes its escape.

    >>> printable("train\x1b[2J.py\nline 2"), printable("tr\udcffin.py")
    ('train?[2J.py\nline 2', 'tr\\udcffin.py')
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    is_half = "\ud800" <= character <= "\udfff"
    return character.encode("ascii", "backslashreplace").decode() if is_half else "?"


def excerpt(text: str, *, most: int) -> str:
    """Return the first ``most`` characters of a text without secrets and control characters; it says where it is cut.

    >>> excerpt("password=hunter2 failed", most=12), excerpt("two words", most=12)
    ('password=***… (cut)', 'two words')
    """
    shown = printable(mask(text[:_MOST_READ]))
    is_whole = len(text) <= _MOST_READ and len(shown) <= most
    return shown if is_whole else f"{shown[:most]}… (cut)"


def names_secret(name: str) -> bool:
    """Return whether the name of a flag, variable or key suggests that it holds a secret.

    >>> names_secret("WANDB_API_KEY"), names_secret("--authToken"), names_secret("--max_tokens")
    (True, True, False)
    """
    words = _words(name)
    if _STRONG.search(words):
        return True
    return _WEAK.search(words) is not None and _NOT_SECRET.search(words) is None


def _words(name: str) -> str:
    return "_".join(_WORD.findall(name)).lower()


def _mask_named(text: str) -> str:
    parts = []
    end = 0
    for match in _NAMED.finditer(text):
        if match.start() < end or not _introduces_secret(match):
            continue
        value = _value_after(text, match.end())
        if value is not None:
            quote = value["quote"] or ""
            parts += [text[end : match.end()], f"{quote}{MASK}{quote}"]
            end = value.end()
    return "".join((*parts, text[end:]))


def _value_after(text: str, start: int) -> re.Match[str] | None:
    """Return the value at ``start``; where it names another secret (``secret: api_key = x``), that one's value."""
    value = following = _VALUE.match(text, start)
    while following is not None:
        value, name = following, _NAMED.match(text, following.start())
        if name is None or name.end() <= value.end() or not _names_value(name):
            break
        following = _VALUE.match(text, name.end())
    return value


def _names_value(match: re.Match[str]) -> bool:
    """Return whether a value is itself the name of another secret and its separator: ``api_key = `` or ``api_key ``."""
    return names_secret(match["name"]) if match["space"] is None else _introduces_secret(match)


def _is_ordinary(match: re.Match[str]) -> bool:
    """Return whether a plain word follows ``key:`` or ``token:`` in prose: ``Unknown config key: prefetch_factor``.

    A quoted name is one of a table of settings, and a password may be a plain word.
    """
    words, text = _words(match["name"]), match.string
    if match.group()[len(match["name"]) :].rstrip(" ") != ":" or not match.group().endswith(" "):
        return False
    if _STRONG.search(words) is not None or _OWNER.search(text, max(0, match.start() - 20), match.start()) is not None:
        return False
    value = _VALUE.match(text, match.end())
    if value is None:
        return False
    word = value.group().strip("'\"{}")
    pattern = _PLAIN_KEY if words.endswith("key") else _PLAIN_WORD
    return pattern.fullmatch(word) is not None and len(re.split(r"[_.-]", word)) <= _MOST_PARTS


def _introduces_secret(match: re.Match[str]) -> bool:
    name, between = match["name"], match.group()[len(match["name"]) :]
    if name.startswith("-"):
        return names_secret(name)
    if name.lower() == "pass":  # a backward pass: ...
        return not between.startswith((" ", "\t", ":", ","))
    if match["space"] is None:
        return names_secret(name) and not _is_ordinary(match)
    if match.string[match.end() : match.end() + 1] in {'"', "'"}:
        return _STRONG.search(name.lower()) is not None
    if _COMPOUND.search(name) is None or _BARE_VALUE.match(match.string, match.end()) is None:
        return False
    return _STRONG.search(_words(name)) is not None
