"""Reads a run that has ended as its user would: by ``asyncrl show`` and ``asyncrl report``."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from asyncrl.episodes.visible import visible


def check_readable(folder: Path, elsewhere: Path) -> None:
    """Every kept episode can be shown, and the report has the run's curves and the text of single tokens."""
    with ThreadPoolExecutor() as at_once:
        # Each takes seconds to start.
        answers = [
            at_once.submit(_asyncrl, elsewhere, *command)
            for command in (
                ("show", str(folder), "--sort", "length", "--json"),
                ("show", str(folder), "--sort", "length", "--limit", "1"),
                ("show", str(folder), "--evaluation", "--step", "0"),
                ("report", str(folder)),
            )
        ]
    shown, page, evaluated, _ = (answer.result() for answer in answers)
    episodes = [json.loads(line) for line in shown.splitlines()]
    assert episodes
    assert [len(e["token_ids"]) for e in episodes] == sorted((len(e["token_ids"]) for e in episodes), reverse=True)
    assert f"training step {episodes[0]['step']}" in page
    assert "Turn 1" in page
    assert "evaluation of version 0" in evaluated
    html = (folder / "report.html").read_text(encoding="utf-8")
    for curve in ("reward/mean", "evaluation/reward", "loss/policy", "staleness", "learner", "generators"):
        assert f'aria-label="{curve}"' in html
    data = json.loads(html.partition('<script type="application/json" id="data">')[2].partition("</script>")[0])
    longest = max(data["episodes"], key=lambda e: e["length"])
    text = "".join(data["texts"][number] for number in longest["texts"])
    (of_it, *_) = (
        e
        for e in episodes
        if len(e["token_ids"]) == longest["length"] and visible(e["prompt"]) == text[: len(visible(e["prompt"]))]
    )
    written = of_it["prompt"] + "".join(turn["text"] + turn["answer"] for turn in of_it["turns"])
    assert text == visible(written) or "\ufffd" in written


def _asyncrl(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "asyncrl.cli.main", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=True).stdout
