"""arguments.py: every command with missing, superfluous, foreign, long and damaged arguments."""
import os
import subprocess

from .support import add, case

S = "arguments"
COMMANDS = ["train", "eval", "predict", "report", "plan", "check", "bench", "profile", "prune", "quantize", "export",
            "data", "help"]
OPTIONS = ["--device", "--weights", "-o", "--output", "-b", "-j", "--threads", "--epochs", "--lr", "--seed", "--set",
           "--step", "--steps",
           "--ranks", "--gpus", "--resume", "--split", "--confusion", "-k", "--profile", "--after", "--which", "--csv",
           "--svg", "--target", "--kernel-times", "--devices", "--order",
           "--sparsity",
           "--scope", "--pattern", "--budget", "--exempt", "--target-ms", "--onnx", "--raw", "--jpeg", "--trainer-speed",
           "--images", "--method", "--max-drop"]
VALUES = [b"", b"-1", b"nan", b"inf", b"1e999", b"99999999999999999999", b"\xff\xfe", b"\x1b[31m\n", b"-", b"--",
          b"%s%n",
          b"x" * 5000, b"/", b"0x10", b"1.5", b" 1", b"1 ", b"+1", b",", b"1,,2", b"\xe2\x80\xae"]

for command in COMMANDS:
    def bare(c, command=command):
        c.run(command)
        c.run(command, "")
        c.run(command, "--")
        c.fails(command, "--no-such-option")
        c.fails(command, b"--\xff\x1b[31m=\n")
        c.fails(command, "-" + "z" * 5000)
    add(S, command + ": nothing, empty, unknown", bare)

    def operands(c, command=command):
        c.run(command, *["tiny.ini"] * 300)
        c.fails(command, b"no\xff\x1b[31m\nsuch.ini")
        c.run(command, "x" * 100000)
        c.run(command, "/dev/null/tiny.ini")
        c.run(command, "-h", "tiny.ini", "--version")
        c.run(command, "tiny.ini", "tiny.ini", "=", "a=b", ".=", "train.=1", "=1", "train.batch", "train.batch==4")
    add(S, command + ": many, long, foreign operands", operands)

TARGET = {"--resume": "train", "--split": "eval", "--confusion": "eval", "-k": "predict", "--profile": "report",
          "--devices": "check",
          "--order": "profile", "--sparsity": "prune", "--scope": "prune", "--pattern": "prune", "--budget": "prune",
          "--exempt": "prune", "--target-ms": "prune", "--onnx": "export", "--raw": "data", "--jpeg": "data",
          "--step": "eval", "--images": "quantize", "--method": "quantize", "--max-drop": "quantize",
          "--trainer-speed": "bench", "--ranks": "train",
          "--gpus": "train", "--steps": "train", "--seed": "train", "--lr": "train", "--epochs": "train",
          "--weights": "eval",
          "-j": "data", "--threads": "train", "--output": "train"}
FIRST = {"bench": ["bench", "data", "tiny.ini"], "data": ["data", "stat", "images"], "prune": ["prune", "run"],
         "eval": ["eval", "run"],
         "export": ["export", "run"], "report": ["report", "run", "--no-eval"],
         "predict": ["predict", "run", "images/a/0.png"]}
# options that need others, or an input of their own
NEEDS = {"--kernel-times": ["plan", "tiny.ini", "--target", "h200"], "--raw": ["data", "pack", "folder.ini", "K"],
         "--jpeg": ["data", "pack", "folder.ini", "K"],
         "--exempt": ["prune", "run", "--sparsity", "0.5", "-o", "P"],
         "--scope": ["prune", "run", "--sparsity", "0.5", "-o", "P"],
         "--pattern": ["prune", "run", "--sparsity", "0.5", "-o", "P"],
         "--sparsity": ["prune", "run", "-o", "P"], "--budget": ["prune", "run", "-o", "P"],
         "--weights": ["eval", "tiny.ini"],
         "--images": ["quantize", "run", "-o", "P"], "--method": ["quantize", "run", "-o", "P"],
         "--max-drop": ["quantize", "run", "-o", "P"],
         "--devices": ["check", "tiny.ini"], "--profile": ["report", "run", "--no-eval"]}

for option in OPTIONS:
    def odd_values(c, option=option):
        command = TARGET.get(option, "plan")
        if command in ("prune", "quantize", "eval", "export", "report", "predict", "data"):
            c.take("run", "images")
        c.take("folder.ini")
        first = NEEDS.get(option) or FIRST.get(command, [command, "tiny.ini"])
        extra = ["--steps", "1"] if command == "train" and option != "--steps" else []
        if command == "train" and option not in ("-o", "--output"):
            extra += ["-o", "R"]
        c.fails(*first, option, expect=None)
        for value in VALUES:
            if option == "--trainer-speed" and value == b"+1":  # a valid speed, which takes minutes
                continue
            c.run(*first, *extra, option, value, binary=True, errors=2, deadline=30)
            for name in ("R", "R2", "P", "K", "e.safetensors"):
                c.rm(name)
    add(S, "odd values of " + option, odd_values)


@case(S, "options twice, and against each other")
def _(c):
    c.take("run")
    for more in (["--last", "--step", "2"], ["--ema", "--no-ema"], ["--step", "2", "--step", "4"], ["--last", "--last"],
                 ["--weights", "run", "model.weights=run"], ["-q", "-q", "--json", "--json"],
                 ["--split", "val", "--split", "train"]):
        c.run("eval", "run", *more)


@case(S, "1,000 settings")
def _(c):
    c.works("plan", "tiny.ini", *["train.batch=%d" % (i % 9 + 1) for i in range(1000)])


@case(S, "a command line of 120 KiB in one argument")
def _(c):
    c.fails("plan", "tiny.ini", "train.output=" + "o" * 120000 + "\x1b", "train.batch=x")
    c.run("train", "tiny.ini", "-o", "o/" * 3000, "--steps", "1")


@case(S, "no argument at all, also no name of the program")
def _(c):
    c.fails(expect=(2,))
    c.fails("\x1b[31m")
    c.fails("")
    c.fails("train.ini")
    c.fails("--", "train")


@case(S, "names of the program")
def _(c):
    for name in ("cresnet-train", "cresnet-", "cresnet-nothing", "cresnet-\x1b[31m", "x"):
        os.symlink(c.program, c.path(name))
        said = subprocess.run([c.path(name), "help"], cwd=c.cwd, env=c.environment({}), capture_output=True, timeout=20)
        if said.returncode not in (0, 1, 2) or b"Sanitizer" in said.stderr:
            c.problem(name, "exit code %s: %s" % (said.returncode, said.stderr[-500:]))
    c.run("help")


@case(S, "help for names that do not exist")
def _(c):
    for name in ("", "\x1b[31m", "train.", ".", "a.b", "keys", "x" * 10000, b"\xff", "man", "completion"):
        c.run("help", name)
        c.run("help", "keys", name)
        c.run("help", "completion", name)
        c.run("help", "man", name)


@case(S, "folders with settings in their names")
def _(c):
    c.take("run")
    os.rename(c.path("run"), c.path("train.batch=4"))
    c.run("eval", "train.batch=4")
    c.run("eval", "./train.batch=4")
    os.rename(c.path("train.batch=4"), c.path("-q"))
    c.run("eval", "-q")
    c.run("eval", "--", "-q")
    c.run("eval", "./-q")
