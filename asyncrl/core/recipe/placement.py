"""The keys ``placement`` of a recipe: which nodes of a cluster a part of the run goes to."""

from typing import Literal

from asyncrl.core.recipe.section import Count, Positive, Section, Text


class PlacementConfig(Section, frozen=True):
    """Which nodes of a Ray cluster the processes of one part of the run go to; docs/how-to/scaling.md has examples.

    Attributes:
        strategy: ``pack`` them onto as few nodes as possible, beginning with the driver's and those that the run uses already, or
            ``spread`` them evenly over the nodes that have room.
        per_node: the most of them on one node; null means as many as it has room for.
        gpu_kind: they go only to nodes with GPUs of this kind, by Ray's name, such as ``H100``; null means any node. It is Ray's
            label ``ray.io/accelerator-type`` of a node.
        labels: they go only to nodes that have all these labels of Ray, such as ``{role: inference}`` or
            ``{ray.io/market-type: spot}``.
        resources: what each takes of its node beside GPUs, by Ray's names: ``{CPU: 4}``, ``memory`` in bytes, or a resource that
            you gave nodes of your choice, such as ``{inference: 1}``. On nodes without GPUs each takes at least a CPU, and the
            memory that the plan expects.
    """

    strategy: Literal["pack", "spread"] = "pack"
    per_node: Count | None = None
    gpu_kind: Text | None = None
    labels: dict[str, Text] = {}
    resources: dict[str, Positive] = {}
