"""Each package says which names are public: explicit, in order, and all there."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

import labkit

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(
    path.parent.relative_to(ROOT).as_posix().replace("/", ".")
    for path in ROOT.glob("labkit/**/__init__.py")
)


def declared(source: str) -> list[str] | None:
    """The list written after ``__all__ =``, or None where none is written out."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            try:
                return list(ast.literal_eval(node.value))
            except ValueError:
                return None
    return None


def order(name: str) -> tuple[int, str]:
    """CONSTANTS, then Classes, then functions: the order ruff keeps."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_are_explicit_sorted_and_there(package: str) -> None:
    source = (ROOT / package.replace(".", "/") / "__init__.py").read_text(encoding="utf-8")
    names = declared(source)
    assert names, f"{package} has no __all__ that is written out"
    assert names == sorted(names, key=order)
    assert len(names) == len(set(names))
    namespace: dict[str, object] = {}
    exec(f"from {package} import *", namespace)  # what a reader of __all__ would type
    assert set(names) <= set(namespace)


@pytest.mark.parametrize("source", ["", "__all__ = [name for name in dir()]", "__all__ = names"])
def test_a_list_that_is_not_written_out_is_found(source: str) -> None:
    assert declared(source) is None


def test_every_public_name_of_labkit_has_a_home() -> None:
    assert set(labkit.__all__) == set(labkit._HOME)
    assert set(labkit.__all__) <= set(dir(labkit))
    for name, module in labkit._HOME.items():
        assert getattr(labkit, name) is getattr(import_module(module), name)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'labkit' has no attribute 'lunch'"):
        _ = labkit.lunch
