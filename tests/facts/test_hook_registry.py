"""The registry of hooks: one file each, found by its name and loaded without torch; no other module lists hooks."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from torchx_cubicml.facts.hook_registry import hook_module, hook_names, hook_of, hook_spec
from torchx_cubicml.recorder.apply.hooks import Hook
from torchx_cubicml.records.standard_names import EMBEDDING_KERNELS, EMBEDDING_SHARDINGS, STANDARD_PARAMETERS

PACKAGE = Path(__file__).parents[2] / "torchx_cubicml"
FACTS_TOO = {"activation_checkpointing", "sequence_parallel"}  # standard names, so tables of facts list them


def test_fsdp_shards_over_all_ranks_or_within_replicated_groups() -> None:
    plain, hybrid = hook_spec("fsdp").values
    assert plain[:3] == ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
    assert plain[3:] == tuple(f"FULL_SHARD_{2**power}" for power in range(1, 7))
    assert hybrid == ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")


def test_each_hook_has_its_values() -> None:
    assert {name: hook_spec(name).values for name in hook_names() if name != "fsdp"} == {
        "activation_checkpointing": (("none", "full"),),
        "fsdp_precision": (("fp32", "bf16"),),
        "torchrec": (("planner", *EMBEDDING_SHARDINGS),),
        "torchrec_kernel": (("planner", *EMBEDDING_KERNELS),),
        "torchrec_reserved": (),
        "mesh": (),
        "parallelize_module": (("plan", "colwise", "rowwise", "replicated"),),
        "sequence_parallel": ((True, False),),
    }


@pytest.mark.parametrize("name", hook_names())
def test_a_file_specifies_its_hook(name: str) -> None:
    spec = hook_spec(name)
    assert spec.name == name
    assert issubclass(spec, Hook)
    assert spec.sets
    assert spec.values or spec.takes
    assert spec.parts if not spec.fact else spec.fact in STANDARD_PARAMETERS
    assert {*spec.offered} <= {value for group in spec.values for value in group}
    assert bool(spec.calls) == bool(spec.marks)
    assert (spec.default_share is None) == (not spec.takes or bool(spec.parts))


def test_the_hook_that_reads_the_scripts_own_styles_sees_its_calls_first() -> None:
    names = hook_names()  # the order in which a job installs them
    assert names.index("parallelize_module") < names.index("sequence_parallel")


def test_a_hook_of_another_release_specifies_nothing() -> None:
    spec = hook_spec("of_the_future.part")
    assert (spec.values, spec.fact, spec.calls, spec.counted()) == ((), "", (), "")
    assert hook_of("of_the_future.part") == "of_the_future"


def test_specifications_load_neither_torch_nor_the_rest_of_the_recorder() -> None:
    code = (
        "import sys\nfrom torchx_cubicml.facts.hook_registry import hook_names, hook_spec\n"
        "assert not [name for name in sys.modules if name.startswith('torchx_cubicml.recorder')]\n"
        "[hook_spec(name) for name in hook_names()]\n"
        "print(*(name for name in sys.modules if name == 'torch' or name.startswith('torchx_cubicml.recorder.')))\n"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    beside = {"", ".hooks", ".tensor_plans"}
    assert {name for name in loaded if not name.endswith("_hook")} == {
        f"torchx_cubicml.recorder.apply{each}" for each in beside
    }


def entries_of(node: ast.AST) -> set[str]:
    """Return the texts that a literal lists: entries, or keys of a dict, those of starred literals too."""
    entries = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
    texts = {each.value for each in entries if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return texts.union(*(entries_of(each.value) for each in entries if isinstance(each, ast.Starred)))


def test_no_other_module_lists_hooks() -> None:
    hooks, tables = set(hook_names()), []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            listed = entries_of(node) & hooks if isinstance(node, ast.Dict | ast.List | ast.Set | ast.Tuple) else set()
            if len(listed) > 1 and not listed <= FACTS_TOO:
                tables.append((path.relative_to(PACKAGE).as_posix(), node.lineno, sorted(listed)))
    assert tables == []
    assert entries_of(ast.parse("{'fsdp': 1, 'mesh': 2}").body[0].value) == {"fsdp", "mesh"}  # what it would find
    assert entries_of(ast.parse("(*('fsdp', 'x'), 'mesh')").body[0].value) == {"fsdp", "x", "mesh"}


def test_a_file_is_all_that_one_more_hook_needs(tmp_path: Path) -> None:
    text = """
from torchx_cubicml.recorder.apply.hooks import Hook


class BufferHook(Hook):
    name = "buffer"
    sets = "size of a buffer"
    values = (("small", "large"),)
    fact = "compile"
    calls, marks = ("make_buffer",), ("make_buffer",)
    offered = ("small", "large")
    unmet = "the program makes no buffer"


hook = BufferHook
"""
    (tmp_path / "buffer_hook.py").write_text(text)
    space = '[parameters.size]\nchoices = ["small", "large"]\nhook = "buffer"\n'
    code = f"""
import torchx_cubicml.recorder.apply as package
package.__path__.append({str(tmp_path)!r})
from torchx_cubicml.cli.starter import starter_space
from torchx_cubicml.facts.hook_registry import hook_names
from torchx_cubicml.launch import Launch, read_config
from torchx_cubicml.launch.program_source import ProgramSource
from torchx_cubicml.advisor.hook_check import uncalled_hooks
from torchx_cubicml.recorder.apply.hooks import hook_facts, installed
from torchx_cubicml.records.shareable_facts import LEFT_OUT
from torchx_cubicml.space.toml import parse_space
space = parse_space({space!r}, where="space.toml")
print(read_config(Launch(program="train.py"), space)[1])
(hook,) = installed({{"buffer": "large"}}, {{}}, peers=None, guard=lambda call: call).values()
print(hook_facts("buffer", hook), "buffer_hook" in LEFT_OUT)
open("train.py", "w").write("print()")
print(uncalled_hooks(ProgramSource.of(Launch(program="train.py")), {{"size": "buffer"}}))
open("train.py", "w").write("make_buffer()")
offered = starter_space(Launch(program="train.py"), "").partition("# [parameters.compile]")[2]
print(offered.partition('\\n\\n')[0].strip())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.stdout.splitlines() == [
        "{'size': 'small'}",
        "{'buffer_hook': 'refused: the program makes no buffer'} True",
        "{'size': 'the program calls no make_buffer (read: train.py)'}",
        '# choices = ["small", "large"]',
        '# hook = "buffer"',
    ], ended.stderr
    assert hook_module("fsdp").hook.name == "fsdp"
