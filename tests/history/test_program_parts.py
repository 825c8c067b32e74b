"""Parts of a program's file: which edits change one, and that launcher and job agree whatever their Python."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from torchx_cubicml.history import program_parts as module
from torchx_cubicml.history.program_parts import CODE, program_parts

TEXT = '''
"""Docstring."""
n_layers: int = 12
sizes = {1, 2}
class Config[T]:
    width = (1, -2)
def train(cfg, n=3, *, out=None):
    path = f"{cfg['out']}" f"/{n!r:>{out}}" "/x" f'{{{n=}}}'
    match n:
        case 1: return *path, f""
parser.add_argument("--b", default=f'{1}')
'''
OLD_SPELLING = TEXT.replace("Config[T]", "Config")


def test_each_python_at_hand_gives_the_same_parts() -> None:
    """3.11 and 3.12 write the quotes of an f-string differently, and 3.12 has fields that 3.11 lacks."""
    call = f"import sys, runpy; print(runpy.run_path(sys.argv[1])['program_parts']({OLD_SPELLING!r}))"
    found = {sys.executable: str(program_parts(OLD_SPELLING))}
    for name in ("python3.11", "python3.12", "python3.13", "python3.14"):
        path = shutil.which(name)
        ran = path and subprocess.run(
            [path, "-c", call, str(module.__file__)], capture_output=True, text=True, check=False
        )
        if ran and not ran.returncode:
            found[name] = ran.stdout.strip()
    assert set(found.values()) == {found[sys.executable]}
    assert "Module(" in found[sys.executable]


def test_the_parts_hold_no_spelling_that_versions_choose() -> None:
    parts = program_parts("""a = f"{cfg['out']}{1}" 'x'\nb = 'it'""")
    assert parts == program_parts("""a = f'{cfg["out"]}{1}x'\nb = "it" """)
    assert "type_params" not in str(program_parts("def f(): pass"))
    assert parts["b"] == "'it'"  # as earlier releases wrote literals


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("print('a', 1)", "print(f'{loss:.3f}')"),
        ("logger.info('a %s', loss)", "logging.getLogger.debug('b'.format(loss))"),
        ("# a\ntrain( 1 )", '"""Text."""\ntrain(1)'),
        ("def f():\n    pass", 'def f():\n    """Text."""'),
        ("wandb.log({'loss': loss})", ""),
    ],
)
def test_edits_that_change_no_work(one: str, other: str) -> None:
    assert program_parts(one)[CODE] == program_parts(other)[CODE]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("print(train(n_layers=12))", "print(train(n_layers=24))"),
        ("print(main())", ""),
        ("logger.info(trainer.fit())", ""),
        ("logger.info('%s', 'x'.format(fit()))", "logger.info('%s')"),
        ("print(n := 3)", "print(3)"),
        ("wandb.watch(model)", ""),
        ("n=4; model=build(n); n=2", "n=8; model=build(n); n=2"),
        ("n=f(); build(n); n=4", "n=f(); n=4; build(n)"),
        ("for n in (1, 2): pass\nn=4\nbuild(n)", "n=4\nfor n in (1, 2): pass\nbuild(n)"),
        ("class A:\n n=4\nuse(A)\nclass A:\n n=2", "class A:\n n=8\nuse(A)\nclass A:\n n=2"),
        ("from a import n\nn=4\nuse(n)", "n=4\nfrom a import n\nuse(n)"),
        ("n=4\ndef f():\n global n\n n=2", "n=5\ndef f():\n global n\n n=2"),
        (
            "one.add_argument('--b', default=2)\ntwo.add_argument('--b', default=4)",
            "one.add_argument('--b', default=64)\ntwo.add_argument('--b', default=4)",
        ),
        ("s = {1, 2}", "s = {1, 3}"),
        ("a = parser.add_argument('--b', default=2)", "a = parser.add_argument('--b', default=3)"),
    ],
)
def test_edits_that_may_change_the_work_show(one: str, other: str) -> None:
    assert program_parts(one) != program_parts(other)


def test_constants_and_flags_that_are_bound_once_stand_on_their_own() -> None:
    parts = program_parts(f"{OLD_SPELLING}\nlr = 1\nlr = 2\nn_heads = f()\n")
    assert set(parts) == {"n_layers", "sizes", "Config.width", "--b", CODE}
    assert (parts["n_layers"], parts["Config.width"]) == ("12", "(1, -2)")
    local = program_parts("n = 4\ndef f():\n    n = 5\n")
    assert local["n"] == "4"  # another scope


def test_what_is_no_python_or_too_large_is_its_own_code() -> None:
    for text in ("def", "x = 1\n" * 50_000, "(" * 3000):
        assert program_parts(text) == {CODE: text}
