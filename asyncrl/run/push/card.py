"""Writes the card of a trained model, ``README.md`` on the hub, from what its run has recorded.

What always holds: the card has metadata that ``huggingface_hub`` reads back; what stands in it went through
:mod:`asyncrl.run.push.public`. What the run did not record, the card leaves out or says is not known.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

import asyncrl
from asyncrl.core.files.hub import is_commit, is_hub_id, parts
from asyncrl.core.text import pluralize, writable
from asyncrl.episodes.visible import visible
from asyncrl.learners.metrics import STALENESS_MAX, STALENESS_MEAN
from asyncrl.run.evaluation.found_model import EvaluatedModel
from asyncrl.run.folder.config_yaml import write_config
from asyncrl.run.folder.run_folder import in_launch_directory
from asyncrl.run.measures.intervals import Estimate
from asyncrl.run.measures.scores import Scores
from asyncrl.run.measures.summary import training_reward
from asyncrl.run.models.model_shape import TINY
from asyncrl.run.push import curves
from asyncrl.run.push.evaluations import Afterwards, Beside, afterwards, beside_training
from asyncrl.run.push.public import public_text, published_recipe, without_secrets
from asyncrl.run.report.run_record import RunRecord, read_recipe

FILE = "README.md"
_PASSING = 1.0


class Card(msgspec.Struct, frozen=True):
    """A card and what lies beside it.

    Attributes:
        text: the card, metadata included.
        curves: the picture of the curves, which the card shows; None if the run has none.
        missing: sentences on what a card usually has, and why this one does not.
    """

    text: str
    curves: bytes | None
    missing: tuple[str, ...]

    @property
    def files(self) -> dict[str, bytes]:
        """The files of the card by name."""
        return {FILE: self.text.encode()} | ({} if self.curves is None else {curves.FILE: self.curves})


class _Facts(msgspec.Struct, frozen=True):
    """What a card is made of."""

    hub_id: str
    model: EvaluatedModel
    run: RunRecord
    recipe: dict[str, Any]
    beside: list[Beside]
    after: Afterwards | None
    has_curves: bool
    of_hub: tuple[str, ...]
    """Those paths of the recipe that name a repository of the hub."""


def make_card(model: EvaluatedModel, hub_id: str) -> Card:
    """Make the card of a version of a run.

    Args:
        hub_id: where the model will be, as ``OWNER/NAME``.

    Raises:
        RecipeError: the run's recipe cannot be read.
        EpisodesUnreadable: a file of kept episodes is damaged.
    """
    assert model.run is not None
    run = RunRecord(model.run)
    recipe = read_recipe(run.folder.recipe)
    picture = curves.curves_svg(run)
    passing = recipe.get("evaluation", {}).get("passing_reward", _PASSING)
    with in_launch_directory(run.folder):
        of_hub = tuple(path for path in _paths(recipe) if is_hub_id(path) and is_commit(parts(path)[1]))
    beside, after = beside_training(run, passing), afterwards(model, recipe)
    facts = _Facts(hub_id, model, run, recipe, beside, after, picture is not None, of_hub)
    missing = list(run.missing)
    if after is None and not (beside and beside[-1].version == model.version and beside[-1].scores):
        missing.append("The card has no interval for this model's reward: `asyncrl evaluate` this run, and push again.")
    return Card(without_secrets(_card(facts), os.environ), picture, tuple(missing))


def _card(facts: _Facts) -> str:
    from huggingface_hub import ModelCard

    text = writable("\n".join(_body(facts)))
    return str(ModelCard(f"---\n{_metadata(facts)}\n---\n\n{text}"))


def _metadata(facts: _Facts) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    environment = _environment(facts.recipe)
    data_sets = [parts(path)[0] for path in facts.of_hub if path != _base(facts)]
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=re.sub(r"[^\w.-]+", "-", environment) or "environment",
            dataset_name=f"held-out tasks of {environment}",
            metric_type="reward",
            metric_name=name,
            metric_value=round(value, 6),
        )
        for name, value in _results(facts)
    ]
    base = parts(_base(facts))[0] if _base(facts) in facts.of_hub else None
    data = ModelCardData(
        base_model=base,
        base_model_relation="finetune" if base else None,
        datasets=list(dict.fromkeys(data_sets)) or None,
        eval_results=results or None,
        library_name="transformers",
        model_name=facts.hub_id.rpartition("/")[2],
        pipeline_tag="text-generation",
        tags=["asyncrl", "reinforcement-learning"],
        asyncrl_version=asyncrl.__version__,
    )
    return str(data.to_yaml())


def _results(facts: _Facts) -> Iterator[tuple[str, float]]:
    """Yield the score of the pushed version, by name; it has one if it was evaluated."""
    if facts.after is not None:
        mean = next(each.scores.mean for each in facts.after.models if each.version == facts.model.version)
        yield f"mean@{facts.after.summary.samples}", mean.value
    elif facts.beside and facts.beside[-1].version == facts.model.version:
        yield "mean reward", facts.beside[-1].reward


def _body(facts: _Facts) -> Iterator[str]:
    summary, version = facts.run.summary, facts.model.version
    yield f"# {facts.hub_id.rpartition('/')[2]}\n"
    yield f"{_base_said(facts)}, trained further by reinforcement learning with asyncrl {asyncrl.__version__}.\n"
    steps = "" if version is None else f"policy version {version:,} of "
    ended = (
        "which had not ended" if summary is None else f"{summary.status.value} after {pluralize(summary.steps, 'training step')}"
    )
    yield f"It is {steps}run {_code(facts.run.name)}, {ended}.\n"
    yield (
        "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained("{facts.hub_id}")\n'
        f'model = AutoModelForCausalLM.from_pretrained("{facts.hub_id}")\n```\n'
    )
    yield "## Training\n"
    if facts.has_curves:
        yield f"![Curves of the reward]({curves.FILE})\n"
    if summary is not None and summary.reward.last is not None:
        yield f"* Reward: {training_reward(summary)}."
    yield f"* {_staleness(facts)}"
    yield f"* {_corrections(facts.recipe)}\n"
    yield "## Evaluation\n"
    yield from _evaluation(facts)
    yield "## Data\n"
    yield from _data(facts)
    yield "\n## Recipe\n"
    yield "Without the sections on where the run was kept; paths, addresses and secrets are left out.\n"
    yaml = write_config(published_recipe(facts.recipe))
    fence = "`" * max(3, *(len(found) + 1 for found in re.findall("`+", yaml)), 3)
    yield f"{fence}yaml\n{visible(yaml)}{fence}\n"


def _base(facts: _Facts) -> str:
    return str(facts.recipe.get("model", {}).get("path", ""))


def _base_said(facts: _Facts) -> str:
    path = _base(facts)
    if path == TINY:
        return "The tiny model, which asyncrl makes itself"
    if path in facts.of_hub:
        repository, revision = parts(path)
        return f"[{repository}](https://huggingface.co/{repository}) at revision {_code(str(revision))}"
    return f"The model {_code(path.rstrip('/').rpartition('/')[2] if '://' not in path else public_text(path))}"


def _paths(recipe: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of the model and of the files of tasks."""
    yield str(recipe.get("model", {}).get("path", ""))
    for split in ("train", "evaluation"):
        yield from (str(each["path"]) for each in _files(recipe, split))


def _files(recipe: Mapping[str, Any], split: str) -> Sequence[Mapping[str, Any]]:
    tasks = recipe.get("tasks", {})
    return tasks.get(split, ()) if tasks.get("kind") == "files" else ()


def _environment(recipe: Mapping[str, Any]) -> str:
    """The name of the environment, or the names of those of a mixture."""
    section = recipe.get("environment", {})
    if members := section.get("members"):
        return "+".join(members)
    return public_text(str(section.get("name") or section.get("kind", "")))


def _staleness(facts: _Facts) -> str:
    bound = facts.recipe.get("buffer", {}).get("max_staleness")
    allowed = "" if bound is None else f" of the {pluralize(bound, 'version')} that the recipe allows"
    if facts.run.summary is not None and facts.run.summary.steps:
        seen = facts.run.summary.staleness
        return f"Staleness: {seen.mean:.2f} versions on average, at most {seen.max:g}{allowed}."
    mean, largest = facts.run.series(STALENESS_MEAN.name), facts.run.series(STALENESS_MAX.name)
    if mean is None or largest is None:
        return f"Staleness: not known{allowed and ', at most what the recipe allows'}."
    return f"Staleness: {sum(mean.values) / len(mean.values):.2f} versions on average, at most {max(largest.values):g}{allowed}."


def _corrections(recipe: Mapping[str, Any]) -> str:
    algorithm = recipe.get("algorithm", {})
    correction = algorithm.get("correction", {})
    weight = correction.get("weight", "none")
    kind, bound = "custom" if isinstance(weight, Mapping) else weight, correction.get("bound", {}).get("kind")
    rejected = ", ".join(str(each.get("kind")) for each in correction.get("reject", ())) or "nothing"
    weighted = "none" if kind == "none" else f"{kind} ({bound})"
    return (
        f"Advantage {_kind(algorithm, 'advantage')}, loss {_kind(algorithm, 'loss')}; corrections: anchor "
        f"{_code(correction.get('anchor', 'behaviour'))}, importance weights {_code(weighted)}, rejected {_code(rejected)}."
    )


def _kind(algorithm: Mapping[str, Any], section: str) -> str:
    return _code(str(algorithm.get(section, {}).get("kind", "not known")))


def _evaluation(facts: _Facts) -> Iterator[str]:
    if facts.after is None and not facts.beside:
        yield "None was made.\n"
    if facts.after is not None:
        summary, models = facts.after.summary, facts.after.models
        counts = sorted({k for each in models for k in each.scores.passed} - {1})[-1:]
        yield (
            f"`asyncrl evaluate`: {pluralize(summary.samples, 'episode')} of each held-out task at temperature "
            f"{summary.temperature:g}; a reward of {summary.passing_reward:g} passes.\n"
        )
        yield from _table(
            ["policy version", "tasks", f"mean@{summary.samples}", *(f"pass@{k}" for k in (1, *counts))],
            [
                [_version(each.version), f"{each.scores.tasks:,}", _estimate(each.scores.mean)]
                + [_estimate(each.scores.passed.get(k)) for k in (1, *counts)]
                for each in models
            ],
        )
    if facts.beside:
        yield "Beside training, on its held-out tasks:\n"
        rows = [[_version(each.version), *_reward(each.reward, each.scores)] for each in facts.beside]
        yield from _table(["policy version", "mean reward", "tasks"], rows)
    if facts.after is not None or any(each.scores for each in facts.beside):
        yield "[low, high] holds 95 %, over tasks.\n"


def _reward(reward: float, scores: Scores | None) -> tuple[str, str]:
    return (f"{reward:.3f}", "") if scores is None else (_estimate(scores.mean), f"{scores.tasks:,}")


def _version(version: int | None) -> str:
    return "not known" if version is None else f"{version:,}"


def _estimate(estimate: Estimate | None) -> str:
    return "" if estimate is None else f"{estimate.value:.3f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def _data(facts: _Facts) -> Iterator[str]:
    recipe = facts.recipe
    section, tasks = recipe.get("environment", {}), recipe.get("tasks", {})
    yield f"* Environment: {_code(_environment(recipe))} ({section.get('kind', 'class')}), which gives the reward" + (
        f" together with a reward model ({_kind(recipe, 'reward')})."
        if recipe.get("reward", {}).get("kind", "environment") != "environment"
        else "."
    )
    if tasks.get("kind") == "files":
        for split, what in (("train", "Training tasks"), ("evaluation", "Held-out tasks")):
            yield f"* {what}: {', '.join(_source(each, facts.of_hub) for each in _files(recipe, split))}."
    elif {"train", "evaluation"} <= tasks.keys():
        yield (
            f"* Tasks: made by the environment from seed {recipe.get('seed', 0)}: {tasks['train']:,} to train on, "
            f"{tasks['evaluation']:,} held out."
        )


def _source(file: Mapping[str, Any], of_hub: Sequence[str]) -> str:
    path = str(file["path"])
    split = "".join(f", {name} {_code(str(file[name]))}" for name in ("subset", "split") if file.get(name))
    if path in of_hub:
        repository, revision = parts(path)
        return f"[{repository}](https://huggingface.co/datasets/{repository}) at revision {_code(str(revision))}{split}"
    return f"{_code(public_text(path))}{split}"


def _code(text: str) -> str:
    """Text of the run as code, in which nothing is markup."""
    shown = " ".join(visible(public_text(text)).split()).replace("`", "'").replace("|", "\\|")
    return f"`{shown}`" if shown else "-"
