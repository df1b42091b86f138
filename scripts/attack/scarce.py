"""scarce.py: few processes, little memory and no space on the disk, in the commands that start others; locales."""
import os
import resource as r
import shutil
import subprocess

from .support import Skip, add

S = "scarce"
KEYS = ["train.measure=no", "train.threads=1"]
LONG = {"finetune": ["finetune", "images", "-o", "F", "--epochs", "1", "--weights", "none", "data.image_size=16"],
        "sweep": ["sweep", "tiny.ini", "-o", "S", "train.seed=1,2", "--steps", "2"],
        "compress": ["compress", "run", "--speedup", "1.1", "--epochs", "1", *KEYS, "--multiple", "2", "-o", "C"],
        "explain": ["explain", "trained", "images/a/0.png", "-o", "E"],
        "lr-find": ["lr-find", "tiny.ini", "--steps", "20"],
        "quantize": ["quantize", "run", "-o", "Q"],
        "pack": ["data", "pack", "folder.ini", "K"],
        "report": ["report", "run", "-o", "r.html"],
        "export to ONNX": ["export", "run", "--onnx", "x.onnx"],
        "predictions in CSV": ["eval", "run", "--csv", "p.csv"],
        "shapes": ["data", "shapes", "D"]}


def prepare(c):
    c.take("run", "trained", "images", "folder.ini")


def limited(c, args, again=True, **options):
    """With a limit: an error, or success. Without it the same command succeeds: nothing is left that stops it."""
    prepare(c)
    result = c.run(*args, deadline=90, errors=3, **options)
    if again and result.code != 0:
        if args[0] in ("data", "quantize", "explain"):  # these refuse a folder that is there; they leave none behind
            left = [n for n in ("K", "Q", "E", "D") if c.path(n).exists()]
            if left:
                c.problem(args[0], "leaves %s" % left)
        if args[0] != "lr-find":  # 20 steps may be too few for a suggestion, which is an error too
            c.works(*args, deadline=90)
    return result


for title, args in LONG.items():
    for size in (0, 100, 3000, 20000):
        add(S, "%s, files of at most %d bytes" % (title, size),
            lambda c, a=args, s=size: limited(c, a, limits=[(r.RLIMIT_FSIZE, s)], silent=False))
    for mib in (150, 300):
        add(S, "%s, address space of %d MiB" % (title, mib),
            lambda c, a=args, m=mib: limited(c, a, plain=True, limits=[(r.RLIMIT_AS, m << 20)], loader=True))
    for files in (7, 12):
        add(S, "%s, %d open files" % (title, files),
            lambda c, a=args, n=files: limited(c, a, plain=True, limits=[(r.RLIMIT_NOFILE, n)], leftovers=True))


# ---- processes and threads of another user ----

def few(c, args, count):
    if os.geteuid() != 0:
        raise Skip("only root can become another user")
    prepare(c)
    program = c.plain or c.program
    user = (1 << 21) + os.getpid() * 16 + count  # without other processes
    if subprocess.run(["test", "-x", program], preexec_fn=lambda: os.setuid(user), check=False).returncode:
        raise Skip("another user cannot reach the program")
    os.chmod(c.folder.parent, 0o755)
    for top, dirs, names in os.walk(c.folder):
        os.chown(top, user, user)
        for name in names:
            os.chown(os.path.join(top, name), user, user, follow_symlinks=False)
    c.before = {k: v for k, v in c.before.items()}

    def leave():
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        r.setrlimit(r.RLIMIT_NPROC, (count, count))
    c.run(*args, deadline=90, errors=8, before=leave, plain=True)


for title in ("finetune", "sweep", "compress", "quantize", "pack", "lr-find", "explain"):
    for count in (1, 2, 4):
        add(S, "%s, %d processes" % (title, count), lambda c, a=LONG[title], n=count: few(c, a, n))


# ---- a full file system ----

def full(c, args, kib):
    if os.geteuid() != 0:
        raise Skip("only root can mount")
    prepare(c)
    disk = c.path("disk")
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%dk" % kib, "none", str(disk)], capture_output=True,
                      check=False).returncode:
        raise Skip("cannot mount")
    try:
        moved = [("disk/" + a if i and args[i - 1] in ("-o", "--csv", "--onnx") else a) for i, a in enumerate(args)]
        if moved == args:
            moved = args[:-1] + ["disk/" + args[-1]]
        result = c.run(*moved, deadline=90, errors=3)
        if result.code == 1 and not any(w in result.text for w in ("No space left", "no space", "disk/")):
            c.problem(" ".join(moved), "does not name the reason: %s" % result.text[-400:])
    finally:
        subprocess.run(["umount", str(disk)], check=False)


for title, args in LONG.items():
    if title != "lr-find":
        for kib in (4, 64):
            add(S, "%s, a disk of %d KiB" % (title, kib), lambda c, a=args, k=kib: full(c, a, k))


# ---- locales: the same bytes as in C ----

LOCALES = {"de_DE.UTF-8": ("de_DE", "UTF-8"), "tr_TR.UTF-8": ("tr_TR", "UTF-8"), "fr_FR.ISO-8859-1": ("fr_FR", "ISO-8859-1"),
           "ar_EG.UTF-8": ("ar_EG", "UTF-8"), "ja_JP.EUC-JP": ("ja_JP", "EUC-JP"), "az_AZ.UTF-8": ("az_AZ", "UTF-8")}


def in_locale(c, name):
    if not shutil.which("localedef"):
        raise Skip("no localedef")
    source, charset = LOCALES[name]
    folder = c.folder / "locales"
    folder.mkdir()
    subprocess.run(["localedef", "-i", source, "-f", charset, str(folder / name)], capture_output=True, check=False)
    if not (folder / name).exists():
        raise Skip("no locale %s" % name)
    prepare(c)
    commands = [["eval", "run", "--json"], ["eval", "run", "--per-class"], ["predict", "trained", "images/a/0.png", "--csv", "-"],
                ["plan", "tiny.ini"], ["help", "keys"], ["data", "stat", "images"],
                ["train", "tiny.ini", "-o", "R", "--steps", "2", "optim.lr=0.125", "MODEL.WIDTHS=4,8".lower()]]
    outputs = []
    for variables in ({"LC_ALL": "C"}, {"LC_ALL": name, "LANGUAGE": source, "LOCPATH": str(folder),
                                           "ASAN_OPTIONS": "exitcode=99:detect_leaks=0"}):  # the C library keeps LOCPATH
        outputs.append([])
        for args in commands:
            result = c.run(*args, env=variables, deadline=40, **({"expect": (0,)} if args[0] != "predict" else {}))
            if args[0] not in ("train", "eval"):
                outputs[-1].append(result.out)
        outputs[-1].append((c.path("R/last/model.safetensors")).read_bytes())
        outputs[-1].append((c.path("R/last/config.ini")).read_bytes())
        c.rm("R")
    if outputs[0] != outputs[1]:
        c.problem(name, "other output than in C: %s" % [i for i, (a, b) in enumerate(zip(*outputs)) if a != b])


for title in LOCALES:
    add(S, "locale %s" % title, lambda c, n=title: in_locale(c, n))
