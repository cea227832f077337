"""Options are declared once: known without torch, and named as the configurations name them."""

import subprocess
import sys
from dataclasses import fields

import pytest

from addnorm.cli.main import app
from addnorm.generate import BeamConfig, SampleConfig
from addnorm.runs.inference.decoding import ENDS, SAMPLING
from addnorm.runs.options import DecodingOptions

SCRIPT = """
import sys
from addnorm.cli.main import COMMANDS, app
for name in COMMANDS:
    if app[name].default_command is not None:
        app[name].assemble_argument_collection()
sys.exit("torch" in sys.modules)
"""


def test_the_options_of_every_command_are_known_without_torch() -> None:
    assert subprocess.run([sys.executable, "-c", SCRIPT]).returncode == 0


@pytest.mark.parametrize("name", ["generate", "classify", "embed", "fill", "forecast"])
def test_every_option_has_its_sentence(name: str) -> None:
    for argument in app[name].assemble_argument_collection(parse_docstring=True):
        if argument.show:
            assert argument.parameter.help, argument.name


def test_options_of_decoding_are_fields_of_its_configurations() -> None:
    beam, sample = (
        {field.name for field in fields(config)}  # pyright: ignore[reportArgumentType]
        for config in (BeamConfig, SampleConfig)
    )
    assert {*ENDS, "beams", "n_best"} <= beam
    assert {*SAMPLING, "seed"} == sample - {"kind", "rules"}
    rules = {"no_repeat_ngram", "forced_bos"}
    assert DecodingOptions.__annotations__.keys() == {
        *ENDS, "beams", "n_best", *SAMPLING, "seed", *rules,
    }  # fmt: skip
