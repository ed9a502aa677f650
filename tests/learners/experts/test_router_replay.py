"""Router replay: the learner's routers take the experts that engines chose, in every forward pass and layout."""

from unittest import mock

import layout_side
import msgspec
import numpy as np
import pytest
import rank_side
import torch
from learner_samples import assemble, batch_of, make_batch, make_model, tensors_of
from ranks import run_ranks
from test_architectures import trained
from test_layouts import assert_same_gradients, hugging_face_loss, recipe_and_grid
from transformers import AutoModelForCausalLM

from asyncrl.core.measures.metrics import combine
from asyncrl.core.recipe.learner import ExpertsConfig
from asyncrl.core.routed_experts import RoutedExperts

REPLAY = ExpertsConfig(replay=True)
MODELS = {
    "qwen3_moe": (4, {}),
    "glm4_moe": (3, {}),
    "qwen2_moe": (3, {"mlp_only_layers": [1], "norm_topk_prob": False}),
}
"""For each architecture: its layers with experts, and what is unusual of its config."""
LAYOUTS = {
    "one": {},
    "tp2-ep2": {"tensor": 2, "data": 2, "expert": 2},
    "pp2-vpp2-full": {"pipeline": 2, "virtual_pipeline": 2, "recompute": "full"},
    "cp2": {"context": 2},
}


def routed(episodes, layers, known=1):
    """The episodes, whose tokens an engine sent to experts at random; to the same ones where rows of a group begin alike."""
    told = []
    for episode in episodes.values():
        (row,) = episode.trajectories
        random = np.random.default_rng(7 + 100 * episode.group_id)
        chosen = np.argsort(random.random((100, layers, 4)), axis=2)[: len(row) - known, :, :2]
        chosen[row.prompt_length() :] = (chosen[row.prompt_length() :] + episode.sample_index) % 4
        trajectory = msgspec.structs.replace(row, experts=RoutedExperts.pack(chosen, 4))
        told.append(msgspec.structs.replace(episode, trajectories=(trajectory,)))
    return batch_of(told)


class Forced:
    """Takes the place of ``torch.topk`` in Hugging Face's routers: they take the experts of a row that passes layer by layer."""

    def __init__(self, rows):
        self.left = [layer for row in rows for layer in np.swapaxes(filled(row), 0, 1)]
        self.plain = torch.topk

    def __call__(self, scores, k, **options):
        if (k, scores.shape[-1]) != (2, 4):
            return self.plain(scores, k=k, **options)
        found = torch.from_numpy(self.left.pop(0).astype(np.int64))
        return scores.gather(1, found), found


def filled(row):
    """The experts of all tokens; those of the last token, which predicts nothing, are any."""
    chosen = row.experts.chosen()
    return np.concatenate([chosen, np.repeat(chosen[:1], len(row) - len(chosen), axis=0)])


def hugging_face_gradients(folder, batch, episodes):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, experts_implementation="eager")
    rows = [episodes[record.name[:2]].trajectories[0] for record in batch.rows]
    with mock.patch("test_layouts.make_batch", return_value=(batch, episodes)), mock.patch("torch.topk", Forced(rows)):
        hugging_face_loss(model).backward()
    return tensors_of(model, "grad")


def gradients(folder, batch, episodes, **layout):
    recipe, grid = recipe_and_grid(folder, clip_grad=1e9, experts=REPLAY, **layout)
    results = run_ranks(layout_side.gradients, recipe, folder, batch, episodes, **grid)
    readings = combine(reading for report, _, _ in results for reading in report.readings)
    return readings, trained(assemble([shards for _, shards, _ in results]))


@pytest.mark.parametrize("architecture", MODELS)
def test_gradients_are_those_of_hugging_face_with_the_same_experts(tmp_path, architecture):
    layers, unusual = MODELS[architecture]
    folder = make_model(tmp_path, architecture, **unusual)
    batch, episodes = routed(make_batch()[1], layers)
    expected = hugging_face_gradients(folder, batch, episodes)
    differing = []
    for layout in LAYOUTS.values():
        readings, found = gradients(folder, batch, episodes, **layout)
        assert_same_gradients(found, expected)
        differing.append([value for name, value in sorted(readings.items()) if name.startswith("experts/replay")])
    assert readings.keys() >= {f"experts/replay_differs{age}" for age in ("", "_at_0", "_at_1")}
    assert 0.2 < readings["experts/replay_differs"] < 0.8  # of 4 experts, two at random
    for other in differing[1:]:
        assert other == pytest.approx(differing[0], rel=1e-6)


def test_a_router_that_chooses_as_engines_did_differs_nowhere(tmp_path):
    """Rows with the learner's own experts have the gradients that they have without replay, and the share that differs is 0."""
    folder = make_model(tmp_path, "qwen3_moe")
    batch, episodes = make_batch()
    model = AutoModelForCausalLM.from_pretrained(folder)
    told = []
    for episode in episodes.values():
        (row,) = episode.trajectories
        with torch.no_grad():
            logits = model(torch.from_numpy(row.token_ids.astype(np.int64))[None], output_router_logits=True).router_logits
        chosen = torch.stack([layer.topk(2).indices for layer in logits], 1).numpy()
        trajectory = msgspec.structs.replace(row, experts=RoutedExperts.pack(chosen, 4))
        told.append(msgspec.structs.replace(episode, trajectories=(trajectory,)))
    readings, found = gradients(folder, *batch_of(told))
    recipe, grid = recipe_and_grid(folder, clip_grad=1e9)
    ((_, shards, _),) = run_ranks(layout_side.gradients, recipe, folder, batch, episodes, **grid)
    assert_same_gradients(found, assemble([shards]))
    assert readings["experts/replay_differs"] == 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda experts: None, "its engine did not say which experts its tokens went to"),
        (
            lambda experts: RoutedExperts.pack(experts.chosen()[:, :3], 4),
            "its engine's experts are 2 of 4 in 3 layers, the model's",
        ),
    ],
)
def test_rows_without_the_models_experts_are_an_error(tmp_path, change, text):
    folder = make_model(tmp_path, "qwen3_moe")
    _, episodes = routed(make_batch()[1], 4)
    first, *others = episodes.values()
    (row,) = first.trajectories
    row = msgspec.structs.replace(row, experts=change(row.experts))
    batch, episodes = batch_of([msgspec.structs.replace(first, trajectories=(row,)), *others])
    recipe, grid = recipe_and_grid(folder, experts=REPLAY)
    ((kind, message, _),) = run_ranks(rank_side.failure, recipe, folder, batch, episodes, **grid)
    assert kind == "ValueError"
    assert text in message
