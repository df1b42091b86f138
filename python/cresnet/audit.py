"""cresnet.audit: python -m cresnet.audit DIR. The module can be called like the function, which it replaces in the package when it is imported.

    python -m cresnet.audit my-images -o audit          # then open audit/index.html
    cresnet train CONFIG data.exclude=audit/exclude.csv data.labels=audit/labels.csv
"""
from __future__ import annotations

import argparse
import sys
import types
from typing import Any, Optional

from ._audit import Audit, Finding, audit
from ._errors import CresnetError

__all__ = ["Audit", "Finding", "audit", "main"]


class _Callable(types.ModuleType):
    def __call__(self, *arguments: Any, **keys: Any) -> Audit:
        return audit(*arguments, **keys)


sys.modules[__name__].__class__ = _Callable


def main(arguments: Optional[list[str]] = None) -> int:
    """The command. Returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m cresnet.audit", description="Looks for duplicates, wrong labels, leaks, outliers and odd images.")
    parser.add_argument("images", metavar="DIR", help="a folder of images, with train.csv, or with CIFAR in its binary form")
    parser.add_argument("keys", nargs="*", metavar="section.key=value", help="keys of the trainings of the folds")
    parser.add_argument("--run", metavar="RUN", help="a run, or x.npy of cresnet features: features instead of trainings")
    parser.add_argument("-o", "--output", default="audit", metavar="DIR", help="folder of the page and the tables (audit)")
    parser.add_argument("--folds", type=int, default=5, metavar="N", help="folds of the search for wrong labels; 0: none (5)")
    parser.add_argument("--config", metavar="INI", help="configuration of the trainings of the folds")
    parser.add_argument("--epochs", type=int, metavar="N", help="epochs of the trainings of the folds")
    parser.add_argument("--device", metavar="D", help="auto, cpu or cuda")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the folds (1)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="threads that read images (0: one for each core)")
    parser.add_argument("-q", "--quiet", action="store_true", help="only errors")
    options = parser.parse_intermixed_args(arguments)
    keys: dict[str, Any] = {"epochs": options.epochs, "device": options.device}
    for text in options.keys:
        key, equals, value = text.partition("=")
        if not equals or "." not in key:
            parser.error(f"{text}: no section.key=value")
        keys[key.replace(".", "_", 1)] = value
    try:
        audit(options.images, options.run, output=options.output, folds=options.folds, config=options.config, seed=options.seed, threads=options.threads,
              progress=not options.quiet, **{name: value for name, value in keys.items() if value is not None})
    except (CresnetError, ImportError) as error:  # ImportError: no library of the program
        print(f"audit: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"audit: {error.filename}: {error.strerror}" if error.filename else f"audit: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("audit: interrupted; the same command goes on with the folds that are missing", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
