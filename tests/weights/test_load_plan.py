"""Plans of what loaders do: repeated beside the model, exact, and made only where that is possible."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from asyncrl.weights.load_plan import LoadPlan


class Loader(nn.Module):
    """Loads as vLLM's models do: fused projections, a padded embedding, a transposed weight, a bias, a tied output."""

    def __init__(self, compute=None):
        super().__init__()
        self.fused = nn.Linear(4, 6)
        self.embedding = nn.Embedding(8, 4)
        self.down = nn.Linear(6, 4, bias=False)
        self.output = nn.Linear(4, 8, bias=False)
        self.output.weight = self.embedding.weight
        self.compute = compute

    def load_weights(self, tensors):
        for name, tensor in tensors:
            if name in "qk":
                self.fused.weight.data.narrow(0, 0 if name == "q" else 2, len(tensor)).copy_(tensor)
            elif name == "bias":
                self.fused.bias.data.copy_(tensor.view(-1) if self.compute is None else self.compute(self, tensor))
            elif name == "words":
                self.embedding.weight[: len(tensor)].data.copy_(tensor)
                self.embedding.weight[len(tensor) :].data.fill_(0.5)
            elif name == "down":
                self.down.weight.data.copy_(tensor.t())


def checkpoint():
    torch.manual_seed(1)
    shapes = {"q": (2, 4), "k": (4, 4), "bias": (2, 3), "words": (5, 4), "down": (6, 4)}
    whole = torch.randn(100)  # as a mapped publication: tensors are views into one storage
    tensors, end = {}, 3
    for name, shape in shapes.items():
        size = torch.Size(shape).numel()
        tensors[name], end = whole[end : end + size].view(shape), end + size
    return tensors


def shapes(tensors):
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def test_a_plan_makes_what_the_loaders_make_and_touches_nothing_before_the_exchange():
    tensors, model, expected = checkpoint(), Loader(), Loader()
    plan = LoadPlan.of(model, shapes(tensors), [model.output])
    before = dict(model.named_parameters(remove_duplicate=False))
    values = {name: parameter.clone() for name, parameter in before.items()}
    prepared = plan.prepare(tensors)
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
    for tensor in tensors.values():
        tensor.zero_()  # as the learner does, two publications later
    assert not torch.equal(model.fused.bias, torch.zeros(6))


def test_a_second_publication_is_prepared_by_the_same_plan():
    tensors, model = checkpoint(), Loader()
    plan = LoadPlan.of(model, shapes(tensors), [model.output])
    for factor in (1.0, 3.0):
        for layer in plan.prepare({name: tensor * factor for name, tensor in tensors.items()}):
            layer.exchange()
    assert torch.equal(model.down.weight, 3 * tensors["down"].t())


@pytest.mark.parametrize(
    "compute",
    [
        pytest.param(lambda model, tensor: tensor.view(-1) + 1, id="computes"),
        pytest.param(lambda model, tensor: tensor.view(-1) * tensor.sum().item(), id="looks at values"),
        pytest.param(lambda model, tensor: model.down.weight.data.view(-1)[:6], id="copies from another parameter"),
        pytest.param(lambda model, tensor: tensor.view(-1)[:1], id="broadcasts"),
        pytest.param(lambda model, tensor: tensor.view(-1).zero_(), id="writes in place"),
        pytest.param(lambda model, tensor: tensor.numpy(), id="leaves torch"),
        pytest.param(lambda model, tensor: torch._foreach_add([tensor.view(-1)], 1)[0], id="computes on lists"),
    ],
)
def test_loaders_that_do_more_than_copying_have_no_plan(compute):
    tensors, model = checkpoint(), Loader(compute)
    before = dict(model.named_parameters(remove_duplicate=False))
    assert LoadPlan.of(model, shapes(tensors), [model.output]) is None
    assert all(parameter is before[name] for name, parameter in model.named_parameters(remove_duplicate=False))


def test_a_parameter_that_is_not_filled_has_no_plan():
    tensors, model = checkpoint(), Loader()
    del tensors["k"]
    assert LoadPlan.of(model, shapes(tensors), [model.output]) is None


def test_a_parameter_that_something_else_holds_too_has_no_plan():
    """The attention of some models holds the sinks of a layer, and would go on with the old ones."""
    tensors, model = checkpoint(), Loader()
    model.down.impl = SimpleNamespace(sinks=model.fused.bias)
    assert LoadPlan.of(model, shapes(tensors), [model.output]) is None


def test_a_loader_that_replaces_parameters_leaves_the_model_as_it_was():
    def replace(model, tensor):
        model.fused.bias = nn.Parameter(tensor.view(-1))
        model.fused.extra = nn.Parameter(tensor)
        return tensor.view(-1)

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
