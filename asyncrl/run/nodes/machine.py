"""Finds out what the machine, or the cluster, has that a run depends on."""

import os
import time

import msgspec
import psutil

from asyncrl.core.errors import ComponentFailed, RecipeError
from asyncrl.core.process.control_groups import cores_of_group, memory_of_group, usable_cores, used_processor_time
from asyncrl.core.process.processor import instructions
from asyncrl.run.host import gpus
from asyncrl.run.nodes.cluster_nodes import Nodes, look_up_nodes

JOIN_S = 60.0
"""How long joining a cluster may take."""

BFLOAT16_INSTRUCTIONS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Names in ``/proc/cpuinfo`` of instructions that multiply bfloat16: two of x86 processors, then one of ARM."""


class Machine(msgspec.Struct, frozen=True):
    """What one machine has.

    Attributes:
        memory, free: memory in all, and free now, in bytes, as far as its control groups allow.
        cores: processor cores that this process may keep busy.
        gpus: number of NVIDIA GPUs that this process may use and the installed packages can use.
        bfloat16: whether the processor has instructions for bfloat16; without them vLLM computes it several times slower than
            float32.
        gpu_memory, gpu_name: memory of the smallest GPU, in bytes, and its name; 0 and empty if they are not known.
        idle_gpus: how many GPUs are there but not used, and why; empty if there are none.
        cluster: the nodes of the cluster that a run would join, whose memory, cores and GPUs are counted together; None for one
            machine.
    """

    memory: int
    free: int
    cores: int
    gpus: int = 0
    bfloat16: bool = False
    gpu_memory: int = 0
    gpu_name: str = ""
    idle_gpus: str = ""
    cluster: Nodes | None = None

    @classmethod
    def for_runs(cls) -> "Machine":
        """The cluster that ``RAY_ADDRESS`` names, where runs go, or this machine; asking a cluster takes seconds.

        Raises:
            RecipeError: the cluster cannot be joined.
        """
        address = os.environ.get("RAY_ADDRESS")
        if not address:
            return cls.here()
        try:
            return cls.here().in_cluster(look_up_nodes(JOIN_S))
        except ComponentFailed as failure:
            raise RecipeError(
                "", str(failure), "start the cluster, or unset RAY_ADDRESS to run on this machine alone"
            ) from failure

    def in_cluster(self, nodes: Nodes) -> "Machine":
        """This machine as one node of a cluster."""

        def in_all(resource: str, free: bool = False) -> float:
            return sum((node.free if free else node.has).get(resource, 0) for node in nodes.alive)

        return msgspec.structs.replace(
            self,
            memory=int(in_all("memory")),
            free=int(in_all("memory", free=True)),
            cores=int(in_all("CPU")) or self.cores,
            gpus=int(in_all("GPU")),
            idle_gpus="",
            cluster=nodes,
        )

    @classmethod
    def here(cls) -> "Machine":
        """This machine."""
        found, group = psutil.virtual_memory(), memory_of_group()
        usable, visible = gpus.usable(), gpus.count_visible()
        smallest = min(gpus.describe_visible(), key=lambda gpu: gpu.memory, default=None) if usable else None
        return cls(
            memory=min(found.total, group.limit) if group else found.total,
            free=min(found.available, group.left) if group else found.available,
            cores=usable_cores(),
            gpus=usable,
            bfloat16=not BFLOAT16_INSTRUCTIONS.isdisjoint(instructions()),
            gpu_memory=smallest.memory if smallest else 0,
            gpu_name=smallest.name if smallest else "",
            idle_gpus=f"{visible}, because {gpus.why_unused()}" if visible and not usable else "",
        )


class BusyCores:
    """Measures which share of the cores that this process may keep busy was busy, from now on."""

    def __init__(self) -> None:
        self._then, self._used = time.monotonic(), used_processor_time()
        psutil.cpu_percent(percpu=True)  # the first call begins the measurement

    def since_last(self) -> float:
        """The share since the last call. Where control groups allow less time, it is a share of that, used by their processes."""
        now, used, allowed = time.monotonic(), used_processor_time(), cores_of_group()
        then, before, self._then, self._used = self._then, self._used, now, used
        busy = psutil.cpu_percent(percpu=True)
        bound = os.sched_getaffinity(0)
        mine = [busy[core] for core in bound if core < len(busy)]
        if allowed is not None and allowed < len(bound) and used is not None and before is not None:
            return min(1.0, max(0.0, used - before) / allowed / max(now - then, 1e-3))  # limits may move to another group
        return sum(mine) / len(mine) / 100 if mine else 0.0
