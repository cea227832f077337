"""AddNorm: Transformers you can read, train and trust. Importing it does not import torch.

`import addnorm as an` provides the most common names; the rest is in the modules.

- Models: `DecoderConfig`, `EncoderConfig`, `EncoderDecoderConfig`, `DualEncoderConfig`, and a
  configuration of every part of these; `presets.gpt2_small()` and others return complete ones.
- Data: `text`, `pairs`, `labelled`, `tagged`, `table`, of files or of lists.
- `train(config, data, tokenizer=..., steps=...)` and `load(folder)` return a `Run`, which
  generates, translates, classifies, tags, embeds, evaluates, exports and saves.
- `check()` compares models of random combinations of parts with their definitions.

A user's mistake raises `InputError`, a `ValueError`, in one sentence with the nearest valid name.
"""

import sys
from typing import TYPE_CHECKING

from addnorm.lazy import lazy_names

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

__version__ = "0.1.0"

__getattr__, __dir__ = lazy_names(__name__)


class _FormerPaths:
    """Finds modules under their former paths. Python asks it last, so they are read only then."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        if not name.startswith("addnorm."):
            return None
        from addnorm.moved import spec_of

        return spec_of(name)


sys.meta_path.append(_FormerPaths)
