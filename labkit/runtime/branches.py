"""Whether two lines of a program are alternatives: branches of one `if`, of which one is taken.

Ranks that take turns at two branches (a leader and a follower, which change places) stand at two
lines in either order, as ranks do that entered two collectives in a different order. The source
tells them apart.

Cost: parses a file once (a few ms), and only when two lines look crossed.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence
from functools import lru_cache

Lines = range  # numbers of lines that follow each other


def alternatives(a: str | None, b: str | None) -> bool:
    """Whether "file:line" `a` and `b` stand in two branches of one `if`, `match` or ternary.

    False where the source is not there, or does not parse.
    """
    file, _, first = (a or "").rpartition(":")
    other, _, second = (b or "").rpartition(":")
    if not file or file != other or not (first.isdecimal() and second.isdecimal()):
        return False
    linecache.checkcache(file)
    source = "".join(linecache.getlines(file))
    return any(
        i != j
        for branches in _forks(source)
        for i in _at(branches, int(first))
        for j in _at(branches, int(second))
    )


def _at(branches: Sequence[Lines], line: int) -> list[int]:
    return [i for i, lines in enumerate(branches) if line in lines]


@lru_cache(maxsize=8)
def _forks(source: str) -> tuple[tuple[Lines, ...], ...]:
    """The lines of each branch, for each place where a program takes one of several."""
    try:
        return tuple(_branches(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()


def _branches(tree: ast.AST) -> Iterator[tuple[Lines, ...]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and node.orelse:
            yield _lines(node.body), _lines(node.orelse)
        elif isinstance(node, ast.IfExp):
            yield _lines([node.body]), _lines([node.orelse])
        elif isinstance(node, ast.Match):
            yield tuple(_lines(case.body) for case in node.cases)


def _lines(body: Sequence[ast.stmt | ast.expr]) -> Lines:
    return range(body[0].lineno, (body[-1].end_lineno or body[-1].lineno) + 1)
