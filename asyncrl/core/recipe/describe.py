"""Puts types of the schema into words, for error messages and for the reference in docs/reference/recipe.md."""

from msgspec import inspect

from asyncrl.core.recipe.section import AUTO, is_automatic


def describe(value_type: inspect.Type) -> str:
    """Say what a value of this type is, e.g. ``a number > 0 and <= 1``. The text reads well after "must be".

    Raises:
        TypeError: no recipe key has had this type so far; add a case here when the schema starts to use it.
    """
    match value_type:
        case inspect.Metadata(type=chosen) if is_automatic(value_type):
            return f"{describe(chosen)}, or {AUTO}"
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"an integer{_range(value_type)}"
        case inspect.FloatType():
            return f"a number{_range(value_type)}"
        case inspect.StrType(pattern=pattern) if pattern:
            return f"text matching {pattern}"
        case inspect.StrType(min_length=1):
            return "text, not empty"
        case inspect.StrType():
            return "text"
        case inspect.LiteralType(values=(only,)):
            return str(only)
        case inspect.LiteralType(values=values):
            return f"one of {', '.join(str(value) for value in values)}"
        case inspect.DictType(value_type=inspect.StructType() | inspect.UnionType()):
            return "a mapping of names to sections"
        case inspect.DictType(value_type=inspect.FloatType() as number):
            return f"a mapping of names to numbers{_range(number)}"
        case inspect.DictType(value_type=inspect.TupleType(item_types=(inspect.IntType() as number, _))):
            return f"a mapping of names to the least and the most, such as [1, 4], each an integer{_range(number)}"
        case inspect.DictType():
            return "a mapping"
        case inspect.StructType():
            return "a section"
        case inspect.NoneType():
            return "null"
        case inspect.UnionType(types=types):
            return " or ".join(dict.fromkeys(describe(alternative) for alternative in types))
        case inspect.VarTupleType(item_type=inspect.StrType() as item, min_length=least):
            texts = describe(item).replace("text", "text" if least == 1 else "texts", 1)
            return f"a list of {f'at least {least} ' if least else ''}{texts}"
        case inspect.VarTupleType(
            item_type=(inspect.LiteralType() | inspect.UnionType(types=(inspect.StrType(), *_))) as item, min_length=least
        ):
            return f"a list{f' of at least {least}' if least else ''}, each {describe(item)}"
        case inspect.VarTupleType(item_type=item, min_length=least):
            entries = describe(item).removeprefix("a ").removeprefix("one ") + ("" if least == 1 else "s")
            return f"a list of {f'at least {least} ' if least else ''}{entries}"
    raise TypeError(f"describe() has no words for {value_type}, which the recipe schema uses; add a case for it")


def quote_it(place: str) -> str:
    """Say what to do about a value that YAML has not taken for text, at a key that wants text."""
    key = place.rpartition(".")[2]
    return f'YAML takes words such as no, 1e3 and 012 for truth values and numbers: quote it, as in {key}: "no"'


def _range(number: inspect.IntType | inspect.FloatType) -> str:
    bounds = ((">", number.gt), (">=", number.ge), ("<", number.lt), ("<=", number.le))
    spelling = "," if isinstance(number, inspect.IntType) else "g"
    words = [f"{sign} {bound:{spelling}}" for sign, bound in bounds if bound is not None]
    return f" {' and '.join(words)}" if words else ""
