"""Where the gateway of a worker's agents listens."""

from collections.abc import Iterable

import ray.util

from asyncrl.core.recipe.environment import AgentEnvironmentConfig
from asyncrl.generators.gateway.server import LOOPBACK


def gateway_host(agents: Iterable[AgentEnvironmentConfig]) -> str:
    """Return the address at which all of these agents reach the gateway on this node."""
    return str(ray.util.get_node_ip_address()) if any(each.gateway == "node" for each in agents) else LOOPBACK
