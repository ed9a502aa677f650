"""Trains a workload with TRL's GRPOTrainer and prints how fast it was. The interpreter of the peers' environment runs it:

    .venv-peers/bin/python asyncrl/bench/peers/trl_grpo.py DESCRIPTION.json

The description is a :class:`asyncrl.bench.peers.peer.PeerDescription` as JSON, and the last line of the output a
:class:`asyncrl.bench.peers.peer.PeerResult`. This file imports nothing of asyncrl, which is not installed there. What the
description does not set is TRL's default, except that bfloat16 autocast, which needs a GPU, and gradient checkpointing, which
would only cost time here, are off.
"""

import importlib.util
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def main(description: dict[str, Any]) -> dict[str, float]:
    """Train, and measure from the end of the last warm-up step to the end of the last step.

    Args:
        description: the fields of a ``PeerDescription``.

    Returns:
        The fields of a ``PeerResult``.
    """
    os.environ |= {"OMP_NUM_THREADS": str(description["threads"]), "HF_HUB_OFFLINE": "1", "WANDB_DISABLED": "true"}
    # Imported only now, because torch reads the number of threads when it is imported.
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(description["threads"])
    tools = _module(Path(description["tools"]))

    class StepTimes(TrainerCallback):  # type: ignore[misc]  # asyncrl's own environment has no types of TRL
        """Notes when each training step ends."""

        def __init__(self) -> None:
            self.ended: list[float] = []

        def on_step_end(self, *arguments: Any, **keywords: Any) -> None:
            """Note the time."""
            self.ended.append(time.monotonic())

    def reward(completions: list[list[dict[str, Any]]], **others: Any) -> list[float]:
        return [sum(_turn_reward(tools, turn) for turn in episode if turn["role"] == "assistant") for episode in completions]

    tokenizer = AutoTokenizer.from_pretrained(description["model"])
    tokenizer.response_template = _response_template()
    model = AutoModelForCausalLM.from_pretrained(description["model"], dtype=torch.float32)
    rows = [json.loads(line) for line in Path(description["tasks"]).read_text(encoding="utf-8").splitlines()]
    times = StepTimes()
    batch = description["groups_per_step"] * description["group_size"]
    warm_up, steps = description["warm_up_steps"], description["steps"]
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=batch,
                num_generations=description["group_size"],
                max_completion_length=description["max_completion_tokens"],
                max_tool_calling_iterations=description["max_tool_rounds"],
                max_steps=warm_up + steps,
                learning_rate=description["learning_rate"],
                seed=description["seed"],
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]),
            processing_class=tokenizer,
            callbacks=[times],
            tools=[getattr(tools, description["tool"])],
        )
        trainer.train()
    seconds = times.ended[-1] - times.ended[warm_up - 1]
    logged = [entry for entry in trainer.state.log_history if "completions/mean_length" in entry][warm_up:]
    return {
        "trajectories_per_s": steps * batch / seconds,
        "seconds": seconds,
        "sampled_tokens": sum(entry["completions/mean_length"] for entry in logged) / len(logged),
        "tool_calls": sum(entry["tools/call_frequency"] for entry in logged) / len(logged),
        "failed_tool_calls": sum(entry["tools/failure_frequency"] for entry in logged) / len(logged),
    }


def _response_template() -> dict[str, Any]:
    """How TRL parses the scripted model's turns: text, and tool calls in the Hermes format."""
    return {
        "defaults": {"role": "assistant"},
        "start_anchor": ["<|respond|>", "<|resume|>"],
        "fields": {
            "tool_calls": {
                "open": "<tool_call>",
                "close_pattern": r"</tool_call>\s*",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close_pattern": r"<\|end\|>", "content": "text"},
        },
    }


def _turn_reward(tools: Any, turn: dict[str, Any]) -> float:
    arguments = [value for call in turn.get("tool_calls") or [] for value in call["function"]["arguments"].values()]
    reward: float = tools.turn_reward(turn.get("content") or "", arguments)
    return reward


def _module(file: Path) -> Any:
    """Import ``file`` as a module."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    result = main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    sys.stdout.write(f"\n{json.dumps(result)}\n")
