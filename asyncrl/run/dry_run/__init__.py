"""What a launch plans and checks before anything starts."""
