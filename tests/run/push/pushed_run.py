"""A run with a trained model that is pushed: made without engines, in a folder whose name is private."""

import json
from pathlib import Path

import msgspec
from made_episodes import row, write
from made_summary import SUMMARY

from asyncrl.episodes.schema import Kind
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures import metrics
from asyncrl.run.measures.summary import EvaluationEnds, PlayedEvaluation, Status
from asyncrl.run.recipe.compose import compose
from asyncrl.run.tracking.tracker import Tracker

REWARDS = [1.0] * 9 + [0.0]
"""Of the tasks of the last evaluation."""
PLAYED = (PlayedEvaluation(0, 0, 0, 0.4), PlayedEvaluation(60, 60, 60, 0.9))


def make_run(parent: Path, *overrides: str, tracked: bool = False) -> RunFolder:
    """A run that has trained a model. ``tracked``: with metrics, which takes seconds, since MLflow makes a database."""
    start = parent / "bases" / "my-base"
    start.mkdir(parents=True)
    (start / "config.json").write_text("{}")
    recipe = compose("quickstart", [f"run_dir={parent / 'runs'}", f"model.path={start}", *overrides])
    folder = RunFolder.create(recipe)
    folder.model.mkdir()
    (folder.model / "config.json").write_text(json.dumps({"_name_or_path": str(start), "model_type": "qwen3"}))
    (folder.model / "tokenizer_config.json").write_text('{"name_or_path": "Qwen/Qwen3-0.6B"}')
    (folder.model / "model.safetensors").write_bytes(b"weights")
    (folder.model / "adapter").mkdir()
    (folder.model / "adapter" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(start), "r": 4}))
    msgspec.structs.replace(SUMMARY, evaluation=EvaluationEnds.of(PLAYED, ())).write(folder.summary)
    if tracked:
        tracker = Tracker(recipe, folder)
        tracker.start()
        for step in range(1, 61):
            tracker.log(step, {metrics.REWARD.name: step / 60} | ({metrics.EVALUATION_REWARD.name: 0.9} if step == 60 else {}))
        tracker.finish(Status.COMPLETED, 60)
    write(
        folder.path,
        [row(60, kind=Kind.EVALUATION, version=60, task_id=f"task-{i}", reward=each) for i, each in enumerate(REWARDS)],
    )
    return folder
