"""AddNorm: Transformers you can read, train and trust. Importing it does not import torch.

`import addnorm as an` provides the most common names; the rest is in the modules.

- Models: `DecoderConfig`, `EncoderConfig`, `EncoderDecoderConfig`, and a configuration of every
  part that they are made of; `presets.gpt2_small()` and others return complete ones.
- Data: `text`, `pairs`, `labelled`, `tagged`, `table`, of files or of lists.
- `train(config, data, tokenizer=..., steps=...)` and `load(folder)` return a `Run`, which
  generates, translates, classifies, tags, embeds, evaluates, exports and saves.
- `check()` compares models of random combinations of parts with their definitions.

A user's mistake raises `InputError`, a `ValueError`, in one sentence with the nearest valid name.
"""

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from addnorm import moved

__version__ = "0.1.0.dev0"

_IMPORT = re.compile(r"^from (\S+) import \W*(\w+)", re.MULTILINE)


@cache
def _modules() -> dict[str, str]:
    """The module of each public name: `__init__.pyi` is the list, which type checkers read too."""
    stub = Path(__file__).with_suffix(".pyi").read_text("utf-8")
    return {name: module for module, name in _IMPORT.findall(stub)}


def __getattr__(name: str) -> Any:
    """Import names lazily, on first use. Raises `AttributeError` with the nearest name."""
    if name == "__all__":
        return ["__version__", *_modules()]
    if name in _modules():
        module = import_module(_modules()[name])
        if not hasattr(module, name):
            import_module(f"{module.__name__}.{name}")
        value = globals()[name] = getattr(module, name)
        return value
    from addnorm.errors import nearest

    hint = "" if name.startswith("_") else nearest(name, _modules())
    raise AttributeError(f"module 'addnorm' has no attribute {name!r}.{hint}", name=name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})


moved.install()
