"""Protocols of modules: `isinstance` finds all that a module has, its submodules among it.

From Python 3.12 on, `isinstance(x, SomeProtocol)` looks attributes up without `__getattr__`, by
which torch finds parameters, buffers and submodules, so it denies that a module has them.
"""

from functools import cache
from typing import Protocol

from typing_extensions import get_protocol_members, is_protocol

_members = cache(get_protocol_members)


class OfModules(type(Protocol)):
    """The metaclass of a `Protocol` whose attributes may be a module's parameters or submodules."""

    def __instancecheck__(cls, instance: object) -> bool:
        if not is_protocol(cls):  # a class that names a protocol among its bases
            return super().__instancecheck__(instance)
        return all(hasattr(instance, name) for name in _members(cls))
