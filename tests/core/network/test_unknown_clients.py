"""However many clients a server turns away, it logs a line a minute, and counts them all."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.core.network.rare_warning import EVERY_S
from asyncrl.core.network.unknown_clients import UnknownClients


def test_the_first_is_told_at_once_and_the_others_by_their_number(caplog: pytest.LogCaptureFixture):
    now = 0.0
    unknown_clients = UnknownClients("the thing", logging.getLogger("test"), lambda: now)
    for number in range(5):
        unknown_clients.turned_away(f"client-{number}", "did not show the token")
    now = EVERY_S
    unknown_clients.turned_away("client-5", "did not show the token")
    unknown_clients.close()
    assert [record.getMessage() for record in caplog.records] == [
        "the thing: turned away: client-0 did not show the token",
        "the thing: turned away: client-5 did not show the token; 4 other clients turned away since the last such line",
    ]


@given(st.lists(st.floats(0, 30)))
def test_none_is_left_out_of_the_count(pauses: list[float]):
    now, lines = 0.0, logging.getLogger("test of unknown clients")
    told: list[str] = []
    lines.addFilter(lambda record: bool(told.append(record.getMessage())))
    unknown_clients = UnknownClients("the thing", lines, lambda: now)
    for pause in pauses:
        now += pause
        unknown_clients.turned_away("client", "said nothing")
    unknown_clients.close()
    others = [int(line.split("; ")[1].split()[0]) if ";" in line else 0 for line in told]
    assert len(told) + sum(others) == len(pauses)
    assert len(told) <= 2 + now / EVERY_S
    lines.filters.clear()
