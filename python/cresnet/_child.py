"""cresnet._child: finds the program, and runs it as a child process (subprocess) that does not outlive Python."""
from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Callable, Optional

from ._errors import CresnetError, error_of

_LAUNCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_launch.py")
_POLL_S = 0.05
_USAGE = 2  # exit code of the program: wrong command line or configuration


def program() -> str:
    """The path of the program: $CRESNET, else the one of the wheel, next to the package's files, else `cresnet` in PATH."""
    given = os.environ.get("CRESNET")
    if given:
        found = shutil.which(given)
        if not found:
            raise CresnetError(f"CRESNET={given}: no such program: set it to the file cresnet of a build")
        return os.path.abspath(found)
    found = shutil.which(os.path.join(os.path.dirname(_LAUNCH), "cresnet")) or shutil.which("cresnet")
    if not found:
        raise CresnetError("the program cresnet is not installed: it is neither next to this package nor in PATH; install it, or set "
                           "CRESNET to the file cresnet of a build")
    return os.path.abspath(found)


class Child:
    """One command of the program. It has a session of its own, so that Ctrl-C in a terminal reaches Python alone, and is stopped when the
    thread that started it ends or Python dies (_launch.py). Its output goes to unnamed files, which never make it wait for Python. Only one
    thread calls its methods, but for stop() and kill()."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._name = "cresnet " + arguments[0]
        command = [program(), *arguments]
        self._errors, self._output = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self._read, self.stopping = 0, False
        if sys.executable:  # empty in some programs that embed Python
            command = [sys.executable, "-I", "-S", _LAUNCH, str(os.getpid()), *command]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._errors,
                                         start_new_session=True)

    @property
    def code(self) -> Optional[int]:
        """The exit code once wait() has seen the end; -n: ended by signal n."""
        return self._process.returncode

    def wait(self, seconds: float = _POLL_S) -> bool:
        """Waits for a moment; returns whether the command has ended."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """Asks the command to save and end. A second signal would end it at once, so it gets one only."""
        if not self.stopping:
            self.stopping = True
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the command at once, and _launch.py with it."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kills the command if it runs, reaps it, and frees its files."""
        self.kill()
        self._process.wait()
        self._errors.close()
        self._output.close()

    def _text(self, file: int, start: int) -> bytes:
        return os.pread(file, max(os.fstat(file).st_size - start, 0), start)

    def output(self) -> str:
        """All of standard output."""
        return self._text(self._output.fileno(), 0).decode(errors="replace")

    def lines(self) -> list[str]:
        """The complete lines of standard error since the last call."""
        text = self._text(self._errors.fileno(), self._read)
        text = text[:text.rfind(b"\n") + 1]
        self._read += len(text)
        return text.decode(errors="surrogateescape").splitlines()

    def error(self) -> Optional[CresnetError]:
        """What the program says about its failure; None when it succeeded, or ended because of stop()."""
        code = self.code
        if code == 0 or (self.stopping and code in (-signal.SIGTERM, 128 + signal.SIGTERM)):
            return None
        said = self._text(self._errors.fileno(), 0).decode(errors="replace").splitlines()
        text = "\n".join(line[len(self._name) + 2:] for line in said if line.startswith(self._name + ": "))
        if code is not None and (code < 0 or (code > 128 and not text)):
            number = -code if code < 0 else code - 128
            return CresnetError(f"{self._name} was ended by signal {number} ({_signal_name(number)})", "killed")
        text = text or (said[-1] if said else f"{self._name} failed with exit code {code}")
        return error_of(text, "configuration" if code == _USAGE else "failed")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def call(arguments: Sequence[str], on_line: Callable[[str], None] = lambda line: None) -> str:
    """Runs a command to its end and returns its standard output; on_line gets each of its messages. Ctrl-C stops the command first."""
    child, interrupted = Child(arguments), None
    try:
        while True:
            try:
                ended = child.wait()
                for line in child.lines():
                    on_line(line)
                if ended:
                    break
            except BaseException as error:
                if interrupted:
                    raise
                interrupted = error
                child.stop()
        if interrupted:
            raise interrupted
        failure = child.error()
        if failure:
            raise failure
        return child.output()
    finally:
        child.close()
