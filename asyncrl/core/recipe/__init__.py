"""The recipe: strict structs (:mod:`.schema`), rules between keys (:mod:`asyncrl.core.recipe.rules.broken_rules`), decoding with
helpful errors."""
