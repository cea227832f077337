"""Studies: variants of a recipe, each trained with several seeds and compared with the first."""
