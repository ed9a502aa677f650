"""Writes docs/operations/errors.md from the errors that the code makes: ``python -m docs.pages.errors``.

What always holds: each message has a remedy, its own or that of its kind (:data:`REMEDIES`).
"""

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from docs.pages.error_messages import ErrorClass, Message, error_classes, messages, read_modules
from docs.pages.links import linked

ROOT = Path(__file__).parents[2]

REFUSAL = "RecipeError"
_RESUME = "read `asyncrl logs RUN --errors`, then go on with `asyncrl launch --resume RUN`"
_BUG = "a bug of asyncrl: report it with the folder `RUN/logs`"
_REPLACED = "nothing: the run replaces the process or asks again, and ends if it happens too often (`buffer.max_failures`)"
REMEDIES = {
    "BrokenConnection": _REPLACED,
    "CheckpointNotWritten": "make room, or put the disk right: the run goes on, and writes a checkpoint as soon as it can",
    "ComponentFailed": _RESUME,
    "ConnectionLost": _REPLACED,
    "DatabaseError": "correct the file or script that `database` or `script` of the task names",
    "EnvironmentBroken": "correct it: the attempt has no reward, and after `buffer.max_attempts` the task is left out",
    "EnvironmentLost": "see to what the environment stands on; the episode is played again, and nothing counts against its task",
    "HandedBack": "nothing: another generator takes its place",
    "LedgerError": _BUG,
    "LessonFailed": "correct the environment's lessons",
    "LessonUnfit": "correct the environment's lessons",
    "NodeFull": "make room in `/dev/shm` of that node; a successor starts when there is",
    "NodeLost": "nothing: the engines of the node are replaced elsewhere, or there when it is back",
    "NotThere": "wait until the run has come so far, or resume it",
    "ProcessDied": _REPLACED,
    "ProcessUnreachable": _REPLACED,
    "PromptTooLong": "raise `model.max_context`, or shorten the prompt; the task is left out",
    "ReplayFailed": "see the error above it",
    "WeightMismatch": "read `asyncrl logs RUN --errors`; " + _BUG,
}
"""What to do about an error of a kind whose message does not say it. A kind that is not here has remedies of its own."""

_HEAD = """\
# Errors

<!-- Generated from the code by `python -m docs.pages.errors`; edit the messages where they are made. -->

What each message of asyncrl means, and what to do, as the code makes them. Look for those words of yours that do not depend on
the run; what does stands here in angle brackets. Errors in your own code: [errors and logs](errors-and-logs.md).
"""

_SECTIONS = {
    "model": "Models",
    "environment": "Environments",
    "tasks": "Tasks",
    "reward": "Rewards",
    "algorithm": "Algorithm",
    "sampling": "Sampling",
    "batch": "Batch",
    "buffer": "Buffer",
    "generators": "Generators",
    "learner": "Learner",
    "weights": "Weights",
    "evaluation": "Evaluation",
    "checkpoint": "Checkpoints",
    "tracking": "Tracking",
    "network": "Network",
    "deadlines": "Deadlines",
    "run_dir": "Run folder",
    "--": "Options of commands",
    "": "Files, folders, machines, and all else",
}
"""Title for the errors of each section of a recipe, in the order of the page; others are among the last."""


def errors_page(root: Path = ROOT) -> str:
    """The page as Markdown.

    Raises:
        ValueError: a kind of error has a message without a remedy, and none in :data:`REMEDIES`.
    """
    modules = read_modules(root)
    classes = error_classes(modules)
    found = sorted({each for _, _, said in messages(modules, classes) for each in said})
    refusals = [each for each in found if _is_refusal(each.kind, classes)]
    others = [each for each in found if not _is_refusal(each.kind, classes)]
    lines = [_HEAD, *_refused(refusals), *_raised(others, classes)]
    return "\n".join(lines)


def _is_refusal(kind: str, classes: Mapping[str, ErrorClass]) -> bool:
    return kind == REFUSAL or (kind in classes and _is_refusal(classes[kind].base, classes))


def _refused(refusals: Iterable[Message]) -> Iterator[str]:
    """Yield what is refused before anything starts, by the section of the recipe that is to blame."""
    by_section: dict[str, list[Message]] = defaultdict(list)
    for each in refusals:
        section = "--" if each.place.startswith("--") else re.split(r"[.\s]", each.place)[0]
        by_section[section if section in _SECTIONS else ""].append(each)
    yield "## Refused before anything starts\n"
    yield "Commands say which key or option is to blame. Nothing was started, and the exit code is 2.\n"
    for section, title in _SECTIONS.items():
        if by_section[section]:
            yield f"### {title}\n"
            yield "| key or option | what it says | what to do |"
            yield "|---|---|---|"
            for each in by_section[section]:
                place = f"`{each.place}`" if each.place else ""
                yield f"| {place} | {_cell(each.problem)} | {_cell(each.remedy)} |"
            yield ""


def _raised(others: Iterable[Message], classes: Mapping[str, ErrorClass]) -> Iterator[str]:
    """Yield what can happen later, by kind."""
    by_kind: dict[str, list[Message]] = defaultdict(list)
    for each in others:
        by_kind[each.kind].append(each)
    yield "## Later\n"
    yield "By the kind of error, which the logs name.\n"
    for kind, said in by_kind.items():
        yield f"### {kind.strip('_')}\n"
        yield f"{_text(classes[kind].meaning.replace('``', '`'))}\n"
        yield "| what it says | what to do |"
        yield "|---|---|"
        for each in said:
            yield f"| {_cell(each.problem)} | {_cell(each.remedy or _remedy(kind, classes))} |"
        yield ""


def _remedy(kind: str, classes: Mapping[str, ErrorClass]) -> str:
    if kind in REMEDIES:
        return REMEDIES[kind]
    if kind not in classes:
        raise ValueError("a kind of error has messages that do not say what to do: give it a remedy, or REMEDIES one")
    return _remedy(classes[kind].base, classes)


def _cell(text: str) -> str:
    text = "the message says it" if text == "<remedy>" else text
    return linked(_text(" ".join(text.split())), "operations").replace("|", "\\|")


def _text(text: str) -> str:
    """Text as it may stand on a page: what would be taken for HTML or emphasis is escaped outside of code."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*\[\]])", r"\\\1", part).replace("<", "&lt;") for part in parts)


def main(argv: Sequence[str]) -> None:
    """Write the page to the file named, by default docs/operations/errors.md of the checkout."""
    parser = argparse.ArgumentParser(description="Write the page of all errors.")
    parser.add_argument("file", nargs="?", type=Path, default=Path("docs/operations/errors.md"))
    parser.parse_args(argv).file.write_text(errors_page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
