"""Makes an environment for each agent of others that is tested: ``python tests/agents/install.py [NAME ...]``.

They are made in the folder that ``ASYNCRL_TEST_AGENTS`` names, else in the user's cache; tests of agents that are not there are
skipped. Nothing but the package index is asked.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

PACKAGES = {
    "openai-agents": "openai-agents==0.24.*",
    "pydantic-ai": "pydantic-ai-slim[openai,anthropic]==2.68.*",
    "langgraph": "langgraph==1.2.* langchain-openai",
    "mini-swe-agent": "mini-swe-agent==2.4.*",
    "smolagents": "smolagents[openai]==1.26.*",
    "verifiers": "verifiers==0.4.* renderers[transformers]",
}


def folder() -> Path:
    """Where the environments are."""
    return Path(os.environ.get("ASYNCRL_TEST_AGENTS", Path.home() / ".cache" / "asyncrl-test-agents"))


def interpreter(name: str) -> Path:
    """The Python of an agent's environment."""
    return folder() / name / "bin" / "python"


def is_installed(name: str) -> bool:
    """Whether an agent's environment is there, whole."""
    return (folder() / name / "installed").is_file()


def install(name: str) -> None:
    """Make an agent's environment, unless it is there."""
    if is_installed(name):
        return
    venv.create(folder() / name, with_pip=True, clear=True, symlinks=True)
    subprocess.run(
        [interpreter(name), "-I", "-m", "pip", "install", "--quiet", "--no-compile", *PACKAGES[name].split()], check=True
    )
    (folder() / name / "installed").touch()


if __name__ == "__main__":
    for each in sys.argv[1:] or PACKAGES:
        sys.stdout.write(f"{each}\n")
        install(each)
