"""What goes to the ranks and comes back: functions, arguments and results as bytes.

A function of a notebook cell has no file that a rank could import, so it travels by value
(cloudpickle), with the globals that it uses. A function of a module travels by name, and the rank
imports the module afresh. What cannot travel is named before any rank starts.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import inspect
import io
import pickle
import pickletools
import sys
import sysconfig
import threading
import warnings
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, ClassVar

import cloudpickle

# module file -> (its spec, which a reload replaces; mtime in ns and size when it was first seen)
_stamps: dict[str, tuple[Any, tuple[int, int]]] = {}


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    # cloudpickle forgets where code was written; a traceback, and whoever waits, must tell it.
    make, parts = cloudpickle.cloudpickle._code_reduce(code)
    return make, tuple(code.co_filename if p == "<dynamic-code>" else p for p in parts)


_LABKIT = str(Path(__file__).resolve().parent.parent)  # a new server is started for its changes


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table: ClassVar[Any] = ChainMap(
        {CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table
    )

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")  # no tensor can be there before torch is
        if torch is not None and type(value) is torch.Tensor and _is_small_view(value, torch):
            # A tensor travels with its whole storage: a row of a large one with all other rows.
            alone = value.detach().clone().requires_grad_(value.requires_grad)
            return alone.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
        return super().reducer_override(value)


def _is_small_view(tensor: Any, torch: Any) -> bool:
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        return False
    held: int = tensor.untyped_storage().nbytes()
    return held > 4096 and held >= 2 * tensor.numel() * tensor.element_size()


def _dumps(value: Any) -> bytes:
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


def pack(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """`fn` and `args` as bytes.

    Raises
    ------
    TypeError : the function or an argument cannot travel; says which, and what to do
    """
    if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError(f"{_name(fn)} is an async function: ranks run plain functions")
    if inspect.isgeneratorfunction(fn):
        raise TypeError(f"{_name(fn)} has a yield: a call runs none of it. Return a list instead")
    try:
        with contextlib.ExitStack() as stack:
            strangers: set[str] = set()
            while True:
                data = _dumps((fn, args))
                new = [m for m in _modules_named_in(data) if not _ranks_find(m)]
                new = [m for m in new if m.__name__ not in strangers]
                if not new:
                    break
                for module in new:
                    strangers.add(module.__name__)
                    stack.enter_context(_by_value(module))
    except Exception as error:
        raise TypeError(_blame(fn, args, error)) from error
    _warn_of_changed_modules(data)
    return data


def pack_result(value: Any) -> bytes:
    """What a rank's function returned, as bytes.

    Raises
    ------
    TypeError : it cannot leave the process
    """
    try:
        return _dumps(value)
    except Exception as error:
        raise TypeError(
            f"the function returned {_describe(value)}, which cannot leave its rank: {error}. "
            "Return numbers, strings, tensors, or containers of them."
        ) from error


def unpack(data: bytes) -> Any:
    """The inverse of `pack` and `pack_result`, for bytes that this user's own processes made."""
    return pickle.loads(data)


def _finds_editable(finder: Any) -> bool:
    return str(getattr(finder, "__module__", "")).startswith("__editable__")  # set up by pip


@contextmanager
def _by_value(module: ModuleType) -> Iterator[None]:
    """Let what a module defines travel by value, itself too."""
    with _registry:
        cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            cloudpickle.unregister_pickle_by_value(module)


_registry = threading.RLock()  # cloudpickle's list is shared by all threads


def _ranks_find(module: ModuleType) -> bool:
    """Whether sys.path leads a rank to this very module, not to none or to another file."""
    top = module.__name__.partition(".")[0]
    if top in sys.builtin_module_names:
        return True
    finders: list[Any] = [importlib.machinery.PathFinder, *filter(_finds_editable, sys.meta_path)]
    spec = next(filter(None, (finder.find_spec(top, None) for finder in finders)), None)
    file = getattr(sys.modules.get(top), "__file__", None)
    if spec is None or file is None or spec.origin is None:  # a namespace package has no file
        return spec is not None
    return Path(spec.origin).resolve() == Path(file).resolve()


def _blame(fn: Callable[..., Any], args: tuple[Any, ...], error: Exception) -> str:
    for i, arg in enumerate(args):
        try:
            _dumps(arg)
        except Exception as reason:
            return (
                f"argument {i + 1} of {_name(fn)}, {_describe(arg)}, cannot be sent to the ranks: "
                f"{reason}. Make it inside the function, or send what it is made from."
            )
    try:
        _dumps(fn)
    except Exception as reason:
        used = inspect.getclosurevars(fn) if inspect.isfunction(fn) else None
        outer = {**used.globals, **used.nonlocals} if used else {}
        for name, value in outer.items():
            try:
                _dumps(value)
            except Exception as inner:
                return (
                    f"{_name(fn)} uses {name!r}, {_describe(value)}, which cannot be sent to the "
                    f"ranks: {inner}. Make it inside the function."
                )
        return f"the function {_name(fn)} cannot be sent to the ranks: {reason}"
    return f"{_name(fn)} and its arguments cannot be sent to the ranks together: {error}"


def _name(fn: Any) -> str:
    return str(getattr(fn, "__name__", None) or repr(fn))


def _describe(value: Any) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"


def _warn_of_changed_modules(data: bytes) -> None:
    """Warn where ranks will run a newer file than the kernel has in memory."""
    for module in _modules_named_in(data):
        file = getattr(module, "__file__", None)
        if not file or not file.endswith(".py"):
            continue
        try:
            stat = Path(file).stat()
        except OSError:
            continue
        now = (stat.st_mtime_ns, stat.st_size)
        spec, known = _stamps.get(file, (None, now))
        fresh = spec is not module.__spec__
        _stamps[file] = (module.__spec__, now)
        if not _is_what_was_imported(file, now) if fresh else known != now:
            warnings.warn(
                f"{file} has changed since this process imported it: the ranks run the file as it "
                f"is now, this process the old one. importlib.reload({module.__name__}) reads it.",
                RuntimeWarning,
                stacklevel=4,
            )


def _modules_named_in(data: bytes) -> list[ModuleType]:
    """The user's modules that ranks will import for these bytes, and those that these use."""
    words = {str(v) for code, v, _ in pickletools.genops(data) if code.name in _WORDS}
    waiting = [sys.modules[w] for w in sorted(words) if w in sys.modules and w != "__main__"]
    found: dict[str, ModuleType] = {}
    while waiting:
        module = waiting.pop()
        file = getattr(module, "__file__", None)
        if module.__name__ in found or (file and is_installed(file)):
            continue
        if not file and (module.__spec__ is not None or module.__name__ in _OWN):
            continue  # built in, or a package without a file
        found[module.__name__] = module
        for value in list(vars(module).values()):
            name = value.__name__ if isinstance(value, ModuleType) else None
            name = name or getattr(value, "__module__", None)
            if isinstance(name, str) and name in sys.modules and name != "__main__":
                waiting.append(sys.modules[name])
    return list(found.values())


_OWN = ("__main__", "__mp_main__")
_WORDS = ("SHORT_BINUNICODE", "BINUNICODE", "UNICODE")


def is_installed(file: str) -> bool:
    """Whether a file came with Python, a package, or labkit: it is not the learner's."""
    roots = {sysconfig.get_path(k) for k in ("stdlib", "platstdlib", "purelib", "platlib")}
    return file.startswith((*filter(None, roots), _LABKIT))


def _is_what_was_imported(file: str, now: tuple[int, int]) -> bool:
    """Whether the cached bytecode, written at import, names this state of the file."""
    if sys.dont_write_bytecode:
        return True  # nothing known: do not alarm
    try:
        header = Path(importlib.util.cache_from_source(file)).read_bytes()[:16]
    except (OSError, NotImplementedError, ValueError):
        return True
    if len(header) < 16 or header[4:8] != b"\0\0\0\0":
        return True
    seconds = int.from_bytes(header[8:12], "little")
    size = int.from_bytes(header[12:16], "little")
    return (seconds, size) == (int(now[0] // 10**9) & 0xFFFFFFFF, now[1] & 0xFFFFFFFF)
