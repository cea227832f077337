"""Error messages suggest the nearest valid name, or none."""

import ast
import re
import sys
import warnings
from pathlib import Path

import pytest

import addnorm
from addnorm.errors import (
    IgnoredSettings,
    InputError,
    Interrupted,
    nearest,
    optional,
    print_warnings,
)

PACKAGE = Path(addnorm.__file__).parent


def test_an_optional_package_is_imported_or_named_with_its_extra() -> None:
    assert optional("json.decoder", "x", "this") is sys.modules["json.decoder"]
    with pytest.raises(InputError, match=r"^this needs an .*: pip install 'addnorm\[x\]'$"):
        optional("no_such_package", "x", "this")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rotory", " Did you mean 'rotary'?"),
        ("RoPE", " Did you mean 'rotary'?"),
        ("lstm", ""),  # recurrent is not among them
        ("xyz", ""),
        ("", ""),
        ("none", " Did you mean 'none'?"),
    ],
)
def test_nearest(name: str, expected: str) -> None:
    assert nearest(name, ["rotary", "sinusoidal", "none"]) == expected


@pytest.mark.parametrize("name", ["mish", "quick_gelu", "tanh", "leaky_relu", "GLU"])
def test_another_function_is_never_offered(name: str) -> None:
    assert nearest(name, ["swish", "gelu", "gelu_tanh", "relu", "silu", "geglu"]) == ""


def test_nothing_is_near_among_nothing() -> None:
    assert nearest("rotary", []) == ""


def test_a_mistake_is_a_value_error_and_an_interruption_is_not() -> None:
    assert issubclass(InputError, ValueError)
    assert not issubclass(Interrupted, ValueError)
    assert Interrupted(7).step == 7
    assert "step 7" in str(Interrupted(7))
    assert "step 7 is lost, saved" in str(Interrupted(7, saved=6))
    assert "steps 6 to 7 are lost" in str(Interrupted(7, saved=5))


def test_an_interruption_is_the_same_in_another_process() -> None:
    import pickle

    for error in (Interrupted(7), Interrupted(7, saved=3)):
        error.add_note("go on")
        found = pickle.loads(pickle.dumps(error))
        assert (str(found), found.step, found.saved) == (str(error), error.step, error.saved)


def test_our_warnings_are_lines_for_users(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = list[str]()
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: others.append(str(message)))
    print_warnings()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("config.json: x is ignored", IgnoredSettings, stacklevel=1)
        warnings.warn("of another library", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "addnorm: config.json: x is ignored\n"
    assert others == ["of another library"]


def test_messages_outside_the_command_line_name_no_options() -> None:
    """In Python an option is `name = value`; a command stands whole, as `addnorm train …`."""
    outside = (file for file in PACKAGE.rglob("*.py") if "cli" not in file.parts)
    raised = [
        ast.unparse(node)
        for file in outside
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Raise)
    ]
    assert len(raised) > 1000
    assert not [text for text in raised if re.search("--[a-z]", re.sub("`addnorm[^`]*`", "", text))]
