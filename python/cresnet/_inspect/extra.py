"""cresnet._inspect.extra: imports the optional packages of cresnet[audit] (Pillow, ...) when they are used."""
from __future__ import annotations

import importlib
from typing import Any

from .._errors import ArgumentError

_PACKAGES = {"PIL": "Pillow", "faiss": "faiss-cpu", "sklearn": "scikit-learn"}


def extra(module: str) -> Any:
    """A module such as PIL.Image. ArgumentError where its package is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = _PACKAGES[module.partition(".")[0]]
        raise ArgumentError(f'this needs {package}: pip install "cresnet[audit]" ({error})', "argument") from None
