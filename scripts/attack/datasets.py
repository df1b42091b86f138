"""datasets.py: folders of images that somebody else made."""
import os
import socket

from .base import images, png
from .support import Skip, add, case

S = "datasets"
ROOT = os.geteuid() == 0


def use(c, folder="images"):
    """Every command that reads a dataset."""
    c.take("folder.ini")
    c.run("data", "folder.ini")
    c.run("data", "stat", folder)
    c.run("data", "verify", folder)
    c.run("data", "pack", "folder.ini", "P")
    c.run("train", "folder.ini", "-o", "R", "--steps", "2")
    if c.path("R/last").exists():
        c.run("eval", "R", "--per-class", "--confusion", "m.csv")
        c.run("predict", "R", folder)
        c.run("predict", "R", folder, "--json")
        c.run("report", "R")


NAMES = {
    "a newline": b"a\nb", "an escape sequence": b"\x1b]0;t\x07\x1b[2J", "a carriage return": b"ab\rcd",
    "C1 control characters": b"\xc2\x9b31m",
    "DEL": b"a\x7fb", "no UTF-8": b"\xff\xfe\x80", "an overlong slash": b"\xc0\xaf\xe0\x80\xaf",
    "a surrogate": b"\xed\xa0\x80",
    "above U+10FFFF": b"\xf4\x90\x80\x80", "quotes and commas": b"\"',;\"\"",
    "markup": b"<script>alert(1)<!script>&amp;",
    "255 bytes": b"n" * 255, "255 bytes of cut UTF-8": b"\xe2\x82\xac" * 85, "a leading dash": b"--help",
    "a leading dot": b".hidden",
    "blanks": b"   ", "only dots": b"...", "right-to-left marks": b"\xe2\x80\xaegnp.exe", "a formula": b"=cmd|' !A1",
    "format characters": b"%s%n%n%1000d", "backslashes": b"a\\x0ab\\", "a setting": b"train.batch=1",
    "combining characters": b"a" + b"\xcc\x81" * 120,
    "zero width characters": b"\xe2\x80\x8b\xef\xbb\xbf\xe2\x81\xa0",
    "line separators": b"a\xe2\x80\xa8b\xe2\x80\xa9c", "JSON": b"\",\"top1\":1}",
    "names of the split folders": b"train", "a temporary file": b"train.crpk.tmp",
}
for title, name in NAMES.items():
    def named(c, name=name):
        images(c.path("images"), (b"a", name))
        use(c)
    add(S, "a class named by " + title, named)

    def file_named(c, name=name):
        images(c.path("images"))
        for end in (b".png", b".jpg"):
            with open(os.path.join(os.fsencode(c.path("images")), b"a", name[:255 - len(end)] + end), "wb") as f:
                f.write(png() if end == b".png" else b"no image")
        use(c)
    add(S, "an image named by " + title, file_named)


@case(S, "an empty folder")
def _(c):
    c.path("images").mkdir()
    use(c)
    c.take("folder.ini")
    c.fails("train", "folder.ini", "-o", "R2", "--steps", "1")


@case(S, "only empty classes")
def _(c):
    images(c.path("images"), count=0)
    use(c)


@case(S, "one class")
def _(c):
    images(c.path("images"), ("a",))
    use(c)


@case(S, "one class of three is empty")
def _(c):
    images(c.path("images"), ("a", "c"))
    c.path("images/b").mkdir()
    use(c)


@case(S, "one image")
def _(c):
    images(c.path("images"), ("a",), 1)
    use(c)


@case(S, "one image in each class")
def _(c):
    images(c.path("images"), ("a", "b"), 1)
    use(c)


@case(S, "3,000 classes")
def _(c):
    images(c.path("images"), ["c%d" % i for i in range(3000)], 1)
    use(c)


@case(S, "100 nested folders")
def _(c):
    images(c.path("images"))
    deep = c.path("images/a" + "/d" * 100)
    deep.mkdir(parents=True)
    (deep / "x.png").write_bytes(png())
    use(c)


@case(S, "folders nested beyond the longest path")
def _(c):
    images(c.path("images"))
    fd = os.open(c.path("images/a"), os.O_RDONLY)
    for _ in range(40):
        os.mkdir("n" * 200, dir_fd=fd)
        inner = os.open("n" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    with open(os.open("x.png", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd), "wb") as f:
        f.write(png())
    os.close(fd)
    use(c)


@case(S, "a link to its own folder in each class")
def _(c):
    images(c.path("images"))
    for name in ("a", "b"):
        os.symlink("../" + name, c.path("images/%s/again" % name))
        os.symlink("..", c.path("images/%s/up" % name))
    os.symlink(".", c.path("images/self"))
    use(c)


@case(S, "links to folders outside")
def _(c):
    images(c.path("images"))
    os.symlink(c.outside, c.path("images/c"))
    os.symlink(c.outside / "folder" / "photo.png", c.path("images/a/p.png"))
    os.symlink("/", c.path("images/b/root"))
    use(c)


@case(S, "dangling links and links in a circle")
def _(c):
    images(c.path("images"))
    os.symlink("nothing", c.path("images/a/x.png"))
    os.symlink("y.png", c.path("images/a/y.png"))
    os.symlink("z", c.path("images/z"))
    os.symlink("nothing", c.path("images/n"))
    use(c)


@case(S, "the folder itself is a link, a file, a pipe")
def _(c):
    images(c.path("real"))
    os.symlink("real", c.path("images"))
    use(c)
    os.remove(c.path("images"))
    c.write("images", "text")
    use(c)
    os.remove(c.path("images"))
    os.mkfifo(c.path("images"))
    c.fails("data", "folder.ini")
    c.fails("data", "pack", "folder.ini", "P")
    c.fails("train", "folder.ini", "-o", "R3", "--steps", "2")


@case(S, "pipes, sockets and devices among images")
def _(c):
    images(c.path("images"))
    os.mkfifo(c.path("images/a/p.png"))
    os.mkfifo(c.path("images/class"))
    fd = os.open(c.path("images/b"), os.O_RDONLY)
    s = socket.socket(socket.AF_UNIX)
    s.bind("/proc/self/fd/%d/s.png" % fd)
    os.close(fd)
    try:
        os.mknod(c.path("images/b/zero.png"), 0o20644, os.makedev(1, 5))
    except OSError:
        pass
    os.symlink("/dev/zero", c.path("images/b/z2.png"))
    os.symlink("/dev/stdin", c.path("images/b/z3.png"))
    use(c)
    s.close()


@case(S, "a folder that is named like an image")
def _(c):
    images(c.path("images"))
    c.path("images/a/dir.png").mkdir()
    use(c)


@case(S, "unreadable folders and files")
def _(c):
    if ROOT:
        raise Skip("root reads everything")
    images(c.path("images"))
    os.chmod(c.path("images/a/0.png"), 0)
    use(c)
    os.chmod(c.path("images/b"), 0)
    use(c)


@case(S, "split folders: val without classes of train, train missing, val a file")
def _(c):
    images(c.path("images/train"))
    images(c.path("images/val"), ("a", "z"))
    use(c)
    os.system("rm -rf '%s'/*" % c.path("images/val"))
    use(c)
    os.rmdir(c.path("images/val"))
    c.write("images/val", "text")
    use(c)
    os.rename(c.path("images/train"), c.path("images/training"))
    use(c)


@case(S, "classes whose names differ in case or in normal form only")
def _(c):
    images(c.path("images"), (b"a", b"A", b"\xc3\xa9", b"e\xcc\x81"))
    use(c)


@case(S, "packed files inside the folder")
def _(c):
    c.take("packed", "images")
    os.system("cp '%s'/* '%s'" % (c.path("packed"), c.path("images/a")))
    use(c)


@case(S, "a dataset that shrinks while it is read")
def _(c):
    c.take("folder.ini")
    images(c.path("images"), ("a", "b"), 40)
    process = c.start("train", "folder.ini", "-o", "R", "train.epochs=1000", "--steps", "600", stderr=-1)
    os.system("sleep 0.3; rm -rf '%s'" % c.path("images/a"))
    err = process.communicate(timeout=60)[1]
    c.runs += 1
    if process.returncode not in (0, 1) or b"Sanitizer" in err:
        c.problem("train", "exit code %d: %s" % (process.returncode, err[-800:]))


@case(S, "CIFAR files: short, long, empty, folders, links")
def _(c):
    for size in (0, 1, 3072, 3073, 3074, 30730, 30731):
        for name in ["data_batch_%d.bin" % i for i in range(1, 6)] + ["test_batch.bin"]:
            c.write("cifar/" + name, c.random.randbytes(size))
        c.write("cifar/batches.meta.txt", b"\x1b[31m\n" * 10)
        for kind in ("cifar10", "cifar100"):
            c.run("data", "tiny.ini", "data.kind=" + kind, "data.root=cifar", "data.train_images=0",
                  "data.val_images=0")
    os.remove(c.path("cifar/test_batch.bin"))
    os.symlink("/dev/zero", c.path("cifar/test_batch.bin"))
    c.fails("data", "tiny.ini", "data.kind=cifar10", "data.root=cifar", "data.train_images=0", "data.val_images=0")


@case(S, "shapes: the marker file is foreign, a folder, a link, a pipe")
def _(c):
    settings = ["data.kind=shapes", "data.root=D", "data.train_images=20", "data.val_images=10"]
    c.works("data", "shapes", "D", "data.train_images=20", "data.val_images=10")
    for text in ("", "x" * 100000, "\x1b[31m 4000 1000\n", "-1 -1\n", "99999999999999999999 1\n", "\0\0"):
        c.write("D/shapes.txt", text)
        c.run("data", "tiny.ini", *settings)
    os.remove(c.path("D/shapes.txt"))
    os.symlink(c.outside / "victim.txt", c.path("D/shapes.txt"))
    c.run("data", "tiny.ini", *settings)
    c.run("data", "shapes", "D", "data.train_images=30", "data.val_images=10")
    os.remove(c.path("D/shapes.txt"))
    c.path("D/shapes.txt").mkdir()
    c.run("data", "tiny.ini", *settings)
    c.run("data", "shapes", "D", "data.train_images=30", "data.val_images=10")


@case(S, "shapes into foreign folders, through links, over files")
def _(c):
    few = ["data.train_images=20", "data.val_images=10"]
    os.symlink(c.outside / "folder", c.path("train"))
    c.path("D").mkdir()
    os.symlink(c.outside / "folder", c.path("D/train"))
    c.run("data", "shapes", "D", *few)
    c.write("F/train", "a file")
    c.run("data", "shapes", "F", *few)
    c.write("G", "a file")
    c.fails("data", "shapes", "G", *few)
    c.write("H/mine.txt", "precious")
    c.keep("H/mine.txt")
    c.run("data", "shapes", "H", *few)
    c.write("I/train/star/00000.png", "precious")
    c.keep("I/train/star/00000.png")
    c.run("data", "shapes", "I", *few)
