"""`addnorm parts`: a table for people, a JSON array for programs."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

Command = Callable[..., tuple[int, str, str]]


def test_a_table(addnorm: Command) -> None:
    code, out, err = addnorm("parts", "placements")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split() == ["family", "kind", "equation", "source", "file"]
    assert "deepnorm" in out


def test_json(addnorm: Command) -> None:
    code, out, _ = addnorm("parts", "--json")
    found = json.loads(out)
    assert code == 0
    assert {"positions", "norms", "mixers"} < {part["family"] for part in found}
    assert set(found[0]) == {"family", "kind", "name", "equation", "source", "file"}


def test_a_wrong_family_is_one_message(addnorm: Command) -> None:
    code, out, err = addnorm("parts", "norm")
    assert (code, out) == (2, "")
    assert err.startswith(
        "addnorm: no family of parts is called 'norm'. Did you mean 'norms'? Valid:"
    )


def test_custom_parts(addnorm: Command, tmp_path: Path) -> None:
    own = Path(__file__).parent.parent / "checking" / "my_parts.py"
    (tmp_path / "listed_parts.py").write_text(own.read_text("utf-8"), "utf-8")
    try:
        code, out, _ = addnorm("parts", "norms", "--json", "--import", tmp_path / "listed_parts.py")
    finally:
        sys.modules.pop("listed_parts", None)
    found = {part["kind"]: part for part in json.loads(out)}
    assert code == 0
    assert found["listed_parts:DyTConfig"]["equation"] == "γ tanh(α x) + β"
    assert found["listed_parts:DyTConfig"]["file"] == "listed_parts.py"
