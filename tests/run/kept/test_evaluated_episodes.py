"""A generator's part of what is kept of an evaluation."""

import pyarrow.parquet as pq
import pytest
from played_episodes import episode
from tokenizers import Tokenizer, models

from asyncrl.core.ids import PolicyVersion, WorkerId
from asyncrl.episodes.files import evaluation_files, forget_evaluation
from asyncrl.run.kept.evaluated_episodes import EvaluatedEpisodes
from asyncrl.run.recipe.compose import compose

PLAYED = [episode(group) for group in range(20)]
SOURCES = {one.task_id: "held-out" for one in PLAYED}


def keeper(tmp_path, keep, folder="trajectories"):
    words = {f"w{number}": number for number in range(20)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(tmp_path / "tokenizer.json"))
    overrides = [f"tracking.trajectories={{keep: {keep}}}", "generators.count=3"]
    return EvaluatedEpisodes(compose("quickstart", overrides), tmp_path, tmp_path / folder, WorkerId("generator-1"))


@pytest.mark.parametrize(("keep", "count"), [("none", 0), ("sample", 3), ("all", 20)])
async def test_what_the_recipe_asks_for_is_kept(tmp_path, keep, count):
    """The sample is of 8, of three generators."""
    await keeper(tmp_path, keep).keep(PolicyVersion(20), PLAYED, SOURCES)
    files = evaluation_files(tmp_path / "trajectories", 20)
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert [row["task_id"] for row in rows] == [one.task_id for one in PLAYED[:count]]
    for row in rows:
        assert (row["kind"], row["version"], row["step"], row["environment"]) == ("evaluation", 20, None, "calculator")
        assert row["source"] == "held-out"
        assert (row["prompt"], row["turns"][1]["text"]) == ("w0 w1 w2", "w6 w7")
        assert set(row["fates"]) == {"given", "not_trained"}
        assert row["weights"] is None


async def test_the_share_of_a_generator_that_died_is_kept_beside_its_own(tmp_path):
    kept = keeper(tmp_path, "all")
    await kept.keep(PolicyVersion(20), PLAYED[:2], SOURCES)
    await kept.keep(PolicyVersion(20), PLAYED[2:3], SOURCES)
    await kept.keep(PolicyVersion(30), PLAYED[:1], SOURCES)
    files = evaluation_files(tmp_path / "trajectories", 20)
    assert [file.name for file in files] == ["evaluation-000020-generator-1-2.parquet", "evaluation-000020-generator-1.parquet"]
    assert [len(pq.read_table(file)) for file in files] == [1, 2]
    forget_evaluation(tmp_path / "trajectories", 20)
    assert [file.name for file in (tmp_path / "trajectories").iterdir()] == ["evaluation-000030-generator-1.parquet"]


async def test_an_evaluation_goes_on_if_the_disk_refuses(tmp_path, caplog):
    (tmp_path / "trajectories").touch()
    await keeper(tmp_path, "all").keep(PolicyVersion(20), PLAYED, SOURCES)
    assert "evaluation-000020-generator-1.parquet is not written: " in caplog.text
    assert "Traceback" not in caplog.text
