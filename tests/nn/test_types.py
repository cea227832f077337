"""Tensor shape aliases: each has one meaning in all of `nn`."""

from importlib import import_module
from pkgutil import walk_packages

from addnorm import nn
from addnorm.nn import types

NAMES = {name: alias for name, alias in vars(types).items() if name[0].isupper()}


def test_no_module_of_nn_gives_a_name_another_meaning() -> None:
    modules = [import_module(one.name) for one in walk_packages(nn.__path__, "addnorm.nn.")]
    assert len(modules) > 20
    for module in modules:
        for name, alias in NAMES.items():
            assert getattr(module, name, alias) is alias, f"{module.__name__}.{name}"


def test_no_shape_has_two_names() -> None:
    shapes = [(alias.dtype, alias.dim_str) for alias in NAMES.values() if hasattr(alias, "dim_str")]
    assert len(shapes) == len(set(shapes)) >= 6
