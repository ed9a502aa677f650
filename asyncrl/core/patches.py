"""The register of what the product reads in Python's standard library that it keeps to itself; see :mod:`asyncrl.core.reach`."""

from asyncrl.core.reach import Reach

REACHES = (
    Reach(
        files=("asyncrl/authoring/made_values.py",),
        names=("re._constants", "re._parser"),
        why="make texts that a pattern matches from the parser's tree: nothing public reads a pattern",
        test="tests/authoring/test_made_values.py::test_a_text_is_made_that_matches",
        needless="re shows its tree",
    ),
    Reach(
        files=("asyncrl/cli/completion.py", "asyncrl/cli/arguments.py"),
        names=("argparse.ArgumentParser._actions", "argparse._SubParsersAction"),
        why="give shells what completes each argument of each command; and name the type of a parser's commands",
        test="tests/cli/test_completion.py::test_an_interactive_bash_completes_commands_recipes_keys_and_runs",
        needless="argparse lists the arguments and commands of a parser",
    ),
    Reach(
        files=("docs/pages/commands.py",),
        names=("argparse.ArgumentParser._actions", "argparse._SubParsersAction", "argparse._HelpAction"),
        why="list what each command takes on the page of the command line",
        test="tests/cli/test_made_pages.py::test_the_command_line_is_there_with_ranges_and_examples",
        needless="argparse lists the arguments and commands of a parser",
    ),
    Reach(
        files=("asyncrl/core/files/owned_memory.py",),
        names=("._fd",),
        why="hold a lock on the file of shared memory as long as it is open",
        test="tests/generators/vllm/test_owned_queues.py::test_a_queue_of_a_killed_engine_is_removed_by_the_next_launch",
        needless="SharedMemory shows its file descriptor",
    ),
    Reach(
        files=("generators/vllm/engine_folder.py",),
        names=(".[_config]",),
        why="have multiprocessing keep its sockets in the engine's folder, which goes with the engine",
        test="tests/generators/vllm/test_engine_folder.py::test_a_generator_that_ray_ends_leaves_nothing",
        needless="multiprocessing takes a folder for its sockets",
    ),
    Reach(
        files=("asyncrl/run/host/actor_process.py",),
        names=(".[_args_from_interpreter_flags]",),
        why="start interpreters with -P, for which there is no call: files of the current folder would hide libraries in them",
        test="tests/run/host/test_ray.py::test_no_file_of_the_current_folder_hides_a_library",
        needless="multiprocessing starts all its interpreters with -P",
    ),
    Reach(
        files=("generators/vllm/cpu/forked_workers.py",),
        names=("multiprocessing.forkserver._forkserver", "multiprocessing.forkserver._forkserver.ensure_running"),
        why="fork an engine's workers from the server that the engine was forked from; Python would start another one",
        device="CPU",
        test="tests/core/test_reach.py::test_what_is_reached_is_still_where_it_was",
        needless="a process forked from a server can use that server",
    ),
)
"""What is reached in Python 3.11 to 3.13."""
