from asyncrl.core.recipe.flatten import flatten


def test_nested_keys_are_joined_by_dots_and_an_empty_mapping_is_a_value():
    assert dict(flatten({"a": {"b": 1, "c": {}}, "d": "x"})) == {"a.b": 1, "a.c": {}, "d": "x"}
