"""outputs.py: every output option with links, devices, pipes, folders, foreign files and full disks."""
import os
import resource
import subprocess
import threading

from .support import Skip, add, case

S = "outputs"
OUTPUTS = {
    "export -o": ["export", "run", "-o"],
    "export --onnx": ["export", "run", "--onnx"],
    "eval --confusion": ["eval", "run", "--confusion"],
    "report -o": ["report", "run", "--no-eval", "-o"],
    "plan --svg": ["plan", "tiny.ini", "--svg"],
}


def writer(title):
    return lambda c, name, **options: c.run(*OUTPUTS[title], name, binary=True, **options)


FULL = (1, 2)
for title in OUTPUTS:
    def odd_names(c, write=writer(title)):
        c.take("run")
        for name in ("", "-", "--", "no/such/folder/x", "tiny.ini/x", "x" * 256, "a/" * 2100 + "x", ".", "..", "/",
                     "\x1b[31m\n",
                     os.fsdecode(b"\xff\xfe"), "-o", "/proc/self/nothing", "run", "run/"):
            write(c, name)
    add(S, title + ": odd names", odd_names)

    def links(c, write=writer(title)):
        c.take("run")
        os.symlink(c.outside / "victim.txt", c.path("foreign"))
        os.symlink(c.outside / "new", c.path("dangling"))
        os.symlink("loop", c.path("loop"))
        os.symlink(c.outside / "folder", c.path("folder"))
        os.symlink("/dev/full", c.path("full"))
        os.symlink("chain2", c.path("chain1"))
        os.symlink("victim", c.path("chain2"))
        os.link(c.path("tiny.ini"), c.path("hard"))
        c.write("victim", "precious")
        c.keep("victim", "tiny.ini")
        for name in ("foreign", "dangling", "loop", "folder", "folder/photo.png", "folder/../victim.txt", "full",
                     "chain1", "hard"):
            write(c, name, expect=FULL)
    add(S, title + ": links", links)

    def devices(c, write=writer(title)):
        c.take("run")
        write(c, "/dev/null", expect=(0,))
        write(c, "/dev/full", expect=(1,))
        write(c, "/dev/zero")
        write(c, "/dev/stdout")
        write(c, "/dev/stdin")
        write(c, "/dev/fd/77", expect=FULL)
        write(c, "/dev/fd/", expect=FULL)
        write(c, "/dev/fd/x", expect=FULL)
        write(c, "/dev/fd/99999999999999999999", expect=FULL)
        write(c, "/dev/fd/-1", expect=FULL)
        write(c, "/proc/self/fd/1")
        write(c, "/proc/self/mem")
        write(c, "/proc/self/exe", expect=FULL)
    add(S, title + ": devices and descriptors", devices)

    def foreign(c, write=writer(title)):
        c.take("run", "images", "packed", "weights.safetensors", "plan.csv", "profile.jsonl")
        c.write("text", "precious")
        c.write("blank", " ")
        names = ["text", "blank", "images/a/0.png", "packed/train.crpk", "plan.csv", "profile.jsonl", "run/log.jsonl",
                 "tiny.ini",
                 "run/step-4/model.safetensors", "run/best.json", "run/step-4/config.ini"]
        c.keep(*names)
        for name in names:
            write(c, name, expect=FULL)
    add(S, title + ": existing files of others", foreign)

    def pipes(c, write=writer(title)):
        c.take("run")
        os.mkfifo(c.path("pipe"))

        def close_at_once():
            os.close(os.open(c.path("pipe"), os.O_RDONLY))
        reader = threading.Thread(target=close_at_once)
        reader.start()
        write(c, "pipe", sent=13)
        if reader.is_alive():
            os.close(os.open(c.path("pipe"), os.O_RDWR | os.O_NONBLOCK))
        reader.join(5)
        if not os.path.lexists(c.path("pipe")):
            c.problem("pipe", "was removed")
    add(S, title + ": a pipe whose reader leaves", pipes)

    def full(c, write=writer(title)):
        c.take("run")
        for size in (0, 1, 100, 1000, 4096, 8192):
            write(c, "out%d" % size, limits=[(resource.RLIMIT_FSIZE, size)], leftovers=False)
        write(c, "out-whole", expect=(0,))
        for size in (0, 100, 4096):
            before = c.path("out-whole").read_bytes()
            result = write(c, "out-whole", limits=[(resource.RLIMIT_FSIZE, size)])
            if result.code and c.path("out-whole").read_bytes() != before:
                c.problem("a full disk", "the old file is damaged")
    add(S, title + ": file sizes limited", full)


@case(S, "training with limited file sizes")
def _(c):
    for size in (0, 100, 1000, 3000, 8000, 9000, 20000):
        c.rm("R")
        c.run("train", "tiny.ini", "-o", "R", "--steps", "4", limits=[(resource.RLIMIT_FSIZE, size)])
        c.run("train", "tiny.ini", "-o", "R", "--steps", "4", "--resume", "auto")


@case(S, "prune, data pack and data shapes with limited file sizes")
def _(c):
    c.take("run", "images", "folder.ini")
    for size in (0, 100, 1000, 3000, 8000):
        limits = [(resource.RLIMIT_FSIZE, size)]
        c.rm("P", "K", "D")
        c.run("prune", "run", "--sparsity", "0.5", "-o", "P", limits=limits)
        c.rm("Q8")
        c.run("quantize", "run", "-o", "Q8", limits=limits)
        c.run("quantize", "run", "-o", "Q8")
        c.run("data", "pack", "folder.ini", "K", limits=limits)
        c.run("data", "shapes", "D", "data.train_images=20", "data.val_images=10", limits=limits)
        c.run("train", "tiny.ini", "-o", "Q", "--steps", "1", limits=limits)
        c.run("prune", "run", "--sparsity", "0.5", "-o", "P")
        c.run("data", "pack", "folder.ini", "K", expect=(0,))
        c.run("data", "shapes", "D", "data.train_images=20", "data.val_images=10")


@case(S, "a full file system of 64 KiB to 1 MiB")
def _(c):
    for size in (32, 64, 128, 1024):
        place = c.path("small%d" % size)
        place.mkdir()
        said = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%dk" % size, "none", str(place)],
                              capture_output=True)
        if said.returncode:
            raise Skip("no permission to mount a small file system")
        try:
            c.take("images", "folder.ini") if size == 32 else None
            if not c.path("run").exists():
                c.take("run")
            here = place.name
            c.run("train", "tiny.ini", "-o", here + "/R", "--steps", "40", "train.save_every=2", "train.keep=100")
            c.run("data", "pack", "folder.ini", here + "/K")
            c.run("prune", "run", "--sparsity", "0.5", "-o", here + "/P")
            c.run("quantize", "run", "-o", here + "/Q")
            for args in OUTPUTS.values():
                c.run(*args, here + "/" + args[0] + args[-1], binary=True)
            c.run("data", "shapes", here + "/D", "data.train_images=200", "data.val_images=10")
            if c.path(here + "/R/last").exists():
                c.run("eval", here + "/R")
        finally:
            subprocess.run(["umount", "-l", str(place)], check=False)


@case(S, "a read-only file system")
def _(c):
    c.take("run", "images", "folder.ini")
    place = c.path("fixed")
    place.mkdir()
    said = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(place)], capture_output=True)
    if said.returncode:
        raise Skip("no permission to mount a file system")
    try:
        c.fails("train", "tiny.ini", "-o", "fixed/R", "--steps", "1")
        c.fails("data", "pack", "folder.ini", "fixed")
        c.fails("data", "shapes", "fixed")
        c.fails("prune", "run", "--sparsity", "0.5", "-o", "fixed/P")
        for args in OUTPUTS.values():
            c.fails(*args, "fixed/x", binary=True)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


@case(S, "outputs that are inputs of the same command")
def _(c):
    c.take("run", "weights.safetensors", "images", "folder.ini", "packed")
    c.keep("tiny.ini", "folder.ini", "images/a/0.png")
    c.run("export", "weights.safetensors", "-o", "weights.safetensors")
    c.run("prune", "run", "--sparsity", "0.5", "-o", "run")
    c.run("prune", "run/last", "--sparsity", "0.5", "-o", "run/last")
    c.run("plan", "tiny.ini", "--svg", "tiny.ini")
    c.run("data", "pack", "folder.ini", "images")
    c.run("data", "pack", "packed", "packed")
    c.run("train", "folder.ini", "-o", "images", "--steps", "1")
    c.run("report", "run", "-o", "run/log.jsonl", "--no-eval")


@case(S, "data pack: odd places")
def _(c):
    c.take("folder.ini", "images")
    os.symlink(c.outside / "folder", c.path("link"))
    os.symlink("nothing", c.path("dangling"))
    os.mkfifo(c.path("pipe"))
    for name in ("", "-", "/dev/null", "/dev/null/x", "dangling", "pipe", "tiny.ini", "/proc", "x" * 300, "\x1b[31m",
                 "a/b/c"):
        c.run("data", "pack", "folder.ini", name)
    c.path("K").mkdir()
    os.symlink(c.outside / "victim.txt", c.path("K/train.crpk"))
    os.symlink(c.outside / "new", c.path("K/val.crpk"))
    c.fails("data", "pack", "folder.ini", "K")
    c.path("L/train.crpk").mkdir(parents=True)
    c.fails("data", "pack", "folder.ini", "L")
    c.fails("data", "pack", "folder.ini", "L", "--force")


@case(S, "two outputs of one command are the same file")
def _(c):
    c.take("run")
    c.run("export", "run", "-o", "x", "--onnx", "x")
    c.run("export", "run", "-o", "-", "--onnx", "-", binary=True)
    c.run("eval", "run", "--json", "--confusion", "-")


@case(S, "ten commands write the same file at a time")
def _(c):
    c.take("run")
    processes = [c.start("export", "run", "-o", "e.safetensors", stderr=subprocess.PIPE) for _ in range(10)]
    for p in processes:
        err = p.communicate(timeout=60)[1]
        if p.returncode not in (0, 1) or b"Sanitizer" in err:
            c.problem("export", "exit code %d: %s" % (p.returncode, err[-400:]))
    c.works("eval", "tiny.ini", "--weights", "e.safetensors")


@case(S, "TMPDIR: missing, a file, not writable, relative, long")
def _(c):
    c.take("run")
    for place in ("", "missing", "tiny.ini", "/proc", "/dev/null", "x" * 5000, "\x1b[31m", "."):
        c.run("export", "run", "-o", "-", env={"TMPDIR": place}, binary=True)
