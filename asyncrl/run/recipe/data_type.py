"""Which data type a model is computed in on a CPU, where the recipe leaves it to the machine: the one measured to be faster.

That a processor has instructions for bfloat16 does not say that it is faster with them.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version

import msgspec

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.process.kept_measurement import kept_measurement
from asyncrl.run.models.model_shape import ModelShape
from learners.type_speed import Product, TypeSpeed

logger = logging.getLogger(__name__)

MODULE = "learners.type_speed"
MEASURED_S = 90.0
"""How long the measurement may take, most of which is loading torch."""
PAYS = 0.8
"""The share of float32's time from which on bfloat16 pays: the conversions around the products cost about as much as the rest."""


def bfloat16_share(shape: ModelShape) -> float | None:
    """Return the time that the model's products take in bfloat16 as a share of that in float32; None if it cannot be measured."""
    products = tuple(products_of(shape))
    try:
        found = kept_measurement("data-type", (version("torch"), products), TypeSpeed, lambda: _measured(products))
    except ComponentFailed as failure:
        logger.warning("%s", failure)
        return None
    return found.bfloat16 / found.float32


def products_of(shape: ModelShape) -> Iterator[Product]:
    """Yield the products of a model's layers, and of its output layer, which a learner computes in float32 in any case."""
    hidden, queries = shape.hidden_size, shape.num_attention_heads * shape.head_size
    mixture = shape.mixture
    layers, mixtures = shape.num_hidden_layers, sum(mixture.layers)
    yield Product(hidden, queries + 2 * shape.key_value_heads * shape.head_size, layers)
    yield Product(queries, hidden, layers)
    if layers > mixtures:
        yield Product(hidden, 2 * shape.intermediate_size, layers - mixtures)
        yield Product(shape.intermediate_size, hidden, layers - mixtures)
    if mixtures:
        share = min(1.0, mixture.per_token / mixture.experts)
        yield Product(hidden, 2 * mixture.channels, mixtures * mixture.experts, share)
        yield Product(mixture.channels, hidden, mixtures * mixture.experts, share)
    if mixture.shared:
        yield Product(hidden, 2 * mixture.shared, mixtures)
        yield Product(mixture.shared, hidden, mixtures)
    yield Product(hidden, shape.vocab_size, trained=False)


def _measured(products: tuple[Product, ...]) -> TypeSpeed:
    """Measure in a process of its own.

    Raises:
        ComponentFailed: it fails, or takes longer than :data:`MEASURED_S`.
    """
    command = [sys.executable, "-P", "-m", MODULE, msgspec.json.encode(products).decode()]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    what = "measuring which data type is faster"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MEASURED_S, check=False, env=environment)
    except subprocess.TimeoutExpired as late:
        raise ComponentFailed(f"{what} took longer than {MEASURED_S:g} s; name generators.dtype and learner.dtype") from late
    try:
        return msgspec.json.decode(done.stdout, type=TypeSpeed)
    except msgspec.DecodeError as error:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ComponentFailed(f"{what} failed: {last}; name generators.dtype and learner.dtype") from error
