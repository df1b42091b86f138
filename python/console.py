#!python
"""The console script cresnet of a wheel: becomes the program. It does not import the package, which loads NumPy."""
import importlib.util
import os
import sys

package = importlib.util.find_spec("cresnet")
if package is None or package.origin is None:
    sys.exit("cresnet: this Python has no package cresnet: install it with python -m pip install cresnet")
try:
    os.execv(os.path.join(os.path.dirname(package.origin), "cresnet"), ["cresnet", *sys.argv[1:]])
except OSError as error:
    sys.exit(f"cresnet: the program of the package {os.path.dirname(package.origin)} cannot be started: {error.strerror}")
