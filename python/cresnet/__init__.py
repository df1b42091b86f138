"""Trains image classifiers with cresnet, and classifies images with networks that it trained, pruned or imported.

    import cresnet
    run = cresnet.train("demo.ini", epochs=5, optim_lr=0.1)
    print(run.best, run.history["loss"][-1])
    with cresnet.Model("checkpoints/flowers", max_batch=8) as model:
        result = model.classify_files(["rose.jpg", "tulip.jpg"], top=3)
        print(model.class_name(result.labels[0, 0]), result.probabilities[0, 0])

Training drives the program `cresnet` as a child process; CRESNET names another file of it. Classifying calls the shared library libcresnet.so
through ctypes; CRESNET_LIBRARY names another file of that. Arrays are NumPy arrays.
"""
from ._audit import Audit, Finding, audit
from ._classifier import Classifier
from ._distributions import warn_about_conflict as _warn_about_conflict
from ._dlpack import Logits
from ._errors import ArgumentError, CresnetError
from ._library import lib as _lib
from ._library import version
from ._mistakes import Errors, Mistake
from ._model import Info, Model, Result, memory_needed
from ._run import Event, Run, finetune, resume, train
from ._tools import export, prune, quantize, sweep
from ._version import __version__

__all__ = ["ArgumentError", "Audit", "Classifier", "CresnetError", "Errors", "Event", "Finding", "Info", "Logits", "Mistake", "Model", "Result", "Run", "audit",
           "export", "finetune", "memory_needed", "prune", "quantize", "resume", "sweep", "train", "version"]

_warn_about_conflict()
