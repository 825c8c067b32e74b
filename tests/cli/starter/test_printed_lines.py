from __future__ import annotations

import ast

import pytest

from torchx_cubicml.cli.starter.printed_lines import Field, Template, printed_lines


def lines_of(source: str) -> list[Template]:
    return [line for _, line in printed_lines(ast.parse(source))]


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("print('a')", [("a",)]),
        ("print('a', x, sep='-')", [("a-", Field("", "x"))]),
        ("print(f'a {x * 2:.1f}' 'b')", [("a ", Field(".1f", "x * 2"), "b")]),
        ("print(f'{x:{width}d}')", [(Field("d", "x"),)]),
        ("print('a\\nb' + str(x))", [("a",), ("b", Field("", "str(x)"))]),
        ("print('%5.1f%% of %s' % (x, y))", [(Field("5.1f"), "% of ", Field(""))]),
        ("print('%(a)d' % values)", [(Field("d"),)]),
        ("print('{:.2f} {b}'.format(x, b=y))", [(Field(".2f", ""), " ", Field("", "b"))]),
        ("logger.info('a %d', x)", [("a ", Field("d"))]),
        ("logging.warning('a {}', x)", [("a ", Field("", ""))]),
        ("logger.debug('100%')", [("100%",)]),
        ("sys.stdout.write(f'{x}s')", [(Field("", "x"), "s")]),
        ("text = f'{x}'\ntext += ' s'\nprint(text)", [(Field("", "x"),), (" s",)]),
        ("print(x)", []),
        ("print()", []),
        ("f'{x}'", []),
        ("raise ValueError('a')", []),
        ("math.log(x)", []),
        ("print('{'.format(x))", []),
    ],
)
def test_templates(source: str, lines: list[Template]) -> None:
    assert lines_of(source) == lines


def test_the_number_of_the_line() -> None:
    assert [number for number, _ in printed_lines(ast.parse("x = 1\nprint('a')\n\nprint('b')"))] == [2, 4]
