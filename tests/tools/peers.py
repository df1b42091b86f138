"""Finds Python packages that some tests need or compare with: numpy, torch, tensorboard, onnxruntime, scikit-learn ... scripts/deps.sh installs
all but torch into build/peers-venv; CRESNET_PEERS names another interpreter that has them.

  python3 peers.py MODULE...   prints an interpreter that can import the modules; exit status 1 without one"""
import importlib.util
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
    if all(importlib.util.find_spec(module) for module in modules):
        return True
    python = interpreter(*modules)  # that of a virtual environment may be a link to this one
    if not python or python == sys.executable:
        return False
    sys.exit(subprocess.run([python, "-B", script, *sys.argv[1:]], env={**os.environ, "CRESNET_PEERS": python}).returncode)


if __name__ == "__main__":
    found = interpreter(*sys.argv[1:])
    print(found or "")
    sys.exit(found is None)
