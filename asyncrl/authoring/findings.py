"""What a check found, with its place and its remedy."""

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """A run would be wrong or would not run."""
    WARNING = "warning"
    """A run would work, and probably not as meant."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong with an environment.

    Attributes:
        check: name of the check, e.g. ``tasks``.
        place: where it is: a method with its file and line, a tool, a task or a recipe key.
        problem: what is wrong, with the value seen.
        remedy: what to do.
    """

    severity: Severity
    check: str
    place: str
    problem: str
    remedy: str


class Findings:
    """Collects findings. The same one from several episodes is kept once, and it is counted."""

    def __init__(self) -> None:
        self._counts: dict[Finding, int] = {}

    def error(self, check: str, place: str, problem: str, remedy: str) -> None:
        """Add an error."""
        self.add(Finding(Severity.ERROR, check, place, problem, remedy))

    def warning(self, check: str, place: str, problem: str, remedy: str) -> None:
        """Add a warning."""
        self.add(Finding(Severity.WARNING, check, place, problem, remedy))

    def add(self, finding: Finding) -> None:
        """Add a finding."""
        self._counts[finding] = self._counts.get(finding, 0) + 1

    @property
    def all(self) -> tuple[Finding, ...]:
        """The findings: errors first, each kind in the order in which they were found."""
        return tuple(sorted(self._counts, key=lambda each: each.severity is not Severity.ERROR))
