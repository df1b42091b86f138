"""runs.py: run folders that somebody else made: links, folders, pipes and foreign paths in place of their files."""
import os
import socket

from .base import TINY
from .support import Skip, add, case

S = "run folders"
ROOT = os.geteuid() == 0


def every_command(c, run="run", evaluate=True, **options):
    """evaluate: also the commands that go through the validation images, which may take long."""
    c.take("images")
    for args in [["eval", run], ["report", run, "-o", "r.html"], ["report", run],
                 ["quantize", run, "-o", "Q", "--images", "8"]] if evaluate else []:
        c.run(*args, **options)
    for args in (["predict", run, "images/a/0.png"], ["plan", run], ["report", run, "--no-eval", "-o", "r.html"],
                 ["prune", run, "--sparsity", "0.5", "-o", "P"], ["export", run, "-o", "e.safetensors"],
                 ["export", run, "--onnx", "e.onnx"], ["data", run],
                 ["train", "tiny.ini", "-o", "T", "--resume", run, "--steps", "6"],
                 ["train", "tiny.ini", "-o", run, "--resume", "auto", "--steps", "6"],
                 ["prune", run, "--sparsity", "0.5", "-o", run]):
        c.run(*args, **options)


ENTRIES = ["last", "best", "best.json", "log.jsonl", ".lock", "report.html", "profile.jsonl", "step-4", "events"]
FILES = ["model.safetensors", "state.safetensors", "config.ini", "classes.txt"]


def place(c, name):
    """The path of an entry of the run, or of a file of all of its checkpoints."""
    if name == "events":
        return [p for p in c.path("run").iterdir() if p.name.startswith("events")]
    return [p / name for p in c.checkpoints()] if name in FILES else [c.path("run") / name]


def replace(c, name, make):
    c.take("run")
    for path in place(c, name):
        if path.is_dir() and not path.is_symlink():
            os.rename(path, c.path("moved-away"))
        elif os.path.lexists(path):
            os.remove(path)
        make(path)


KINDS = {
    "a link to a foreign file": lambda c: lambda p: os.symlink(c.outside / "victim.txt", p),
    "a link to a foreign folder": lambda c: lambda p: os.symlink(c.outside / "folder", p),
    "a link to nothing outside": lambda c: lambda p: os.symlink(c.outside / "new", p),
    "a folder": lambda c: lambda p: p.mkdir(),
    "a pipe": lambda c: os.mkfifo,
    "a link to itself": lambda c: lambda p: os.symlink(p.name, p),
    "an empty file": lambda c: lambda p: p.write_bytes(b""),
    "a link to /dev/zero": lambda c: lambda p: os.symlink("/dev/zero", p),
}
for entry in ENTRIES + FILES:
    for kind, make in KINDS.items():
        def replaced(c, entry=entry, make=make):
            replace(c, entry, make(c))
            every_command(c)
        add(S, "%s is %s" % (entry, kind), replaced)


@case(S, "last points outside, to a whole checkpoint there")
def _(c):
    c.take("run")
    inner = c.checkpoints()[-1]
    os.rename(inner, c.path("moved"))
    os.remove(c.path("run/last"))
    os.symlink("../moved", c.path("run/last"))
    every_command(c)


def change(text, settings):
    """The text of a configuration with other values of some keys, which must be there."""
    section, lines, left = "", [], dict(settings)
    for line in text.split("\n"):
        section = line.strip("[]") if line.startswith("[") else section
        key = section + "." + line.split("=")[0].strip()
        lines.append("%s = %s" % (key.split(".")[1], left.pop(key)) if "=" in line and key in left else line)
    if left:
        raise KeyError(", ".join(left))
    return "\n".join(lines)


CONFIGS = {
    "an absolute output": {"train.output": "OUT/new"},
    "an absolute root of shapes": {"data.kind": "shapes", "data.root": "OUT/new", "data.train_images": "20"},
    "an absolute root of shapes that exists": {"data.kind": "shapes", "data.root": "OUT/folder"},
    "a root with ..": {"data.kind": "shapes", "data.root": "../outside/folder", "data.train_images": "20"},
    "a root that is /": {"data.kind": "folder", "data.root": "/proc/self/fd", "data.val_fraction": "0.5",
                         "data.train_images": "0", "data.val_images": "0"},
    "a file as root": {"data.kind": "packed", "data.root": "OUT/victim.txt", "data.train_images": "0",
                       "data.val_images": "0"},
    "weights outside": {"model.weights": "OUT/victim.txt"},
    "weights that are a device": {"model.weights": "/dev/zero"},
    "weights that are a pipe": {"model.weights": "pipe"},
    "a budget outside": {"prune.budget": "OUT/victim.txt", "prune.sparsity": "0.5"},
    "a budget that is a device": {"prune.budget": "/dev/zero", "prune.sparsity": "0.5"},
    "a pipe as root": {"data.kind": "folder", "data.root": "pipe", "data.train_images": "0", "data.val_images": "0"},
    "a pipe as root of shapes": {"data.kind": "shapes", "data.root": "pipe"},
    "a device as root of CIFAR-10": {"data.kind": "cifar10", "data.root": "/dev/zero", "data.train_images": "0",
                                     "data.val_images": "0"},
    "a network of 10^13 parameters": {"model.depths": "100,100", "model.widths": "65536,65536"},
    "a million classes": {"model.classes": "1000000"},
    "4,096 threads and 1,024 workers": {"train.threads": "4096", "data.workers": "1024", "data.prefetch": "64"},
    "a hundred million images": {"data.train_images": "100000000", "data.val_images": "100000000"},
    "images of 4,096 pixels": {"data.image_size": "4096"},
    "a batch of a million": {"train.batch": "1000000", "data.train_images": "100000000"},
    "a million epochs": {"train.epochs": "1000000", "train.save_every": "1000000", "train.eval_every": "0"},
    "values that are not numbers": {"optim.lr": "nan", "optim.momentum": "inf", "model.bn_eps": "-1"},
    "a host for ranks": {"ranks.address": "192.0.2.1", "ranks.port": "1", "ranks.meet": "1"},
    "all numeric extremes": {"optim.lr": "1e30", "optim.weight_decay": "1e30", "ema.decay": "0.9999999999",
                             "data.mixup": "1e30"},
    "escape sequences": {"train.output": "\x1b]0;t\x07", "data.kind": "folder", "data.root": "\x1b[31m"},
    "no UTF-8": {"data.kind": "folder", "data.root": "\udcff\udcfe", "data.train_images": "0", "data.val_images": "0"},
    "C1 control characters": {"data.kind": "folder", "data.root": "\u009b31m", "data.train_images": "0",
                              "data.val_images": "0"},
}
LONG = ("a hundred million images", "images of 4,096 pixels", "a batch of a million")
for title, settings in CONFIGS.items():
    def configured(c, title=title, settings=settings):
        c.take("run")
        os.mkfifo(c.path("pipe"))
        for checkpoint in c.checkpoints():
            old = (checkpoint / "config.ini").read_text()
            new = change(old, {k: v.replace("OUT", str(c.outside)) for k, v in settings.items()})
            (checkpoint / "config.ini").write_bytes(new.encode("utf-8", "surrogateescape"))
        every_command(c, evaluate=title not in LONG)
    add(S, "config.ini with " + title, configured)


@case(S, "config.ini with an include, a key twice, an unknown section")
def _(c):
    for text in ("include = %s/victim.txt\n" % c.outside, "include = /dev/zero\n", "[other]\nkey = private7\n",
                 "[model]\narch = private7\n"):
        c.take("run")
        for checkpoint in c.checkpoints():
            old = (checkpoint / "config.ini").read_text()
            (checkpoint / "config.ini").write_text(text + old)
        every_command(c, hides="private7")


@case(S, "class names with escape sequences, quotes, markup")
def _(c):
    c.take("trained", "images")
    for names in (b"\x1b]0;t\x07\nb\n", b"<script>alert(1)</script>\n\"b\",x\n", b"\xff\xfe\n\xe2\x80\xaeb\n",
                  b"a\na\n", b"\n\n", b"a", b"",
                  b"a\nb\nc\n" * 1000, b"a\0b\nc\n", b"a\r\nb\r\n", b"x" * 100000 + b"\ny\n", b"=1+1\n-1\n"):
        for checkpoint in c.checkpoints("trained"):
            (checkpoint / "classes.txt").write_bytes(names)
        c.run("eval", "trained", "--per-class", "--confusion", "m.csv")
        c.run("eval", "trained", "--per-class", "--json")
        c.run("predict", "trained", "images")
        c.run("predict", "trained", "images", "--json")
        c.run("report", "trained", "-o", "r.html")
        c.run("export", "trained", "--onnx", "x.onnx")
        if c.path("r.html").exists() and b"<script>alert" in c.path("r.html").read_bytes():
            c.problem("report", "a script of a class name is in the page")


@case(S, "folders with foreign step names")
def _(c):
    c.take("run")
    for name in ("step-", "step--1", "step-99999999999999999999", "step-9223372036854775807", "step-4x", "step-04",
                 "step-\x1b[31m", "step-5",
                 "step-1000000000000"):
        c.path("run/" + name).mkdir()
    every_command(c)


@case(S, "a copy of a checkpoint with another number")
def _(c):
    c.take("run")
    os.system("cp -a '%s' '%s'" % (c.checkpoints()[-1], c.path("run/step-999999999999")))
    os.remove(c.path("run/last"))
    os.symlink("step-999999999999", c.path("run/last"))
    every_command(c)


@case(S, "leftovers that are links to foreign folders")
def _(c):
    c.take("run")
    for name in (".gone-step-4.1", ".tmp-step-6.1", "model.safetensors.tmp.1"):
        os.symlink(c.outside / "folder", c.path("run/" + name))
    c.path("run/.gone-step-2.77").mkdir()
    os.symlink(c.outside / "folder", c.path("run/.gone-step-2.77/in"))
    os.symlink(c.outside / "victim.txt", c.path("run/.gone-step-2.77/file"))
    c.run("train", "tiny.ini", "-o", "run", "--resume", "auto", "--steps", "6", leftovers=True)
    os.symlink(c.outside / "victim.txt", c.path("e.safetensors.tmp.1"))
    os.mkfifo(c.path("e.safetensors.tmp.2"))
    c.path("e.safetensors.tmp.3").mkdir()
    c.run("export", "run", "-o", "e.safetensors", leftovers=True)


@case(S, "the run folder itself: a file, a link, a pipe, a socket")
def _(c):
    c.take("run")
    c.write("f", "text")
    os.symlink("run", c.path("l"))
    os.symlink("nothing", c.path("d"))
    os.mkfifo(c.path("p"))
    fd = os.open(c.cwd, os.O_RDONLY)
    s = socket.socket(socket.AF_UNIX)
    s.bind("/proc/self/fd/%d/s" % fd)
    os.close(fd)
    c.fails("train", "tiny.ini", "-o", "p", "--steps", "1")
    c.fails("train", "tiny.ini", "--resume", "p", "--steps", "1", "-o", "T")
    for name in ("f", "l", "d", "s", "/dev/null", "/", "/proc/self", "/proc/self/fd"):
        for args in (["eval", name], ["plan", name], ["report", name], ["prune", name, "--sparsity", "0.5", "-o", "P"],
                     ["train", "tiny.ini", "--resume", name, "--steps", "1", "-o", "T"]):
            c.run(*args)
            c.rm("P", "T")
        if not name.startswith("/"):
            c.run("train", "tiny.ini", "-o", name, "--steps", "1")
    s.close()


@case(S, "output folders in odd places")
def _(c):
    for name in ("/dev/null/x", "/proc/x", "tiny.ini", "tiny.ini/x", "", ".", "..", "a/../b", "./-o", "x" * 300,
                 "a/" * 2100, "/sys/x", "\x1b[31m"):
        c.run("train", "tiny.ini", "--steps", "1", "-o", name)


@case(S, "a run without permissions")
def _(c):
    if ROOT:
        raise Skip("root writes everything")
    c.take("run")
    os.chmod(c.path("run"), 0o555)
    every_command(c)


@case(S, "a file of another user is locked for ever")
def _(c):
    import fcntl
    c.take("run")
    with open(c.path("run/.lock"), "a") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        c.fails("train", "tiny.ini", "-o", "run", "--resume", "auto", "--steps", "6")
        c.fails("prune", "run", "--sparsity", "0.5", "-o", "run")
        c.works("eval", "run")


@case(S, "resume with another network, other data, another optimizer")
def _(c):
    c.take("run", "trained", "folder.ini")
    c.write("other.ini", TINY.replace("4,8", "8,16"))
    for args in (["other.ini", "--resume", "run"], ["tiny.ini", "--resume", "run", "optim.kind=adamw"],
                 ["folder.ini", "--resume", "run"],
                 ["tiny.ini", "--resume", "trained"], ["tiny.ini", "--resume", "run", "ema.decay=0.9"],
                 ["tiny.ini", "--resume", "run/last/model.safetensors"]):
        c.run("train", *args, "-o", "T", "--steps", "6")
        c.run("train", *args, "-o", "T2", "--steps", "6", "--force")
        c.rm("T", "T2")
