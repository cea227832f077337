"""`addnorm export`: export a model to Hugging Face, ONNX, CTranslate2, GGUF or a web page."""

from functools import partial
from pathlib import Path

from addnorm.cli.main import NewPlace
from addnorm.cli.where import ON_CPU, Imports, import_named, working
from addnorm.runs.options import ExportDtype, Form


def export(
    run: Path,
    out: NewPlace,
    *,
    to: Form = "hf",
    family: str | None = None,
    dtype: ExportDtype | None = None,
    imports: Imports = (),
) -> None:
    """Write a trained model in the form that another library opens.

    `hf` is a folder for `transformers`, of the first family that has all of the model's parts;
    `onnx` graphs for onnxruntime; `ctranslate2` a folder for CTranslate2; `gguf` a file for
    llama.cpp; `web` one HTML file that runs the model in a browser, without a server or a network.
    A part that the other library does not have is named, and nothing is written.
    Example: `addnorm export runs/my my.gguf --to gguf`.

    Parameters
    ----------
    run
        The run folder, or a Hugging Face folder.
    out
        The folder to write, for gguf and web the file.
    to
        The form.
    family
        The Hugging Face model type to write, such as llama; by default the first that fits.
    dtype
        The type of the weights; by default as they are, on a page int8.
    """
    import_named(imports)
    from addnorm.cli.terminal import console

    say = partial(console.out, highlight=False)
    opened = ON_CPU.open(run)
    with working("exporting"):
        opened.export(out, to=to, family=family, dtype=dtype, say=say)
