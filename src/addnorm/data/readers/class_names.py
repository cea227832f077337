"""Class numbers become class names, by the features that Hugging Face's `datasets` describes."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from addnorm.errors import InputError

LISTS = ("List", "LargeList", "Sequence")
"""The kinds of features that are lists of another."""

Rename = Callable[[Any], Any]
"""From a cell with class numbers to one with class names; -1 means no class."""


def described_features(metadata: Mapping[bytes, bytes] | None) -> Mapping[str, Any]:
    """The features that `datasets` describes in the metadata of a Parquet file; empty without."""
    try:
        found = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    return cast(Mapping[str, Any], found) if isinstance(found, dict) else {}


def renames_of(features: Mapping[str, Any]) -> dict[str, Rename]:
    """How the cells of each column with class numbers change, by `Features.to_dict()`."""
    return {column: new for column, feature in features.items() if (new := _rename(feature))}


def with_names(
    record: Mapping[str, Any], renames: Mapping[str, Rename], where: str
) -> Mapping[str, Any]:
    """The record with class names. Raises `InputError` for a number without a name."""
    try:
        return _renamed(record, renames)
    except IndexError as error:
        raise InputError(f"{where}: {error}") from error


def _renamed(record: Mapping[str, Any], renames: Mapping[str, Rename]) -> Mapping[str, Any]:
    return {name: renames[name](cell) if name in renames else cell for name, cell in record.items()}


def _rename(feature: Any) -> Rename | None:
    """How a cell of this feature changes; None where there are no class numbers in it."""
    if not isinstance(feature, dict):
        return None
    described = cast(dict[str, Any], feature)
    kind, names = described.get("_type"), described.get("names")
    if kind == "ClassLabel" and isinstance(names, list):
        return _class_name(cast(list[str], names))
    if kind in LISTS:
        inner = _rename(described.get("feature"))
        return None if inner is None else _of_all(inner)
    fields = {} if isinstance(kind, str) else renames_of(described)
    return _of_fields(fields) if fields else None


def _class_name(names: Sequence[str]) -> Rename:
    def rename(cell: Any) -> Any:
        if not isinstance(cell, int):
            return cell
        if cell >= len(names):
            raise IndexError(f"class number {cell}, and names are there for {len(names)}")
        return names[cell] if cell >= 0 else None

    return rename


def _of_all(one: Rename) -> Rename:
    def rename(cell: Any) -> Any:
        return ["" if (new := one(part)) is None else new for part in cell] if cell else cell

    return rename


def _of_fields(fields: Mapping[str, Rename]) -> Rename:
    return lambda cell: _renamed(cell, fields) if cell else cell
