"""A trained model on the Hugging Face hub: its card, made from the run, and the way there."""
