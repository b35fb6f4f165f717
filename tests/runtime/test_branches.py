"""Lines of which a rank takes one or the other are known from the source."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest

from labkit.runtime.branches import alternatives

SOURCE = """\
for step in range(4):
    if rank == step % 2:
        lead(1)
        lead(2)
    elif rank == 7:
        middle()
    else:
        follow(); follow()
    (lead(3) if rank
        else follow(3))
    match rank:
        case 0:
            lead(4)
        case _:
            follow(4)
    if rank:
        lead(5)
after()
"""


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (3, 8, True),
        (4, 8, True),
        (3, 6, True),
        (6, 8, True),
        (9, 10, True),
        (13, 15, True),
        (3, 4, False),  # one after the other
        (3, 18, False),
        (3, 9, False),
        (8, 13, False),
        (17, 18, False),
        (2, 8, False),  # the question is asked on every rank
        (3, 99, False),
    ],
)
def test_branches_of_one_fork_are_alternatives(
    a: int, b: int, expected: bool, tmp_path: Path
) -> None:
    file = tmp_path / "a.py"
    file.write_text(SOURCE)
    assert alternatives(f"{file}:{a}", f"{file}:{b}") == expected
    assert alternatives(f"{file}:{b}", f"{file}:{a}") == expected


def test_the_lines_of_a_cell_are_known_too() -> None:
    lines = SOURCE.splitlines(keepends=True)
    linecache.cache["<a cell>"] = (len(SOURCE), None, lines, "<a cell>")
    try:
        assert alternatives("<a cell>:3", "<a cell>:8")
    finally:
        del linecache.cache["<a cell>"]


@pytest.mark.parametrize("text", ["if x:\n  a()\nelse\n  b()\n", "", "\0"])
def test_what_is_no_program_has_no_branches(text: str, tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(text)
    assert not alternatives(f"{file}:2", f"{file}:4")


def test_a_line_that_is_not_known_has_no_alternative(tmp_path: Path) -> None:
    for a, b in [(None, "a.py:3"), ("a.py:3", None), ("a.py", "a.py"), ("a.py:3", "b.py:8")]:
        assert not alternatives(a, b)
    assert not alternatives(f"{tmp_path}/none.py:3", f"{tmp_path}/none.py:8")
