"""The registers of what the product replaces in packages that environments are made of; see :mod:`asyncrl.core.reach`."""

from asyncrl.core.reach import Reach

MCP = (
    Reach(
        files=("asyncrl/envs/mcp/session.py",),
        names=(".validate_tool_result", "mcp.client._transport.Transport"),
        why="leave results unchecked: the client checks them in the event loop by the server's own schema, perhaps for ever",
        test="tests/envs/test_mcp.py::"
        "test_a_server_with_hostile_schemas_is_refused_when_its_session_begins_and_its_results_pass_unchecked",
        needless="a client can be told to check no results",
    ),
)
"""What is reached in the MCP client 2."""

REASONING_GYM = (
    Reach(
        files=("asyncrl/envs/builtin/reasoning_gym_scoring.py",),
        names=(".[eval]", ".[name]"),
        why="score answers without running their code: some scorers give them to eval, or to sympy's parse_expr",
        test="tests/envs/builtin/test_reasoning_gym.py::test_no_code_of_an_answer_is_run",
        needless="reasoning-gym parses answers",
    ),
)
"""What is reached in reasoning-gym 0.1.25."""

VERIFIERS = (
    Reach(
        files=("asyncrl/envs/other_projects/verifiers.py",),
        names=(".funcs",),
        why="hear what a rubric's function raises: the library counts it as 0, and only its log says so",
        test="tests/envs/other_projects/test_others.py::test_what_the_rubric_of_verifiers_counts_as_0_because_it_raised_is_told",
        needless="a rollout's output says which functions raised",
    ),
    Reach(
        files=("asyncrl/envs/other_projects/verifiers_code.py",),
        names=(".call_tool",),
        why="hear what a tool raises: the library makes it the text that the model is told",
        test="tests/envs/other_projects/test_others.py::test_a_tool_of_verifiers_that_raises_is_a_tool_that_failed",
        needless="a tool's message says whether the tool raised",
    ),
)
"""What is reached in verifiers 0.1.14."""

OPENENV = (
    Reach(
        files=("asyncrl/envs/other_projects/openenv.py",),
        names=("openenv.core.generic_client.GenericEnvClient._receive",),
        why="read which fields of an action do not fit, and so whether it is the action that does not: the client drops them",
        test="tests/envs/other_projects/test_others.py::"
        "test_an_action_that_openenv_refuses_is_the_policys_and_an_exception_of_its_environment_is_not",
        needless="the client's error has what the server says of it",
    ),
)
"""What is reached in openenv-core 0.3."""
