"""Makes all of the doctor's checks, one after another, while a process of its own looks at the model."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from asyncrl.core.recipe.schema import ModelConfig
from asyncrl.run.doctor import device, model, packages, system
from asyncrl.run.doctor.finding import Finding, Level, problem


def examine(run_dir: Path, looked_at: ModelConfig | None) -> Iterator[Finding]:
    """Yield what each check finds, as soon as it is found. A check that breaks is a finding, too.

    Args:
        run_dir: where runs are to be written.
        looked_at: a model to look at, whose path is a folder, if there is one.
    """
    with ExitStack() as beside:
        looking = None if looked_at is None else beside.enter_context(model.looking_at(looked_at))
        checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
            ("packages", packages.check_packages),
            ("GPU", device.check_devices),
            ("shared memory", system.check_shared_memory),
            ("file descriptors", system.check_descriptors),
            ("processes", system.check_processes),
            ("ports", system.check_ports),
            ("clock", system.check_clock),
            ("folders", lambda: system.check_folders(run_dir)),
            ("Ray", system.check_ray),
        ]
        if looking is not None and looked_at is not None:
            checks.append(("model", partial(model.findings_of, looking, looked_at)))
        for topic, check in checks:
            yield from contained(topic, check)


def contained(topic: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield what the check finds, and its own error, so that the other checks are made all the same."""
    try:
        yield from check()
    except Exception as error:  # noqa: BLE001 - it is shown
        yield problem(topic, f"this check broke: {type(error).__name__}: {error}", "report this: it should not happen")


def is_healthy(findings: list[Finding]) -> bool:
    """Whether there is no problem among the findings."""
    return all(finding.level is not Level.PROBLEM for finding in findings)
