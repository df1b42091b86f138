"""cresnet._launch: a script of its own, run by _child.py in a new interpreter: asks the system to send SIGTERM when the parent dies, also by
SIGKILL, and becomes the program. In the parent, this would be code between fork and exec, which is unsafe beside threads.

    _launch.py PARENT PROGRAM ARGUMENT..."""
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
if os.getppid() != int(sys.argv[1]):  # it died before prctl took effect
    sys.exit(128 + signal.SIGTERM)
os.execv(sys.argv[2], sys.argv[2:])
