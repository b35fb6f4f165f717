"""What a learner has done, kept between kernels: one JSON in the user's data folder.

Its cost is a lock and a whole file written for each change, which a person makes a few times an
hour. Every change is read, made and put back under one lock, so that two kernels at once lose
nothing; the new file stands in the old one's place at once or not at all. Where nothing can be
written, it goes on in memory and says so once. A notebook never holds any of it.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import tempfile
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock
from platformdirs import user_data_path

__all__ = ["SCHEMA", "Progress", "home", "now"]

SCHEMA = 1
_PATIENCE = 10.0  # seconds for another kernel to finish its change

Whole = dict[str, Any]

# What could not be written, by the file it belongs to; gone with the kernel.
_memory: dict[Path, Whole] = {}


def home() -> Path:
    """The folder that holds progress: ``LABKIT_HOME``, else the system's place for user data."""
    told = os.environ.get("LABKIT_HOME")
    return Path(told).expanduser().absolute() if told else user_data_path("labkit", "labkit")


def now() -> str:
    """This second, in UTC, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Progress:
    """Small records by section and key, each a value that JSON can hold.

    Parameters
    ----------
    folder : where the file lies; None: `home`
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.path = (folder or home()) / "progress.json"

    def get(self, section: str, key: str) -> Any:
        """The record, or None where there is none."""
        return self.section(section).get(key)

    def section(self, name: str) -> dict[str, Any]:
        """All records of a section, by key: a copy."""
        if self.path in _memory:
            return copy.deepcopy(_memory[self.path].get(name, {}))
        if not self.path.exists():
            return {}  # a learner who has done nothing leaves no folder behind
        try:
            with self._lock():
                whole = self._load()
        except OSError:
            whole = self._read_only()
        found: dict[str, Any] = whole.get(name, {})
        return found

    def put(self, section: str, key: str, value: Any) -> None:
        """Keep `value` under this key, in place of what was there."""
        self.change(section, key, lambda _: value)

    def change(self, section: str, key: str, edit: Callable[[Any], Any]) -> Any:
        """Keep what `edit` makes of the record (None without one), and return it.

        Raises
        ------
        TypeError, ValueError : JSON cannot hold it
        """

        def replace(whole: Whole) -> Any:
            records = whole.setdefault(section, {})
            value = edit(records.get(key))
            # A bad value is the caller's error: tell it before the file is touched.
            records[key] = json.loads(json.dumps(value, allow_nan=False))
            return copy.deepcopy(records[key])

        return self._change(replace)

    def drop(self, section: str, key: str) -> None:
        """Forget the record under this key, if there is one."""
        self._change(lambda whole: whole.get(section, {}).pop(key, None))

    def _change(self, edit: Callable[[Whole], Any]) -> Any:
        if self.path not in _memory:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self._lock():
                    whole = self._load()
                    if self.path not in _memory:  # a newer labkit's file is left alone
                        result = edit(whole)
                        self._replace(whole)
                        return result
            except OSError as error:
                self._keep_in_memory(self._read_only(), str(error))
        return edit(_memory[self.path])

    def _lock(self) -> FileLock:
        # flock (on Windows msvcrt's): the system lets go of it when a process dies.
        return FileLock(self.path.with_suffix(".lock"), timeout=_PATIENCE)

    def _load(self) -> Whole:
        """The file's content; one that cannot be read is put aside, and told."""
        try:
            whole = json.loads(self.path.read_text(encoding="utf-8"))
            fault = _fault(whole)
        except FileNotFoundError:
            return _empty()
        except ValueError as error:  # no JSON, no UTF-8
            fault = str(error)
        if fault:
            aside = _aside(self.path)
            self.path.rename(aside)
            _tell(f"progress could not be read ({fault}). It was kept as {aside} and begins anew.")
            return _empty()
        if whole["schema"] > SCHEMA:
            why = f"it was written by a newer labkit (schema {whole['schema']}, here {SCHEMA})"
            self._keep_in_memory(whole, why)
        return copy.deepcopy(_memory.get(self.path, whole))

    def _replace(self, whole: Whole) -> None:
        """Write beside, flush, then rename: a reader sees the old file or the new one."""
        handle, beside = tempfile.mkstemp(prefix="progress-", dir=self.path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(whole, file, ensure_ascii=False, indent=1, allow_nan=False)
                file.flush()
                os.fsync(file.fileno())
            Path(beside).replace(self.path)
        except BaseException:
            Path(beside).unlink(missing_ok=True)
            raise

    def _read_only(self) -> Whole:
        """What can be read of a folder that cannot be written to."""
        with contextlib.suppress(OSError, ValueError):
            whole = json.loads(self.path.read_text(encoding="utf-8"))
            if not _fault(whole):
                return dict(whole)
        return _empty()

    def _keep_in_memory(self, whole: Whole, why: str) -> None:
        _memory[self.path] = copy.deepcopy(whole)
        _tell(
            f"progress is not stored in {self.path}: {why}. It is kept until this kernel ends. "
            "LABKIT_HOME can name another folder."
        )


def _empty() -> Whole:
    return {"schema": SCHEMA}


def _fault(whole: Any) -> str:
    """Why this is not a progress file, or ""."""
    if not isinstance(whole, dict):
        return "it holds no table"
    schema = whole.get("schema")
    if isinstance(schema, bool) or not isinstance(schema, int) or schema < 1:
        return f"its schema is {schema!r}"
    if schema == SCHEMA:
        for name, section in whole.items():
            if name != "schema" and not isinstance(section, dict):
                return f"its section {name!r} is no table"
    return ""


def _aside(path: Path) -> Path:
    """The first name for a file put aside that is not taken."""
    number = 1
    while (aside := path.with_name(f"{path.stem}-unreadable-{number}.json")).exists():
        number += 1
    return aside


def _tell(text: str) -> None:
    warnings.warn(f"labkit: {text}", stacklevel=2)
