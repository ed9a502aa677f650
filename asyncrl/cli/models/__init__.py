"""Commands for after training: talking to a model, serving and publishing it."""
