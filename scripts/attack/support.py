"""support.py: the table of cases of attack-test.py, the folder of a case, and the checks of every run of the program.

A case is a function with the decorator @case(SUBJECT, NAME), or one entry of a table that calls add(). It gets a
Sandbox: a folder with the parts

    in/         the current folder of the program, with copies that the case needs
    outside/    files that nobody may change
    home/ tmp/  HOME and TMPDIR

Sandbox.run() starts the program, and notes what breaks a rule: no end in time, an undocumented exit code, a report of a
sanitizer, a failure without a message or with several, control characters in the output, a change outside,
text of a file outside, leftovers.
"""
import hashlib
import os
import random
import re
import resource
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path

CASES = []  # (subject, name, function), in the order of the tables
REPORT = re.compile(rb"ERROR: \w+Sanitizer|runtime error:|SUMMARY: \w+Sanitizer|LeakSanitizer|CR_ASSERT|assertion",
                    re.I)
# The error that ends the program. Lines "cresnet: error: FILE: ..." before it name the single files of a list.
ERROR = re.compile(r"^cresnet(?: [a-z-]+)?: (?!warning: |error: )", re.M)
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")
LEFTOVER = re.compile(r"\.tmp\.\d+|^\.tmp-|^\.gone-")
SECRET = b"hunter"  # of the file in outside/: no output and no file may have it
LONGEST_ERROR = 1 << 17


class Skip(Exception):
    """The case cannot run on this machine."""


def add(subject, name, function):
    CASES.append((subject, name, function))


def case(subject, name):
    def note(function):
        add(subject, name, function)
        return function
    return note


class Result:
    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds
        self.text = (out + b"\n" + err).decode("utf-8", "replace")


def shown(data):
    """At most 3,000 bytes of an output, one line each, without control characters."""
    return "".join("    %s\n" % ascii(line)[1:-1] for line in data[:3000].decode("utf-8", "replace").splitlines())


def describe(path):
    """Kind, permissions and contents of one name, without following a link."""
    state = path.lstat()
    kind = stat.S_IFMT(state.st_mode)
    if stat.S_ISLNK(kind):
        return ("link", os.readlink(path))
    if stat.S_ISREG(kind):
        return ("file", stat.S_IMODE(state.st_mode), hashlib.sha256(path.read_bytes()).hexdigest())
    return (kind, stat.S_IMODE(state.st_mode), state.st_rdev)


def describe_tree(folder):
    names = [os.path.join(top, n) for top, dirs, files in os.walk(folder) for n in dirs + files]
    return {os.fsencode(n): describe(Path(n)) for n in names}


class Sandbox:
    def __init__(self, folder, base, program, plain, seed=1):
        self.folder, self.base, self.program, self.plain = folder, base, program, plain
        self.cwd, self.outside = folder / "in", folder / "outside"
        for part in ("in", "outside", "home", "tmp"):
            (folder / part).mkdir(parents=True)
        (self.outside / "victim.txt").write_text("password hunter2\n[login]\nsecret = hunter3\n")
        (self.outside / "folder").mkdir()
        (self.outside / "folder" / "photo.png").write_bytes(b"an image of somebody else")
        self.before = describe_tree(self.outside)
        self.problems, self.unchanged, self.runs, self.transcript = [], {}, 0, []
        self.source = Path(__file__).resolve().parent.parent.parent
        self.random = random.Random("%s %s" % (seed, folder.name))
        shutil.copy(base / "tiny.ini", self.cwd)

    # ---- preparation ----
    def path(self, name):
        return self.cwd / name

    def write(self, name, data):
        path = self.cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    def take(self, *names):
        """Copies parts of the base folder: run, pruned, images, packed, weights.safetensors, ..."""
        for name in names:
            source = self.base / name
            self.rm(name)
            if source.is_dir():
                shutil.copytree(source, self.cwd / name, symlinks=True)
            else:
                shutil.copy(source, self.cwd / name)

    def rm(self, *names):
        for name in names:
            path = self.path(name)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif os.path.lexists(path):
                path.unlink()

    def checkpoints(self, run="run"):
        return [p for p in sorted(self.path(run).iterdir()) if p.is_dir() and not p.is_symlink()]

    def keep(self, *names):
        """These files may not change; checked at the end of the case."""
        for name in names:
            self.unchanged[name] = describe(self.cwd / name)

    # ---- the program ----
    def environment(self, changes):
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder / "home"), "TMPDIR": str(self.folder / "tmp"),
               "XDG_CACHE_HOME": str(self.folder / "home" / "cache"), "OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "1000",
               "LANG": "C.UTF-8", "ASAN_OPTIONS": "exitcode=99:allocator_may_return_null=1:detect_leaks=1",
               "UBSAN_OPTIONS": "exitcode=98:print_stacktrace=1"}
        if "LD_LIBRARY_PATH" in os.environ:
            env["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        env.update(changes)
        return {k: v for k, v in env.items() if v is not None}

    def start(self, *args, limits=(), env=None, before=None, plain=False, **options):
        """Starts the program; limits are (resource, value) pairs."""
        program = self.plain if plain else self.program
        if not program:
            raise Skip("needs a build without sanitizer (--plain)")

        def prepare():
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            for what, value in limits:
                resource.setrlimit(what, value if isinstance(value, tuple) else (value, value))
            if before:
                before()
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen([program, *args], cwd=self.cwd, env=self.environment(env or {}), preexec_fn=prepare,
                                start_new_session=True, **options)

    def run(self, *args, deadline=20, expect=None, says=(), hides=(), binary=False, sent=None, errors=None,
            leftovers=False, silent=False, loader=False, **options):
        """Runs the program and applies all rules. expect: None, or the allowed exit codes; says, hides: parts that
        the output must have or must not have; sent: a signal that may end it; silent: standard error is closed;
        loader: the limits may already keep the system from loading the program."""
        begin = time.monotonic()
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        process = self.start(*args, **options)
        try:
            out, err = process.communicate(timeout=deadline)
            ended = True
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            ended = False
        result = Result(process.returncode, out or b"", err or b"", time.monotonic() - begin)
        self.runs += 1
        name = "run %d (%s)" % (self.runs, " ".join(a if isinstance(a, str) else repr(a) for a in args)[:160])
        self.transcript.append("%s: exit code %s, %.1f s\n%s%s" % (ascii(name)[1:-1], result.code, result.seconds,
                                                                  shown(result.err), shown(result.out[:300])))
        if not ended:
            self.problem(name, "does not end in %d s: %s" % (deadline, result.text[-300:]))
            return result
        if loader and result.code == 127 and b"error while loading shared libraries" in result.err:
            return result
        self.check(name, result, expect, sent, errors, binary, leftovers, silent)
        for part in [says] if isinstance(says, str) else says:
            if part not in result.text:
                self.problem(name, "lacks %r: %s" % (part, result.text[-400:]))
        for part in [hides] if isinstance(hides, str) else hides:
            if part in result.text:
                self.problem(name, "shows %r: %s" % (part, result.text[-400:]))
        return result

    def fails(self, *args, **options):
        return self.run(*args, expect=options.pop("expect", (1, 2)), **options)

    def works(self, *args, **options):
        return self.run(*args, expect=(0,), **options)

    # ---- the rules ----
    def problem(self, name, text):
        self.problems.append("%s: %s" % (name, text))

    def check(self, name, result, expect, sent, errors, binary, leftovers, silent):
        code, err = result.code, result.err.decode("utf-8", "replace")
        allowed = {0, 1, 2} | ({128 + sent, -sent} if sent else set())
        if code not in allowed:
            self.problem(name, "exit code %d: %s" % (code, result.text[-1500:]))
        elif expect is not None and code not in expect:
            self.problem(name, "exit code %d, want %s: %s" % (code, expect, result.text[-600:]))
        found = REPORT.search(result.err)
        if found:
            self.problem(name, "report: %s" % result.err[found.start():found.start() + 3000].decode("utf-8", "replace"))
        if code in (1, 2) and not silent:
            count = len(ERROR.findall(err))
            most = errors if errors else 1 if code == 1 else 60
            if not 1 <= count <= most:
                self.problem(name, "%d error messages: %s" % (count, err[-1200:]))
        for stream, data in (("stdout", result.out), ("stderr", result.err)):
            if stream == "stdout" and binary:
                continue
            try:
                bad = CONTROL.search(data.decode("utf-8"))
                if bad:
                    self.problem(name, "%s has the control character %r" % (stream, bad.group()))
            except UnicodeDecodeError as e:
                self.problem(name, "%s is no UTF-8: %s" % (stream, e))
            if SECRET in data:
                self.problem(name, "%s shows a foreign file: %s" % (stream, data[-600:].decode("utf-8", "replace")))
            if stream == "stderr" and len(data) > LONGEST_ERROR:
                self.problem(name, "%s has %d bytes" % (stream, len(data)))
        if not leftovers:
            self.check_leftovers(name)
        self.check_outside(name)

    def check_leftovers(self, name):
        left = [n for top, dirs, files in os.walk(os.fsencode(self.cwd)) for n in dirs + files
                if LEFTOVER.search(n.decode("utf-8", "replace"))]
        left += os.listdir(self.folder / "tmp")
        if left:
            self.problem(name, "leaves %s" % left[:5])

    def check_outside(self, name):
        after = describe_tree(self.outside)
        if after != self.before:
            changed = [k for k in set(after) | set(self.before) if after.get(k) != self.before.get(k)]
            self.problem(name, "changes %s" % changed)
            self.before = after

    def finish(self):
        for top, _, files in os.walk(self.cwd):
            for path in (Path(top, n) for n in files):
                if stat.S_ISREG(path.lstat().st_mode) and os.access(path, os.R_OK) and SECRET in path.read_bytes():
                    self.problem("end", "%s has the text of a foreign file" % path)
        for name, state in self.unchanged.items():
            try:
                now = describe(self.cwd / name)
            except OSError as e:
                now = str(e)
            if now != state:
                self.problem("end", "%s changed from %s to %s" % (name, state, now))
        if not self.runs:
            self.problem("end", "the case ran nothing")
