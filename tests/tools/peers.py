"""Finds Python packages that some tests compare with: tensorboard, onnxruntime. scripts/deps.sh installs them into build/peers-venv;
CRESNET_PEERS names another interpreter that has them."""
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def interpreter(*modules):
    """The path of an interpreter that can import the modules, or None."""
    for python in (os.environ.get("CRESNET_PEERS"), f"{ROOT}/build/peers-venv/bin/python3", sys.executable, "/usr/bin/python3"):
        if python and os.path.exists(python):
            code = "import " + ", ".join(modules)
            if subprocess.run([python, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
                return python
    return None


def with_modules(script, *modules):
    """For a script that needs the modules: True when this interpreter has them, False when none has. Otherwise runs the script with the
    interpreter that has them and exits as it does."""
    python = interpreter(*modules)
    if not python or os.path.samefile(python, sys.executable):
        return python is not None
    sys.exit(subprocess.run([python, "-B", script], env={**os.environ, "CRESNET_PEERS": python}).returncode)
