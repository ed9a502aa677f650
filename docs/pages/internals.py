"""Writes docs/reference/internals.md from the registers of what is reached into: ``python -m docs.pages.internals``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from asyncrl.cli import patches as rich
from asyncrl.core import patches as python
from asyncrl.core.reach import Reach
from asyncrl.envs import patches as environments
from asyncrl.generators.vllm import patches as vllm
from asyncrl.learners.megatron import patches as learner
from asyncrl.run.host import patches as ray
from asyncrl.run.tracking import patches as mlflow

REGISTERS: dict[str, tuple[Reach, ...]] = {
    "vLLM": vllm.REACHES,
    "Megatron": learner.MEGATRON,
    "torch": learner.TORCH,
    "Ray": ray.REACHES,
    "MLflow": mlflow.REACHES,
    "MCP": environments.MCP,
    "reasoning-gym": environments.REASONING_GYM,
    "verifiers": environments.VERIFIERS,
    "OpenEnv": environments.OPENENV,
    "rich": rich.REACHES,
    "Python": python.REACHES,
}
"""Every register, by the project that is reached into."""

_HEAD = """\
# What asyncrl reaches into

<!-- Generated from the registers (patches.py in several folders) by `python -m docs.pages.internals`; edit these. -->

What asyncrl replaces, reads or calls of other projects where they offer no public way: {count} places. A new release may change
any of them, so read this page before you raise a version in `requirements/`, and run the tests that it names.

A name that begins with a point is an attribute of an object whose class the code does not say; `[...]` is one whose name is in a
variable, or in a dictionary of attributes; `SQL` are tables.
"""


def internals_page() -> str:
    """The page as Markdown."""
    head = _HEAD.format(count=sum(map(len, REGISTERS.values())))
    return head + "".join(_section(project, reaches) for project, reaches in REGISTERS.items())


def _section(project: str, reaches: Sequence[Reach]) -> str:
    rows = [f"| {' | '.join(_cells(each))} |" for each in reaches]
    titles = "| what | where | why | device | noticed by | needless when |"
    return "\n".join(["", f"## {project}", "", titles, "|---|---|---|---|---|---|", *rows, ""])


def _cells(reach: Reach) -> tuple[str, ...]:
    names, files = ("<br>".join(f"`{each}`" for each in several) for several in (reach.names, reach.files))
    return names, files, reach.why, reach.device, f"`{reach.test}`", reach.needless


def main(argv: Sequence[str]) -> None:
    """Write the page to the file named, by default docs/reference/internals.md of the checkout."""
    parser = argparse.ArgumentParser(description="Write the page of what is reached into.")
    parser.add_argument("file", nargs="?", type=Path, default=Path("docs/reference/internals.md"))
    parser.parse_args(argv).file.write_text(internals_page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
