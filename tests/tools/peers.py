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
