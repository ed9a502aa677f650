"""A run within an agent of two roles that compacts, on the real engines, that keeps its traffic; and its episodes, replayed."""

import sys
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from whole_run import ASYNCRL, Run, small_run

from asyncrl.cli.main import main
from asyncrl.core.trajectory import StartReason
from asyncrl.run.measures.summary import Summary

AGENT = """
import json, os
from openai import OpenAI

def solve(task):
    client = OpenAI()
    def say(model, *texts):
        messages = []
        for text in texts:
            messages.append({"role": "user", "content": text})
            message = client.chat.completions.create(model=model, messages=messages).choices[0].message
            messages.append({"role": "assistant", "content": message.content or ""})
        return messages
    before = say("main", task["prompt"], "and then?")
    say("main", f"So far: {len(before)} messages. Go on: {task['prompt']}")
    say("sub", task["prompt"])
    return {"reward": float(len(before[-1]["content"])), "rewards": {"sub": float(task["id"].endswith("1"))}}

if __name__ == "__main__":
    solve(json.load(open(os.environ["ASYNCRL_TASK"])))
"""
"""Whatever the policy says, its second conversation has nothing of the first one but a summary."""


@pytest.mark.timeout(900)
def test_a_run_with_a_sub_agent_and_compaction_trains_all_of_it_and_replays(
    tiny_model: Path, tmp_path: Path, monkeypatch, capfd
) -> None:
    program = tmp_path / "compacting_agent.py"
    program.write_text(AGENT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    agent = ["environment.function=compacting_agent:solve", "environment.keep_traffic=true"]
    kept = ["environment.reward=''", "tracking.trajectories={keep: all}", "steps=2"]
    run = Run(tmp_path, *ASYNCRL, "launch", "agent", *small_run(tiny_model, tmp_path), *agent, *kept)
    try:
        assert run.end(800) == 0, run.output
    finally:
        run.kill()
    (folder,) = tmp_path.glob("agent-*")
    assert Summary.read(folder / "summary.json").steps == 2
    rows = [row for file in folder.glob("trajectories/train-*.parquet") for row in pq.read_table(file).to_pylist()]
    assert all(row["trained"] for row in rows)
    assert all((row["traffic"] is not None) == (row["part"] == 0) for row in rows)
    parts = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["part"]):
        parts[row["group_id"], row["sample_index"]].append((row["role"], row["why"]))
    compacted = ("main", StartReason.HISTORY_REWRITTEN)
    for of_episode in parts.values():
        assert of_episode[0] == ("main", StartReason.FIRST)
        assert of_episode[-2:] == [compacted, ("sub", StartReason.OTHER_ROLE)]
    first = next(row for row in rows if row["part"] == 0)
    episode = f"{first['group_id']}/{first['sample_index']}"
    assert main(["agent", "replay", str(folder), episode, "--", sys.executable, str(program)]) == 0, capfd.readouterr()
    program.write_text(AGENT.replace("So far:", "Until now:"))
    capfd.readouterr()
    assert main(["agent", "replay", str(folder), episode, "--", sys.executable, str(program)]) == 1
    told = capfd.readouterr().err
    assert "2 requests of 4 answered as they were; the next one differs. POST v1/chat/completions: messages[0].content:" in told
