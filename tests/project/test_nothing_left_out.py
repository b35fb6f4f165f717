"""In CI a skipped test fails, and where browser tests cannot run the run says so at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(folder: Path, *sources: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """pytest on a few small files, with this project's conftest."""
    for i, source in enumerate(sources):
        (folder / f"test_{i}.py").write_text(f"import pytest\n{source}\n")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = browser: needs Chromium\n")
    outside = {name: value for name, value in os.environ.items() if name != "CI"}
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", "pytest.ini", "-rA"],
        cwd=folder, env=outside | environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


FILE = """
@pytest.mark.skip(reason="by mark")
def test_a(): pass

@pytest.mark.skipif(True, reason="on condition")
def test_b(): pass

def test_c(): pytest.skip("inside")

@pytest.fixture
def nothing(): pytest.skip("by a fixture")
def test_d(nothing): pass

@pytest.mark.xfail(strict=True)
def test_expected(): assert False

def test_good(): pass
"""
WHOLE_FILE = "pytest.skip('whole file', allow_module_level=True)"


def test_a_skip_is_a_failure_in_ci(tmp_path: Path) -> None:
    done = run(tmp_path, FILE, CI="true")
    assert done.returncode == 1
    assert "1 failed, 1 passed, 1 xfailed, 3 errors" in done.stdout
    for why in ("by mark", "on condition", "inside", "by a fixture"):
        assert f"in CI a skipped test is a failed one. Skipped: {why}" in done.stdout


def test_a_file_that_is_skipped_is_a_failure_in_ci(tmp_path: Path) -> None:
    done = run(tmp_path, WHOLE_FILE, "def test_good(): pass", CI="true")
    assert done.returncode != 0
    assert "in CI a skipped test is a failed one. Skipped: whole file" in done.stdout


def test_a_skip_is_a_skip_elsewhere(tmp_path: Path) -> None:
    done = run(tmp_path, FILE, WHOLE_FILE)
    assert done.returncode == 0
    assert "1 passed, 5 skipped, 1 xfailed" in done.stdout


BROWSER = "@pytest.mark.browser\ndef test(): pass\ndef test_other(): pass"


def test_browser_tests_are_counted(tmp_path: Path) -> None:
    done = run(tmp_path, BROWSER, CHROMIUM=sys.executable)
    assert done.returncode == 0
    assert "browser tests passed: 1" in done.stdout.splitlines()


def test_without_chromium_it_fails_and_says_how_to_install_it(tmp_path: Path) -> None:
    done = run(tmp_path, BROWSER, CHROMIUM="/nowhere/chromium")
    assert done.returncode == 1
    assert "apt-get install -y chromium" in done.stdout
    assert "make test BROWSER=0" in done.stdout
    assert "PASSED" not in done.stdout
