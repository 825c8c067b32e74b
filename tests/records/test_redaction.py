from __future__ import annotations

import base64
import random
import string
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.records import redaction
from torchx_cubicml.records.redaction import MASK, excerpt, mask, names_secret
from torchx_cubicml.records.trial import new_id

SECRET = "hunter2Zq9"

HIDES = {
    "a secret that names another": f"client_secret:  api_key = {SECRET}",
    "assignment": f"password={SECRET}",
    "spaced assignment": f"api_key = {SECRET}",
    "colon": f"token: {SECRET}",
    "flag": f"train.py --api_key {SECRET} --lr 0.1",
    "flag with equals": f"train.py --wandb-key={SECRET}",
    "printed command": f"Command '['python', 'train.py', '--hf_token', '{SECRET}']' returned non-zero exit status 1.",
    "environment dump": f"RANK=0\nWANDB_API_KEY={SECRET}\nPATH=/usr/bin",
    "environment access": f"os.environ['AWS_SECRET_ACCESS_KEY'] = '{SECRET}'",
    "JSON": f'{{"user": "me", "password": "{SECRET}"}}',
    "quoted with spaces": f'password="correct {SECRET} battery"',
    "quoted with quotes": rf'{{"password": "a\"{SECRET}"}}',
    "quoted after the word": f"access denied for password '{SECRET}'",
    "second of two": f"user=password={SECRET}",
    "with commas": f"password=a,{SECRET};{SECRET}",
    "URL": f"https://me:{SECRET}@host/path",
    "URL with an at sign": f"postgres://me:p@{SECRET}@host:5432/db",
    "query": f"https://host/path?user=me&access_token={SECRET}&x=1",
    "signed URL": f"https://a.blob.core.windows.net/c?sv=2020&sig={SECRET}&se=1",
    "header": f"Authorization: Basic {SECRET}",
    "bearer": f"headers={{'authorization': 'Bearer {SECRET}'}}",
    "bare bearer": f"sent Bearer {SECRET} to the server",
    "connection string": f"AccountName=me;AccountKey={SECRET}==;EndpointSuffix=core",
    "camel case": f"authToken={SECRET}",
    "no separator": f"OPENAI_APIKEY={SECRET}",
    "private key": f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
    "cut private key": f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
    "variable and a space": f"export AWS_SECRET_ACCESS_KEY {SECRET}",
    "key and a space": f"rejected client_secret {SECRET}, try again",
    "key and a space, padded": f"clientSecret {SECRET}==",
    "printed with a space": f"print('client_secret {SECRET}')",
    "short flag": f"psql --user me --pass {SECRET}",
    "short variable": f"PGPASS={SECRET} MYSQL_PASS={SECRET}",
    "short field": f"https://host/login?user=me&pass={SECRET}",
    "short key": f'{{"user": "me", "pass": "{SECRET}"}}',
}

EXACTLY = [
    ("password=x password=y, password=z", "password=*** password=***, password=***"),
    ("x=1 password='a b' y=2", "x=1 password='***' y=2"),
    ('x=1 password="a b" y=2', 'x=1 password="***" y=2'),
    (r"password='a\'b' c", "password='***' c"),
    ("password='a b", "password='***'"),
    ("(api_key=a) b", "(api_key=***) b"),
    ("password=a,b;c d", "password=*** d"),
    ("headers={'authorization': 'Bearer a'}", "headers={'authorization': '***'}"),
    ("api_key: Bearer a b", "api_key: *** b"),
    ("token := a, token => b, token == c, token:\td", "token := ***, token => ***, token == ***, token:\t***"),
    ("user=password=a", "user=password=***"),
    ("secret: api_key = a", "secret: ***"),
    ("secret: api_key: token=a x", "secret: *** x"),
    ("secret: api_key a", "secret: ***"),
    ("secret: api_key hunter2, lr 3", "secret: ***, lr 3"),
    ("secret: --api_key hunter2 x", "secret: *** x"),
    ("secret: lr = 3", "secret: *** = 3"),
    ("secret: api_key=", "secret: ***"),
    ("secret=a api_key=b", "secret=*** api_key=***"),
    ("api_key=", "api_key="),
    ("https://h/p?Signature=a&x=1 y", "https://h/p?Signature=***&x=1 y"),
    ("https://h/p?X-Amz-Signature=a'", "https://h/p?X-Amz-Signature=***'"),
    ("https://me:a@h/p, s3://b:c@h", "https://***@h/p, s3://***@h"),
    ("['--token', 'a', '--lr']", "['--token', '***', '--lr']"),
    ("--token --api-key a", "--token --api-key ***"),
    ("-pass a --pass b --max_tokens c", "-pass *** --pass *** --max_tokens c"),
    ("pass=a PASS=b passes=c", "pass=*** PASS=*** passes=c"),
    ("{'pass': 'a'}", "{'pass': '***'}"),
    ("password 'a', PASSWORD \"b\" and 'c'", "password '***', PASSWORD \"***\" and 'c'"),
    ("api_key 'a' db_pass \"b\"", "api_key '***' db_pass \"***\""),
    ("clientSecret a, my_secret b= c", "clientSecret ***, my_secret *** c"),
]
UNCHANGED = (
    "pass : a|pass\ta|pass, a|pass:a|Pass: a|pass 'a'|password a|token 'a'|tokens 'a'|secret a|hf_token a|max_token a|"
    "eos_token a|my_secret a:|my_secret a=b|my_secret -x|client_secret is a|client_secret was rejected|clientsecret a|"
    "train_loss a|train_loss 'a'|api_key= |https://h/p?x-sig=a"
)
NOT_SECRETS = (
    "bos cache cls dict end eos first foreign group image mask max n next num pad per primary prng public query rng "
    "sep sort special start state stop unk video"
)
OWNERS_OF_KEYS = "api access account auth bearer private secret ssh"
OWNERS_OF_PASSES = (
    "admin database db ftp git http key ldap login mail mongo my mysql pg postgres proxy redis root smtp sql ssh sudo "
    "user"
)

SHAPED = {
    "AWS": "AKIA" + "ABCDEFGH12345678",
    "GitHub": "ghp_" + "a1B2" * 9,
    "GitHub, fine-grained": "github_pat_" + "a1B2" * 9,
    "GitLab": "glpat-" + "a1B2" * 5,
    "Hugging Face": "hf_" + "a1B2" * 8,
    "OpenAI": "sk-proj-" + "a1B2" * 8,
    "Stripe": "sk_live_" + "a1B2" * 6,
    "Slack": "xoxb-" + "1234567890-abcdef",
    "Google": "AIza" + "a1B2-" * 7,
    "NVIDIA": "nvapi-" + "a1B2" * 8,
    "Databricks": "dapi" + "0123456789abcdef" * 2,
    "npm": "npm_" + "a1B2" * 9,
    "Google, OAuth": "ya29." + "a0Af_B-" * 5,
    "JSON web token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
}

HARMLESS = [
    "12 tokens_per_second: 4096",
    "RuntimeError: eos_token_id=2 is outside of the vocabulary, pad_token: '<pad>'",
    "KeyError: 'layers.0.weight'",
    'Missing key(s) in state_dict: "head.weight", "head.bias".',
    "num_key_value_heads=8 key_dim: 64 tokenizer=gpt2 flops_per_token: 6e9",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB",
    "torchrun --nproc_per_node 2 train.py --max_tokens 4096 --n_tokens=8 --tokenizer gpt2",
    "https://host/path?page=2 and s3://team/cubicml",
    "the author's authority on keyboards and secretaries",
    "RuntimeError in the backward pass: CUDA error; forward_pass=0.2 s, second pass 'fusion', pass 3, --passes 2",
    "post_grad_custom_post_pass=None bypass: 1 compass=north pass_through=True",
    "AWS_SECRET_ACCESS_KEY is not set; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY environment variables",
    "use_auth_token argument is deprecated, client_secret: ",
    "secret-sharing protocols, password managers, npm_config_cache=/tmp/npm and npm_package_name",
]

ORDINARY = [
    "ValueError: Unknown config key: prefetch_factor",
    "full_key: prefetch_factor, key: 'batch', key: fp16, key: model.layers.0.weight",
    "unexpected token: foo) and time per token: 0.5 ms",
    "Could not override 'x'. Key 'x' is not in struct\n    full_key: optimizer.lr",
]
IN_DOUBT = [
    f"key: {SECRET}",
    "key: 9f2c61d07e1b4a55",
    "token: hunter2",
    "API key: swordfish",
    "Your access token: swordfish",
    "hf_token=swordfish",
    "{'token': 'swordfish'}",
    "password: swordfish",
]

SECRET_NAMES = (
    "HF_TOKEN hfToken --token token api_key api_keys OPENAI_APIKEY AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY "
    "client_secret passwd DB_PASSWORD passphrase wandb.key --key use_auth_token Authorization --pass PGPASS DB_PASS"
)
TRADE_NAMES = (
    "num_key_value_heads eos_token_id pad_token tokenizer max_tokens max_token key_dim tokens_per_batch author keys "
    "rng_key bytes_per_token NCCL_PROTO monkey micro_batch_size sharding_strategy precision OMP_NUM_THREADS sort_key "
    "forward_pass n_passes bypass"
)


@pytest.mark.parametrize("text", HIDES.values(), ids=HIDES.keys())
def test_a_secret_is_hidden_and_the_rest_stays(text: str) -> None:
    masked = mask(text)
    assert SECRET not in masked
    assert MASK in masked


@pytest.mark.parametrize("secret", SHAPED.values(), ids=SHAPED.keys())
def test_a_secret_is_known_by_its_shape(secret: str) -> None:
    assert mask(f"got {secret} here") == f"got {MASK} here"


@pytest.mark.parametrize("text", HARMLESS)
def test_words_of_the_trade_stay(text: str) -> None:
    assert mask(text) == text


@pytest.mark.parametrize("kind", ["import", "launch", "trial", "tune"])
def test_an_id_of_this_package_stays_though_it_looks_like_a_key(kind: str) -> None:
    found = new_id(kind)
    assert mask(found) == found
    assert mask(f"{found}-12") == f"{found}-12"
    assert MASK in mask(f"key: {found}")
    assert MASK in mask(f"{found} key: {found}")


@given(st.from_regex(redaction._HARMLESS, fullmatch=True))
def test_a_text_that_is_passed_over_holds_nothing_to_mask(text: str) -> None:
    with_words = f"{text} "  # is not passed over
    assert redaction._HARMLESS.fullmatch(with_words) is None
    assert mask(with_words) == with_words


@pytest.mark.parametrize("text", ORDINARY)
def test_an_ordinary_word_after_key_or_token_stays(text: str) -> None:
    assert mask(text) == text


@pytest.mark.parametrize("text", IN_DOUBT)
def test_what_may_be_a_secret_goes(text: str) -> None:
    assert MASK in mask(text)
    assert not any(word in mask(text) for word in (SECRET, "9f2c61d07e1b4a55", "hunter2", "swordfish"))


_LETTERS_AND_DIGITS = string.ascii_letters + string.digits
_PLAIN = st.from_regex(r"[a-z]{2,9}(_[a-z]{2,9}){0,3}", fullmatch=True).filter(lambda word: not names_secret(word))
_BEFORE = ["key: ", "token: ", "Unknown config key: ", "hf_token: '", "--api_key ", "--token=", "password=", "PGPASS="]


def random_secret(seed: int) -> str:
    """Return a random secret of at least 16 characters in one of the usual alphabets."""
    rng = random.Random(seed)
    data = rng.randbytes(rng.randint(12, 32))
    texts = [data.hex(), base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode().rstrip("=")]
    prefixed = [
        prefix + "".join(rng.choices(_LETTERS_AND_DIGITS, k=36)) for prefix in ("ghp_", "hf_", "sk-", "glpat-", "npm_")
    ]
    return rng.choice([*texts, *prefixed, "AKIA" + "".join(rng.choices(string.ascii_uppercase + string.digits, k=16))])


@given(seed=st.integers(0, 2**32), before=st.sampled_from(_BEFORE), words=st.lists(_PLAIN, max_size=3))
def test_a_random_secret_after_its_name_never_stays(seed: int, before: str, words: list[str]) -> None:
    secret = random_secret(seed)
    assert secret not in mask(f"{' '.join(words)} {before}{secret}")
    assert secret not in mask(f"{' '.join(words)}: https://me:{secret.replace('/', '_')}@host/path")


@given(word=_PLAIN, before=st.sampled_from(["Unknown config key: ", "key: ", "unexpected token: ", "full_key: "]))
def test_an_ordinary_word_never_goes(word: str, before: str) -> None:
    assert mask(f"ValueError: {before}{word}") == f"ValueError: {before}{word}"
    assert mask(f"ValueError: {before}'{word}' in train.py") == f"ValueError: {before}'{word}' in train.py"


def test_only_the_secret_goes() -> None:
    masked = mask(f"train.py --lr 0.1 --api_key {SECRET} --seed 3, user=me password='{SECRET}', rank=1")
    assert masked == f"train.py --lr 0.1 --api_key {MASK} --seed 3, user=me password='{MASK}', rank=1"


@pytest.mark.parametrize(("text", "masked"), EXACTLY)
def test_the_text_around_a_secret_stays(text: str, masked: str) -> None:
    assert mask(text) == masked


@pytest.mark.parametrize("text", UNCHANGED.split("|"))
def test_a_word_after_no_name_of_a_secret_stays(text: str) -> None:
    assert mask(text) == text


def test_tokens_and_keys_of_a_training_are_no_secrets() -> None:
    for word in NOT_SECRETS.split():
        assert not any(names_secret(f"{word}{name}") for name in ("_token", "_key", "Token", "Key"))
    assert all(map(names_secret, ["my_token", "my_key", "someKey", "token", "key"]))
    assert not any(map(names_secret, ["my_tokens", "key_my", "tokens", "monkey"]))


def test_keys_and_passwords_of_a_service_are_secrets() -> None:
    for owner in OWNERS_OF_KEYS.split():
        assert all(names_secret(f"{owner}{name}") for name in ("_token_1", "key_id", "_keys", "token"))
    for owner in OWNERS_OF_PASSES.split():
        assert all(names_secret(f"{before}{owner}{name}") for before in ("", "my_") for name in ("_pass", "pass"))
        assert not names_secret(f"{owner}_passes")


def test_a_flag_without_a_value_hides_no_other_word() -> None:
    assert mask("train.py --token --lr 0.1") == "train.py --token --lr 0.1"


@pytest.mark.parametrize("name", SECRET_NAMES.split())
def test_names_of_secrets(name: str) -> None:
    assert names_secret(name)


@pytest.mark.parametrize("name", TRADE_NAMES.split())
def test_names_of_the_trade(name: str) -> None:
    assert not names_secret(name)


@given(st.lists(st.sampled_from([*HIDES.values(), *SHAPED.values(), *HARMLESS, "\n", " ", "'", '"'])).map(" ".join))
@settings(max_examples=50)
def test_no_company_brings_a_secret_back(text: str) -> None:
    masked = mask(text)
    assert SECRET not in masked
    assert not any(secret in masked for secret in SHAPED.values())
    assert mask(masked) == masked


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "a-",
        "password=",
        "'",
        "x: ",
        "eyJ-",
        "- ",
        "--token ",
        "token='",
        "\\",
        "?sig",
        "://",
        "-----BEGIN ",
        "sk-a.",
        "api_key ",
        "api_key is ",
    ],
)
def test_a_hostile_text_costs_no_more_than_its_length(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    began = time.process_time()
    mask(text)
    assert time.process_time() - began < 30.0  # a quadratic pattern takes minutes


@pytest.mark.parametrize("n_letters", [12, 13, 3000, 100_000])
def test_an_excerpt_says_where_it_is_cut(n_letters: int) -> None:
    assert excerpt("x" * n_letters, most=12) == "x" * 12 + ("… (cut)" if n_letters > 12 else "")


def test_an_excerpt_that_is_short_only_as_secrets_are_masked_says_that_it_is_cut() -> None:
    found = excerpt(f"password={'p' * 5000} failed", most=600)
    assert found == "password=***… (cut)"
