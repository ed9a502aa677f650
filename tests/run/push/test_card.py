"""The card of a trained model says what the run was, in metadata that the hub's own library reads."""

import getpass
import shutil
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from huggingface_hub import ModelCard
from made_summary import SUMMARY
from pushed_run import PLAYED, REWARDS, make_run

import asyncrl
from asyncrl.core.ids import PolicyVersion
from asyncrl.run.evaluation.found_model import Weights
from asyncrl.run.evaluation.summary import EvaluationSummary, ModelScores
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.intervals import mean_interval
from asyncrl.run.measures.scores import score
from asyncrl.run.measures.summary import EvaluationEnds, Status
from asyncrl.run.push.card import make_card
from asyncrl.run.push.model_files import trained_model

COMMIT = "a" * 40


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunFolder:
    """A run with all that a card shows."""
    return make_run(tmp_path_factory.mktemp("ann-private"), "tracking.trajectories={keep: all}", tracked=True)


def card_of(run: RunFolder) -> ModelCard:
    return ModelCard(make_card(trained_model(run.path), "me/calc").text)


def evaluate(run: RunFolder, *versions: int, at: Path | None = None, changed: tuple[str, str] = ("", "")) -> None:
    """Leave behind what ``asyncrl evaluate`` would, with a change of the run's recipe."""
    folder = run.path.parent / f"evaluation-quickstart-{len(list(run.path.parent.glob('evaluation-*')))}"
    scores = score([[reward] * 4 for reward in REWARDS], 4, 1.0)
    models = tuple(
        ModelScores(
            model=f"version {version}",
            path=str(at or (run.model if version == 60 else run.path)),
            version=PolicyVersion(version),
            folder=str(folder / f"{version}-MODEL"),
            scores=scores,
            sources={},
            difference=None,
            missing=0,
            missing_tasks=0,
            attempts=1,
            example="",
            turns=1.0,
            stopped={},
            seconds=1.0,
        )
        for version in versions
    )
    for model in models:
        Path(model.folder).mkdir(parents=True)
        Path(model.folder, "recipe.yaml").write_text(run.recipe.read_text().replace(*changed))
    EvaluationSummary(
        status=Status.COMPLETED,
        recipe="quickstart",
        environment="calculator",
        samples=4,
        temperature=1.0,
        passing_reward=1.0,
        models=models,
    ).write(folder / "evaluation.json")


def test_it_shows_the_run(run):
    made = make_card(trained_model(run.path), "me/calc")
    card = ModelCard(made.text)
    assert {"asyncrl", "reinforcement-learning"} == set(card.data.tags)
    assert card.data.asyncrl_version == asyncrl.__version__
    assert card.data.library_name == "transformers"
    assert card.data.base_model is None  # a folder is no model of the hub
    (result,) = card.data.eval_results
    assert (result.metric_value, result.metric_name, result.dataset_type) == (0.9, "mean reward", "calculator")
    exact = mean_interval(np.array(REWARDS), 0.0, 1.0)
    for said in (
        "The model `my-base`",
        f"policy version 60 of run `{run.path.name}`, completed after 60 training steps",
        "0.250 in the first 10 training steps, 0.875 in the last 10",
        "1.10 versions on average, at most 3 of the 4 versions",
        "anchor `behaviour`, importance weights `none`",
        "| 0 | 0.400 |  |",
        f"| 60 | 0.900 [{exact.low:.2f}, {exact.high:.2f}] | 10 |",
        "3,000 to train on, 300 held out",
        "max_staleness: 4",
        "![Curves of the reward](curves.svg)",
    ):
        assert said in card.text, said
    assert made.missing == ()


def test_the_picture_is_an_image_of_both_curves(run):
    root = ElementTree.fromstring(make_card(trained_model(run.path), "me/calc").curves)
    texts = {each.text for each in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"reward in training: 1 at last", "reward on held-out tasks: 0.9 at last", "training step"} <= texts
    lines = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    assert len(lines[0].get("points").split()) == 60
    assert not [name for each in root.iter() for name in each.attrib if "href" in name]


def test_nothing_says_where_it_was_made(run):
    made = make_card(trained_model(run.path), "me/calc")
    for told in ("ann-private", str(Path.home()), f"/{getpass.getuser()}/", "mlflow"):
        assert told not in made.text
        assert told.encode() not in made.curves


@pytest.mark.parametrize("keep", ["{keep: sample}", "{keep: all}"])
def test_no_interval_where_not_all_episodes_are_known(tmp_path, keep):
    run = make_run(tmp_path, f"tracking.trajectories={keep}")
    if "all" in keep:  # a file was lost: the rest has another mean
        ends = EvaluationEnds.of([msgspec.structs.replace(PLAYED[1], reward=0.8)], ())
        msgspec.structs.replace(SUMMARY, evaluation=ends).write(run.summary)
    made = make_card(trained_model(run.path), "me/calc")
    assert "[low, high]" not in made.text
    assert "The card has no interval for this model's reward: `asyncrl evaluate` this run, and push again." in made.missing
    assert made.curves is None
    assert "![" not in made.text


def test_evaluations_afterwards_come_first(tmp_path):
    run = make_run(tmp_path)
    evaluate(run, 0, 60)
    evaluate(run, 0)  # newer, but of another version alone
    evaluate(run, 60, at=tmp_path / "other" / "model")
    made = make_card(trained_model(run.path), "me/calc")
    card = ModelCard(made.text)
    assert card.data.eval_results[0].metric_name == "mean@4"
    assert "4 episodes of each held-out task at temperature 1; a reward of 1 passes" in card.text
    assert "| 60 | 10 | 0.900 [" in card.text
    assert "| policy version | tasks | mean@4 | pass@1 | pass@4 |" in card.text
    assert not [each for each in made.missing if "interval" in each]


@pytest.mark.parametrize(
    "changed",
    [
        ("name: calculator", "name: python"),
        ("seed: 0\n", "seed: 1\n"),
        ("max_turns: ", "max_turns: 1"),
        ("  evaluation: 300", "  evaluation: 30"),
    ],
)
def test_an_evaluation_on_other_tasks_than_the_runs_is_left_out(tmp_path, changed):
    run = make_run(tmp_path)
    assert changed[0] in run.recipe.read_text()
    evaluate(run, 60, changed=changed)
    made = make_card(trained_model(run.path), "me/calc")
    assert ModelCard(made.text).data.eval_results[0].metric_name == "mean reward"
    assert "`asyncrl evaluate` this run, and push again" in " ".join(made.missing)
    evaluate(run, 60, changed=("  evaluation: 300", "  evaluation: 3000"))
    assert "mean@4" in card_of(run).text


def test_an_evaluation_is_found_again_after_the_run_has_moved(tmp_path):
    run = make_run(tmp_path)
    evaluate(run, 60)
    shutil.move(run.path.parent, tmp_path / "moved")
    assert "mean@4" in card_of(RunFolder(tmp_path / "moved" / run.path.name)).text


def test_models_and_data_of_the_hub_are_linked(tmp_path):
    run = make_run(tmp_path)
    text = run.recipe.read_text()
    files = f"""tasks:
  kind: files
  train: [{{path: "openai/gsm8k@{COMMIT}", split: train, subset: main}}, {{path: "/home/ann/my tasks.jsonl"}}]
  evaluation: [{{path: "s3://ann:pw@bucket/held.jsonl?region=x"}}]
"""
    begin, end = text.index("tasks:\n"), text.index("reward:\n")
    text = text[:begin] + files + text[end:]
    base = f'"Qwen/Qwen3-0.6B@{COMMIT}"'
    start = tmp_path / "bases" / "my-base"
    run.recipe.write_text(text.replace(f"path: {start}", f"path: {base}").replace(f'path: "{start}"', f"path: {base}"))
    card = card_of(run)
    assert card.data.base_model == "Qwen/Qwen3-0.6B"
    assert card.data.base_model_relation == "finetune"
    assert card.data.datasets == ["openai/gsm8k"]
    assert f"[openai/gsm8k](https://huggingface.co/datasets/openai/gsm8k) at revision `{COMMIT}`, subset `main`" in card.text
    assert "`.../my tasks.jsonl`" in card.text
    assert "Held-out tasks: `s3://.../held.jsonl`." in card.text
    assert "ann" not in card.text


def test_what_a_run_holds_is_no_markup(tmp_path):
    run = make_run(tmp_path)
    hostile = "x`|<script>\\n```\\n---\\nlicense: mit"
    run.recipe.write_text(run.recipe.read_text().replace("name: calculator", f'name: "{hostile}"'))
    card = card_of(run)
    assert card.data.license is None
    assert "* Environment: `x'\\|<script> ''' --- license: mit` (class)" in card.text
    assert "````yaml\n" in card.text


def test_a_run_that_was_killed_has_a_card(tmp_path):
    run = make_run(tmp_path)
    run.summary.unlink()
    model = msgspec.structs.replace(trained_model(run.path), weights=Weights.FOLDER)
    card = ModelCard(make_card(model, "me/calc").text)
    assert "which had not ended" in card.text
    assert "None was made." in card.text
    assert "Staleness: not known" in card.text
