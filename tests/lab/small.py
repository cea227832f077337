"""A recipe small enough to be trained several times in a test."""

from pathlib import Path

from addnorm.lab.studies.options import StudyOptions
from addnorm.lab.studies.study import Study, study_of

RECIPE = """
[data]
kind = "text"
train = "{folder}/text.txt"
valid_fraction = 0.2

[tokenizer]
kind = "char"

[model]
kind = "decoder"
d_model = 16
n_layers = 1
attention = {{ n_heads = 2 }}

[train]
steps = {steps}
lr = 0.01
save_every = 4
batching = {{ kind = "windows", batch_size = 4, seq_len = 16 }}
"""


def recipe_file(folder: Path, steps: int = 8) -> Path:
    """Write the recipe and its text."""
    lines = [f"{n} and {n} make {2 * n}.\n" for n in range(120)]
    (folder / "text.txt").write_text("".join(lines), "utf-8")
    file = folder / "small.toml"
    file.write_text(RECIPE.format(folder=folder, steps=steps), "utf-8")
    return file


def small_study(
    folder: Path, *values: str, seeds: int = 2, steps: int = 8, question: str = "", **parts
) -> Study:
    """A study of two norms, or of other values of it."""
    vary = {"model.norm": list(values or ("layernorm", "rmsnorm"))}
    file = recipe_file(folder, steps)
    return study_of(
        file, folder / "study", vary, StudyOptions(seeds=seeds, question=question), **parts
    )
