"""Protocols of modules, as every Python from 3.11 on checks them."""

import importlib
import pkgutil
from typing import Protocol, runtime_checkable

import pytest
from torch import nn
from typing_extensions import get_protocol_members

import addnorm.nn
from addnorm.nn.cache import Attention, MemoryCache
from addnorm.nn.embed import HasTable
from addnorm.nn.protocols import OfModules


@runtime_checkable
class HasGain(Protocol, metaclass=OfModules):
    gain: nn.Parameter
    inner: nn.Module

    def scale(self) -> None: ...


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter()
        self.inner = nn.Identity()

    def scale(self) -> None: ...


class NoInner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter()

    def scale(self) -> None: ...


def test_parameters_and_submodules_are_attributes() -> None:
    assert isinstance(Norm(), HasGain)
    assert not isinstance(NoInner(), HasGain)
    assert not isinstance(nn.Identity(), HasGain)


def test_a_subclass_of_a_protocol_is_a_class_as_others_are() -> None:
    class Named(Norm, HasGain):
        pass

    class More(Named):
        pass

    assert isinstance(More(), Named)
    assert isinstance(More(), HasGain)
    assert not isinstance(Norm(), Named)


def protocols() -> list[type]:
    """The protocols of `addnorm.nn`, without that of a cache, which is no module."""
    found = dict[type, None]()
    for module in pkgutil.walk_packages(addnorm.nn.__path__, "addnorm.nn."):
        for value in vars(importlib.import_module(module.name)).values():
            if (
                isinstance(value, type)
                and vars(value).get("_is_protocol", False)
                and value is not Protocol
            ):
                found[value] = None
    found.pop(MemoryCache)
    return list(found)


@pytest.mark.parametrize("protocol", protocols())
def test_a_protocol_with_attributes_finds_submodules(protocol: type) -> None:
    """Python 3.11 would find them with any metaclass; from 3.12 on only this one does."""
    members = get_protocol_members(protocol)
    attributes = [name for name in members if not callable(getattr(protocol, name, None))]
    assert not attributes or isinstance(protocol, OfModules)


def test_the_walk_finds_them() -> None:
    assert {Attention, HasTable} <= set(protocols())
