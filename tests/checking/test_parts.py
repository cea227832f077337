"""The list of parts matches the unions, with equations, sources and files."""

import sys
from pathlib import Path

import pytest

import addnorm
from addnorm.checking import FAMILY_NAMES
from addnorm.checking.parts import FAMILIES, equation, module_names, parts, source
from addnorm.cli.new import starting_file
from addnorm.errors import InputError
from addnorm.runs.recipes.custom_parts import import_parts


def test_every_part_has_an_equation_a_source_and_a_file() -> None:
    found = parts()
    assert {part.family for part in found} == set(FAMILIES)
    assert tuple(FAMILIES) == FAMILY_NAMES
    assert {part.kind for part in found if not (part.equation and part.source)} == {"hidden"}
    for part in found:
        assert (Path(addnorm.__file__).parent / part.file).is_file()


def test_a_part() -> None:
    [rmsnorm] = [part for part in parts("norms") if part.kind == "rmsnorm"]
    assert rmsnorm.name == "RMSNorm"
    assert rmsnorm.equation == "γ x / √(mean(x²) + ε)"
    assert rmsnorm.source == "Zhang & Sennrich 2019, eq. 4"
    assert rmsnorm.file == "nn/norms.py"
    scores = {part.kind: part.equation for part in parts("scores")}
    assert scores["bilinear"] != scores["dot"]
    [clamped] = [part for part in parts("feedforwards") if part.kind == "clamped"]
    assert clamped.source == "OpenAI 2025, §2.2", "a section after the number at arXiv"
    [convolution] = [part for part in parts("mixers") if part.kind == "gated_convolution"]
    assert convolution.source == "Liquid AI 2025"
    [parallel] = [part for part in parts("placements") if part.kind == "parallel"]
    assert parallel.equation == "x + attention(norm(x)) + feedforward(norm(x))"


def test_a_wrong_family() -> None:
    with pytest.raises(InputError, match="Did you mean 'norms'"):
        parts("norm")
    with pytest.raises(InputError, match="Valid: positions, "):
        parts("?")


def test_custom_parts_are_listed() -> None:
    from tests.checking import my_parts

    module = my_parts.__name__
    own = {part.name: part for part in parts(modules=[module]) if part.kind.startswith(module)}
    assert own["DyTConfig"].family == "norms"
    assert own["DyTConfig"].equation == "γ tanh(α x) + β"
    assert own["DyTConfig"].source == "Zhu et al. 2025, §4"
    assert own["BrierConfig"].family == "loss"
    assert {part.family for part in parts("loss", [module])} == {"loss"}
    assert own["LettersConfig"].family == "tokenizer"
    assert own["NeedsSizeConfig"].family == "norms or feedforwards"  # not left out
    assert "NeedsSizeConfig" in {part.name for part in parts("norms", [module])}
    assert "DyT" not in own
    assert module_names(["a/my_parts.py", "pkg.mod"]) == ["my_parts", "pkg.mod"]


def test_a_docstring_has_equation_and_source() -> None:
    class Told:
        """Turns `x` by `a x + b`, wherever.

        As in the paper of that name (Su et al. 2021, §3.2), and `c x`.
        """

    class Untold:
        """Takes `size`. Gives `a + b`."""

    assert equation(Told) == "a x + b"
    assert source(Told) == "Su et al. 2021, §3.2"
    assert equation(Untold) == source(Untold) == ""


@pytest.mark.parametrize(
    ("family", "equation", "source"),
    [
        ("norm", "γ x / (mean |x| + ε)", "Hoffer et al. 2018, §4"),
        ("position", "-log(1 + |i - j| / width)", "Chi et al. 2022"),
        ("optimizer", "θ -= η sign(β₁ m + (1 - β₁) g)", "Chen et al. 2023"),
        ("tokenizer", "", ""),
    ],
)
def test_a_starting_file_matches_its_module(
    family: str, equation: str, source: str, tmp_path: Path
) -> None:
    file = tmp_path / f"listed_{family}.py"
    file.write_text(starting_file(family, file), encoding="utf-8")
    try:
        import_parts([str(file)])
        [part] = [part for part in parts(modules=[file.stem]) if part.file == file.name]
    finally:
        sys.modules.pop(file.stem, None)
    assert part.family in (family, f"{family}s")
    assert (part.equation, part.source) == (equation, source)


def test_every_part_has_an_equation_and_a_source() -> None:
    """But for hidden states as they are, which are no equation and nobody's."""
    silent = {part.kind for part in parts() if not (part.equation and part.source)}
    assert silent == {"hidden"}
