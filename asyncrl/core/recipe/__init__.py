"""The recipe: strict structs (:mod:`.schema`), the rules between keys (:mod:`.rules`), decoding with errors that help (:mod:`.decode`)."""
