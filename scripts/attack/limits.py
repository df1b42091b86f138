"""limits.py: small limits of the system, odd environments, closed descriptors."""
import os
import resource as r
import subprocess

from .support import Skip, add, case

S = "limits"
TRAIN = ["train", "tiny.ini", "-o", "R", "--steps", "2"]


def each(c, *commands, **options):
    for args in commands:
        c.rm("R", "P", "P2", "K", "x")
        c.run(*args, **options)


def several(c, **options):
    c.take("run", "images", "folder.ini")
    each(c, TRAIN, ["eval", "run"], ["plan", "tiny.ini"], ["export", "run", "-o", "x"],
         ["data", "pack", "folder.ini", "K"],
         ["predict", "run", "images"], ["prune", "run", "--sparsity", "0.5", "-o", "P"], ["report", "run", "-o", "-"],
         ["quantize", "run", "-o", "P2"], binary=True, **options)


# oneDNN itself does not survive memory that ends (docs/robustness.md): a segmentation fault there is no failure.
for mib in (16, 32, 48, 64, 96, 128, 192, 256, 400):
    add(S, "address space of %d MiB" % mib,
        lambda c, mib=mib: several(c, plain=True, limits=[(r.RLIMIT_AS, mib << 20)], sent=11 if mib < 100 else None,
                                   loader=True))
for files in (0, 1, 3, 4, 5, 6, 8, 10, 16):
    add(S, "%d open files" % files, lambda c, files=files: several(c, plain=files < 6,
                                                                   limits=[(r.RLIMIT_NOFILE, files)],
                                                                  leftovers=True, loader=True, silent=files < 4))
for kib in (0, 16, 64, 256, 1024, 4096):
    add(S, "stack of %d KiB" % kib, lambda c, kib=kib: several(c, limits=[(r.RLIMIT_STACK, (kib << 10, kib << 10))],
                                                               plain=True,
                                                              sent=11 if kib < 16 else None))
add(S, "unlimited stack", lambda c: several(c, limits=[(r.RLIMIT_STACK, r.RLIM_INFINITY)]))
add(S, "no locked memory, no message queues", lambda c: several(c, limits=[(r.RLIMIT_MEMLOCK, 0),
        (r.RLIMIT_MSGQUEUE, 0)]))
add(S, "no data segment", lambda c: several(c, plain=True, limits=[(r.RLIMIT_DATA, 8 << 20)], sent=11, loader=True))


@case(S, "one second of processor time")
def _(c):
    c.run("train", "tiny.ini", "-o", "R", "train.epochs=1000000", "train.save_every=50", "train.log_every=100000",
          "train.eval_every=0",
          limits=[(r.RLIMIT_CPU, (1, 5))], sent=24, leftovers=True)
    c.run("train", "tiny.ini", "-o", "R", "--steps", "2", "--resume", "auto")


@case(S, "processes limited for another user")
def _(c):
    if os.geteuid() != 0:
        c.run("train", "tiny.ini", "-o", "R", "--steps", "1", limits=[(r.RLIMIT_NPROC, 1)], sent=6,
              plain=True)  # the check for leaks needs a thread
        return
    for program in (c.program, c.plain or c.program):
        if subprocess.run(["test", "-x", program], preexec_fn=lambda: os.setuid(65534), check=False).returncode:
            raise Skip("another user cannot reach the program")
    os.chmod(c.folder.parent, 0o755)
    for part in (c.folder, c.cwd, c.folder / "tmp", c.folder / "home"):
        os.chmod(part, 0o777)

    def leave():
        resource_limit = (2, 2)
        os.setgid(65534)
        os.setuid(65534)
        r.setrlimit(r.RLIMIT_NPROC, resource_limit)
    for threads in ("1", "2", "8"):
        c.rm("R")
        c.run("train", "tiny.ini", "-o", "R", "--steps", "1", "--threads", threads, "data.workers=8", before=leave,
              plain=True, sent=6)
        c.rm("R")
        c.run("train", "tiny.ini", "-o", "R", "--steps", "1", "--ranks", "4", before=leave, plain=True, sent=6,
              errors=8)


THREADS = [{"OMP_NUM_THREADS": v} for v in ("0", "-1", "x", "", "1,2,3", "999999999999", "2147483647", "\x1b[31m")] + [
    {"OMP_THREAD_LIMIT": "1"}, {"OMP_THREAD_LIMIT": "0"}, {"OMP_DYNAMIC": "true", "OMP_NUM_THREADS": "16"},
    {"OMP_NESTED": "true"},
    {"OMP_SCHEDULE": "dynamic,1"}, {"OMP_STACKSIZE": "1B"}, {"OMP_STACKSIZE": "16K"}, {"OMP_STACKSIZE": "100G"},
    {"OMP_PROC_BIND": "close"},
    {"OMP_PLACES": "{0}"}, {"OMP_PLACES": "{99}"}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "infinite"},
    {"GOMP_SPINCOUNT": "x"},
    {"OMP_MAX_ACTIVE_LEVELS": "0"}, {"OMP_CANCELLATION": "true"}, {"GOMP_CPU_AFFINITY": "0"}, {"MALLOC_ARENA_MAX": "0"}]
for variables in THREADS:
    title = ", ".join("%s=%s" % (k, ascii(v)[1:-1]) for k, v in variables.items())

    def odd_threads(c, variables=variables):
        plain = "STACKSIZE" in str(variables)
        result = c.run(*TRAIN, env=dict(variables,
                                        **({} if "OMP_NUM_THREADS" in variables else {"OMP_NUM_THREADS": "2"})),
                       deadline=40,
                       binary=True, plain=plain)
        if result.code not in (0, 1):
            c.problem("train", "exit code %d" % result.code)
    add(S, title, odd_threads)

WORLD = [{"HOME": None, "XDG_CACHE_HOME": None}, {"HOME": "", "XDG_CACHE_HOME": ""},
         {"HOME": "/dev/null", "XDG_CACHE_HOME": None},
         {"HOME": "/proc", "XDG_CACHE_HOME": None}, {"XDG_CACHE_HOME": "relative"},
         {"XDG_CACHE_HOME": "/" + "x" * 5000},
         {"HOME": "\x1b[31m", "XDG_CACHE_HOME": None}, {"XDG_CACHE_HOME": "/dev/null"}, {"CRESNET_CACHE": "/dev/full"},
         {"CRESNET_CACHE": ""}, {"XDG_CACHE_HOME": None, "HOME": os.fsdecode(b"/\xff\xfe")}]
for variables in WORLD:
    title = ", ".join("%s=%s" % (k, ascii(v)[:30].strip("'")) for k, v in variables.items())

    def odd_home(c, variables=variables):
        args = ["tiny.ini", "data.kind=shapes", "data.root=", "data.train_images=20", "data.val_images=10"]
        c.run("data", *args, env=variables)
        c.run("train", *args, "-o", "R", "--steps", "1", env=variables)
        c.run("plan", *args, "--target", "h200", env=variables)
        for name in os.listdir(c.cwd):
            if name in ("relative", "\x1b[31m"):
                c.problem("cache", "is in the current folder: %r" % name)
    add(S, "caches: " + title, odd_home)

SHOWN = [{"LANG": "xx_YY.nothing"}, {"LC_ALL": "de_DE.UTF-8"}, {"LC_ALL": "C"}, {"LC_NUMERIC": "de_DE"},
         {"TZ": "\x1b[31m"}, {"TZ": ":/dev/zero"},
         {"TZ": "x" * 10000}, {"COLUMNS": "0"}, {"COLUMNS": "-1"}, {"COLUMNS": "99999999999"}, {"TERM": "\x1b"},
         {"TERM": "dumb"},
         {"CRESNET_TRACE": "1"}, {"CRESNET_SYNC": "\x1b"}, {"PATH": None}, {"PATH": ""},
         {"RANK": "x", "WORLD_SIZE": "-1"},
         {"RANK": "5", "WORLD_SIZE": "2"}, {"RANK": "0", "WORLD_SIZE": "99999999999"},
         {"SLURM_PROCID": "\x1b[31m", "SLURM_NTASKS": "2"},
         {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "1"}, {"MASTER_ADDR": "\x1b[31m", "MASTER_PORT": "x",
                                                                      "RANK": "0", "WORLD_SIZE": "2"},
         {"PMI_RANK": "0", "PMI_SIZE": "2", "RANK": "1", "WORLD_SIZE": "2"},
         {"DNNL_VERBOSE": "0", "ONEDNN_MAX_CPU_ISA": "x"}]
for variables in SHOWN:
    title = ", ".join("%s=%s" % (k, ascii(v)[:30].strip("'")) for k, v in variables.items())

    def odd_text(c, variables=variables):
        c.take("run")
        for args in (TRAIN + ["ranks.meet=2"], ["eval", "run", "--json"], ["plan", "tiny.ini"], ["help"],
                     ["report", "run", "-o", "-"]):
            c.rm("R")
            c.run(*args, env=variables, errors=2 if "CRESNET_TRACE" in variables else None)
    add(S, title, odd_text)


def close(*numbers):
    def before():
        for n in numbers:
            try:
                os.close(n)
            except OSError:
                pass
    return before


for numbers in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)):
    def closed(c, numbers=numbers):
        c.take("run")
        original = {k: v for k, v in ((f, f.read_bytes()) for p in c.checkpoints() for f in p.iterdir())}
        for args in (TRAIN, ["eval", "run"], ["plan", "tiny.ini"], ["export", "run", "-o", "x"],
                     ["export", "run", "-o", "-"],
                     ["eval", "run", "--confusion", "-"], ["help"], ["plan", "missing.ini"],
                     ["prune", "run", "--sparsity", "0.5", "-o", "P"]):
            c.rm("R", "P")
            c.run(*args, before=close(*numbers), binary=True, silent=2 in numbers)
        for path, data in original.items():
            if path.read_bytes() != data:
                c.problem("closed descriptors", "%s was written" % path.name)
        if c.path("x").exists():
            c.works("eval", "tiny.ini", "--weights", "x")
    add(S, "closed descriptors " + ", ".join(map(str, numbers)), closed)


@case(S, "standard output is full")
def _(c):
    c.take("run", "images")
    with open("/dev/full", "wb") as full:
        for args in (["eval", "run"], ["plan", "tiny.ini"], ["help"], ["--version"], ["help", "markdown"],
                     ["export", "run", "-o", "-"],
                     ["eval", "run", "--json"], ["predict", "run", "images"], ["data", "stat", "images"],
                     ["plan", "tiny.ini", "--csv"],
                     ["profile", "tiny.ini", "--steps", "1"], ["report", "run", "--no-eval", "-o", "-"],
                     ["eval", "run", "--confusion", "-"]):
            c.fails(*args, stdout=full, expect=(1,))


@case(S, "standard error is full")
def _(c):
    with open("/dev/full", "wb") as full:
        c.works(*TRAIN, stderr=full)
        c.fails("plan", "missing.ini", stderr=full, silent=True)


@case(S, "the current folder was removed")
def _(c):
    c.take("run")
    gone = c.folder / "gone"
    gone.mkdir()

    def leave():
        os.chdir(gone)
        os.rmdir(gone)
    for args in (["plan", str(c.path("tiny.ini"))], ["train", str(c.path("tiny.ini")), "--steps", "1"],
                 ["eval", str(c.path("run"))],
                 ["export", str(c.path("run")), "-o", "x"], ["data", "shapes", "D"], ["help"]):
        gone.mkdir(exist_ok=True)
        c.run(*args, before=leave)


@case(S, "umask 777 and umask 0")
def _(c):
    for mask in (0o777, 0):
        c.rm("R")
        c.run(*TRAIN, before=lambda mask=mask: os.umask(mask))
        if c.path("R").exists():
            os.chmod(c.path("R"), 0o755)  # so that it can be removed
            for top, folders, _ in os.walk(c.path("R")):
                for name in folders:
                    os.chmod(os.path.join(top, name), 0o755)


@case(S, "no environment at all")
def _(c):
    everything = {k: None for k in c.environment({})}
    c.take("run")
    c.run(*TRAIN, env=everything)
    c.run("eval", "run", env=everything)


@case(S, "an environment of 100,000 variables")
def _(c):
    c.run("plan", "tiny.ini", env={"V%d" % i: "x" for i in range(20000)})


@case(S, "one processor")
def _(c):
    c.works(*TRAIN, before=lambda: os.sched_setaffinity(0, {0}), env={"OMP_NUM_THREADS": "8"}, deadline=40)


@case(S, "idle priority")
def _(c):
    c.works(*TRAIN, before=lambda: os.nice(19), deadline=40)
