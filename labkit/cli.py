"""The command line: ``labkit lab | doctor | run``.

``lab`` opens JupyterLab on the first notebook, ``doctor`` says what this machine has and what to do
about what it lacks, ``run`` trains a lesson's model without a notebook, also under ``torchrun``.
Bad input ends in one line and exit code 2. Nothing heavy is imported before it is needed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

LESSONS = ("data_parallel",)

CHROMIUM_MISSING = (
    "There is no Chromium. Install it (Debian: apt-get install -y chromium), "
    "or set CHROMIUM to the path of one."
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and leave with its exit code."""
    options = _parser().parse_args(arguments)
    sys.exit(options.command(options))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="labkit", description="Distributed training on real ranks, and seen.")
    commands = parser.add_subparsers(required=True, metavar="lab | doctor | run")

    lab = commands.add_parser("lab", help="open JupyterLab on the first notebook")
    lab.add_argument("--port", type=_count, default=8888, help="port to try first (8888)")
    lab.set_defaults(command=_lab)

    doctor = commands.add_parser("doctor", help="what this machine has, and what it lacks")
    doctor.set_defaults(command=_doctor)

    run = commands.add_parser("run", help="train a lesson's model and print what the ranks did")
    run.add_argument("lesson", choices=LESSONS)
    run.add_argument("--ranks", type=_count, help="how many (4; under torchrun its own number)")
    run.add_argument("--steps", type=_count, default=20, help="training steps (20)")
    run.add_argument("--save", type=_new_file, help="keep the trace in this file")
    run.set_defaults(command=_run)
    return parser


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _new_file(text: str) -> Path:
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder")
    return path


# labkit lab


def _lab(options: argparse.Namespace) -> int:
    notebook = first_notebook()
    if notebook is None:
        print(
            "labkit: no notebooks here. Run this in the folder that holds notebooks/.",
            file=sys.stderr,
        )
        return 2
    command = lab_command(notebook, options.port)
    if sys.platform != "win32":
        os.execv(command[0], command)  # so that Ctrl-C reaches JupyterLab alone
    return subprocess.call(command)


def first_notebook() -> Path | None:
    """The notebook the course begins with: in this folder, else beside an editable install."""
    for folder in (Path.cwd(), Path(__file__).resolve().parent.parent):
        found = sorted((folder / "notebooks").glob("[0-9][0-9]_*.ipynb"))
        if found:
            return found[0]
    return None


def lab_command(notebook: Path, port: int) -> list[str]:
    """The command that serves the folder above `notebook`'s and opens it."""
    root = notebook.parent.parent
    command = [
        sys.executable, "-m", "jupyterlab", f"--ServerApp.port={port}",
        f"--ServerApp.root_dir={root}", f"--LabApp.default_url=/lab/tree/notebooks/{notebook.name}",
    ]  # fmt: skip
    if not _has_screen():
        command.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    return command


def _has_screen() -> bool:
    if sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


# labkit doctor


@dataclass(frozen=True)
class Finding:
    """One line of ``labkit doctor``: what was looked at, what is there, what to do if it is bad.

    `needed` is False for what only labkit's own tests need.
    """

    what: str
    found: str
    todo: str = ""
    needed: bool = True


def _doctor(options: argparse.Namespace) -> int:
    findings = list(examine())
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        print(f"{finding.what:<{width}}  {finding.found}")
        if finding.todo:
            print(f"{'':<{width}}  -> {finding.todo}")
    return int(any(finding.todo and finding.needed for finding in findings))


def examine() -> Iterator[Finding]:
    """Look at everything that labkit rests on, one `Finding` at a time."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding(
        "Python", version, "" if sys.version_info >= (3, 11) else "labkit needs 3.11 or newer"
    )
    yield from _examine_torch()
    for name in ("jupyterlab", "ipywidgets", "anywidget", "matplotlib", "cloudpickle"):
        if find_spec(name):
            yield Finding(name, metadata.version(name))
        else:
            yield Finding(name, "missing", f"pip install {name}")
    yield _examine_cores()
    yield from _examine_memory()
    yield _examine_loopback()
    chromium = find_chromium()
    todo = "" if chromium else f"Only the tests need one. {CHROMIUM_MISSING}"
    yield Finding("Chromium", chromium or "none", todo, needed=False)


def _examine_torch() -> Iterator[Finding]:
    if find_spec("torch") is None:
        yield Finding("torch", "missing", "pip install -c constraints.txt torch")
        return
    import torch
    import torch.distributed as dist

    line = ".".join(torch.__version__.split(".")[:2])
    tested = "2.13"
    yield Finding(
        "torch",
        torch.__version__,
        "" if line == tested else f"labkit is tested with {tested}; recording may fail",
    )
    if dist.is_available() and dist.is_gloo_available():
        names = ["gloo", *(["nccl"] if dist.is_nccl_available() else [])]
        yield Finding("backends", ", ".join(names))
    else:
        yield Finding("backends", "no gloo", "install a torch that was built with distributed")
    gpus = torch.cuda.device_count()
    names = [torch.cuda.get_device_name(i) for i in range(gpus)]
    yield Finding("GPUs", ", ".join(names) or "none: ranks run on the CPU")


def _examine_cores() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = str(cores or "unknown")
    if cores and cores < 4:
        found += " (four ranks share them: measured times say so)"
    return Finding("cores", found)


def _examine_memory() -> Iterator[Finding]:
    limits = []
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    container = Path("/sys/fs/cgroup/memory.max")
    if container.is_file() and (text := container.read_text().strip()).isdigit():
        limits.append(int(text))
    if limits:
        memory = min(limits)
        yield Finding(
            "memory",
            f"{memory / 2**30:.1f} GiB",
            "" if memory >= 1.5 * 2**30 else "a kernel with four ranks wants 1.5 GiB",
        )


def _examine_loopback() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address: Any = server.getsockname()
            socket.create_connection(address, timeout=2).close()
    except OSError as error:
        return Finding("loopback", f"127.0.0.1: {error}", "ranks talk over it: bring it up")
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    chosen = os.environ.get("GLOO_SOCKET_IFNAME")
    return Finding(
        "loopback",
        f"127.0.0.1 answers ({names[0] if names else 'interface without a usual name'})"
        + (f", but GLOO_SOCKET_IFNAME={chosen} is set and is used" if chosen else ""),
    )


def find_chromium() -> str | None:
    """The path of a Chromium or Chrome: `CHROMIUM`, else what is installed, else None."""
    if chosen := os.environ.get("CHROMIUM"):
        return chosen if Path(chosen).is_file() else None
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = next(filter(None, map(shutil.which, names)), None)
    places = (
        "/Applications/Chromium.app/Contents/MacOS/Chromium",
        "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
        "C:/Program Files/Google/Chrome/Application/chrome.exe",
    )
    return found or next((place for place in places if Path(place).is_file()), None)


# labkit run


def _run(options: argparse.Namespace) -> int:
    world = os.environ.get("WORLD_SIZE")
    if options.ranks and world and options.ranks != int(world):
        print(
            f"labkit run: --ranks {options.ranks}, but torchrun started {world}: leave --ranks out",
            file=sys.stderr,
        )
        return 2
    import labkit
    from labkit.lessons import train_data_parallel

    try:
        run = labkit.launch(train_data_parallel, options.steps, ranks=options.ranks, seed=0)
    except ValueError as error:
        print(f"labkit run: {error}", file=sys.stderr)
        return 2
    except (labkit.RankFailed, labkit.TimedOut) as error:
        print(f"labkit run: {error}", file=sys.stderr)
        return 1
    if os.environ.get("RANK", "0") == "0":  # one voice under torchrun
        trained = run.results[0]
        equal = all(other.checksum == trained.checksum for other in run.results)
        print(
            f"{options.lesson}: {len(run.results)} ranks, {options.steps} steps, "
            f"loss {trained.losses[0]:.3f} to {trained.losses[-1]:.3f}, "
            f"weights equal on all ranks: {'yes' if equal else 'no'}"
        )
        print(run.trace.summary())
        print(
            "busy: computing; skew: waiting for a later rank; transfer: waiting for the bytes;\n"
            "closed form: what the algorithm should send; the wire holds set-up and headers too"
        )
        if options.save:
            run.trace.save(options.save)
            print(f"trace: {options.save}")
    return 0
