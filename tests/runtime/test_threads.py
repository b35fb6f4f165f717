"""Which threads may speak to other ranks while the main one waits."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

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


@pytest.mark.parametrize(
    "start", [Speaker, lambda end: threading.Timer(0.3, end.wait).start(), raw],
    ids=["a class of its own", "a timer", "without threading"],
)  # fmt: skip
def test_a_thread_of_any_kind_may_speak(start: Start) -> None:
    assert not alone_beside(start)
    assert alone_soon()


def alone_soon() -> bool:
    """Whether this thread is alone, once those that were told to end have ended."""
    until = time.monotonic() + 5
    while not is_alone() and time.monotonic() < until:
        time.sleep(0.01)
    return is_alone()


def test_the_threads_of_a_pool_may_speak_while_they_have_something_to_do() -> None:
    with ThreadPoolExecutor(2) as pool:
        pool.submit(int).result()
        assert alone_soon()  # the thread gives the result before it is done with it
        assert not alone_beside(lambda end: pool.submit(end.wait))
