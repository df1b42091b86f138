"""cresnet._tools: the commands that make networks from networks."""
from __future__ import annotations

import glob
import os
from typing import Union

from ._arguments import arguments, operand
from ._child import call
from ._errors import PathLike
from ._run import Run

__all__ = ["export", "prune", "quantize", "sweep"]


def _path(run: Union[Run, PathLike]) -> str:
    return operand(run.path if isinstance(run, Run) else run)


def sweep(config: PathLike, *, output: PathLike, **keys: object) -> list[Run]:
    """Trains with every combination of listed values, as `cresnet sweep`: sweep("demo.ini", output="lrs", optim_lr=[0.05, 0.1]). Returns the
    runs in `output`, by name."""
    call(["sweep", operand(config), "--quiet", *arguments("sweep", {**keys, "output": output})])
    return [Run(os.path.dirname(log)) for log in sorted(glob.glob(os.path.join(glob.escape(os.fspath(output)), "*", "log.jsonl")))]


def prune(run: Union[Run, PathLike], *, output: PathLike, **keys: object) -> Run:
    """Prunes a network, as `cresnet prune`: prune(run, output="small", sparsity=0.9)."""
    call(["prune", _path(run), "--quiet", *arguments("prune", {**keys, "output": output})])
    return Run(output)


def quantize(run: Union[Run, PathLike], *, output: PathLike, **keys: object) -> Run:
    """Makes a network compute with 8-bit integers, as `cresnet quantize`: quantize(run, output="int8", max_drop=0.3)."""
    call(["quantize", _path(run), "--quiet", *arguments("quantize", {**keys, "output": output})])
    return Run(output)


def export(run: Union[Run, PathLike], output: PathLike, **keys: object) -> str:
    """Writes the weights of a run as `output`: FILE.safetensors, or the network as FILE.onnx, as `cresnet export`. Returns the path."""
    call(["export", _path(run), "--quiet", *arguments("export", {**keys, "output": output})])
    return os.fspath(output)
