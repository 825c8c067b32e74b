"""Redaction of secrets before a text reaches a record or a terminal.

In doubt a text is masked, as a missing detail does no harm. Machine-learning terms (``tokens_per_second``,
``eos_token``, ``num_key_value_heads``) are not secrets.
"""

from __future__ import annotations

import re

MASK = "***"

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
_SIGNED = re.compile(r"(?P<name>[?&](?:sig|[\w-]*[Ss]ignature)=)[^&\s\"']+")  # signed URLs of Azure, AWS and Google


def mask(text: str) -> str:
    """Return ``text`` with the values of secrets replaced by ``***``.

    >>> mask("login failed: password=hunter2 for https://me:hunter2@host/x")
    'login failed: password=*** for https://***@host/x'
    >>> mask("12 tokens_per_second: 4096")
    '12 tokens_per_second: 4096'
    """
    return _mask_named(_SIGNED.sub(rf"\g<name>{MASK}", _SHAPED.sub(MASK, text)))


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
        if name is None or name.end() <= value.end() or name["space"] is not None or not names_secret(name["name"]):
            break
        following = _VALUE.match(text, name.end())
    return value


def _introduces_secret(match: re.Match[str]) -> bool:
    name, between = match["name"], match.group()[len(match["name"]) :]
    if name.startswith("-"):
        return names_secret(name)
    if name.lower() == "pass":  # a backward pass: ...
        return not between.startswith((" ", "\t", ":", ","))
    if match["space"] is None:
        return names_secret(name)
    if match.string[match.end() : match.end() + 1] in {'"', "'"}:
        return _STRONG.search(name.lower()) is not None
    if _COMPOUND.search(name) is None or _BARE_VALUE.match(match.string, match.end()) is None:
        return False
    return _STRONG.search(_words(name)) is not None
