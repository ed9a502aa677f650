"""The recipe: strict structs (:mod:`.schema`), rules between keys (:mod:`.rules`), decoding with helpful errors."""
