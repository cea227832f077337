"""Training a recipe: set-up, teachers, cost, warnings, the run that is written."""
