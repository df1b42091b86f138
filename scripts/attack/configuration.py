"""configuration.py: hostile configuration files."""
import os
import socket

from .base import TINY
from .support import add, case

S = "configuration"


def refused(content, says=(), hides=()):
    def run(c):
        c.write("bad.ini", content)
        c.fails("plan", "bad.ini", expect=(1, 2), says=says, hides=hides)
        c.run("train", "bad.ini", "-o", "R", "--steps", "1")
    return run


def survives(content):
    def run(c):
        c.write("odd.ini", content)
        c.run("plan", "odd.ini")
    return run


CONTENTS_REFUSED = {
    "a NUL byte in a value": b"[model]\narch = resnet\x0018\n",
    "a NUL byte in a key": b"[model]\nar\x00ch = resnet18\n",
    "only NUL bytes": b"\0" * 5000,
    "escape sequences in a value": b"[model]\narch = \x1b]0;title\x07\x1b[31m\n",
    "escape sequences in a section": b"[mod\x1b[31mel]\narch = resnet18\n",
    "escape sequences in a key": b"[model]\n\x1b[2Jarch = resnet18\n",
    "C1 control characters": "[model]\narch = \u009b31m\n",
    "no UTF-8": b"[model]\narch = \xff\xfe\xc0\xaf\n",
    "an overlong encoding of a newline": b"[model]\narch = resnet18\xc0\x8a\n",
    "a line of 1 MiB": "[model]\narch = " + "x" * (1 << 20) + "\n",
    "a section name of 100,000 characters": "[" + "m" * 100000 + "]\narch = resnet18\n",
    "a key of 100,000 characters": "[model]\n" + "k" * 100000 + " = 1\n",
    "10,000 unknown keys": "[model]\n" + "".join("k%d = 1\n" % i for i in range(10000)),
    "10,000 unknown sections": "".join("[s%d]\nk = 1\n" % i for i in range(10000)),
    "an open bracket": "[model\narch = resnet18\n",
    "a key before the sections": "arch = resnet18\n[model]\n",
    "a number of 400 digits": TINY + "\n[optim]\nlr = " + "9" * 400 + "\n",
    "a number with 100,000 digits": TINY + "\n[optim]\nlr = 0." + "0" * 100000 + "1x\n",
    "lr = nan": TINY + "\n[optim]\nlr = nan\n",
    "lr = inf": TINY + "\n[optim]\nlr = inf\n",
    "lr = -inf": TINY + "\n[optim]\nlr = -inf\n",
    "lr = 0x1p-3": TINY + "\n[optim]\nlr = 0x1p-3z\n",
    "lr = 1e400": TINY + "\n[optim]\nlr = 1e400\n",
    "batch = -1": TINY.replace("batch = 4", "batch = -1"),
    "batch = 2^63": TINY.replace("batch = 4", "batch = 9223372036854775808"),
    "batch = 2^64 + 4": TINY.replace("batch = 4", "batch = 18446744073709551620"),
    "batch = 1e1": TINY.replace("batch = 4", "batch = 1e1x"),
    "Arabic digits": TINY.replace("batch = 4", "batch = \u0664"),
    "classes = 10^12": "[model]\nclasses = 1000000000000\n",
    "10,000 depths": TINY.replace("depths = 1,1", "depths = " + ",".join(["1"] * 10000)),
    "an empty list of depths": TINY.replace("depths = 1,1", "depths = ,,,"),
    "depths and widths of different lengths": TINY.replace("depths = 1,1", "depths = 1,1,1"),
    "mean with four values": TINY.replace("workers", "mean = 1,2,3,4\nworkers"),
    "mean = nan": TINY.replace("workers", "mean = nan,0,0\nworkers"),
    "std = 0": TINY.replace("workers", "std = 0,0,0\nworkers"),
    "scale in the wrong order": TINY.replace("workers", "crop = random_resized\nscale = 1,0.1\nworkers"),
    "milestones that are not in order": TINY + "\n[schedule]\nkind = multistep\nmilestones = 5,1,nan\n",
    "the configuration includes itself": "include = bad.ini\n" + TINY,
    "include of a folder": "include = .\n" + TINY,
    "include of a missing file": "include = no\x1b[31mthing.ini\n" + TINY,
    "include of a device": "include = /dev/zero\n" + TINY,
    "include of a name of 5,000 characters": "include = " + "a/" * 2500 + "\n" + TINY,
    "include of an empty name": "include = \n" + TINY,
    "include of /proc/self/mem": "include = /proc/self/mem\n" + TINY,
    "an ELF file": open("/proc/self/exe", "rb").read(200000),
    "JSON": '{"model": {"arch": "resnet18"}}',
    "a PNG file": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)) * 10,
    "UTF-16": TINY.encode("utf-16"),
    "UTF-32": TINY.encode("utf-32"),
    "an unclosed quote": '[train]\noutput = "abc\n[model]\narch = "resnet18\n',
    "format characters": "[model]\narch = %s%n%n%s%1000000d\n",
    "a configuration of 64 MiB": b"; comment\n" * (6 << 20),
}
for name, content in CONTENTS_REFUSED.items():
    add(S, name, refused(content))

CONTENTS_ALLOWED = {
    "an empty file": "",
    "CRLF": TINY.replace("\n", "\r\n"),
    "only CR": TINY.replace("\n", "\r"),
    "a byte order mark": b"\xef\xbb\xbf" + TINY.encode(),
    "no newline at the end": TINY.rstrip(),
    "Unicode blanks": TINY.replace(" = ", "\u00a0=\u2003"),
    "text in right-to-left order": TINY + "\noutput = \u202eabc\u2066\n",
    "100,000 repeated sections": "[model]\n" * 100000 + TINY,
    "a key 10,000 times": "[train]\n" + "batch = 4\n" * 10000 + TINY,
    "backslashes at line ends": TINY.replace("arch = custom\n", "arch = cus\\\ntom\n"),
    "backslash continuation for 100,000 lines": "[model]\narch = resnet18\\\n" + "\\\n" * 100000,
    "a comment of 1 MiB": TINY + ";" + "x" * (1 << 20) + "\n",
    "tabs and form feeds": TINY.replace(" = ", "\t=\f\v"),
    "sections in capitals": TINY.upper(),
}
for name, content in CONTENTS_ALLOWED.items():
    add(S, name, survives(content))


@case(S, "includes in a cycle of 50 files")
def _(c):
    for i in range(50):
        c.write("c%d.ini" % i, "include = c%d.ini\n" % ((i + 1) % 50))
    c.fails("plan", "c0.ini", expect=(2,))


@case(S, "a chain of 1,000 includes")
def _(c):
    for i in range(1000):
        c.write("c%d.ini" % i, "include = c%d.ini\n" % (i + 1))
    c.write("c1000.ini", TINY)
    c.run("plan", "c0.ini")


@case(S, "includes that double at each level")
def _(c):
    for i in range(40):
        c.write("c%d.ini" % i, ("include = c%d.ini\n" % (i + 1)) * 2)
    c.write("c40.ini", TINY)
    c.run("plan", "c0.ini")


@case(S, "a cycle through links")
def _(c):
    c.write("a.ini", "include = b.ini\n" + TINY)
    os.symlink("a.ini", c.path("b.ini"))
    c.fails("plan", "a.ini", expect=(2,))


@case(S, "a folder in place of the file")
def _(c):
    c.path("x.ini").mkdir()
    c.fails("plan", "x.ini")


@case(S, "a socket in place of the file")
def _(c):
    s = socket.socket(socket.AF_UNIX)
    fd = os.open(c.cwd, os.O_RDONLY)
    s.bind("/proc/self/fd/%d/x.ini" % fd)
    os.close(fd)
    c.fails("plan", "x.ini")
    s.close()


@case(S, "a pipe that nobody writes, included")
def _(c):
    os.mkfifo(c.path("pipe"))
    c.write("a.ini", "include = pipe\n")
    c.fails("plan", "a.ini", deadline=10)


@case(S, "a link that points to itself")
def _(c):
    os.symlink("x.ini", c.path("x.ini"))
    c.fails("plan", "x.ini")


@case(S, "a link to /dev/zero, included")
def _(c):
    os.symlink("/dev/zero", c.path("zero"))
    c.write("a.ini", "include = zero\n")
    c.fails("plan", "a.ini", deadline=10)


@case(S, "/dev/zero, /dev/null and /dev/full as configuration")
def _(c):
    c.fails("plan", "/dev/zero", deadline=10)
    c.run("plan", "/dev/null", deadline=10)
    c.fails("plan", "/dev/full", deadline=10)


@case(S, "a file whose name is not UTF-8")
def _(c):
    name = os.fsdecode(b"n\xff\x1b[31m\nx.ini")
    c.write(name, TINY)
    c.works("plan", os.fsencode(name))
    c.write(name, "[model]\narch = 1\n")
    c.fails("plan", os.fsencode(name), expect=(2,))
    c.write(name, TINY)
    c.run("train", os.fsencode(name), "--steps", "1")


@case(S, "a name of 255 bytes")
def _(c):
    name = "x" * 251 + ".ini"
    c.write(name, TINY)
    c.works("plan", name)
    c.works("train", name, "--steps", "1")


@case(S, "an unreadable foreign file as configuration")
def _(c):
    c.fails("plan", "/etc/shadow")
    c.fails("plan", "/proc/self/environ")


EXTREMES = ["model.widths=65536,65536", "model.depths=100,100", "model.depths=250,250",
            "model.classes=1000000", "data.image_size=4096",
            "train.batch=1000000", "train.batch=auto", "data.train_images=100000000", "train.epochs=1000000",
            "train.threads=4096", "data.workers=1024", "data.prefetch=64", "train.accumulate=4096",
            "train.keep=1000000",
            "data.eval_resize=8192 data.eval_crop=4096", "data.image_size=1",
            "model.width_per_group=65536 model.block=bottleneck",
            "train.seed=9223372036854775807", "memory.limit=1", "memory.limit=99999999999999999999G", "memory.limit=-1",
            "data.pad=64", "data.val_images=1", "data.train_images=1", "data.train_images=3",
            "optim.lr=1000 optim.momentum=0.99999",
            "schedule.warmup_epochs=100000", "train.clip_norm=1e9", "data.mixup=1000", "data.erase=1",
            "data.jitter=1,1,1,1", "data.ratio=0.01,100", "train.label_smoothing=0.999", "train.log_every=1000000"]
for setting in EXTREMES:
    def extreme(c, setting=setting):
        c.run("plan", "tiny.ini", *setting.split(), deadline=60)
        heavy = ("widths", "depths", "classes", "image_size=4096", "batch", "eval_crop", "train_images=1000",
                 "per_group")
        if not any(h in setting for h in heavy):
            c.run("train", "tiny.ini", "-o", "R", "--steps", "2", *setting.split(), deadline=40)
    add(S, "the extreme " + setting, extreme)
