"""The pages that a newcomer reads first: what they point to is there, and what they say works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_that_are_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        assert re.match(r"https?://", target) or (ROOT / target).exists(), target


def test_pictures_say_what_they_show() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    words = re.findall(r"!\[([^]]*)\]", text)
    assert words
    assert all(words)


@pytest.mark.parametrize("page", PAGES)
def test_every_make_target_that_is_named_exists(page: str) -> None:
    targets = re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"))
    named = re.findall(r"(?:`|^    )make ([a-z]+)", (ROOT / page).read_text(encoding="utf-8"), re.M)
    assert set(named) <= set(targets)


def test_the_program_in_the_readme_runs(capfd: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(program, "README.md", "exec"), {"__name__": "readme"})
    assert capfd.readouterr().out.count("the sum is 6.0") == 4
