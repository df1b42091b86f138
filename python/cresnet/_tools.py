"""cresnet._tools: sweep, prune, quantize and export: functions that run these commands of the program."""
from __future__ import annotations

import glob
import os
from typing import Union

from ._arguments import arguments, operand
from ._child import call
from ._errors import PathLike
from ._progress import Progress
from ._run import Run

__all__ = ["export", "prune", "quantize", "sweep"]


def _path(run: Union[Run, PathLike]) -> str:
    path = run.path if isinstance(run, Run) else os.path.expanduser(os.fspath(run))
    if os.path.isdir(path) or not (os.path.exists(path) or path.endswith(".ini")):  # a configuration may be an installed one
        Run(path)  # the program calls a missing folder an unreadable file, which is no wrong argument
    return operand(path)


def sweep(config: PathLike, *, output: PathLike, progress: bool = True, **keys: object) -> list[Run]:
    """Trains with every combination of listed values, as `cresnet sweep`: sweep("demo.ini", output="lrs", optim_lr=[0.05, 0.1]).

    A keyword is an option of the command (jobs, epochs, steps, device ...) or a key; a list is a list of values. Each run has a folder in
    `output`, which is named by its values. Returns these runs, by name. progress: one bar of tqdm for all runs where it is installed, else the
    lines of the program. Ctrl-C saves a checkpoint of each run before KeyboardInterrupt is raised; the same call continues. Errors as of train();
    when some runs failed, the others end first."""
    shown = Progress(progress)
    try:
        call(["sweep", operand(config), *([] if progress else ["--quiet"]), *arguments("sweep", {**keys, "output": output})], shown.line)
    finally:
        shown.close()
    return [Run(os.path.dirname(log)) for log in sorted(glob.glob(os.path.join(glob.escape(os.path.expanduser(os.fspath(output))), "*", "log.jsonl")))]


def prune(run: Union[Run, PathLike], *, output: PathLike, **keys: object) -> Run:
    """Prunes a network, as `cresnet prune`: prune(run, output="small", sparsity=0.9).

    A keyword is an option of the command (sparsity, pattern, flops, speedup, target_ms ...) or a key. Returns the run in the new folder `output`;
    `run` stays as it is. Errors as of train()."""
    call(["prune", _path(run), "--quiet", *arguments("prune", {**keys, "output": output})])
    return Run(output)


def quantize(run: Union[Run, PathLike], *, output: PathLike, **keys: object) -> Run:
    """Makes a network compute with 8-bit integers, as `cresnet quantize`: quantize(run, output="int8", max_drop=0.3).

    A keyword is an option of the command (images, method, max_drop in percentage points ...) or a key. Returns the run in the new folder
    `output`; `run` stays as it is. Errors as of train()."""
    call(["quantize", _path(run), "--quiet", *arguments("quantize", {**keys, "output": output})])
    return Run(output)


def export(run: Union[Run, PathLike], output: PathLike, **keys: object) -> str:
    """Writes the weights of a run as `output`: FILE.safetensors, or the network as FILE.onnx, as `cresnet export`.

    A keyword is an option of the command (fold, force, last, step ...) or a key. Returns the path. Errors as of train()."""
    call(["export", _path(run), "--quiet", *arguments("export", {**keys, "output": output})])
    return os.path.expanduser(os.fspath(output))
