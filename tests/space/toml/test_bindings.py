from __future__ import annotations

import pytest

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.facts.hook_registry import hook_names, hook_spec
from torchx_cubicml.space import Binding, BindingKind, Parameter, SearchSpace, TuneChanges, WorkloadFact
from torchx_cubicml.space.toml.bindings import hook_default, read_binding, read_tune, with_derived_world_size
from torchx_cubicml.space.toml.schema import TomlTable


def table(name: str = "parameters.p", **content: object) -> TomlTable:
    return TomlTable(content, where="x.toml", name=name, legal=None)


@pytest.mark.parametrize(
    ("flag", "aliases"),
    [
        ("-p", ()),
        ("--batch_size", ()),
        ("--a.b-c2", ()),
        ("--batch=", ()),
        ("model.layers=", ("+model.layers=", "++model.layers=")),
        ("db/x@y=", ("+db/x@y=", "++db/x@y=")),
    ],
)
def test_flags(flag: str, aliases: tuple[str, ...]) -> None:
    assert read_binding(table(flag=flag)) == Binding(kind=BindingKind.FLAG, name=flag, aliases=aliases)


@pytest.mark.parametrize("flag", ["", "p", "---p", "--", "-1", "--a b", "--a==", "1a=", "a.b", "XX--pXX"])
def test_flags_that_are_none(flag: str) -> None:
    with pytest.raises(SpaceError, match=r"^x.toml: parameters.p.flag: must be a flag with its dashes, such as"):
        read_binding(table(flag=flag))


def test_variables() -> None:
    for name in ("A", "_a1", "NCCL_PROTO"):
        assert read_binding(table(env=name)) == Binding(kind=BindingKind.ENV, name=name)
    for name in ("", "1A", "A-B", "$A", "A "):
        with pytest.raises(SpaceError, match=r"^x.toml: parameters.p.env: must be the name of a variable, got"):
            read_binding(table(env=name))


@pytest.mark.parametrize(
    "file", ["--c", "--c=", "config=", "$CONFIG", "a.json", "dir/*.yaml", "with space.json", "a-b"]
)
def test_files(file: str) -> None:
    found = read_binding(table(file=file, key="a.b.c"))
    assert found == Binding(kind=BindingKind.FILE, name=f"a.b.c in {file}", file=file, key=("a", "b", "c"))


@pytest.mark.parametrize("file", ["", "$", "$1", "-", " a.json", "a\n.json", "a$b"])
def test_files_that_are_none(file: str) -> None:
    with pytest.raises(SpaceError, match=r"^x.toml: parameters.p.file: must name the file as the command does"):
        read_binding(table(file=file, key="a"))


def test_keys_of_files() -> None:
    for key in ("", ".", "a.", ".a", "a..b"):
        with pytest.raises(SpaceError, match=r"parameters.p.key: must be a key in the file, such as 'zero_opt"):
            read_binding(table(file="a.json", key=key))
    with pytest.raises(SpaceError, match=r"parameters.p.key: must be a key in the file, such as [^,]*$"):
        read_binding(table(file="a.json"))
    for file, key in (("--password", "a"), ("a.json", "a.api_key"), ("a.json", "password.b")):
        with pytest.raises(SpaceError, match=r"parameters.p.key: secrets are never recorded"):
            read_binding(table(file=file, key=key))


@pytest.mark.parametrize("kind", ["flag", "env", "hook", "torchrun"])
def test_a_key_belongs_to_a_file(kind: str) -> None:
    with pytest.raises(SpaceError, match=r"parameters.p.key: only allowed together with file, got 'a'"):
        read_binding(table(**{kind: "x", "key": "a"}))


def test_secrets_are_not_bound() -> None:
    for kind, name in (("flag", "--password"), ("env", "WANDB_API_KEY")):
        with pytest.raises(SpaceError, match=rf"parameters.p.{kind}: secrets are never recorded; bind something"):
            read_binding(table(**{kind: name}))


def test_one_place_is_stated() -> None:
    with pytest.raises(SpaceError, match=r"^x.toml: parameters.p: needs exactly one of flag, .*, scheduler, got none$"):
        read_binding(table())
    with pytest.raises(SpaceError, match=r"got flag and env and torchrun$"):
        read_binding(table(torchrun="--nnodes", env="A", flag="-a"))


def test_sizes_of_torchrun() -> None:
    for name, text in (("nnodes", "--nnodes"), ("nproc_per_node", "--nproc-per-node"), ("nnodes", "nnodes")):
        found = read_binding(table(f"parameters.{name}", torchrun=text))
        assert found == Binding(kind=BindingKind.TORCHRUN, name=name)
    for name, text in (("nnodes", "--nproc-per-node"), ("p", "--nnodes"), ("p", "--p")):
        with pytest.raises(SpaceError, match="must be '--nnodes' for the parameter nnodes or '--nproc_per_node' for"):
            read_binding(table(f"parameters.{name}", torchrun=text))


def test_hooks_default_to_torchs_own() -> None:
    with pytest.raises(SpaceError, match=r"parameters.p.hook: only allowed together with mesh = "):
        hook_default(table(hook="mesh"), (1, 2))
    for hook in hook_names():
        families = hook_spec(hook).values
        if not families:
            continue
        if not hook_spec(hook).parts:
            assert read_binding(table(hook=hook)) == Binding(kind=BindingKind.HOOK, name=hook)
        for family in families:
            assert hook_default(table(hook=hook), family) == family[0]
            assert hook_default(table(hook=hook), family[-1:]) == next(
                each[0] for each in families if family[-1] in each
            )
        first = str(families[0][0]).lower() if isinstance(families[0][0], bool) else families[0][0]
        with pytest.raises(SpaceError, match=rf"parameters.p.choices: hook = '{hook}' needs choices from {first}"):
            hook_default(table(hook=hook, choices=["strange"]), ("strange",))
        with pytest.raises(SpaceError, match=rf"parameters.p.hook: hook = '{hook}' needs choices from"):
            hook_default(table(hook=hook), ())
    with pytest.raises(SpaceError, match="needs choices from true, false"):
        hook_default(table(hook="sequence_parallel", choices=[1, 0]), (1, 0))
    for content in ({"hook": "strange"}, {}):
        with pytest.raises(SpaceError, match=r"parameters.p.hook: unknown hook '(strange)?'; "):
            hook_default(table(**content), ("a",))


def test_a_hook_of_a_share_takes_numbers_below_one() -> None:
    reserved = {"hook": "torchrec_reserved"}
    assert hook_default(table(**reserved), (0, 0.3)) == 0.15
    for choices in ((0.5, 1.0), (-0.1,), ("planner",), (False, True)):
        with pytest.raises(SpaceError, match=r"parameters.p.choices: hook = 'torchrec_reserved' needs choices from 0"):
            hook_default(table(**reserved, choices=list(choices)), choices)


@pytest.mark.parametrize(
    ("hook", "key", "rule"),
    [
        ("fsdp", "per_table", "takes per_layer"),
        ("torchrec", "per_layer", "takes per_table"),
        ("torchrec_kernel", "per_layer", "takes per_table"),
        ("torchrec_reserved", "per_table", "takes one value"),
        ("torchrec_reserved", "per_layer", "takes one value"),
        ("parallelize_module", "per_layer", "takes one value"),
    ],
)
def test_a_hook_sets_layers_or_tables_or_one_value(hook: str, key: str, rule: str) -> None:
    with pytest.raises(SpaceError, match=rf"parameters.p.{key}: hook = '{hook}' {rule}, got 3"):
        hook_default(table(hook=hook, **{key: 3}), ("planner",))


def size(name: str, kind: BindingKind = BindingKind.TORCHRUN) -> Parameter:
    return Parameter(name=name, choices=(1, 2), binding=Binding(kind=kind, name=name))


def test_tuned_sizes_derive_the_world_size() -> None:
    found = with_derived_world_size(SearchSpace(parameters=(size("nnodes"),))).parameters
    assert [item.name for item in found] == ["nnodes", "world_size"]
    assert found[1].derive is not None
    assert (found[1].derive.source, found[1].derive.where) == ("nnodes * nproc_per_node", "world_size")
    plain = Parameter(name="b", choices=(1,))
    for space in (
        SearchSpace(parameters=(size("nnodes"), size("world_size", BindingKind.FLAG))),
        SearchSpace(parameters=(size("nnodes"),), workload=(WorkloadFact(name="world_size"),)),
        SearchSpace(parameters=(size("a", BindingKind.FLAG), plain)),
    ):
        assert with_derived_world_size(space) is space


def test_changes_of_a_profiling_launch() -> None:
    found = read_tune(
        table(
            "tune",
            args={"--out": "{scratch}/{launch_id}", "a=": ""},
            env={"A": "1"},
            files={"--c": {"a.b": "{scratch}", "c": "{X}"}},
        )
    )
    assert found == TuneChanges(
        args={"--out": "{scratch}/{launch_id}", "a=": ""},
        env={"A": "1"},
        files={"--c": {("a", "b"): "{scratch}", ("c",): "{X}"}},
    )
    assert read_tune(table("tune")) == TuneChanges()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"args": {"out": "x"}}, "tune.args.out: must be a flag with its dashes"),
        (
            {"args": {"--out": "{there}/{scratch}"}},
            "tune.args.--out: unknown placeholder {there} (choose from {scratch}",
        ),
        ({"args": {"--out": 1}}, "tune.args.--out: must be a string"),
        ({"env": {"--out": "x"}}, "tune.env.--out: must be the name of a variable"),
        ({"files": {"$": {"a": "x"}}}, "tune.files.$: must name the file"),
        (
            {"files": {"--c": {"a..b": "x"}}},
            "tune.files.--c.a..b: must be a key in the file, such as 'train.output_dir'",
        ),
        ({"files": {"--c": {"a": "{b}"}}}, "tune.files.--c.a: unknown placeholder {b} (choose from {scratch}, {launch"),
    ],
)
def test_changes_that_are_refused(content: dict[str, object], message: str) -> None:
    with pytest.raises(SpaceError) as caught:
        read_tune(table("tune", **content))
    assert str(caught.value).startswith(f"x.toml: {message}")
