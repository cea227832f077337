"""Training a recipe: set-up, teachers, cost, warnings, and the resulting run."""
