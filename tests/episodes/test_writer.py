"""The table of kept episodes and its files."""

from datetime import UTC, datetime

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from played_episodes import episode, words

from asyncrl.core.routed_experts import RoutedExperts
from asyncrl.core.trajectory import StartReason
from asyncrl.episodes.read_trajectory import ReadExperts
from asyncrl.episodes.schema import SCHEMA, Kind, TokenFate
from asyncrl.episodes.writer import FATES, KeptTrajectory, table, untrained, write


def trained(of, weights):
    (stream,) = of.trajectories
    fates = np.where(stream.loss_mask, FATES.index(TokenFate.TRAINED), FATES.index(TokenFate.GIVEN)).astype(np.int8)
    numbers = 2 * stream.logprobs, stream.logprobs + 1, np.array(weights, np.float32)
    return KeptTrajectory(of, 0, Kind.TRAIN, 5, 4, "sums", fates, *numbers)


def routed(of):
    """The episode with the experts of its tokens: a byte each, of two layers, with two of four experts in each."""
    (stream,) = of.trajectories
    experts = RoutedExperts(4, 2, 2, np.arange(len(stream) - 1, dtype=np.uint8))
    return msgspec.structs.replace(of, trajectories=(msgspec.structs.replace(stream, experts=experts),))


@pytest.fixture
def episodes():
    return [
        trained(routed(episode(group=7, sample=3)), [0, 0, 0, 0.5, 1, 0, 1.5, 2]),
        untrained(episode(turns=0), 0, Kind.EVALUATION, step=None, version=4, source=None),
        untrained(episode(group=8, turns=1), 0, Kind.TRAIN, step=5, version=4, source="sums"),
    ]


def test_a_file_says_what_its_episodes_were(episodes, tmp_path):
    path = tmp_path / "new" / "train-000005-0.parquet"
    write(table(episodes, lambda source: "my:World", words), path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    read = pq.read_table(path)
    assert read.schema.equals(SCHEMA)
    assert [field.metadata for field in read.schema] == [field.metadata for field in SCHEMA]
    assert read.schema.metadata == SCHEMA.metadata
    first, no_turn, greedy = read.to_pylist(maps_as_pydicts="strict")
    assert first == {
        "kind": "train",
        "step": 5,
        "version": 4,
        "environment": "my:World",
        "source": "sums",
        "task_id": "task-7",
        "group_id": 7,
        "sample_index": 3,
        "attempt": 1,
        "part": 0,
        "parts": 1,
        "role": "",
        "parent": None,
        "shared": 0,
        "why": "first",
        "trained": True,
        "temperature": 0.75,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "logprob_convention": "full_softmax",
        "stop_reason": "environment_done",
        "reward": 0.5,
        "role_rewards": {},
        "metrics": {"tool_calls": 2.0},
        "prompt": "t0 t1 t2",
        "turns": [
            {
                "start": 3,
                "end": 5,
                "text": "t3 t4",
                "answer": "t5",
                "reward": 0.0,
                "calls": [
                    {"tool": "calculator", "seconds": 0.25, "outcome": "ok", "problem": ""},
                    {"tool": "", "seconds": 0.0, "outcome": "malformed", "problem": "no JSON"},
                ],
                "generating_s": 2.0,
                "environment_s": 0.5,
            },
            {"start": 6, "end": 8, "text": "t6 t7", "answer": "", "reward": 0.5, "calls": []}
            | {"generating_s": 2.0, "environment_s": 0.5},
        ],
        "turn_rewards": [{}, {"right": 0.5}],
        "began": datetime(2023, 11, 14, 22, 13, 20, 500_000, UTC),
        "queued_s": 0.25,
        "reset_s": 0.5,
        "scoring_s": 1.0,
        "token_ids": list(range(8)),
        "versions": [-1, -1, -1, 0, 0, -1, 1, 1],
        "logprobs": [0, 0, 0, -0.5, -0.5, 0, -0.5, -0.5],
        "learner_logprobs": [0, 0, 0, -1, -1, 0, -1, -1],
        "teacher_logprobs": None,
        "advantages": [1, 1, 1, 0.5, 0.5, 1, 0.5, 0.5],
        "weights": [0, 0, 0, 0.5, 1, 0, 1.5, 2],
        "experts": {"experts": 4, "layers": 2, "per_token": 2, "packed": bytes(range(7))},
        "traffic": None,
        "fates": ["given"] * 3 + ["trained"] * 2 + ["given"] + ["trained"] * 2,
    }
    assert ReadExperts(**first["experts"]).chosen().tolist()[6] == [[2, 1], [0, 0]]
    assert no_turn["experts"] is greedy["experts"] is None
    assert (no_turn["prompt"], no_turn["turns"], no_turn["fates"]) == ("t0 t1 t2", [], ["given"] * 3)
    assert (no_turn["kind"], no_turn["step"], no_turn["source"]) == ("evaluation", None, None)
    assert greedy["fates"] == ["given"] * 3 + ["not_trained"] * 2
    for row in (no_turn, greedy):
        assert row["learner_logprobs"] is row["advantages"] is row["weights"] is None


def test_lists_of_tokens_are_as_long_as_the_tokens_or_null(episodes):
    for row in table(episodes, lambda source: "world", words).to_pylist():
        of_tokens = [name for name in SCHEMA.names if pa.types.is_list(SCHEMA.field(name).type) and not name.startswith("turn")]
        assert {len(row[name]) for name in of_tokens if row[name] is not None} == {len(row["token_ids"])}


def test_a_prompt_that_a_group_shares_is_decoded_once(episodes):
    asked = []
    group = [trained(episode(sample=sample), [0.0] * 8) for sample in range(4)]
    table(group, lambda source: "world", lambda token_ids: asked.append(tuple(token_ids)) or "")
    assert asked.count((0, 1, 2)) == 1


def test_a_file_is_replaced_whole_or_stays(episodes, tmp_path):
    path = tmp_path / "train-000005-0.parquet"
    write(table(episodes, lambda source: "world", words), path)
    before = path.read_bytes()
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        write(table(episodes, lambda source: "world", words), tmp_path / "file" / path.name)
    with pytest.raises(AttributeError):
        write(None, path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", path.name]
    assert path.read_bytes() == before
    write(table(episodes[:1], lambda source: "world", words), path)
    assert len(pq.read_table(path)) == 1


def test_each_trajectory_of_an_episode_is_a_row_that_says_which():
    whole = episode(group=7)
    (stream,) = whole.trajectories
    branch = msgspec.structs.replace(stream, part=1, role="critic", parent=0, shared=2, why=StartReason.OTHER_ROLE, trained=False)
    whole = msgspec.structs.replace(whole, trajectories=(stream, branch), role_rewards={"critic": 0.5})
    whole.check()
    rows = [untrained(whole, part, Kind.TRAIN, step=5, version=4, source="sums") for part in (0, 1)]
    first, second = table(rows, lambda source: "w", words).to_pylist(maps_as_pydicts="strict")
    names = ("part", "parts", "role", "parent", "shared", "why", "trained")
    assert [first[name] for name in names] == [0, 2, "", None, 0, "first", True]
    assert [second[name] for name in names] == [1, 2, "critic", 0, 2, "other_role", False]
    assert first["role_rewards"] == second["role_rewards"] == {"critic": 0.5}
    assert first["token_ids"] == second["token_ids"]
