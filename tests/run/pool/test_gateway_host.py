"""Agents reach the gateway where the recipe says."""

import pytest
import ray.util

from asyncrl.core.recipe.environment import AgentEnvironmentConfig
from asyncrl.run.pool.gateway_host import gateway_host

HERE = AgentEnvironmentConfig(command=("agent",))
ELSEWHERE = AgentEnvironmentConfig(command=("agent",), gateway="node")


@pytest.mark.parametrize(
    ("agents", "host"), [([HERE], "127.0.0.1"), ([HERE, ELSEWHERE], "192.0.2.7"), ([ELSEWHERE], "192.0.2.7")], ids=str
)
def test_the_widest_address_that_an_agent_needs(monkeypatch, agents, host) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "192.0.2.7")
    assert gateway_host(agents) == host
