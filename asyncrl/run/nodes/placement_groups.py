"""Asks Ray for placement groups, and learns which nodes Ray has given them.

What always holds: a bundle is on one node; a group is placed as a whole or pending, and what is pending is what Ray's autoscaler
makes nodes for; a group whose node is lost is pending again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

NODE = "ray.io/node-id"
"""Ray's label of a node that holds its id."""
AGAIN_S = 0.2
"""Seconds until a group is looked at again whose node was lost when it had just been placed."""
A_LITTLE = {"CPU": 0.001}
"""What a bundle takes whose processes take nothing that is counted. Ray knows no empty bundles."""

Strategy = Literal["PACK", "SPREAD", "STRICT_SPREAD"]


class Bundle(msgspec.Struct, frozen=True):
    """What is asked for on one node: amounts by Ray's names of resources, and conditions on the node's labels."""

    amounts: Mapping[str, float]
    labels: Mapping[str, str]


class RayGroups:
    """Asks the cluster that this process has joined; all groups go when it leaves."""

    def ask(self, bundles: Sequence[Bundle], strategy: Strategy) -> "RayGroup":
        """Ask for bundles, all or none."""
        amounts = [dict(bundle.amounts or A_LITTLE) for bundle in bundles]
        return RayGroup(placement_group(amounts, strategy, bundle_label_selector=[dict(bundle.labels) for bundle in bundles]))


class RayGroup:
    """One placement group of Ray."""

    def __init__(self, group: Any) -> None:
        self._group = group

    async def placed(self) -> list[str]:
        """Wait until it is placed; returns the ids of its bundles' nodes."""
        while True:
            await self._group.ready()
            nodes: Mapping[int, str] = placement_group_table(self._group)["bundles_to_node_id"]
            if all(nodes.values()):
                return [nodes[bundle] for bundle in sorted(nodes)]
            await asyncio.sleep(AGAIN_S)

    def scheduling(self, bundle: int) -> PlacementGroupSchedulingStrategy:
        """Return Ray's scheduling strategy of an actor that takes its share of a bundle."""
        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)

    def remove(self) -> None:
        """Give back what it holds, and end what still runs in it. Harmless the second time."""
        remove_placement_group(self._group)
