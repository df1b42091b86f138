"""cresnet._errors: the exceptions that the package raises: CresnetError, ArgumentError."""
from __future__ import annotations

import os
from typing import Union

__all__ = ["ArgumentError", "CresnetError", "PathLike"]

PathLike = Union[str, "os.PathLike[str]"]


class CresnetError(RuntimeError):
    """An error of the program or of its library, in their words."""

    def __init__(self, text: str, status: str = "failed") -> None:
        super().__init__(text)
        #: "argument", "configuration", "input/output", "format", "memory", "device", "not finite" or "broken" of the library; "configuration", "failed"
        #: or "killed" of a command.
        self.status: str = status


class ArgumentError(CresnetError, ValueError):
    """A wrong argument or configuration: nothing was done. It is a ValueError too."""


def error_of(text: str, status: str) -> CresnetError:
    return (ArgumentError if status in ("argument", "configuration") else CresnetError)(text, status)
