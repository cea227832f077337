"""`addnorm parts`: a table for people, an array for programs."""

import json
from collections.abc import Callable

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
    assert err == "addnorm: no family of parts is called 'norm'. Did you mean 'norms'?\n"
