"""The agent of mini-swe-agent with a shell in its workspace, over chat completions."""

import os

import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import builtin_config_dir
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel


def solve(task):
    config = yaml.safe_load((builtin_config_dir / "mini.yaml").read_text())
    templates = {name: config["agent"][name] for name in ("system_template", "instance_template")}
    model = LitellmModel(**{**config["model"], "model_name": "openai/main", "cost_tracking": "ignore_errors"})
    agent = DefaultAgent(model, LocalEnvironment(cwd=os.getcwd()), step_limit=6, cost_limit=0, **templates)
    return str(agent.run(task["prompt"]).get("submission", ""))
