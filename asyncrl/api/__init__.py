"""What asyncrl offers to Python programs and notebooks; ``import asyncrl`` has all of it."""
