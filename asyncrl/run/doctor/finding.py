"""What the doctor finds."""

from enum import StrEnum

import msgspec


class Level(StrEnum):
    """How bad a finding is."""

    FINE = "fine"
    NOTE = "note"
    """Runs work, but something that could be used is not, or is close to its limit."""
    PROBLEM = "problem"
    """Some runs will fail."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at.

    Attributes:
        topic: what it is about, e.g. ``shared memory``.
        found: what is there, with the value seen.
        remedy: what to do; empty if there is nothing to do.
    """

    topic: str
    level: Level
    found: str
    remedy: str = ""


def fine(topic: str, found: str) -> Finding:
    """A finding that needs no remedy."""
    return Finding(topic, Level.FINE, found)


def note(topic: str, found: str, remedy: str) -> Finding:
    """A finding that runs can live with."""
    return Finding(topic, Level.NOTE, found, remedy)


def problem(topic: str, found: str, remedy: str) -> Finding:
    """A finding with which some runs will fail."""
    return Finding(topic, Level.PROBLEM, found, remedy)
