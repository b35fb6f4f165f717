"""Imports run one way: cli → widgets → practice → plan → lessons → runtime, techniques → trace.

The order is read from the source, so that an import inside a function counts too. What may break it
is listed by file, and only inside functions.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import labkit

ROOT = Path(__file__).parents[2]

# A room may import from rooms with a smaller number.
HEIGHT = {
    "trace": 0, "runtime": 1, "techniques": 1, "lessons": 2, "plan": 3, "practice": 4,
    "widgets": 5, "cli": 6, "__main__": 7,
}  # fmt: skip

# Rich displays: these draw themselves when they are called, and not before.
DISPLAYS = {
    ("labkit/trace/events.py", "widgets"),
    ("labkit/practice/ledger.py", "widgets"),
    ("labkit/practice/predict.py", "widgets"),
}

MAY_A_TECHNIQUE = {"labkit.trace", "labkit.trace.span", "labkit.techniques.shards"}


@dataclass(frozen=True)
class Import:
    """One import: what (``labkit.trace.span``), from where, and whether a function has to run."""

    file: str
    line: int
    module: str
    late: bool

    @property
    def room(self) -> str:
        return self.module.split(".")[1] if self.module.startswith("labkit.") else ""


def imports(source: str, file: str) -> Iterator[Import]:
    """Every import of a file, absolute and relative; ``labkit.launch`` counts as its home."""
    package = Path(file).parent.parts

    def visit(node: ast.AST, late: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name != "labkit":
                    yield Import(file, node.lineno, alias.name, late)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package[: len(package) - node.level + 1]
                base = ".".join([*up, *([base] if base else [])])
            for alias in node.names:
                if base in ("labkit", "labkit.techniques"):
                    yield Import(file, node.lineno, home(base, alias.name), late)
                else:
                    yield Import(file, node.lineno, base, late)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "labkit"
        ):
            yield Import(file, node.lineno, home("labkit", node.attr), late)
        late = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, late)

    yield from visit(ast.parse(source), late=False)


def home(base: str, name: str) -> str:
    """The module that a name of the package `base` comes from."""
    if base == "labkit" and name in labkit._HOME:
        return labkit._HOME[name]
    return f"{base}.{name}"


def wrong(source: str, file: str) -> list[str]:
    """What is wrong with the imports of one file of labkit, a line each."""
    room = file.split("/")[1].removesuffix(".py")
    found = []
    for it in imports(source, file):
        if not it.room or it.room == room:
            continue
        if it.room not in HEIGHT:
            found.append(f"{file}:{it.line} imports {it.module}, a room without a place")
        elif HEIGHT[it.room] >= HEIGHT[room] and not (it.late and (file, it.room) in DISPLAYS):
            found.append(f"{file}:{it.line} imports {it.module}: {room} stands below {it.room}")
    if room == "techniques":
        found += wrong_in_a_technique(source, file)
    return found


def wrong_in_a_technique(source: str, file: str) -> list[str]:
    """A technique imports torch, span, shards and at most one other technique."""
    found, others = [], set()
    for it in imports(source, file):
        top = it.module.split(".")[0]
        if it.module.startswith("labkit.techniques.") and it.module not in MAY_A_TECHNIQUE:
            others.add(it.module)
        elif it.module not in MAY_A_TECHNIQUE and top not in {"torch", *sys.stdlib_module_names}:
            found.append(f"{file}:{it.line} imports {it.module}: torch and span are enough")
    names = {
        alias.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("labkit.trace")
        for alias in node.names
    }
    if names - {"span"}:
        found.append(f"{file} takes {', '.join(sorted(names - {'span'}))} from labkit.trace")
    if len(others) > 1 and not file.endswith("__init__.py"):
        found.append(f"{file} imports {' and '.join(sorted(others))}: one other is the limit")
    return found


SOURCES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("labkit/**/*.py"))


@pytest.mark.parametrize("file", [file for file in SOURCES if file != "labkit/__init__.py"])
def test_imports_run_one_way(file: str) -> None:
    assert wrong((ROOT / file).read_text(encoding="utf-8"), file) == []


def test_the_listed_exceptions_are_used() -> None:
    used = {
        (it.file, it.room)
        for file in {file for file, _ in DISPLAYS}
        for it in imports((ROOT / file).read_text(encoding="utf-8"), file)
    }
    assert used >= DISPLAYS


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("labkit/trace/events.py", "from labkit.runtime import launch"),
        ("labkit/trace/events.py", "from labkit import launch"),
        ("labkit/trace/events.py", "import labkit\nlabkit.launch(print)"),
        ("labkit/trace/events.py", "from ..runtime import launch"),
        ("labkit/trace/events.py", "from labkit.widgets import Timeline"),
        ("labkit/trace/log.py", "def draw():\n    from labkit.widgets import Timeline"),
        ("labkit/runtime/launch.py", "from labkit.techniques import data_parallel"),
        ("labkit/techniques/zero.py", "from labkit.runtime.launch import launch"),
        ("labkit/techniques/zero.py", "import numpy"),
        ("labkit/techniques/zero.py", "from labkit.trace import Trace"),
        (
            "labkit/techniques/zero.py",
            "from labkit.techniques import data_parallel\nfrom labkit.techniques import precision",
        ),
        ("labkit/lessons/train.py", "from labkit.plan import estimate"),
        ("labkit/lessons/train.py", "from labkit.misc import anything"),
    ],
)
def test_a_wrong_import_is_found(file: str, source: str) -> None:
    assert wrong(source, file)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("labkit/trace/events.py", "def timeline():\n    from labkit.widgets import Timeline"),
        ("labkit/techniques/zero.py", "import torch\nfrom labkit.trace import span"),
        ("labkit/techniques/zero.py", "from labkit.techniques import data_parallel, shards"),
        ("labkit/lessons/train.py", "from labkit import span\nfrom labkit.techniques import zero"),
        ("labkit/cli.py", "from labkit.widgets import Timeline"),
    ],
)
def test_a_right_import_passes(file: str, source: str) -> None:
    assert wrong(source, file) == []


def loaded_by(module: str) -> set[str]:
    """The modules that a fresh Python holds after it imported one."""
    code = f"import {module}, sys; print(*sys.modules)"
    return set(subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).split())


LIGHT = ["labkit.runtime.worker"] + [
    file.removesuffix(".py").replace("/", ".")
    for file in SOURCES
    if file.startswith("labkit/techniques/") and not file.endswith("__init__.py")
]


@pytest.mark.parametrize("module", LIGHT)
def test_ranks_load_nothing_that_only_a_notebook_needs(module: str) -> None:
    assert not loaded_by(module) & {"IPython", "ipywidgets", "anywidget", "matplotlib"}


@pytest.mark.parametrize("module", ["labkit", "labkit.cli"])
def test_torch_is_loaded_when_it_is_needed_and_not_before(module: str) -> None:
    assert not loaded_by(module) & {"torch", "numpy", "IPython"}
