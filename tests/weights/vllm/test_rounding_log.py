"""The first of vLLM's warnings that weights are rounded is passed on in other words, and no other is."""

import logging
from collections.abc import Iterator

import pytest
import torch
from vllm.model_executor.models.utils import AutoWeightsLoader

from asyncrl.weights.vllm.rounding_log import explain_rounding


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("vllm.model_executor.models.utils")
    before = [*logger.filters]
    logger.filters.clear()  # the filter of an engine that this process has loaded may have passed its one warning on
    explain_rounding()
    yield logger
    logger.filters[:] = before


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
        self.second = torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))


def test_a_warning_of_vllms_loader_is_explained_and_then_silent(logger: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    listener = logging.Handler()
    monkeypatch.setattr(listener, "emit", lambda record: said.append(record.getMessage()))
    # Engines that this process has loaded may have changed levels and handlers.
    for name, value in (("handlers", [listener]), ("propagate", False), ("disabled", False), ("level", logging.WARNING)):
        monkeypatch.setattr(logger, name, value)
    logger.manager._clear_cache()
    weights = {"first": torch.ones(2), "second": torch.ones(2)}
    assert set(AutoWeightsLoader(Layer()).load_weights(weights.items())) == weights.keys()
    explained = (
        "weights of torch.float32 are rounded to the engine's torch.bfloat16, as generators.dtype says; this is logged once"
    )
    assert said == [explained]
    said.clear()
    AutoWeightsLoader(Layer()).load_weights({"first": torch.ones(2, dtype=torch.int8)}.items())
    assert "torch.int8" in "".join(said), "whatever else is converted is vLLM's warning"
