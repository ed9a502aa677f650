"""Several environments in one run: every task names a member that there is, and all that is counted tells them apart."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from played_episodes import played

from asyncrl.core.episode import Episode
from asyncrl.core.errors import RecipeError
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId
from asyncrl.core.measures.metrics import combine
from asyncrl.core.messages import CallOutcome, CallRecord
from asyncrl.core.recipe.decode import decode_recipe
from asyncrl.core.recipe.environment import label_of, member_of
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.task import Task
from asyncrl.core.trajectory import Sampling, StopReason, Turn, VersionSpan
from asyncrl.envs import Observation, ToolEnvironment, tool
from asyncrl.envs.load import load_members
from asyncrl.generators.episode import EpisodeLimits
from asyncrl.generators.finished_episodes import FinishedEpisodes
from asyncrl.run.buffer.tasks import load_sources, make_task_stream
from asyncrl.run.dry_run.environment_trial import play_first_tasks
from asyncrl.run.folder.config_yaml import resolved_yaml
from asyncrl.run.measures.episode_metrics import EpisodeMetrics
from asyncrl.run.measures.warnings import _limit
from asyncrl.run.recipe.compose import SHIPPED_FOLDER, compose

MEMBERS = {
    "short": {"name": "calculator", "options": {"max_operations": 1}, "max_turns": 3},
    "long": {"name": "calculator", "max_turns": 9, "on_tool_error": "end"},
}


class Bad(ToolEnvironment):
    async def reset(self, task: Task) -> Observation:
        raise ZeroDivisionError

    def reward(self, task: Task, answer: str) -> float:
        return 0.0

    @classmethod
    def make_tasks(cls, split: str, count: int, seed: int, **options: Any) -> list[Task]:
        return [Task(id=TaskId(f"{number}"), prompt="") for number in range(1, count + 1)]


def recipe(tasks: Any = None, environment: Any = None) -> Recipe:
    mixed = {"kind": "mixed", "members": MEMBERS}
    made = {"train": 40, "evaluation": 10, "weights": {"long": 3}}
    return decode_recipe(
        {"name": "r", "steps": 1, "model": {"path": "tiny"}, "environment": environment or mixed, "tasks": tasks or made}
    )


def refused(**sections: Any) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        recipe(**sections)
    return caught.value


def test_each_member_makes_its_tasks_and_is_drawn_by_its_weight():
    stream = make_task_stream(recipe())
    assert [(source.name, len(source.tasks)) for source in stream.sources] == [("short", 40), ("long", 40)]
    drawn = [stream.next() for _ in range(80)]
    assert Counter(each.source for each in drawn) == {"long": 60, "short": 20}
    assert all(each.task.environment == each.source and each.task.id.startswith(f"{each.source}/") for each in drawn)
    ids = [source.tasks[index].id for source in load_sources(recipe(), "evaluation") for index in range(10)]
    assert len(set(ids)) == 20


def test_each_member_has_limits_of_its_own():
    short, long = (EpisodeLimits.of(recipe(), member) for member in ("short", "long"))
    assert (short.max_turns, len(short.end_on), long.max_turns, len(long.end_on)) == (3, 0, 9, 1)


def test_files_name_their_member_and_sources_are_named_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "held_out"):
        Path(f"{name}.jsonl").write_text(json.dumps({"id": "1", "prompt": "1+1", "answer": 2}))
    files = {
        "kind": "files",
        "train": [
            {"path": "a.jsonl", "environment": "short", "weight": 2},
            {"path": "a.jsonl", "environment": "long"},
            {"path": "b.jsonl", "environment": "long"},
        ],
        "evaluation": [{"path": "held_out.jsonl", "environment": "long"}],
    }
    sources = make_task_stream(recipe(files)).sources
    assert [source.name for source in sources] == ["short/a.jsonl", "long/a.jsonl", "long/b.jsonl"]
    assert [source.tasks[0].environment for source in sources] == ["short", "long", "long"]
    assert len({source.tasks[0].id for source in sources}) == 3
    assert sources[0].digest != sources[1].digest
    environment = recipe(files).environment
    assert [member_of(environment, source.name) for source in sources] == ["short", "long", "long"]
    assert label_of(environment, "long/b.jsonl") == "long"


def test_one_task_of_each_member_and_split_is_played():
    broken = {"short": MEMBERS["short"], "bad": {"name": f"{__name__}:Bad"}}
    sound = recipe()
    splits = [(split, load_sources(sound, split)) for split in ("train", "evaluation")]
    assert play_first_tasks(sound, splits, print).remarks == ()
    mixed = recipe({"train": 3, "evaluation": 3}, {"kind": "mixed", "members": broken})
    with pytest.raises(RecipeError, match=r"environment.members.bad.name: task bad/1.*: Bad.reset raised ZeroDivisionError"):
        play_first_tasks(mixed, [("train", load_sources(mixed, "train"))], print)


@pytest.mark.parametrize(
    ("sections", "place", "remedy"),
    [
        ({"tasks": {"weights": {"lng": 1}}}, "tasks.weights.lng", "did you mean `long`?"),
        ({"tasks": {"weights": {"long": -1}}}, "tasks.weights", "names to numbers > 0"),
        ({"environment": {"name": "calculator"}, "tasks": {"weights": {"a": 1}}}, "tasks.weights", "`mixed`"),
        ({"environment": {"name": "calculator"}, "tasks": {"curriculum": {"name": "a:B"}}}, "tasks.curriculum", "`mixed`"),
        ({"environment": {"kind": "mixed", "members": {}}}, "environment.members", "a mapping of names to sections"),
        ({"environment": {"kind": "mixed", "members": {"a/b": MEMBERS["long"]}}}, "environment.members.a/b", "text matching"),
        ({"environment": {"kind": "mixed", "members": {"a": {}}}}, "environment.members.a.name", "text, not empty"),
        ({"environment": {"kind": "mixed", "members": {"a": {"kind": "mixed"}}}}, "environment.members.a.kind", "class, remote"),
        (
            {"environment": {"kind": "mixed", "members": {"a": {"name": "x", "max_turn": 1}}}},
            "environment.members.a.max_turn",
            "did you mean `environment.members.a.max_turns`?",
        ),
        (
            {"environment": {"kind": "mixed", "members": {"a": {"name": "x", "tool_timeout_s": 400}}}, "tasks": {"train": 1}},
            "environment.members.a.tool_timeout_s",
            "at most 300",
        ),
        ({"environment": {"kind": "mxed"}}, "environment.kind", "class, remote, mcp, agent, mixed"),
        ({"environment": {"name": "x", "secrets": ["A B"]}}, "environment.secrets", "texts matching"),
    ],
)
def test_what_does_not_fit_is_refused_with_place_and_remedy(sections: dict[str, Any], place: str, remedy: str):
    refusal = refused(**sections)
    assert refusal.place == place
    assert remedy in refusal.remedy


def test_files_without_a_member_or_members_without_files_are_refused():
    held_out = [{"path": "e", "environment": "long"}]
    refusal = refused(
        tasks={"kind": "files", "train": [{"path": "a", "environment": "lon"}, {"path": "b"}], "evaluation": held_out}
    )
    assert (refusal.place, refusal.remedy) == ("tasks.train[0].environment", "did you mean `long`?")
    assert [note.partition(":")[0] for note in refusal.__notes__] == [
        "tasks.train[1].environment",
        "environment.members.short",
        "environment.members.long",
    ]
    single = {"kind": "files", "train": [{"path": "a", "environment": "x"}], "evaluation": [{"path": "b"}]}
    assert refused(environment={"name": "calculator"}, tasks=single).place == "tasks.train[0].environment"


def test_the_shipped_mixture_is_written_and_read_back(tmp_path: Path):
    mixed = compose("mixed")
    (tmp_path / "recipe.yaml").write_text(resolved_yaml(mixed))
    assert compose(str(tmp_path / "recipe.yaml")) == mixed
    changed = compose("mixed", ["environment.members.long.options.max_operations=2", "tasks.weights.short=2"])
    assert changed.environment.by_member["long"].options == {"max_operations": 2}
    assert len((SHIPPED_FOLDER / "mixed.yaml").read_text().splitlines()) < 60


def one(member: str, reward: float, *calls: CallRecord) -> Episode:
    return played(
        task_id=TaskId("t"),
        group_id=GroupId(0),
        sample_index=0,
        attempt=0,
        token_ids=np.zeros(4, np.int32),
        logprobs=np.zeros(4, np.float32),
        loss_mask=np.zeros(4, bool),
        version_spans=(VersionSpan(0, 4, PolicyVersion(-1)),),
        turns=(Turn(2, 4, 0.0, calls),),
        reward=reward,
        stop_reason=StopReason.ENVIRONMENT_DONE,
        sampling=Sampling(1.0, 1.0, 0),
        metrics={"of": 1.0, member: 2.0},
    )


@given(st.lists(st.tuples(st.sampled_from(["short", "long/a", "long/b"]), st.integers(0, 4)), max_size=20))
def test_what_is_counted_of_members_adds_up_to_the_whole(episodes: list[tuple[str, int]]):
    finished = FinishedEpisodes()
    for source, reward in episodes:
        member = source.partition("/")[0]
        call = CallRecord("look", 0.1, CallOutcome.ERROR if reward == 0 else CallOutcome.OK)
        finished.add(one(member, reward, call), source, 1.0, empty_answer=False, member=member)
    metrics = EpisodeMetrics(recipe().environment)
    values = combine(list(metrics._member_readings(finished)))
    tools = combine([each for each in metrics._finished_readings(finished) if each.metric.name.startswith("tool/")])
    for member in MEMBERS:
        own = [reward for source, reward in episodes if source.partition("/")[0] == member]
        assert values[f"member/{member}/episodes"] == len(own)
        assert values.get(f"member/{member}/reward_mean") == (pytest.approx(np.mean(own)) if own else None)
        assert values.get(f"member/{member}/environment/of") == (1 if own else None)
        assert tools.get(f"tool/{member}.look/calls") == (len(own) or None)
        assert tools.get(f"tool/{member}.look/error_share") == (pytest.approx(own.count(0) / len(own)) if own else None)


class Patient(ToolEnvironment):
    @tool(timeout_s=500)
    async def wait(self) -> str:
        """Waits."""
        return ""

    def reward(self, task: Task, answer: str) -> float:
        return 0.0


def test_a_tool_that_may_take_longer_than_its_episode_is_refused():
    mixed = recipe(None, {"kind": "mixed", "members": {"short": MEMBERS["short"], "long": {"name": f"{__name__}:Patient"}}})
    with pytest.raises(
        RecipeError, match=r"environment.members.long.name: tool wait has a timeout_s of 500 s, which is more than"
    ):
        load_members(mixed.environment)


def test_a_warning_names_the_limit_of_the_member_whose_tool_it_is():
    assert _limit(recipe(), "max_turns") == "environment.members.short.max_turns = 3"
    assert _limit(recipe(), "max_turns", "long") == "environment.members.long.max_turns = 9"
