"""signals.py: signals at several moments, and what they leave behind."""
import os
import signal
import subprocess
import time

from .support import add, case

S = "signals"
MOMENTS = (0.0, 0.01, 0.05, 0.15, 0.4)
LONG = ["train", "tiny.ini", "-o", "R", "train.epochs=100000", "train.save_every=3", "train.log_every=1000",
        "train.eval_every=1000"]


def send(c, args, number, delay, repeat=1, wait=60, group=False):
    """Starts the program, sends a signal after a delay; the exit code and standard error."""
    process = c.start(*args, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    c.runs += 1
    time.sleep(delay)
    for _ in range(repeat):
        try:
            (os.killpg if group else os.kill)(process.pid, number)
        except ProcessLookupError:
            pass
        time.sleep(0.02 if repeat > 1 else 0)
    try:
        out, err = process.communicate(timeout=wait)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        c.problem(" ".join(args), "signal %d after %.2f s: no end in %d s" % (number, delay, wait))
    name = "%s, signal %d after %.2f s" % (" ".join(args), number, delay)
    if process.returncode not in (0, 1, -number, 128 + number):
        c.problem(name, "exit code %d: %s" % (process.returncode, err[-800:].decode("utf-8", "replace")))
    if b"Sanitizer" in err or b"runtime error" in err:
        c.problem(name, err[-2500:].decode("utf-8", "replace"))
    return process.returncode, err


for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    def stops(c, number=number):
        for delay in MOMENTS:
            _, err = send(c, LONG, number, delay)
            # SIGHUP, and any signal during the start, ends the program at once: the next one cleans up.
            if number != signal.SIGHUP and b"Ctrl-C finishes" in err:
                c.check_leftovers("after signal %d" % number)
            c.works(*LONG, "--resume", "auto", "--steps", "1", "-q")
            c.check_leftovers("after the next run")
            c.rm("R")
    add(S, "training: %s at five moments" % number.name, stops)

    def twice(c, number=number):
        for delay in MOMENTS:
            send(c, LONG, number, delay, repeat=3)
            c.rm("R")
    add(S, "training: %s three times in a row" % number.name, twice)

NEW = ("P", "K", "D", "x.safetensors", "x.html")
COMMANDS = {
    "eval": ["eval", "run", "data.val_images=200000"],
    "prune": ["prune", "run", "--sparsity", "0.5", "-o", "P"],
    "quantize": ["quantize", "run", "-o", "P"],
    "data pack": ["data", "pack", "folder.ini", "K"],
    "data shapes": ["data", "shapes", "D", "data.train_images=2000", "data.val_images=100"],
    "export": ["export", "run", "-o", "x.safetensors"],
    "export to standard output": ["export", "run", "-o", "-"],
    "report": ["report", "run", "-o", "x.html"],
    "profile": ["profile", "tiny.ini", "--steps", "10000"],
    "bench step": ["bench", "step", "tiny.ini", "--steps", "10000"],
    "check": ["check", "tiny.ini", "-b", "64"],
    "predict": ["predict", "run"] + ["images/a"] * 200,
}
for title, args in COMMANDS.items():
    def killed(c, args=args):
        c.take("run", "images", "folder.ini", "plan.csv")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            for delay in (0.02, 0.08, 0.3):
                send(c, args, number, delay)
                if number != signal.SIGKILL:
                    c.rm(*NEW)
                if c.path("P/last").exists():  # the signal came after the end
                    c.rm("P")
        again = args[:3] if args[0] == "predict" else [a.replace("10000", "1").replace("200000", "8") for a in args]
        c.run(*again, binary=True, deadline=90, expect=(0, 1) if args[0] == "plan" else (0,))
    add(S, title + ": SIGINT, SIGTERM, SIGKILL, then again to the end", killed)


@case(S, "training: SIGKILL at ten moments, then resumed")
def _(c):
    for i in range(10):
        send(c, LONG + ["--resume", "auto"], signal.SIGKILL, 0.1 + 0.05 * i)
    code, err = send(c, LONG + ["--resume", "auto"], signal.SIGINT, 1.0)
    if code != 130:
        c.problem("resumed", "exit code %d: %s" % (code, err[-500:]))
    c.check_leftovers("after the resumed run")
    c.works("eval", "R")


@case(S, "SIGUSR1 100 times")
def _(c):
    process = c.start(*LONG[:4], "train.epochs=100", "--steps", "200", stderr=subprocess.PIPE)
    time.sleep(0.2)  # the loader of the system does not know the signal; test_limits.sh sends it as early as is correct
    while process.poll() is None and c.runs < 100:
        process.send_signal(signal.SIGUSR1)
        c.runs += 1
        time.sleep(0.01)
    err = process.communicate(timeout=60)[1]
    if process.returncode != 0:
        c.problem("SIGUSR1", "exit code %d: %s" % (process.returncode, err[-500:]))
    c.check_leftovers("SIGUSR1")


@case(S, "SIGSTOP and SIGCONT")
def _(c):
    process = c.start(*LONG[:4], "--steps", "8", stderr=subprocess.PIPE)
    for _ in range(10):
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.02)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.02)
    err = process.communicate(timeout=60)[1]
    c.runs += 1
    if process.returncode != 0:
        c.problem("SIGSTOP", "exit code %d: %s" % (process.returncode, err[-500:]))


def ignored():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)


def blocked():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))


@case(S, "started with signals ignored, SIGCHLD too")
def _(c):
    c.works("train", "tiny.ini", "-o", "R", "--steps", "2", before=ignored)
    c.works("train", "tiny.ini", "-o", "R2", "--steps", "2", "--ranks", "2", before=ignored, deadline=60)


@case(S, "started with all signals blocked")
def _(c):
    c.works("train", "tiny.ini", "-o", "R", "--steps", "2", before=blocked)
    c.works("train", "tiny.ini", "-o", "R2", "--steps", "2", "--ranks", "2", before=blocked, deadline=60)


@case(S, "two ranks: each signal to the first process and to the group")
def _(c):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        for group in (False, True):
            for delay in (0.05, 0.6):
                send(c, LONG + ["--ranks", "2"], number, delay, group=group)
                c.rm("R")


@case(S, "the reader of standard output leaves")
def _(c):
    c.take("run")
    for args in (["plan", "tiny.ini"], ["help", "markdown"], ["help", "man", "train"], ["export", "run", "-o", "-"],
                 ["export", "run", "--onnx", "-"], ["eval", "run", "--confusion", "-"],
                 ["report", "run", "--no-eval", "-o", "-"],
                 ["plan", "tiny.ini", "--csv"], ["--version"], ["profile", "tiny.ini", "--steps", "1"]):
        process = c.start(*args, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.close()
        err = process.stderr.read()
        c.runs += 1
        if process.wait(30) not in (0, 1, 141) or b"Sanitizer" in err:
            c.problem(" ".join(args), "exit code %d: %s" % (process.returncode, err[-500:]))
        c.check_leftovers(" ".join(args))


@case(S, "the reader of standard error leaves")
def _(c):
    process = c.start("train", "tiny.ini", "-o", "R", "--steps", "8", "train.log_every=1", stderr=subprocess.PIPE)
    process.stderr.close()
    c.runs += 1
    if process.wait(60) != 0:
        c.problem("train", "exit code %d" % process.returncode)
    c.works("eval", "R")
