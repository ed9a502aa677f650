"""What holds for all tests."""

import signal
import sys

import pytest
from hypothesis import settings

# No test is about time: on a machine with other work an example may take any number of milliseconds.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Shells have what they start in the background ignore interrupts, and its children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the tests that are allowed to take longer than others: else one of them may run alone at the end."""
    usual = float(config.getini("timeout"))

    def limit(item: pytest.Item) -> float:
        marker = item.get_closest_marker("timeout")
        return usual if marker is None else max(usual, marker.args[0])

    items.sort(key=limit, reverse=True)


def pytest_collection_finish() -> None:
    """Have torch use one thread: two processes run tests side by side, and threads that wait for each other spin."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
