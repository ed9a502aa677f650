"""What the model is told about a run in the sandbox."""

from asyncrl.envs.sandbox.limits import Limits
from asyncrl.envs.sandbox.messages import Finished, Reason


def describe_run(finished: Finished, limits: Limits) -> str:
    """Say what was printed, and how the run ended if it was stopped or failed without saying why; never empty."""
    parts = [finished.stdout.decode(errors="replace"), finished.stderr.decode(errors="replace"), how_it_ended(finished, limits)]
    return "\n".join(part.rstrip("\n") for part in parts if part) or "(no output)"


def how_it_ended(finished: Finished, limits: Limits) -> str:
    """Say how a run ended, if it was stopped or failed without saying why."""
    match finished.reason:
        case Reason.EXITED:
            return f"(exit status {finished.exit_code})" if finished.exit_code and not finished.stderr else ""
        case Reason.WALL_TIME:
            return f"(stopped: it took longer than {limits.wall_s:g} s)"
        case Reason.CPU_TIME:
            return f"(stopped: it used more than {limits.cpu_s:g} s of processor time)"
        case Reason.MEMORY:
            return f"(stopped: it used more than {limits.memory_mb} MiB of memory)"
        case Reason.PROCESSES:
            return f"(stopped: it had more than {limits.processes} processes and threads)"
        case Reason.FOLDER:
            return f"(stopped: the files in this folder are larger than {limits.folder_mb} MiB)"
        case Reason.OUTPUT:
            return f"(stopped: it printed more than {limits.output_kb} KiB)"
        case Reason.STOPPED:
            return "(stopped)"
