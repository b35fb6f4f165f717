"""Which threads may speak to other ranks while the main one waits."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import labkit
from labkit.runtime.threads import is_alone

Start = Callable[[threading.Event], Any]


def alone_beside(start: Start) -> bool:
    """Whether this thread is alone while what `start` started runs."""
    end = threading.Event()
    start(end)
    try:
        return is_alone()
    finally:
        end.set()


class Speaker(threading.Thread):
    def __init__(self, end: threading.Event) -> None:
        super().__init__()
        self.end = end
        self.start()

    def run(self) -> None:
        self.end.wait()


def raw(end: threading.Event) -> None:
    begun = threading.Event()
    _thread.start_new_thread(lambda: (begun.set(), end.wait()), ())
    begun.wait()


def quiet(end: threading.Event) -> None:
    def work() -> None:
        end.wait()

    work.__module__ = "torch.utils.data._utils.pin_memory"
    threading.Thread(target=work).start()


def timer(end: threading.Event) -> None:
    threading.Timer(0.3, end.wait).start()


def alone_soon() -> bool:
    """Whether this thread is alone, once those that were told to end have ended."""
    until = time.monotonic() + 5
    while not is_alone() and time.monotonic() < until:
        time.sleep(0.01)
    return is_alone()


def beside(start: Start) -> tuple[bool, bool]:
    return alone_beside(start), alone_soon()


def in_a_rank(fn: Callable[..., Any], *args: Any) -> Any:
    """A process of its own: here a browser's or a server's threads may be about."""
    options: dict[str, Any] = {"ranks": 1, "threads": 1, "backend": "gloo", "trace": False}
    return labkit.launch(fn, *args, **options).results[0]


@pytest.mark.parametrize(
    "start", [Speaker, timer, raw], ids=["a class of its own", "a timer", "without threading"]
)
def test_a_thread_of_any_kind_may_speak(start: Start) -> None:
    assert in_a_rank(beside, start) == (False, True)


def test_a_data_loaders_thread_does_not_speak() -> None:
    assert in_a_rank(beside, quiet) == (True, True)


def pool_idle_and_busy() -> tuple[bool, bool]:
    with ThreadPoolExecutor(2) as pool:
        pool.submit(int).result()
        idle = alone_soon()  # the thread gives the result before it is done with it
        return idle, alone_beside(lambda end: pool.submit(end.wait))


def test_the_threads_of_a_pool_may_speak_while_they_have_something_to_do() -> None:
    assert in_a_rank(pool_idle_and_busy) == (True, False)
