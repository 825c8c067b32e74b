from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.errors import CubicMLError, SpaceError
from torchx_cubicml.launch import Launch, read_config, write_config
from torchx_cubicml.space import Binding, BindingKind, SearchSpace, TuneChanges
from torchx_cubicml.space.toml import load_space, parse_space
from torchx_cubicml.space.trainers import TRAINERS

ROOT = Path(__file__).parents[3]
EXAMPLE = (ROOT / "examples" / "gpt.toml").read_text()
SPACES = Path(__file__).parents[2] / "data" / "spaces"

ONE = '[parameters.a]\nchoices = [1, 2]\nflag = "--a"\n'


def parse(text: str) -> SearchSpace:
    return parse_space(text, where="x.toml")


def parameter(body: str, *, before: str = "", flag: str = 'flag = "-p"') -> SearchSpace:
    return parse(f"{before}\n[parameters.p]\n{body}\n{flag}\n")


class TestFiles:
    def test_example(self) -> None:
        space = load_space(ROOT / "examples" / "gpt.toml")
        current = {"micro_batch_size": 4, "gradient_accumulation_steps": 4}
        bound = space.bind(workload={"world_size": 2, "n_layers": 4}, current=current)
        assert bound.size() == 5 * 3**4 * 2  # a micro batch of 32 is the global batch, on one rank of two
        assert space.tune.args == {"--out_dir": "{scratch}/{launch_id}"}

    def test_mesh(self) -> None:
        space = load_space(SPACES / "mesh.toml")
        workload = {"world_size": 16, "n_layers": 12, "n_heads": 12}
        bound = space.bind(workload=workload, current={"micro_batch_size": 2, "tp_degree": 2})
        configs = list(bound.configs())
        assert len(configs) == bound.size() > 0
        for config in configs:
            degrees = [config[name] for name in ("tp_degree", "pp_degree", "cp_degree")]
            samples = config["micro_batch_size"] * config["gradient_accumulation_steps"]
            assert samples * 16 / np.prod(degrees) == 16
            assert config["tp_degree"] in {1, 2, 4}
        assert space.parameters[-1].binding == Binding(kind=BindingKind.ENV, name="NCCL_PROTO")

    def test_groups(self) -> None:
        space = load_space(SPACES / "groups.toml")
        bound = space.bind(workload={}, current={})
        assert [len(dimension.positions) for dimension in bound.dimensions] == [3, 3, 3, 3, 0, 0, 0]
        assert [parameter.choices for parameter in space.parameters][1:] == [
            (0, 2, 4, 6),
            (0.1, 0.2, 0.3),
            (True, False),
        ]
        assert bound.size() == (3**4 * 2 + 2**4) * 4 * 2
        assert space.objective == "samples_per_second"
        assert space.tune == TuneChanges(
            args={"--out": "{scratch}/{launch_id}", "--save-every": "0"}, env={"WANDB_MODE": "disabled"}
        )

    def test_a_path_is_as_good_as_its_text(self) -> None:
        path = SPACES / "mesh.toml"
        assert load_space(path) == load_space(str(path))

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "space file PATH cannot be read here: No such file or directory$"),
            (b"\xff\xfe", "space file PATH cannot be read here: it is not UTF-8 text$"),
            (b"a = ", "PATH: invalid TOML"),
        ],
        ids=["absent", "binary", "not TOML"],
    )
    def test_a_file_that_cannot_be_read(self, tmp_path: Path, content: bytes | None, message: str) -> None:
        path = tmp_path / "s.toml"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(SpaceError, match=f"^{message.replace('PATH', str(path))}"):
            load_space(path)

    def test_folders_and_pipes_are_refused(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        for path in (tmp_path, tmp_path / "pipe", "nul\0byte"):
            with pytest.raises(
                SpaceError, match=r"^space file .* cannot be read here: (it is no regular file|embedded null byte)$"
            ):
                load_space(path)


class TestChoices:
    @pytest.mark.parametrize(
        ("body", "choices"),
        [
            ("choices = [4]", (4,)),
            ('choices = ["a", "b c"]', ("a", "b c")),
            ("choices = [0, 0.5]", (0, 0.5)),
            ("low = 2\nhigh = 4", (2, 3, 4)),
            ("low = -3\nhigh = 3\nstep = 3", (-3, 0, 3)),
            ("low = 1\nhigh = 6\nstep = 2", (1, 3, 5)),
            ("low = 0.1\nhigh = 0.3\nstep = 0.1", (0.1, 0.2, 0.3)),
            ("low = 1\nhigh = 2\nstep = 0.5", (1.0, 1.5, 2.0)),
            ("low = 3\nhigh = 3", (3,)),
            ('low = 2\nhigh = 33\nscale = "log2"', (2, 4, 8, 16, 32)),
            ('low = 0.25\nhigh = 1\nscale = "log2"', (0.25, 0.5, 1.0)),
        ],
    )
    def test_legal_values(self, body: str, choices: tuple[object, ...]) -> None:
        found = parameter(body).parameters[0].choices
        assert found == choices
        assert [type(value) for value in found] == [type(value) for value in choices]


# text, and what the message must hold: the place, the rule, the legal values
WRONG = {
    "unknown key at the top": ("objectives = 1", ["x.toml: unknown key 'objectives'; did you mean 'objective'?"]),
    "unknown key in a parameter": (
        '[parameters.p]\nchioces = [1]\nflag = "-p"',
        ["x.toml: parameters.p: unknown key 'chioces'; did you mean 'choices'?", "(choose from choices, low, high"],
    ),
    "a file without a key": (
        '[parameters.p]\nchoices = [1]\nfile = "a.json"',
        ["parameters.p.key: must be a key in the file"],
    ),
    "a key without a file": (
        '[parameters.p]\nchoices = [1]\nflag = "-p"\nkey = "a"',
        ["p.key: only allowed together with file"],
    ),
    "a key with a gap": (
        '[parameters.p]\nchoices = [1]\nfile = "--c"\nkey = "a..b"',
        ["parameters.p.key: must be a key in the file", "got 'a..b'"],
    ),
    "a file by a strange name": (
        '[parameters.p]\nchoices = [1]\nfile = "$"\nkey = "a"',
        ["p.file: must name the file"],
    ),
    "a secret in a file": (
        '[parameters.p]\nchoices = [1]\nfile = "--c"\nkey = "hub.api_key"',
        ["parameters.p.key: secrets are never recorded"],
    ),
    "a file of no name in tune": (ONE + '[tune.files]\n"$" = { a = "b" }', ["tune.files.$: must name the file"]),
    "a file in tune that is no table": (ONE + '[tune]\nfiles = { "--c" = 1 }', ["tune.files.--c: must be a table"]),
    "a gap in a key of tune": (
        ONE + '[tune]\nfiles = { "--c" = { "a..b" = "x" } }',
        ["tune.files.--c.a..b: must be a key in"],
    ),
    "a placeholder in a key of tune": (
        ONE + '[tune]\nfiles = { "--c" = { a = "{there}" } }',
        ["tune.files.--c.a: unknown placeholder {there} (choose from {scratch}"],
    ),
    "one key for two": (
        '[parameters.p]\nchoices = [1]\nfile = "--c"\nkey = "a"\n'
        '[parameters.q]\nchoices = [1]\nfile = "--c"\nkey = "a"',
        ["parameters.p and parameters.q are both bound to file a in --c"],
    ),
    "unknown key in a fact": ('[workload]\nn = { flg = "-n" }\n' + ONE, ["workload.n: unknown key 'flg'", "'flag'?"]),
    "unknown key in a constraint": (
        '[[constraints]]\nrequires = "a"\n' + ONE,
        ["constraints[0]: unknown key", "require"],
    ),
    "unknown key in tune": ("[tune]\narg = {}\n" + ONE, ["tune: unknown key 'arg'; did you mean 'args'?"]),
    "not TOML": ("a = [", ["invalid TOML"]),
    "a key twice": (ONE + ONE, ["invalid TOML", "twice"]),
    "a huge number": ("objective = " + "9" * 5000, ["invalid TOML"]),
    "nested too deep": ("objective = " + "[" * 5000, ["invalid TOML"]),
    "a deep key": ("a." * 60 + "b = 1", ["invalid TOML", "a key has more than 50 names"]),
    "no parameters": ('objective = "tokens_per_second"', ["parameters: declare at least one parameter"]),
    "a parameter that is no table": (
        "[parameters]\np = 1",
        ["parameters.p: must be a table", "needs trainer = one of megatron-lm", "got 1"],
    ),
    "an objective that is none": (
        'objective = "loss"\n' + ONE,
        ["objective", "tokens_per_second, samples_per_second", "loss"],
    ),
    "a statistic that is none": ('statistic = "median"\n' + ONE, ["statistic", "mean, p50, p10, p90", "median"]),
    "an objective that is no text": ("objective = 1\n" + ONE, ["objective: must be a string"]),
    "a name that is none": ('[parameters."a-b"]\nchoices = [1]\nflag = "-a"', ["invalid name 'a-b'"]),
    "a name of a function": ('[parameters.max]\nchoices = [1]\nflag = "-a"', ["invalid name 'max'"]),
    "a name of a fact": ("[workload]\na = 1\n" + ONE, ["parameters.a: already declared as a workload fact"]),
    "no choices": ('[parameters.p]\nflag = "-p"', ["parameters.p: needs choices, low and high, or derive"]),
    "empty choices": (
        '[parameters.p]\nchoices = []\nflag = "-p"',
        ["parameters.p.choices: must be a list of 1 to 100000"],
    ),
    "choices that are no list": ('[parameters.p]\nchoices = 4\nflag = "-p"', ["parameters.p.choices: must be a list"]),
    "choices of two kinds": (
        '[parameters.p]\nchoices = [1, "a"]\nflag = "-p"',
        ["parameters.p: choices must be of one kind"],
    ),
    "a choice twice": ('[parameters.p]\nchoices = [1, 2, 1]\nflag = "-p"', ["must be distinct, got 1 more than once"]),
    "nested choices": ('[parameters.p]\nchoices = [[1]]\nflag = "-p"', ["parameters.p.choices: values must be"]),
    "a choice that is no number": ('[parameters.p]\nchoices = [nan]\nflag = "-p"', ["finite numbers"]),
    "a choice that is too large": (f'[parameters.p]\nchoices = [{2**64}]\nflag = "-p"', ["within 64 bits"]),
    "a date": ('[parameters.p]\nchoices = [2020-01-01]\nflag = "-p"', ["values must be"]),
    "choices and a range": (
        '[parameters.p]\nchoices = [1]\nlow = 1\nflag = "-p"',
        ["parameters.p.low: not allowed together with choices"],
    ),
    "half a range": ('[parameters.p]\nlow = 1\nflag = "-p"', ["low and high"]),
    "an empty range": ('[parameters.p]\nlow = 2\nhigh = 1\nflag = "-p"', ["high: must be at least low = 2, got 1"]),
    "a huge range": (
        '[parameters.p]\nlow = 1\nhigh = 9000000000\nflag = "-p"',
        ["9.000e+09 values, more than the limit of 100000"],
    ),
    "a step of nothing": ('[parameters.p]\nlow = 1\nhigh = 2\nstep = 0\nflag = "-p"', ["step: must be above 0"]),
    "a missing step": ('[parameters.p]\nlow = 0.5\nhigh = 2\nflag = "-p"', ["p.step: required if low or high"]),
    "a range of texts": (
        '[parameters.p]\nlow = "a"\nhigh = "b"\nflag = "-p"',
        ["parameters.p.low: must be a number"],
    ),
    "another scale": (
        '[parameters.p]\nlow = 1\nhigh = 2\nscale = "log"\nflag = "-p"',
        ["scale: must be 'log2', got 'log'"],
    ),
    "log2 of zero": ('[parameters.p]\nlow = 0\nhigh = 2\nscale = "log2"\nflag = "-p"', ["low: must be above 0"]),
    "log2 and a step": (
        '[parameters.p]\nlow = 1\nhigh = 2\nstep = 1\nscale = "log2"\nflag = "-p"',
        ['step: not allowed together with scale = "log2"'],
    ),
    "no place": (
        "[parameters.p]\nchoices = [1]",
        ["parameters.p: needs exactly one of flag, env,", "got none"],
    ),
    "two places": ('[parameters.p]\nchoices = [1]\nflag = "-p"\nenv = "P"', ["got flag and env"]),
    "a flag without dashes": (
        '[parameters.p]\nchoices = [1]\nflag = "p"',
        ["parameters.p.flag: must be a flag with its dashes"],
    ),
    "a flag with a space": ('[parameters.p]\nchoices = [1]\nflag = "-p; rm"', ["a flag with its dashes"]),
    "a variable with a space": (
        '[parameters.p]\nchoices = [1]\nenv = "A B"',
        ["parameters.p.env: must be the name of a variable"],
    ),
    "a place shared by two spellings": (
        '[parameters]\np = { choices = [1], flag = "--a-b" }\nq = { choices = [1], flag = "--a_b" }',
        ["parameters.p and parameters.q are both bound to flag --a_b"],
    ),
    "a shared place": (
        ONE + '[workload]\nn = { flag = "--a" }',
        ["workload.n and parameters.a are both bound to flag --a"],
    ),
    "a tuned flag in tune": (
        ONE + '[tune]\nargs = { "--a" = "1" }',
        ["parameters.a and tune.args are both bound to flag --a"],
    ),
    "a secret as a fact": (
        ONE + '[workload]\nwho = { flag = "--password" }',
        ["workload.who.flag: secrets are never recorded", "got '--password'"],
    ),
    "a secret as a parameter": (
        '[parameters.p]\nchoices = ["a", "b"]\nenv = "WANDB_API_KEY"',
        ["parameters.p.env: secrets are never recorded", "got 'WANDB_API_KEY'"],
    ),
    "a secret of Hydra": (
        '[parameters.p]\nchoices = ["a", "b"]\nflag = "logger.api_key="',
        ["parameters.p.flag: secrets are never recorded"],
    ),
    "per_layer of nothing": (
        '[parameters.p]\nchoices = [1]\nper_layer = "n"\nflag = "-p"',
        ["(declared: none), got 'n'"],
    ),
    "per_layer misspelled": (
        '[workload]\nn_layers = 4\n[parameters.p]\nchoices = [1]\nper_layer = "n_layer"\nflag = "-p"',
        ["parameters.p.per_layer", "did you mean 'n_layers'?"],
    ),
    "per_table misspelled": (
        '[workload]\nn_tables = 4\n[parameters.p]\nchoices = [1]\nper_table = "n_table"\nflag = "-p"',
        ["parameters.p.per_table", "did you mean 'n_tables'?"],
    ),
    "per_table too large": ('[parameters.p]\nchoices = [1]\nper_table = 5000\nflag = "-p"', ["from 1 to 4096"]),
    "per_table beside per_layer": (
        '[parameters.p]\nchoices = [1]\nper_layer = 2\nper_table = 2\nflag = "-p"',
        ["parameters.p: has one value per layer or per table: needs one of per_layer, per_table"],
    ),
    "per_layer too large": ('[parameters.p]\nchoices = [1]\nper_layer = 5000\nflag = "-p"', ["from 1 to 4096"]),
    "groups without layers": (
        '[parameters.p]\nchoices = [1]\ngroups = 4\nflag = "-p"',
        ["parameters.p: groups must be"],
    ),
    "groups of nothing": (
        '[parameters.p]\nchoices = [1]\nper_layer = 4\ngroups = 0\nflag = "-p"',
        ["groups: must be a whole number"],
    ),
    "derived with choices": (
        '[parameters.p]\nderive = "1"\nchoices = [1]\nflag = "-p"',
        ["choices: not allowed together with derive"],
    ),
    "derived per layer": (
        '[parameters.p]\nderive = "1"\nper_layer = 4\nflag = "-p"',
        ["per_layer: not allowed together with derive"],
    ),
    "derived from nothing": (
        '[parameters.p]\nderive = ""\nflag = "-p"',
        ["parameters.p.derive: '': not an expression"],
    ),
    "derived from code": (
        '[parameters.p]\nderive = "a.b"\nflag = "-p"',
        ["`a.b` at column 1 is not allowed; allowed: numbers"],
    ),
    "derived from a stranger": (
        '[parameters.p]\nderive = "wrold_size"\nflag = "-p"',
        ["parameters.p.derive", "unknown name wrold_size; did you mean 'world_size'? (choose from p, world_size"],
    ),
    "circular": (
        '[parameters.p]\nderive = "q"\nflag = "-p"\n[parameters.q]\nderive = "p"\nflag = "-q"',
        ["x.toml: circular derivation: p <- q <- p"],
    ),
    "a default of another kind": (
        '[parameters.p]\nchoices = [1]\ndefault = "1"\nflag = "-p"',
        ["default: must be a number, like the choices"],
    ),
    "a list as default": (
        '[parameters.p]\nchoices = [1]\ndefault = [1]\nflag = "-p"',
        ["default: must be one value"],
    ),
    "observe nothing known": (
        '[parameters.p]\nchoices = [1]\nobserve = "precison"\nflag = "-p"',
        ["observe: unknown standard parameter 'precison'; did you mean 'precision'? (choose from micro_batch_size"],
    ),
    "constraints that are no array": (
        '[constraints]\nrequire = "1 < 2"\n' + ONE,
        ["constraints: must be an array of tables"],
    ),
    "a constraint without a rule": ("[[constraints]]\n" + ONE, ["constraints[0]: missing key 'require'"]),
    "a constraint that is no expression": (
        '[[constraints]]\nrequire = "a ="\n' + ONE,
        ["constraints[0].require: 'a ='"],
    ),
    "a constraint of a stranger": (
        '[[constraints]]\nrequire = "b > 1"\n' + ONE,
        ["constraints[0].require", "unknown name b"],
    ),
    "an unknown placeholder": (
        '[tune]\nargs = { "--o" = "{scrath}" }\n' + ONE,
        ["tune.args.--o: unknown placeholder {scrath}", "{launch_id}"],
    ),
    "a change that is no text": ('[tune]\nargs = { "--o" = 1 }\n' + ONE, ["tune.args.--o: must be a string"]),
    "a change of no flag": ('[tune]\nargs = { o = "1" }\n' + ONE, ["tune.args.o: must be a flag with its dashes"]),
    "too many parameters": (
        "".join(f'[parameters.p{i}]\nchoices = [1]\nflag = "-p{i}"\n' for i in range(1001)),
        ["at most 1000 entries are allowed, got 1001"],
    ),
    "a NUL": ('[parameters.p]\nchoices = ["\\u0000"]\nflag = "-p"', ["values must be"]),
}


@pytest.mark.parametrize(("text", "parts"), WRONG.values(), ids=WRONG)
def test_mistakes_are_reported(text: str, parts: list[str]) -> None:
    with pytest.raises(SpaceError) as caught:
        parse(text)
    message = str(caught.value)
    assert message.startswith("x.toml: ")
    assert "\n" not in message
    assert all(part in message for part in parts), message


def test_defaults() -> None:
    before = "[workload]\nn = { env = 'N', default = 3 }"
    space = parameter("choices = [1, 2]\nper_layer = 'n'\ndefault = [1, 2, 2]", before=before)
    assert space.parameters[0].default == (1, 2, 2)
    assert space.workload[0].value == 3
    assert space.objective == "tokens_per_second"
    assert parameter("derive = \"'a' if world_size > 1 else 'b'\"\ndefault = 'a'").parameters[0].default == "a"


def test_an_emptied_secret_is_not_recorded() -> None:
    assert parse(ONE + '[tune]\nenv = { WANDB_API_KEY = "" }').tune.env == {"WANDB_API_KEY": ""}


def survives(text: str) -> None:
    """A text is a space, which can be bound and drawn from or says why not; or it is refused in our words."""
    try:
        space = parse(text)
        bound = space.bind(
            workload={"world_size": 2, "n_layers": 4}, current={"micro_batch_size": 4, "gradient_accumulation_steps": 4}
        )
        for config in bound.sample(2, rng=np.random.default_rng(0)):
            assert config in bound
        bound.size(limit=50)
    except SpaceError:
        pass


LINES = EXAMPLE.splitlines()
NOISE = ["[[", "]]", "'", '"', "=", "{", "}", "\\", "\0", "\r", "é"]
NOISE += ["1e999", "-1", "0", "true", "nan", "[]", "9" * 30, "1979-05-27"]
KEY_VALUES = [
    "per_layer = 4096",
    "groups = 9",
    'derive = "n_layers ** 99"',
    "low = 0",
    "high = 1e18",
    "choices = [1, [2]]",
]
SNIPPETS = st.sampled_from([*LINES, *NOISE, *KEY_VALUES])


@settings(max_examples=300)
@given(st.data())
def test_a_mutated_file_is_a_space_or_a_space_error(data: st.DataObject) -> None:
    text = EXAMPLE
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        stop = min(len(text), start + data.draw(st.integers(0, 40)))
        text = text[:start] + data.draw(SNIPPETS | st.text(max_size=5)) + text[stop:]
    survives(text)


@settings(max_examples=200)
@given(st.lists(st.sampled_from(LINES), max_size=30))
def test_shuffled_lines_are_a_space_or_a_space_error(lines: list[str]) -> None:
    survives("\n".join(lines))


VALUES = st.recursive(
    st.sampled_from(
        ["1", "-1", "0", "2.5", "true", "inf", '"a"', '"--a"', '"n_layers"', '"1 / 0"', '"n_layers ** 9"', "{}"]
    ),
    lambda inner: st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
    max_leaves=4,
)
KEYS = ["choices", "low", "high", "step", "scale", "flag", "env", "per_layer", "groups", "derive", "default", "observe"]


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5), VALUES, VALUES)
def test_any_values_are_a_space_or_a_space_error(keys: dict[str, str], fact: str, constraint: str) -> None:
    body = "\n".join(f"{key} = {value}" for key, value in keys.items())
    survives(f"[workload]\nn_layers = {fact}\n[parameters.p]\n{body}\n[[constraints]]\nrequire = {constraint}\n")


def test_the_reference_names_every_trainer() -> None:
    page = (ROOT / "docs" / "space-file.md").read_text()
    assert all(f"`{name}`" in page for name in TRAINERS)


def test_reads_what_an_editor_writes() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "windows.toml"
        path.write_bytes(EXAMPLE.replace("\n", "\r\n").encode())
        assert load_space(path) == load_space(ROOT / "examples" / "gpt.toml")


MEGATRON = 'trainer = "megatron-lm"\n[parameters]\n'
WRONG_SHORT_FORMS = {
    "an unknown trainer": (
        'trainer = "megatron"\n' + ONE,
        ["trainer: unknown trainer 'megatron'; did you mean 'megatron-lm'? (choose from megatron-lm, torchtitan"],
    ),
    "a trainer that is no text": ("trainer = 1\n" + ONE, ["trainer: must be a string"]),
    "a parameter that the trainer does not know": (
        MEGATRON + 'tp_degre = "auto"',
        ["parameters.tp_degre: trainer 'megatron-lm' has no flag", "did you mean 'tp_degree'?", "micro_batch_size"],
    ),
    "nothing is proposed": (
        MEGATRON + 'd_ff = "auto"',
        ["parameters.d_ff: the trainer's table has no values"],
    ),
    "another kind": (MEGATRON + 'tp_degree = "two"', ["parameters.tp_degree: must be a number for trainer", "'two'"]),
    "one of another kind": (MEGATRON + "tp_degree = [1, true]", ["tp_degree: must be a number", "[1, True]"]),
    "a word that is none": (
        MEGATRON + 'activation_checkpointing = "ful"',
        ["unknown value 'ful' for trainer 'megatron-lm'; did you mean 'full'? (choose from none, selective, full)"],
    ),
    "an empty list": (MEGATRON + "tp_degree = []", ["parameters.tp_degree: must be a list of 1 to"]),
    "one value twice": (MEGATRON + "tp_degree = [1, 1]", ["x.toml: parameters.tp_degree: choices must be distinct"]),
    "a date": (MEGATRON + "tp_degree = 2020-01-01", ["tp_degree: values must be"]),
    "accumulation that the trainer has not": (
        MEGATRON + "gradient_accumulation_steps = 4",
        ["gradient_accumulation_steps: trainer 'megatron-lm' has no flag for it"],
    ),
    "a word in a table": (
        'trainer = "hf"\n[parameters.sharding_strategy]\nchoices = ["FULL"]',
        ["parameters.sharding_strategy.choices: unknown value 'FULL' for trainer 'hf'; "],
    ),
    "a table of nothing known": (
        'trainer = "hf"\n[parameters.x]\nchoices = ["FULL"]',
        ["parameters.x: needs exactly one of"],
    ),
    "a condition of a stranger": (
        '[parameters.p]\nchoices = [1]\nflag = "-p"\nwhen = "q > 1"',
        ["x.toml: parameters.p.when: 'q > 1': unknown name q"],
    ),
    "a condition that is no expression": (
        '[parameters.p]\nchoices = [1]\nflag = "-p"\nwhen = "q >"',
        ["parameters.p.when: 'q >': not an expression"],
    ),
    "a condition on itself": (
        '[parameters.p]\nchoices = [1]\nflag = "-p"\nwhen = "p > 1"',
        ["x.toml: circular derivation: p <- p"],
    ),
    "a key without its equals": (
        '[parameters.p]\nchoices = [1]\nflag = "model.layers"',
        ["parameters.p.flag: must be a flag with its dashes", "'model.layers='"],
    ),
    "a key in another spelling": (
        '[parameters.p]\nchoices = [1]\nflag = "p="\n[parameters.q]\nchoices = [1]\nflag = "p="',
        ["parameters.p and parameters.q are both bound to flag p="],
    ),
}


@pytest.mark.parametrize(("text", "parts"), WRONG_SHORT_FORMS.values(), ids=WRONG_SHORT_FORMS)
def test_mistakes_of_trainers_and_conditions_are_reported(text: str, parts: list[str]) -> None:
    test_mistakes_are_reported(text, parts)


def test_short_forms() -> None:
    space = parse(MEGATRON + "tp_degree = [1, 2]\npp_degree = 4\nsequence_parallel = true\ncp_degree = 'auto'")
    assert {item.name: item.choices for item in space.parameters} == {
        "tp_degree": (1, 2),
        "pp_degree": (4,),
        "sequence_parallel": (True,),
        "cp_degree": (1, 2, 4, 8),
        "gradient_accumulation_steps": (),
    }


TRAINED = """\
trainer = "megatron-lm"
objective = "tokens_per_second"
[workload]
n_heads = 8
[parameters]
tp_degree = "auto"
pp_degree = [1, 2]
sequence_parallel = "auto"
distributed_optimizer = true
gradient_accumulation_steps = "auto"
activation_checkpointing = ["none", "full"]
[parameters.micro_batch_size]
low = 1
high = 8
scale = "log2"
[parameters.chunks]
choices = [2, 4]
default = 1
flag = "pipeline.chunks="
when = "pp_degree > 1 and tp_degree in (1, 2)"
[[constraints]]
require = "chunks <= gradient_accumulation_steps"
"""
TRAINED_LINES = TRAINED.splitlines()
COMMAND = "--micro-batch-size 2 --global-batch-size 32 --num-layers 4 --num-attention-heads 8 --pipeline.chunks=2"
SHORT_VALUES = ['"auto"', "true", "[1, 2]", "[]", '"full"', '"tp_degree > 1"', "-1", '"hf"', '"nanogpt"', "{}"]


def survives_a_command(text: str) -> None:
    """As ``survives``, and a command is read and written under it, or refused in our words."""
    survives(text)
    command = Launch(program="t.py", script_args=tuple(COMMAND.split()), world_size=8)
    try:
        space = parse(text)
        workload, config = read_config(command, space)
        assert write_config(command, space, config) == command
        bound = space.bind(workload=workload, current=config)
        for drawn in bound.sample(2, rng=np.random.default_rng(0)):
            assert read_config(write_config(command, space, drawn), space)[1] == drawn
    except CubicMLError:
        pass


def test_the_file_that_is_mutated_is_legal() -> None:
    command = Launch(program="t.py", script_args=tuple(COMMAND.split()), world_size=8)
    space = parse(TRAINED)
    workload, config = read_config(command, space)
    assert space.bind(workload=workload, current=config).size() > 20


@settings(max_examples=150)
@given(st.data())
def test_a_mutated_file_of_a_trainer_is_a_space_or_a_space_error(data: st.DataObject) -> None:
    lines = list(TRAINED_LINES)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        key, equals, value = lines[at].partition(" = ")
        new = data.draw(st.sampled_from([*SHORT_VALUES, *NOISE, value]))
        other = data.draw(st.sampled_from([*TRAINED_LINES, *KEY_VALUES, *NOISE]))
        lines[at : at + 1] = data.draw(
            st.sampled_from(
                [[], [f"{key}{equals}{new}"], [lines[at], other], [other], [f"{other.split(' ')[0]} = {new}"]]
            )
        )
        lines = lines or [""]
    survives_a_command("\n".join(lines))


def test_the_statistic_is_the_mean_by_default() -> None:
    assert parse_space(ONE, where="x.toml").statistic == "mean"
    assert parse_space('statistic = "p50"\n' + ONE, where="x.toml").statistic == "p50"
