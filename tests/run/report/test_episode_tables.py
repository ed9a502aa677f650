"""What is summed up over kept episodes tells the environments of a mixture apart."""

import pytest
from made_episodes import PROMPT_TOKENS, row, tree, turn, write

from asyncrl.episodes.reader import EpisodeReader
from asyncrl.run.report.episode_tables import episode_tables

CALLS = {
    "slow": [[("add", 3.0, "ok", "")], [], [("add", 2.0, "ok", ""), ("", 0.0, "malformed", "not JSON")]],
    "flaky": [[("add", 0.1, "error", "broken")], [("add", 0.2, "ok", "")]],
}


def episodes(name: str, environment: str) -> dict:
    stride = row(1, turns=2)["turns"][1]["start"] - PROMPT_TOKENS
    turns = [turn(PROMPT_TOKENS + number * stride, calls=calls) for number, calls in enumerate(CALLS[name])]
    return row(1, turns=turns, environment=environment)


def test_a_tool_of_a_mixture_is_named_with_its_member(tmp_path):
    write(tmp_path, [episodes("slow", "slow"), row(1, turns=[], environment="slow"), episodes("flaky", "flaky")], "train")
    tables = episode_tables(EpisodeReader(tmp_path / "trajectories"))
    found = {each.tool: (each.calls, round(each.total, 3)) for each in tables.tools}
    assert found == {"slow.add": (2, 5.0), "flaky.add": (2, 0.3), "": (1, 0.0)}
    assert {each.what for each in tables.problems} == {"flaky.add: error: broken", "(unreadable): malformed: not JSON"}


def test_a_tool_of_the_only_environment_has_its_own_name(tmp_path):
    write(tmp_path, [episodes("slow", "mine:Own"), episodes("flaky", "mine:Own")], "train")
    assert [each.tool for each in episode_tables(EpisodeReader(tmp_path / "trajectories")).tools] == ["add", ""]


def test_problems_that_differ_by_a_number_are_one(tmp_path):
    told = [
        "not JSON: line 1 column 7 (char 6)",
        "not JSON: line 1 column 9 (char 8)",
        "not JSON: line 1 column 9 (char 8)",
        "no arguments",
    ]
    turns = [turn(PROMPT_TOKENS, calls=[("", 0.0, "malformed", problem) for problem in told])]
    write(tmp_path, [row(1, turns=turns)], "train")
    problems = episode_tables(EpisodeReader(tmp_path / "trajectories")).problems
    assert [(each.what, each.count) for each in problems] == [
        ("(unreadable): malformed: not JSON: line 1 column 9 (char 8) (2 variants)", 3),
        ("(unreadable): malformed: no arguments", 1),
    ]


def test_an_episode_of_several_trajectories_counts_once(tmp_path):
    first, second, third = tree(step=1)
    write(tmp_path, [second, row(1, task_id="alone", group_id=99), third], "train-0")
    write(tmp_path, [first], "train-1")
    tables = episode_tables(EpisodeReader(tmp_path / "trajectories"))
    assert (tables.episodes, [(each.what, each.count) for each in tables.stop_reasons]) == (2, [("environment_done", 2)])
    tasks = {each.task: (each.episodes, each.reward) for each in tables.tasks}
    assert tasks == {"of-three": (1, 1.0), "alone": (1, 1.0)}
    of_turns = sum(turn["generating_s"] + turn["environment_s"] for each in (first, second, third) for turn in each["turns"])
    outside = first["queued_s"] + first["reset_s"] + first["scoring_s"]
    seconds = {each.task: each.seconds for each in tables.tasks}
    assert seconds["of-three"] == pytest.approx(of_turns + outside), "its trajectories' turns together"
    assert sum(each.calls for each in tables.tools) == 1 + 2 + 3 + 2
