"""Stands in for ``asyncrl launch``: makes a run folder, and ends as the file ``script.json`` says for this point and attempt.

It holds the run's lock, has a summary, and takes SIGINT, as a run does. What it did is in ``calls.jsonl`` beside the script.
"""

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

place, arguments = Path(sys.argv[1]), sys.argv[2:]
resumed = arguments[0] == "--resume"
if resumed:
    run = Path(arguments[1])
else:
    name, folder = Path(arguments[0]).stem, Path(arguments[1].partition("=")[2].strip("'"))
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    run = folder / f"{name}-{stamp}"
    while run.exists():
        run = run.with_name(f"{run.name}-2")
script = json.loads((place / "script.json").read_text())
setting, _, seed = run.name.partition("-seed-")
point = f"{setting.partition('-')[0]}.{seed.partition('-')[0]}"
with (place / "calls.jsonl").open("a") as calls:
    fcntl.flock(calls, fcntl.LOCK_EX)
    past = [json.loads(line)["point"] for line in (place / "calls.jsonl").read_text().splitlines()]
    acts = script.get(point, ["complete"])
    act = acts[min(past.count(point), len(acts) - 1)]
    call = {"point": point, "resumed": resumed, "act": act, "cwd": os.getcwd(), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
    calls.write(json.dumps(call) + "\n")
if act == "refuse":
    print("Refused, nothing was started:\n  there is no way to go on with it")
    sys.exit(2)
run.mkdir(exist_ok=True)
(run / "recipe.yaml").write_text("name: made\n")
lock = (run / "driver.lock").open("w")
fcntl.flock(lock, fcntl.LOCK_EX)
(run / "summary.json").unlink(missing_ok=True)


def end(status: str, reason: str, code: int) -> None:
    figures = {"trajectories_per_s": 10.0 + len(run.name) % 3, "eval": {"first": 0.1, "last": 0.5}, "training_s": 10.0}
    (run / "summary.json").write_text(json.dumps({"status": status, "reason": reason, "steps": 3, **figures}))
    lock.close()
    os._exit(code)


signal.signal(signal.SIGINT, lambda *_: end("interrupted", "stopped by SIGINT", 130))
(run / "begun").touch()
match act:
    case "complete":
        end("completed", "", 0)
    case "fail":
        end("failed", "an engine died", 1)
    case "vanish":
        os._exit(9)
    case "wait":
        time.sleep(300)
