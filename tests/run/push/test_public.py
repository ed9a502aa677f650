"""What may be published of a recipe: no secret, no path, no address."""

import pytest

from asyncrl.run.push.public import LEFT_OUT, public_text, published_recipe, without_secrets

SECRET = "hunter2hunter2"
TOKEN = "hf_" + "a1B2" * 8


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("/home/ann/models/base", ".../base"),
        ("/home/ann smith/my base/", ".../my base"),
        ("~/models/base", ".../base"),
        ("~ann/base", ".../base"),
        ("C:\\Users\\ann\\base", ".../base"),
        ("--data=/home/ann/x.jsonl and /data/ann/y.jsonl", "--data=.../x.jsonl and .../y.jsonl"),
        ("PATH=/home/ann/bin:/opt/ann/bin", "PATH=.../bin:.../bin"),
        ("s3://ann:pw@bucket/ann/tasks.parquet?region=eu", "s3://.../tasks.parquet"),
        ("s3://ann:pw@bucket", "s3://..."),
        ("https://ann:pw@mlflow.corp:5000/x?token=1", "https://..."),
        ("see https://hooks.chat.com/services/T0/B0/abc, then go", "see https://... then go"),
        ("ws://10.0.0.3:8765", "ws://..."),
        ("postgresql+psycopg://ann:pw@db/runs", "postgresql+psycopg://.../runs"),
        (f"use {TOKEN} here", f"use {LEFT_OUT} here"),
        ("api_key=abc123, go on", f"api_key={LEFT_OUT}, go on"),
        ("Authorization: Bearer abc.def", f"Authorization: {LEFT_OUT}"),
        ("with bearer abc.defghi", f"with bearer {LEFT_OUT}"),
        ('{"password": "a b", "x": 1}', f'{{"password": "{LEFT_OUT} b", "x": 1}}'),
        # These are no paths, addresses or secrets.
        ("Qwen/Qwen3-0.6B@main", "Qwen/Qwen3-0.6B@main"),
        ("data/train.jsonl", "data/train.jsonl"),
        ("</tool_call>\n{{ x }}</think>", "</tool_call>\n{{ x }}</think>"),
        ("a/b and 3/4/5, either/or", "a/b and 3/4/5, either/or"),
        ("my_package.envs:Calculator", "my_package.envs:Calculator"),
        ("/", "/"),
        ("token", "token"),
    ],
)
def test_texts(text, public):
    assert public_text(text) == public


@pytest.mark.parametrize(
    ("section", "public"),
    [
        ({"options": {"api_key": SECRET, "depth": 3}}, {"options": {"api_key": LEFT_OUT, "depth": 3}}),
        ({"options": {"nested": [{"db_password": SECRET}]}}, {"options": {"nested": [{"db_password": LEFT_OUT}]}}),
        ({"variables": {"PLAIN": SECRET}}, {"variables": {"PLAIN": LEFT_OUT}}),
        ({"command": ["serve", "--api-key", SECRET, "-v"]}, {"command": ["serve", "--api-key", LEFT_OUT, "-v"]}),
        ({"command": [f"--token={SECRET}"]}, {"command": [f"--token={LEFT_OUT}"]}),
        # Keys of recipes that only sound like secrets.
        (
            {"token_variable": "MY_TOKEN", "max_turn_tokens": 8, "level": "token", "tool_parser": "hermes", "secrets": ["A"]},
            {"token_variable": "MY_TOKEN", "max_turn_tokens": 8, "level": "token", "tool_parser": "hermes", "secrets": ["A"]},
        ),
    ],
)
def test_values(section, public):
    assert published_recipe({"environment": section}) == {"environment": public}


def test_where_a_run_was_kept_is_left_out():
    recipe = {"name": "a", "run_dir": "x", "tracking": {}, "checkpoint": {}, "notify": {}, "network": {}, "seed": 0}
    assert published_recipe(recipe) == {"name": "a", "seed": 0}


def test_values_of_variables_that_are_named_like_secrets_become_their_names():
    environ = {"MY_API_KEY": SECRET, "HF_TOKEN": "true", "HOME": "/home/ann"}
    assert without_secrets(f"system: use {SECRET}; true", environ) == "system: use <MY_API_KEY>; true"
