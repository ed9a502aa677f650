"""The register of what the product replaces, reads or calls in Ray that Ray keeps to itself; see :mod:`asyncrl.core.reach`."""

from asyncrl.core.reach import Reach

_ALONE = "tests/run/host/test_ray.py::test_ray_is_the_run_s_alone_and_takes_no_sigterm"

REACHES = (
    Reach(
        files=("asyncrl/run/host/ray_cluster.py",),
        names=(
            *("ray._private", "ray._private.node.Node.start_api_server", "ray._private.node.Node.start_log_monitor"),
            "ray._private.node.Node.start_monitor",
        ),
        why="start none of three processes that serve nobody in a cluster of one run: each takes half a second of a start",
        test=_ALONE,
        needless="ray.init has settings for them",
    ),
    Reach(
        files=("asyncrl/run/host/ray_cluster.py",),
        names=("ray._raylet", "._ray_params", "._node_id"),
        why="write the files with the ports of Ray's agents on a very busy machine: the node manager waits 15 s for them",
        test="tests/run/host/test_ray.py::test_ray_starts_where_its_agents_are_slower_than_it_allows",
        needless="Ray has a setting for that deadline (its issue 65983)",
    ),
    Reach(
        files=("asyncrl/run/host/ray_cluster.py",),
        names=("ray._private.worker.print_to_stdstream",),
        why="log what Ray says, which it would write in between what the run shows",
        test="tests/core/test_reach.py::test_what_is_reached_is_still_where_it_was",
        needless="Ray hands messages to a logger",
    ),
    Reach(
        files=("asyncrl/run/host/ray_cluster.py",),
        names=("ray._private.worker._global_node", ".terminate"),
        why="end Ray's processes at once: they have SIGTERM blocked, and Ray waits a second for each",
        test="tests/run/host/test_ray.py::test_what_ray_leaves_is_removed_unless_the_run_failed",
        needless="ray.shutdown takes how long it waits",
    ),
    Reach(
        files=("asyncrl/run/host/ray_cluster.py",),
        names=("ray.job_config.JobConfig._serialize", "._py_driver_sys_path"),
        why="have actors look for modules in the current folder last; with Ray's order, the user's random.py hides Python's",
        test="tests/run/host/test_ray.py::test_no_file_of_the_current_folder_hides_a_library",
        needless="Ray keeps the order of the driver's sys.path",
    ),
    Reach(
        files=("asyncrl/run/host/brought_folder.py",),
        names=("ray._private.runtime_env.packaging",),
        why="know how much a folder holds before Ray packs it: it would read all of it, and then refuse what is too large",
        test="tests/run/host/test_brought_folder.py::test_what_is_counted_is_what_ray_packs",
        needless="Ray has a limit that it looks at first",
    ),
    Reach(
        files=("asyncrl/run/nodes/cluster_nodes.py",),
        names=("ray._private.state.available_resources_per_node",),
        why="know what each node has free; ray.available_resources adds up all nodes, and ray.util.state needs the dashboard",
        test="tests/run/nodes/test_placed_processes.py::test_a_plan_and_a_run_put_every_process_on_the_same_nodes",
        needless="ray.nodes says what is free",
    ),
)
"""What is reached in Ray 2.50 and later."""
