"""`addnorm new`: write a commented template for a custom part."""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from addnorm.cli.main import NewFile
from addnorm.errors import InputError, choices


def new(family: str, file: NewFile) -> None:
    """Write a starting file for a part, a task or a family of checkpoints of your own.

    The file works as it is, and its first lines say how to check it and how to train with it. It is
    not replaced where it is there already. Example: `addnorm new norm my_norm.py`.

    Parameters
    ----------
    family
        What the part is: norm, position, score, feedforward, mixer, placement, core, output,
        pattern, embedding, head, loss, schedule, optimizer, tokenizer, data, batching; task, with
        its examples, its head and its loss; or family, of Hugging Face checkpoints.
    file
        The file to write, such as my_norm.py; of a family, its name is the `model_type`.
    """
    text = starting_file(family, file)
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError as error:
        raise InputError(f"{file}: exists already: choose another name") from error
    module = file.stem
    command = next(line for line in text.splitlines() if line.startswith("addnorm check"))
    print(f"{file}: your own {family}, to begin with. Next: {command}")
    if family == "family":
        print(f"Every command opens folders of model_type {module} with --import {file}")
    else:
        print(f"Its name in a recipe: {kind_in(text, module)}, with --import {file}")


def starting_file(family: str, file: Path) -> str:
    """The text of a template. Raises `InputError` for an unknown family or an invalid name."""
    from importlib.util import find_spec

    families = sorted(file.name.removesuffix(".txt") for file in _folder().iterdir())
    if family not in families:
        raise InputError(f"{family!r} is not a family of parts.{choices(family, families)}")
    if file.suffix != ".py" or not file.stem.isidentifier():
        raise InputError(f"{file}: a module is named like my_{family}.py")
    if not file.exists() and find_spec(file.stem) is not None:
        raise InputError(
            f"{file}: {file.stem!r} is the name of another module: choose another name"
        )
    text = (_folder() / f"{family}.txt").read_text(encoding="utf-8")
    return text.replace("MODULE", file.stem)


def kind_in(text: str, module: str) -> str:
    """The `kind` of the configuration that a template defines."""
    [name] = [
        line.removeprefix("class ").rstrip(":")
        for line in text.splitlines()
        if line.startswith("class ") and line.endswith("Config:")
    ]
    return f"{module}:{name}"


def _folder() -> Traversable:
    return files("addnorm.cli") / "starting_files"
