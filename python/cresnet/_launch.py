"""cresnet._launch: a script of its own, run by _child.py in a new interpreter: starts the program, hands it one SIGTERM when Python asks it to
stop or dies, also by SIGKILL, and ends as the program does.

    _launch.py PARENT PROGRAM ARGUMENT...

The system sends the signal (PR_SET_PDEATHSIG) again for each thread of a parent that dies, and a second one would end the program before its
checkpoint is saved: this process has one thread and passes on the first. It also keeps Python code out of a fork of the parent, which may
have threads."""
import ctypes
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1
EXEC_FAILED = 127


def stop_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:  # it died before prctl took effect
        os._exit(128 + signal.SIGTERM)


def main() -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    stop_with(int(sys.argv[1]))
    this = os.getpid()
    sent: list[int] = []
    program = os.fork()
    if program == 0:
        try:
            stop_with(this)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            os.execv(sys.argv[2], sys.argv[2:])
        except OSError as error:
            print(f"{sys.argv[2]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(EXEC_FAILED)

    def stop(number: int, frame: object) -> None:
        if not sent:
            sent.append(number)
            os.kill(program, number)

    signal.signal(signal.SIGTERM, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program may have written one
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(this, -code)
    return code


if __name__ == "__main__":
    sys.exit(main())
