"""What every test shares: Chromium, that nothing is left out in silence, a home of its own.

In CI (the environment variable ``CI``) a skipped test is a failed one. Everywhere the run says how
many browser tests passed, and stops at once where there is no Chromium to run them in.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from labkit.cli import CHROMIUM_MISSING, find_chromium

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


class NothingLeftOut:
    """A plugin of its own, since hooks in a conftest see the tests below it and no notebook."""

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self,
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        return refuse_skip((yield))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        return refuse_skip((yield))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        wanted = any(item.get_closest_marker("browser") for item in session.items)
        if wanted and not session.config.option.collectonly and find_chromium() is None:
            pytest.exit(
                f"{CHROMIUM_MISSING}\nWithout the browser tests: make test BROWSER=0", returncode=1
            )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        passed = terminalreporter.stats.get("passed", [])
        browser = sum("browser" in report.keywords for report in passed)
        terminalreporter.write_line(f"browser tests passed: {browser}")


class FreshHome:
    """Every test, and every notebook's kernel, begins without the developer's own progress."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="labkit-homes-")
        self.count = 0
        self.before = os.environ.get("LABKIT_HOME")

    @pytest.hookimpl(tryfirst=True)  # before nbval starts a kernel for the first cell
    def pytest_runtest_setup(self) -> None:
        self.count += 1
        os.environ["LABKIT_HOME"] = str(Path(self.folder.name) / str(self.count))

    def pytest_unconfigure(self) -> None:
        os.environ.pop("LABKIT_HOME", None)
        if self.before is not None:
            os.environ["LABKIT_HOME"] = self.before
        self.folder.cleanup()


def refuse_skip(report: Report) -> Report:
    """The report itself, or in CI a failure in place of a skip. An expected failure stays one."""
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"Skipped, and in CI a skipped test is a failed one. {why}"
    return report


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(NothingLeftOut())
    config.pluginmanager.register(FreshHome())


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of Chromium, for Playwright's `executable_path`."""
    path = find_chromium()
    if path is None:
        pytest.fail(CHROMIUM_MISSING)
    return path


@pytest.fixture
def no_process_left() -> Iterator[None]:
    """Fails a test that leaves a process behind, other than the rank server it may have started."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    yield
    # A process that was told to end may take a moment to be gone.
    left = [
        process
        for process in psutil.Process().children(recursive=True)
        if process.pid not in before and not _is_server(process) and not _is_browser(process)
    ]
    _, alive = psutil.wait_procs(left, timeout=2)
    assert not alive, f"left behind: {alive}"


def _is_browser(process: psutil.Process) -> bool:
    """Chromium and its driver live through the session and start helpers when they like."""
    try:
        return any(word in process.name() for word in ("chrom", "node"))
    except psutil.NoSuchProcess:
        return False


def _is_server(process: psutil.Process) -> bool:
    """Whether this is the rank server itself: a child of ours, where a rank is a child of it."""
    try:
        return process.ppid() == os.getpid() and "labkit.runtime.server" in process.cmdline()
    except psutil.NoSuchProcess:
        return False
