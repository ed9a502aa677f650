"""Starts a Ray cluster that grows and shrinks by itself: Ray's ``AutoscalingCluster``, whose nodes are processes of this machine.

It ends all of Ray that it finds before it starts, so it is for a host made by ``namespace_hosts.py`` alone:
``python tests/run/nodes/autoscaled.py HEAD_CPUS WORKERS`` starts it there, with up to ``WORKERS`` nodes of one CPU that have
the label ``role=inference``.
"""

import os
import sys
from pathlib import Path
from typing import Any

from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider
from ray.cluster_utils import AutoscalingCluster

GIB = 1 << 30
IDLE_MINUTES = 0.1
STORE_BYTES = 80 << 20
_NO_COMMANDS = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")


class Nodes(FakeMultiNodeProvider):
    """Ray's fake provider, whose nodes find out by themselves how much memory they have: it cannot tell them."""

    def _create_node_with_resources_and_labels(
        self, node_config: Any, tags: Any, count: int, resources: dict[str, float], labels: Any
    ) -> None:
        counted = {name: amount for name, amount in resources.items() if name != "memory"}
        super()._create_node_with_resources_and_labels(node_config, tags, count, counted, labels)


class Autoscaled(AutoscalingCluster):
    """Ray's packages do not have the file that its class begins with; this is what is in it."""

    def _generate_config(
        self, head_resources: dict[str, float], worker_node_types: dict[str, Any], autoscaler_v2: bool = False, **further: Any
    ) -> dict[str, Any]:
        head = {"resources": dict(head_resources), "node_config": {}, "max_workers": 0}
        provider = {
            "type": "external",  # else Ray looks for the same file again
            "module": "autoscaled.Nodes",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "launch_multiple": True,
            "head_node_id": "fffffffffffffffffffffffffffffffffffffffffffffffffff00000",
        }
        return {
            "cluster_name": "autoscaled",
            "max_workers": 8,
            "upscaling_speed": 1.0,
            "idle_timeout_minutes": IDLE_MINUTES,
            "provider": provider,
            "head_node_type": "ray.head.default",
            "available_node_types": {**worker_node_types, "ray.head.default": head},
            "auth": {},
            "docker": {},
            "file_mounts": {},
            "cluster_synced_files": [],
            "file_mounts_sync_continuously": False,
            "rsync_exclude": [],
            "rsync_filter": [],
            **{f"{name}_commands": [] for name in _NO_COMMANDS},
            **further,
        }


def main(head_cpus: int, workers: int) -> None:
    """Start it."""
    os.environ["PYTHONPATH"] = f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"  # Ray's monitor imports this module
    resources = {"CPU": 1, "memory": 4 * GIB, "object_store_memory": STORE_BYTES}
    kind = {"resources": resources, "node_config": {}, "labels": {"role": "inference"}, "min_workers": 0, "max_workers": workers}
    head = {"CPU": head_cpus, "object_store_memory": STORE_BYTES}
    Autoscaled(head, {"inference": kind}, autoscaler_v2=True).start()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
