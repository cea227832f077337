"""`addnorm schema`: print the JSON schema of recipes, for editors."""

import json


def schema() -> None:
    """Print the JSON schema of a recipe, by which editors complete it and mark mistakes.

    Write `#:schema recipe.schema.json` as the first line of a recipe: editors with a TOML language
    server read it. Example: `addnorm schema > recipe.schema.json`.
    """
    from addnorm.runs.recipes.schema import recipe_schema

    print(json.dumps(recipe_schema(), indent=1, ensure_ascii=False))
