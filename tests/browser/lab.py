"""JupyterLab in Chromium: a server of our own on loopback, and a page that drives it.

The page is spoken to through ``window.jupyterapp`` (its commands and models); no menu is clicked.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Locator, Page

ROOT = Path(__file__).parents[2]
FLAGS = (
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
CONFIG = """
c = get_config()
c.ServerApp.ip = "127.0.0.1"
c.ServerApp.port = 0
c.ServerApp.open_browser = False
c.ServerApp.allow_root = True
c.ServerApp.root_dir = {root!r}
c.IdentityProvider.token = {token!r}
c.LabApp.expose_app_in_browser = True
c.LabApp.news_url = None
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
"""


class Server:
    """A JupyterLab that serves `folder`, with its own settings, until `stop`."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "work"
        self.token = secrets.token_hex(16)
        runtime = home / "runtime"
        for folder in (self.folder, runtime, home / "config", home / "data", home / "ipython"):
            folder.mkdir(parents=True)
        config = home / "config" / "jupyter_server_config.py"
        config.write_text(CONFIG.format(root=str(self.folder), token=self.token))
        notices = home / "config/lab/user-settings/@jupyterlab/apputils-extension"
        notices.mkdir(parents=True)
        (notices / "notification.jupyterlab-settings").write_text(
            json.dumps({"fetchNews": "false", "checkForUpdates": False})
        )
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {
            "JUPYTER_CONFIG_DIR": str(home / "config"),
            "JUPYTER_DATA_DIR": str(home / "data"),
            "JUPYTER_RUNTIME_DIR": str(runtime),
            "IPYTHONDIR": str(home / "ipython"),
            "LABKIT_HOME": str(home / "labkit"),
            "PYTHONPATH": path,
        }
        self.log = home / "server.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", f"--config={config}"],
                cwd=home, env=environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.url = self._address(runtime)

    def _address(self, runtime: Path) -> str:
        limit = time.monotonic() + 60
        while time.monotonic() < limit and self.process.poll() is None:
            for file in runtime.glob("jpserver-*.json"):
                try:
                    return f"http://127.0.0.1:{json.loads(file.read_text())['port']}"
                except (json.JSONDecodeError, KeyError):
                    continue  # it is being written
            time.sleep(0.05)
        said = self.log.read_text()[-2000:]
        self.stop()
        raise RuntimeError(f"JupyterLab did not start:\n{said}")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def write(self, name: str, *cells: str) -> str:
        """Put a notebook with these code cells into the folder; returns its name."""
        code = [
            {"cell_type": "code", "id": f"cell-{i}", "metadata": {}, "source": source,
             "outputs": [], "execution_count": None}
            for i, source in enumerate(cells)
        ]  # fmt: skip
        spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        book = {"cells": code, "metadata": {"kernelspec": spec}, "nbformat": 4, "nbformat_minor": 5}
        (self.folder / name).write_text(json.dumps(book))
        return name


class Lab:
    """A page with JupyterLab in it. `outside` lists requests that left the loopback."""

    def __init__(self, browser: Browser, server: Server, width: int = 1280) -> None:
        self.server = server
        self.context = browser.new_context(viewport={"width": width, "height": 900})
        self.page: Page = self.context.new_page()
        self.outside: list[str] = []
        self.problems: list[str] = []
        self.context.on("request", lambda request: self._seen(request.url))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.said: list[str] = []  # errors in the console
        self.page.on("console", lambda line: line.type == "error" and self.said.append(line.text))

    def _seen(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("data", "blob") and parts.hostname != "127.0.0.1":
            self.outside.append(url)

    def open(self, notebook: str) -> None:
        """Open a notebook alone and wait for its kernel."""
        self.page.goto(f"{self.server.url}/lab/tree/{notebook}?reset&token={self.server.token}")
        self.page.wait_for_function(
            """() => {
                if (location.search.includes("reset")) return false;  // the workspace is restored
                const widgets = window.jupyterapp?.shell.widgets("main") ?? [];
                const panel = [...widgets].find((w) => w.context);
                if (!panel?.context.isReady) return false;
                return panel.sessionContext.session?.kernel?.status === "idle";
            }""",
            timeout=60_000,
        )
        self.command("filebrowser:hide-main")

    def command(self, name: str, **options: Any) -> None:
        self.page.evaluate(
            "([name, options]) => window.jupyterapp.commands.execute(name, options).then(() => 0)",
            [name, options],
        )

    def run_all(self, timeout: float = 180) -> None:
        """Run all cells and wait until the last is done."""
        self.page.set_default_timeout(timeout * 1000)
        self.command("notebook:run-all-cells")
        self.page.set_default_timeout(30_000)

    def number(self, name: str) -> int:
        """Where the cell with this id stands."""
        found: int = self.page.evaluate(
            """(name) => {
                const panel = [...window.jupyterapp.shell.widgets("main")].find((w) => w.context);
                return [...panel.content.model.cells].findIndex((cell) => cell.id === name);
            }""",
            name,
        )
        assert found >= 0, f"no cell {name!r}"
        return found

    def run(self, *names: str, timeout: float = 60) -> None:
        """Run the cells with these ids, one after the other."""
        for name in names:
            self.output_of(self.number(name))
            self.page.set_default_timeout(timeout * 1000)
            self.command("notebook:run-cell")
            self.page.set_default_timeout(30_000)

    def edit(self, name: str, old: str, new: str) -> None:
        """Put `new` in place of `old` in the source of a cell."""
        number = self.number(name)
        source = self.cells()[number]
        assert source.count(old) == 1, f"{old!r} in {source}"
        self.page.evaluate(
            """([number, source]) => {
                const panel = [...window.jupyterapp.shell.widgets("main")].find((w) => w.context);
                panel.content.model.cells.get(number).sharedModel.setSource(source);
            }""",
            [number, source.replace(old, new)],
        )

    def printed(self, name: str) -> str:
        """What the cell with this id printed."""
        number = self.number(name)
        return "".join(
            "".join(output["text"])
            for cell, _, output in self.outputs()
            if cell == number and output["output_type"] == "stream"
        )

    def outputs(self) -> list[tuple[int, list[str], dict[str, Any]]]:
        """All outputs of the notebook's model: (cell, the cell's tags, as nbformat has it)."""
        found: list[tuple[int, list[str], dict[str, Any]]] = self.page.evaluate(
            """() => {
                const panel = [...window.jupyterapp.shell.widgets("main")].find((w) => w.context);
                return [...panel.content.model.cells].flatMap((cell, number) => {
                    const tags = cell.getMetadata("tags") ?? [];
                    const outputs = cell.type === "code" ? cell.outputs.toJSON() : [];
                    return outputs.map((output) => [number, tags, output]);
                });
            }"""
        )
        return found

    def texts(self) -> list[tuple[int, str]]:
        """(cell, plain text) of every displayed value."""
        return [
            (cell, "".join(output["data"].get("text/plain", "")))
            for cell, _, output in self.outputs()
            if "data" in output
        ]

    def output_of(self, cell: int) -> Locator:
        """The output area of a cell, scrolled to: JupyterLab renders only what is near."""
        self.page.evaluate(
            """async (number) => {
                const panel = [...window.jupyterapp.shell.widgets("main")].find((w) => w.context);
                panel.content.activeCellIndex = number;
                await panel.content.scrollToItem(number, "start");
            }""",
            cell,
        )
        return self.page.locator(
            f".jp-Cell[data-windowed-list-index='{cell}'] .jp-OutputArea"
        ).first

    def cells(self) -> list[str]:
        """The source of every cell."""
        found: list[str] = self.page.evaluate(
            """() => {
                const panel = [...window.jupyterapp.shell.widgets("main")].find((w) => w.context);
                return [...panel.content.model.cells].map((c) => c.sharedModel.getSource());
            }"""
        )
        return found

    def evaluate_in_kernel(self, expression: str) -> str:
        """The repr of an expression, from the notebook's kernel."""
        found: str = self.page.evaluate(
            """async (expression) => {
                const panel = [...window.jupyterapp.shell.widgets("main")].find((w) => w.context);
                const request = { code: "", user_expressions: { asked: expression } };
                const future = panel.sessionContext.session.kernel.requestExecute(request);
                const { content } = await future.done;
                const { asked } = content.user_expressions;
                return asked.status === "ok" ? asked.data["text/plain"] : asked.evalue;
            }""",
            expression,
        )
        return found

    def errors(self) -> list[str]:
        """What cells raised that were not meant to."""
        return [
            f"cell {cell}: {output['ename']}: {output['evalue']}"
            for cell, tags, output in self.outputs()
            if output["output_type"] == "error" and "raises-exception" not in tags
        ]

    def close(self) -> None:
        self.page.evaluate(
            """async () => {
                const widgets = window.jupyterapp?.shell.widgets("main") ?? [];
                const panel = [...widgets].find((w) => w.context);
                await panel?.context?.save();
                await panel?.sessionContext?.shutdown();
            }"""
        )
        self.context.close()
