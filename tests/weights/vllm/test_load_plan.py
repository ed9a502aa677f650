"""Plans of what loaders do: repeated beside the model, exact, and made only where that is possible."""

from contextlib import ExitStack, closing
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Shard
from asyncrl.weights.publication_merge import merge
from asyncrl.weights.shm.shared_tensors import SharedMemory
from asyncrl.weights.vllm.load_plan import LoadPlan
from asyncrl.weights.vllm.slice_reader import SliceReader


class Loader(nn.Module):
    """Loads as vLLM's models do: fused projections, a padded embedding, a bias, experts in one matrix, a tied output.

    Args:
        compute: what is made of the bias.
        down: what is made of a weight.
        padding: what the end of the embedding is filled with: a number, or rows of it.
    """

    def __init__(self, compute=None, down=lambda tensor: tensor, padding=0.5):
        super().__init__()
        self.fused = nn.Linear(4, 6)
        self.embedding = nn.Embedding(8, 4)
        self.down = nn.Linear(6, 4, bias=False)
        self.experts = nn.Module()
        self.experts.w = nn.Parameter(torch.zeros(2, 3, 4))
        self.output = nn.Linear(4, 8, bias=False)
        self.output.weight = self.embedding.weight
        self.compute, self.make_down, self.padding = compute, down, padding

    def load_weights(self, tensors):
        for name, tensor in tensors:
            if name in "qk":
                self.fused.weight.data.narrow(0, 0 if name == "q" else 2, len(tensor)).copy_(tensor)
            elif name == "bias":
                self.fused.bias.data.copy_(tensor if self.compute is None else self.compute(self, tensor))
            elif name == "words":
                self.embedding.weight[: len(tensor)].data.copy_(tensor)
                rest = self.embedding.weight[len(tensor) :].data
                rest.copy_(tensor[self.padding]) if isinstance(self.padding, slice) else rest.fill_(self.padding)
            elif name == "down":
                self.down.weight.data.copy_(self.make_down(tensor))
            elif name.startswith("expert"):
                self.experts.w.data[int(name[-1])].copy_(tensor)


def checkpoint():
    torch.manual_seed(1)
    shapes = {"q": (2, 4), "k": (4, 4), "bias": (6,), "words": (5, 4), "down": (4, 6), "expert0": (3, 4), "expert1": (3, 4)}
    return {name: torch.randn(shape) for name, shape in shapes.items()}


@pytest.fixture
def publish(tmp_path):
    """Publishes tensors from two ranks, which divide them by rows."""
    with ExitStack() as stack:
        ranks = [stack.enter_context(closing(SharedMemory("plan", rank, str(tmp_path)))) for rank in range(2)]
        versions = count(1)

        def write(tensors):
            version, parts = PolicyVersion(next(versions)), []
            for rank, writer in enumerate(ranks):
                shards = []
                for name, tensor in tensors.items():
                    first, end = (0, len(tensor) // 2) if rank == 0 else (len(tensor) // 2, len(tensor))
                    start = (first, *(0 for _ in tensor.shape[1:]))
                    shards.append(Shard(name, tuple(tensor.shape), start, tensor[first:end]))
                parts.append(writer.write(version, shards))
            return merge(parts)

        yield write


def shapes(tensors):
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def test_a_plan_makes_what_the_loaders_make_and_touches_nothing_before_the_exchange(publish):
    tensors, model, expected = checkpoint(), Loader(), Loader()
    plan = LoadPlan.of(model, shapes(tensors), [model.output])
    before = dict(model.named_parameters(remove_duplicate=False))
    values = {name: parameter.clone() for name, parameter in before.items()}
    publication = publish(tensors)
    reading = SliceReader(plan.targets).read(publication)
    prepared = plan.prepare(reading.fill)
    assert reading.total() == publication.fingerprint
    after = dict(model.named_parameters(remove_duplicate=False))
    assert all(after[name] is before[name] and torch.equal(after[name], values[name]) for name in before)
    for layer in prepared:
        layer.exchange()
    with torch.no_grad():
        expected.load_weights(tensors.items())
    named = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in expected.named_parameters(remove_duplicate=False):
        assert torch.equal(named[name], parameter)
        assert type(named[name]) is nn.Parameter
    assert model.output.weight is model.embedding.weight
    for _ in range(2):  # the files are overwritten
        publish({name: torch.zeros_like(tensor) for name, tensor in tensors.items()})
    assert not torch.equal(model.fused.bias, torch.zeros(6))


def test_a_second_publication_is_prepared_by_the_same_plan(publish):
    tensors, model = checkpoint(), Loader()
    plan = LoadPlan.of(model, shapes(tensors), [model.output])
    slices = SliceReader(plan.targets)
    for factor in (1.0, 3.0):
        reading = slices.read(publish({name: tensor * factor for name, tensor in tensors.items()}))
        for layer in plan.prepare(reading.fill):
            layer.exchange()
    assert torch.equal(model.down.weight, 3 * tensors["down"])
    assert torch.equal(model.experts.w[1], 3 * tensors["expert1"])


@pytest.mark.parametrize(
    "compute",
    [
        pytest.param(lambda model, tensor: tensor + 1, id="computes"),
        pytest.param(lambda model, tensor: tensor * tensor.sum().item(), id="looks at values"),
        pytest.param(lambda model, tensor: model.down.weight.data.view(-1)[:6], id="copies from another parameter"),
        pytest.param(lambda model, tensor: tensor[:1], id="broadcasts"),
        pytest.param(lambda model, tensor: tensor.zero_(), id="writes in place"),
        pytest.param(lambda model, tensor: tensor.numpy(), id="leaves torch"),
        pytest.param(lambda model, tensor: torch._foreach_add([tensor], 1)[0], id="computes on lists"),
    ],
)
def test_loaders_that_do_more_than_copying_have_no_plan(compute):
    tensors, model = checkpoint(), Loader(compute)
    before = dict(model.named_parameters(remove_duplicate=False))
    assert LoadPlan.of(model, shapes(tensors), [model.output]) is None
    assert all(parameter is before[name] for name, parameter in model.named_parameters(remove_duplicate=False))


@pytest.mark.parametrize(
    ("name", "shape", "loader"),
    [
        pytest.param("down", (2, 2, 6), {"down": lambda tensor: tensor.view(4, 6)}, id="joins dimensions"),
        pytest.param("down", (4, 12), {"down": lambda tensor: tensor[:, ::2]}, id="leaves out columns"),
        pytest.param("words", (5, 4), {"padding": slice(3)}, id="loads a part twice"),
    ],
)
def test_loaders_whose_copies_are_no_rectangles_have_no_plan(name, shape, loader):
    tensors, model = checkpoint(), Loader(**loader)
    assert LoadPlan.of(model, shapes(tensors | {name: torch.zeros(shape)}), [model.output]) is None


def test_a_parameter_that_is_not_filled_has_no_plan():
    tensors, model = checkpoint(), Loader()
    del tensors["k"]
    assert LoadPlan.of(model, shapes(tensors), [model.output]) is None


@pytest.mark.parametrize("make", [torch.t, lambda tensor: tensor.t().contiguous()])
def test_a_loader_may_transpose(publish, make):
    tensors, model = checkpoint() | {"down": torch.randn(6, 4)}, Loader(down=make)
    plan = LoadPlan.of(model, shapes(tensors), [model.output])
    publication = publish(tensors)
    reading = SliceReader(plan.targets, at_once=5).read(publication)
    for layer in plan.prepare(reading.fill):
        layer.exchange()
    assert reading.total() == publication.fingerprint
    assert torch.equal(model.down.weight, tensors["down"].t())


def test_a_vector_that_something_else_holds_too_stays_where_it_is_and_a_matrix_has_no_plan(publish):
    """The router of some models holds the biases of a layer, and would go on with the old ones."""
    tensors, model = checkpoint(), Loader()
    model.down.router = SimpleNamespace(bias=model.fused.bias)
    plan = LoadPlan.of(model, shapes(tensors), [model.output])
    for layer in plan.prepare(SliceReader(plan.targets).read(publish(tensors)).fill):
        layer.exchange()
    assert model.down.router.bias is model.fused.bias
    assert torch.equal(model.fused.bias, tensors["bias"])
    model.down.router.bias = model.fused.weight
    assert LoadPlan.of(model, shapes(tensors), [model.output]) is None


@pytest.mark.parametrize("in_place", [False, True])
def test_an_attention_kernel_with_tensors_of_its_own_has_no_plan(in_place):
    """It may have made them of weights, and would go on with what it made of the old ones."""
    tensors, model = checkpoint(), Loader()
    model.down.impl = SimpleNamespace(packed=None)
    assert LoadPlan.of(model, shapes(tensors), [model.output], in_place=in_place) is not None
    model.down.impl.packed = torch.zeros(1)
    assert LoadPlan.of(model, shapes(tensors), [model.output], in_place=in_place) is None


def test_a_loader_that_replaces_parameters_leaves_the_model_as_it_was():
    def replace(model, tensor):
        model.fused.bias = nn.Parameter(tensor)
        model.fused.extra = nn.Parameter(tensor)
        return tensor

    tensors, model = checkpoint(), Loader(replace)
    before = dict(model.named_parameters(remove_duplicate=False))
    LoadPlan.of(model, shapes(tensors), [model.output])
    after = dict(model.named_parameters(remove_duplicate=False))
    assert before.keys() == after.keys()
    assert all(after[name] is before[name] for name in before)


def test_a_layer_that_finishes_its_weights_in_a_way_of_its_own_has_no_plan():
    tensors, model = checkpoint(), Loader()
    model.down.process_weights_after_loading = lambda: None
    assert LoadPlan.of(model, shapes(tensors), [model.output]) is None
