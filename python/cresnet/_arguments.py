"""cresnet._arguments: converts keyword arguments (epochs=5, optim_lr=0.1) to the command line of the program."""
from __future__ import annotations

import os
from collections.abc import Mapping

_COMMON = ("device", "weights", "threads")
_TRAINING = (*_COMMON, "output", "batch", "workers", "epochs", "lr", "seed")
_NETWORK = ("last", "step", "ema", "no_ema")
#: The options of each command that are keyword arguments here; every other keyword is section_key.
OPTIONS = {
    "train": (*_TRAINING, "steps", "gpus", "ranks", "force"),
    "finetune": (*_TRAINING, "model", "minutes"),
    "sweep": (*_TRAINING, "steps", "jobs"),
    "eval": (*_COMMON, *_NETWORK, "batch", "workers", "split", "tta", "per_class", "temperature"),
    "prune": (*_COMMON, *_NETWORK, "output", "batch", "sparsity", "scope", "pattern", "budget", "exempt", "target_ms", "speedup", "flops",
              "importance", "multiple", "recalibrate", "keep_shape"),
    "quantize": (*_COMMON, *_NETWORK, "output", "batch", "workers", "seed", "images", "method", "reduce_range", "max_drop"),
    "export": (*_NETWORK, "weights", "output", "onnx", "fold", "preprocess", "dynamic", "force"),
}
_FLAGS = ("force", "last", "ema", "no_ema", "per_class", "temperature", "keep_shape", "reduce_range", "fold", "preprocess", "dynamic")


def operand(path: "str | os.PathLike[str]") -> str:
    """A path as an argument that is neither an option nor section.key=value."""
    text = os.path.expanduser(os.fspath(path))
    return "./" + text if text.startswith("-") or ("=" in text and not text.startswith("/")) else text


def value_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple, range)):
        return ",".join(map(value_text, value))
    return os.path.expanduser(os.fspath(value) if isinstance(value, os.PathLike) else str(value))


def _values(value: object) -> str:
    """Of a sweep: a list is a list of values, and a value that has commas is quoted."""
    if not isinstance(value, (list, tuple, range)):
        return value_text(value)
    return ",".join(f'"{text}"' if "," in text else text for text in map(value_text, value))


def arguments(command: str, keys: Mapping[str, object]) -> list[str]:
    """epochs=5, optim_lr=0.1, data_exif=False: --epochs=5 optim.lr=0.1 data.exif=no. None leaves the value to the program."""
    line = []
    for name, value in keys.items():
        option = name in OPTIONS[command]
        section, _, key = name.partition("_")
        if not option and (not section or not key):
            raise TypeError(f"{name} is neither an option of cresnet {command} nor a key of its configuration, such as optim_lr")
        if value is None or (name in _FLAGS and option and not value):
            continue
        text = (_values if command == "sweep" else value_text)(value)
        word = name.replace("_", "-")
        line.append((f"--{word}" if name in _FLAGS else f"--{word}={text}") if option else f"{section}.{key}={text}")
    return line
