"""Shows what a check found, as text that a person reads and can copy."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from asyncrl.authoring.check import Checked
from asyncrl.authoring.findings import Finding, Severity
from asyncrl.core.text import pluralize

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow"}


def check_view(checked: Sequence[Checked]) -> Iterator[Text]:
    """The findings of each environment, and what its episodes measured."""
    for one in checked:
        yield verdict_of(one.environment, one.findings)
        yield from map(finding_view, one.findings)
        yield Text(f"  {one.train} training and {one.evaluation} evaluation tasks looked at", "dim")
        if (figures := one.figures) is not None:
            rewards = ", ".join(f"{each:g}" for each in figures.rewards)
            yield Text(
                f"  {figures.episodes} episodes at once: {figures.steps_per_s:,.0f} steps/s, "
                f"reset {figures.reset_p50_ms:.1f} ms, step {figures.step_p50_ms:.1f} ms "
                f"(99 %: {figures.step_p99_ms:.1f} ms); rewards seen: {rewards}",
                "dim",
            )


def verdict_of(environment: str, findings: Sequence[Finding]) -> Text:
    """How many errors and warnings were found in an environment."""
    errors = sum(each.severity is Severity.ERROR for each in findings)
    verdict = ("in order", "green") if not errors else (pluralize(errors, "error"), "bold red")
    warnings = f", {pluralize(len(findings) - errors, 'warning')}" if len(findings) > errors else ""
    return Text.assemble((environment, "bold"), ": ", verdict, warnings)


def finding_view(finding: Finding) -> Text:
    """One finding, with its place and its remedy."""
    return Text.assemble(
        "  ", (finding.severity, _STYLES[finding.severity]), f" [{finding.check}] {finding.place}: {finding.problem}; ",
        (finding.remedy, "italic"),
    )  # fmt: skip
