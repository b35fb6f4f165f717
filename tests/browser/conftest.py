"""One JupyterLab server and one Chromium for all browser tests.

Without Chromium the run stops with the line that installs it (tests/conftest.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.lab import FLAGS, Lab, Server


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("lab"))
    yield started
    started.stop()


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    flags = [*FLAGS, *(["--no-sandbox"] if os.getuid() == 0 else [])]
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=chromium, args=flags)
        yield started
        started.close()


@pytest.fixture
def lab(server: Server, browser: Browser) -> Iterator[Lab]:
    opened = Lab(browser, server)
    yield opened
    opened.close()
