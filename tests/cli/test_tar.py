#!/usr/bin/env python3
"""test_tar.py: data.kind = tar: the same images as a folder and as archives of Python's tarfile and of GNU tar give bitwise equal trainings,
also resumed in the middle of an epoch; three published layouts and ImageNet's own archives, whose labels a second reader in this file
finds; damaged and hostile archives; stored lists of samples."""
import csv
import io
import json
import os
import random
import shutil
import struct
import subprocess
import tarfile
import time

from support import TINY_MODEL, check, cresnet, ends, good, run
import png

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "posix": tarfile.PAX_FORMAT}
CLASSES = ["ape", "bee", "cat"]
draw = random.Random(5)


def image(colour):
    png.write("one.png", 8, 8, lambda x, y: tuple((c + 31 * x + 17 * y * draw.randrange(3)) % 256 for c in colour))
    return open("one.png", "rb").read()


def add(archive, name, data, **fields):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    archive.addfile(info, io.BytesIO(data) if info.isreg() else None)


def write(path, members, kind="posix"):
    """members: pairs (name, bytes)."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with tarfile.open(path, "w", format=FORMATS[kind]) as archive:
        for name, data in members:
            add(archive, name, data)


def samples(count):
    """[(class, name, bytes)], the images of which also are the folder `split`."""
    return [(c, f"{i:03d}", image((40 + 80 * k, 7 * i % 256, 90))) for k, c in enumerate(CLASSES) for i in range(count)]


def second_reader(paths, label_key=None):
    """{member path without ending: label as text} as WebDataset reads the archives."""
    found = {}
    for path in paths:
        parts = {}
        for member in tarfile.open(path):
            folder, base = os.path.split(member.name)
            key, dot, ending = base.partition(".")
            if member.isreg() and key and dot:
                parts.setdefault(os.path.join(folder, key), {})[ending.lower()] = tarfile.open(path).extractfile(member).read()
        for key, files in parts.items():
            if not files.keys() & {"jpg", "jpeg", "png", "webp", "tif", "tiff", "bmp"}:
                continue
            if label_key or "cls" not in files:
                found[key] = str(json.loads(files["json"])[label_key or "label"])
            else:
                found[key] = files["cls"].decode().strip()
    return found


def validation_labels(keys):
    """The classes of the validation images by `eval`, {key: name}."""
    ran = ends("eval", 0, [], "eval", "net.ini", "--weights", "run", "--csv", "labels.csv", *keys)
    if ran.returncode:
        return {}
    return {r["file"].split(".tar:")[1].rpartition(".")[0]: r["class"] for r in csv.DictReader(open("labels.csv"))}


def weights(folder):
    newest = max((name for name in os.listdir(folder) if name.startswith("step-")), key=lambda name: int(name[5:]))
    return open(f"{folder}/{newest}/model.safetensors", "rb").read()


def scores(folder):
    lines = [json.loads(line) for line in open(f"{folder}/log.jsonl")]
    return [(e["step"], e["top1"], e["loss"]) for e in lines if e["event"] == "eval"]


def train(folder, *keys):
    ran = good("train", "train", "net.ini", "-o", folder, *keys)
    return ran


def same_training(parts):
    for split, members in parts.items():
        for c, name, data in members:
            os.makedirs(f"folder/{split}/{c}", exist_ok=True)
            open(f"folder/{split}/{c}/{name}.png", "wb").write(data)
            os.makedirs(f"unpacked/{split}/{c}", exist_ok=True)
            open(f"unpacked/{split}/{c}/{name}.png", "wb").write(data)
            open(f"unpacked/{split}/{c}/{name}.cls", "w").write(c + "\r\n")
    for kind in FORMATS:
        for split, members in parts.items():
            shuffled = draw.sample(members, len(members))
            for part in range(3):
                pairs = [(f"{c}/{name}.{ending}", data if ending == "png" else f" {c}\r\n".encode()) for c, name, data in shuffled[part::3] for ending in ("cls", "png")]
                write(f"python-{kind}/set-{split}-{part:04d}.tar", pairs, kind)
            os.makedirs(f"gnu-{kind}/{split}", exist_ok=True)
            for c in CLASSES:
                subprocess.run(["tar", f"--format={kind}", "-C", f"unpacked/{split}", "-cf", f"gnu-{kind}/{split}/{c}.tar", f"./{c}"], check=True)
    train("run", "data.kind=folder", "data.root=folder", "data.sampling=shuffle")
    train("fraction", "data.kind=folder", "data.root=folder/train", "data.val_fraction=0.3")
    for maker in ("python", "gnu"):
        for kind in FORMATS:
            name = f"{maker}-{kind}"
            train(f"run-{name}", "data.kind=tar", f"data.root={name}")
            check(f"{name} trains as a folder", weights("run") == weights(f"run-{name}") and scores("run") == scores(f"run-{name}"))
    train("cut", "data.kind=tar", "data.root=python-posix/set-{train,val}-{0000..0002}.tar", "--steps", "5")
    ran = cresnet("train", "--resume", "cut", "-q", "train.steps=0")
    check("resume in the middle of an epoch", ran.returncode == 0 and weights("run") == weights("cut"), ran.stderr)
    train("divided", "data.kind=tar", "data.train=python-gnu/*train*", "data.val_fraction=0.3")
    check("the same images are held out", weights("fraction") == weights("divided") and scores("fraction") == scores("divided"))
    os.chdir("folder")
    ran = cresnet("eval", "../divided", "--json")
    os.chdir("..")
    check("a pattern is stored with its folder", ran.returncode == 0, ran.stderr)
    good("pack", "data", "pack", "python-posix", "packed")
    train("run-packed", "data.kind=packed", "data.root=packed", "data.crop=pad")
    check("packed from archives", weights("run") == weights("run-packed"))
    ran = cresnet("data", "stat", "gnu-posix", "--json", "-q")
    check("stat", ran.returncode == 0 and [c["class"] for c in json.loads(ran.stdout)["val"]["classes"]] == CLASSES, ran)
    good("verify", "data", "verify", "gnu-ustar")
    ran = cresnet("predict", "run-python-gnu", "folder/val/bee/000.png")
    check("predict names classes", "bee" in ran.stdout, ran)
    good("report", "report", "run-gnu-gnu")


def layouts(parts):
    number = {c: k for k, c in enumerate(CLASSES)}
    timm, clip, own, several = [], [], [], []
    for c, name, data in parts["train"]:
        meta = {"height": 8, "label": number[c], "filename": f"{c}/{name}.png", "text": [{"label": 99}]}
        timm += [(f"{c}_{name}.cls", str(number[c]).encode()), (f"{c}_{name}.png", data), (f"{c}_{name}.json", json.dumps(meta).encode())]
        clip += [(f"s{c}{name}.webp", data), (f"s{c}{name}.cls", b"%d\n" % number[c]), (f"s{c}{name}.txt", b"a photo")]
        own += [(f"a.b/{c}.d/{name}.seg.png", b"no image"), (f"a.b/{c}.d/{name}.json", json.dumps({"tags": {}, "class": c}).encode()), (f"a.b/{c}.d/{name}.Png", data),
                (f"a.b/{c}.d/.hidden.png", b""), (f"a.b/{c}.d/README", b"")] 
        labels = [c, "even"] if int(name) % 2 == 0 else [c] if int(name) % 3 else []
        several += [(f"{c}{name}.png", data), (f"{c}{name}.json", json.dumps({"label": labels}).encode())]
    for layout, members in (("timm/imagenet1k", timm), ("own/set", own), ("several/x", several)):
        write(f"{layout}-train-0000.tar", members[: len(members) // 2])
        write(f"{layout}-train-0001.tar", members[len(members) // 2 :])
        write(f"{layout}-validation-00.tar", members)
    write("clip/train/0.tar", clip)
    write("clip/test/0.tar", clip[: len(clip) // 2])
    write("clip/test/1.tar", clip[len(clip) // 2 :])
    open("clip/classnames.txt", "w").write("great ape\nhoney bee\r\ncat\n")
    names = ["great ape", "honey bee", "cat"]
    for layout, keys, paths, label_key, show in (
            ("timm", [], ["timm/imagenet1k-validation-00.tar"], None, str),
            ("clip", [], ["clip/test/0.tar", "clip/test/1.tar"], None, lambda label: names[int(label)]),
            ("own", ["data.label_key=class"], ["own/set-validation-00.tar"], "class", str)):
        keys = ["data.kind=tar", f"data.root={layout}", *keys]
        shutil.rmtree("run", ignore_errors=True)
        train("run", *keys)
        got = validation_labels(keys)
        want = {key: show(label) for key, label in second_reader(paths, label_key).items()}
        check(f"labels of {layout}", got == want and len(got) == len(parts["train"]), (sorted(got.items())[:3], sorted(want.items())[:3]))
    ran = cresnet("data", "net.ini", "data.kind=tar", "data.root=own", "data.label_key=class")
    check("names with several dots are said", "several dots" in ran.stderr, ran.stderr)
    keys = ["data.kind=tar", "data.root=several", "data.multi_label=yes"]
    shutil.rmtree("run")
    train("run", *keys, "train.best=map")
    got = validation_labels(keys)
    check("several labels", got == {f"{c}{n}": ";".join(sorted([c, "even"] if int(n) % 2 == 0 else [c] if int(n) % 3 else [])) for c, n, _ in parts["train"]}, list(got.items())[:4])


def imagenet(parts):
    os.makedirs("imagenet")
    wnids = {"ape": "n00000002", "bee": "n00000010", "cat": "n00000100"}
    with tarfile.open("imagenet/ILSVRC2012_img_train.tar", "w") as outer:
        for c, wnid in wnids.items():
            write("inner.tar", [(f"{wnid}_{int(name)}.JPEG", data) for k, name, data in parts["train"] if k == c])
            add(outer, f"{wnid}.tar", open("inner.tar", "rb").read())
    order = draw.sample(parts["val"], len(parts["val"]))
    write("imagenet/ILSVRC2012_img_val.tar", [(f"ILSVRC2012_val_{i + 1:08d}.JPEG", data) for i, (_, _, data) in enumerate(order)])
    write("imagenet/ILSVRC2012_img_test_v10102019.tar", [("test/ILSVRC2012_test_00000001.JPEG", b"x")])
    keys = ["data.kind=tar", "data.root=imagenet"]
    ends("without labels", 1, ["ILSVRC2012_val_00000001.JPEG", "validation"], "data", "net.ini", *keys)
    ids = {"ape": 700, "bee": 3, "cat": 41}
    open("imagenet/ILSVRC2012_validation_ground_truth.txt", "w").write("".join(f"{ids[c]}\n" for c, _, _ in order))
    ends("numbers need a table", 1, "map_clsloc.txt", "data", "net.ini", *keys)
    open("imagenet/map_clsloc.txt", "w").write("".join(f"{wnids[c]} {n} some_{c}\n" for c, n in ids.items()))
    want = {f"ILSVRC2012_val_{i + 1:08d}": wnids[c] for i, (c, _, _) in enumerate(order)}
    for c, wnid in wnids.items():
        os.makedirs(f"wnid/train/{wnid}", exist_ok=True)
        os.makedirs(f"wnid/val/{wnid}", exist_ok=True)
        for k, name, data in parts["train"]:
            if k == c:
                open(f"wnid/train/{wnid}/{wnid}_{int(name)}.JPEG", "wb").write(data)
        for i, (k, _, data) in enumerate(order):
            if k == c:
                open(f"wnid/val/{wnid}/ILSVRC2012_val_{i + 1:08d}.JPEG", "wb").write(data)
    train("run-wnid", "data.kind=folder", "data.root=wnid")
    for step in ("devkit", "synset labels"):
        shutil.rmtree("run")
        train("run", *keys)
        check(f"ImageNet, {step}", validation_labels(keys) == want)
        check("ImageNet trains as a folder", weights("run") == weights("run-wnid") and scores("run") == scores("run-wnid"))
        os.remove("imagenet/map_clsloc.txt") if step == "devkit" else None
        open("imagenet/imagenet_2012_validation_synset_labels.txt", "w").write("".join(f"{wnids[c]}\n" for c, _, _ in order))


def refused(name, members, text, *keys, kind="posix", change=None, code=1):
    """The archive of these members, changed by change(bytes), is refused with this text, which names it."""
    shutil.rmtree("bad", ignore_errors=True)
    write("bad/bad-000.tar", members, kind)
    if change:
        data = change(open("bad/bad-000.tar", "rb").read())
        open("bad/bad-000.tar", "wb").write(data)
    ran = cresnet("data", "net.ini", "data.kind=tar", "data.root=bad", "data.val_fraction=0.3", *keys)
    check(name, ran.returncode == code and text in ran.stderr and "bad-000.tar" in ran.stderr and ran.stderr.count("cresnet data:") <= 1, (ran.returncode, ran.stderr))


def accepted(name, members, text="", *keys, count=None, change=None, kind="posix"):
    shutil.rmtree("good", ignore_errors=True)
    write("good/good-000.tar", members, kind)
    if change:
        data = change(open("good/good-000.tar", "rb").read())
        open("good/good-000.tar", "wb").write(data)
    ran = cresnet("data", "net.ini", "data.kind=tar", "data.root=good", "data.val_fraction=0.3", "--json", *keys)
    found = json.loads(ran.stdout or "{}")
    images = sum(found[split]["images"] for split in ("train", "val")) if found else 0
    check(name, ran.returncode == 0 and text in ran.stderr and images == count, (images, ran.stderr))
    return found


def sealed(block):
    """The header with the right checksum."""
    block = bytearray(block)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def patched(at, field, value):
    """A change of the header at byte `at`."""
    return lambda data: data[:at] + sealed(data[at : at + field] + value + data[at + field + len(value) : at + 512]) + data[at + 512 :]


def mistakes(parts):
    good = [(f"{c}/{name}.{ending}", data if ending == "png" else c.encode()) for c, name, data in parts["val"] for ending in ("png", "cls")]
    count, first = len(parts["val"]), (len(parts["val"][0][2]) + 511) // 512 * 512 + 512
    accepted("good", good, count=count)
    refused("an image twice", good + good[:1], "twice")
    refused("two endings", good + [("ape/000.jpg", b"x")], "twice")
    refused("a label twice", good + good[1:2], "twice")
    accepted("no label", good + [("ape/x.png", b"x")], "1 image without a label, such as good/good-000.tar:ape/x.png", count=count)
    accepted("no image", good + [("ape/x.cls", b"1"), ("y.CLS", b"")], "2 labels without an image, such as good/good-000.tar:ape/x.cls", count=count)
    for text, why in ((b"", "empty"), (b"-1", "negative"), (b"a\nb", "control"), (b"a\0b", "zero bytes"), (b"a" * 5000, "too large")):
        accepted("label " + why, good + [("ape/x.png", b"x"), ("ape/x.cls", text)], why, count=count)
    for text, why in ((b"{}", "lacks the key"), (b'{"label": "a}', "JSON is invalid"), (b'{"label": null}', "neither"), (b'{"label": [1]}', "multi_label"), (b'{"label": 1.5}', "no class number"), (b"[]", "no JSON object"), (b'{"label": -3}', "no class number")):
        accepted("JSON " + why, good + [("ape/x.png", b"x"), ("ape/x.json", text)], why, count=count)
    refused("fatal", good + [("ape/x.png", b"x")], "without a label", "data.corrupt=fatal")
    refused("only images", good[::2], "there are images without one")
    refused("no images", good[1::2], "no sample")
    refused("one class", good[:4], "only label")
    refused("empty", good, "the archive is empty", change=lambda data: b"")
    refused("no archive", good, "no tar archive", change=lambda data: b"x" * 10240)
    for command, magic in (("gzip -d", b"\x1f\x8b\x08"), ("zstd -d", b"\x28\xb5\x2f\xfd")):
        refused(command, good, command, change=lambda data: magic + data)
    refused("cut in a member", good, "and the archive ends after", change=lambda data: data[:600])
    refused("cut in a header", good, "cut off", change=lambda data: data[: first + 100])
    refused("a header is damaged", good, f"at byte {first}", change=lambda data: data[:first + 5] + b"\xff" + data[first + 6 :])
    refused("a negative size", good, "negative", change=patched(first, 124, b"\xff" * 12))
    refused("a size beyond 63 bits", good, "negative", change=patched(first, 124, b"\x80" + b"\x7f" * 11))
    refused("8 GB by name only", good, "8589934592 bytes", change=patched(first, 124, b"\x80\0\0\0\0\0\0\x02\0\0\0\0"))
    refused("a size that is no number", good, "no number", change=patched(first, 124, b"12x45678901\0"))
    accepted("size in base 256", good, count=count, change=patched(0, 124, b"\x80" + struct.pack(">Q", len(good[0][1])).rjust(11, b"\0")))
    accepted("two archives in a file", good[:12], count=count, change=lambda data: data + rest(good[12:]))
    refused("other bytes after the end", good, "wrong checksum", change=lambda data: data + b"y" * 512)
    long = "d" * 90 + "/" + "e" * 90 + "/" + "f" * 60
    for kind in ("gnu", "posix"):
        accepted(f"long names, {kind}", good + [(f"{long}/{'g' * 120}.png", b"x"), (f"{long}/{'g' * 120}.cls", b"bee")], count=count + 1, kind=kind)
    accepted("names with a prefix", good + [(f"{long[:150]}/x.png", b"x"), (f"{long[:150]}/x.cls", b"bee")], count=count + 1, kind="ustar")
    long_name = sealed(b"././@LongLink".ljust(100, b"\0") + b"0000000\0" * 3 + b"00000011610\0" + b"0" * 12 + b" " * 8 + b"L" + b"\0" * 355)
    refused("a name of 5,000 bytes", good, "too long", change=lambda data: long_name + b"a" * 5120 + data)
    for record, name in ((b"30 path=x\n", "its length"), (b"9 path=x\n9 size=x\n", "its size"), (b"99999999 size=1\n", "a huge length"), (b"5 a=\n\n", "no end")):
        refused("a pax record with " + name, good, "extended header is invalid", change=lambda data: pax(record) + data)
    accepted("a pax header of size", [], count=count, change=lambda data: pax(b"%d size=%d\n" % (len(b"00 size=%d\n" % len(good[0][1])), len(good[0][1]))) + patched(0, 124, b"00000000000\0")(rest(good)))
    accepted("a global header", good, count=count, change=lambda data: pax(b"19 comment=0123456\n", b"g") + data)


def rest(members):
    write("rest.tar", members)
    return open("rest.tar", "rb").read()


def pax(records, kind=b"x"):
    head = bytearray(tarfile.TarInfo("pax").tobuf(tarfile.USTAR_FORMAT))
    head[124:136] = b"%011o\0" % len(records)
    head[156:157] = kind
    return sealed(head) + records.ljust((len(records) + 511) // 512 * 512, b"\0")


def hostile(parts):
    """Nothing outside of an archive is read, and what is not read is counted."""
    os.makedirs("secret")
    open("secret/x.cls", "w").write("stolen")
    os.makedirs("hostile")
    with tarfile.open("hostile/a.tar", "w") as archive:
        for c, name, data in parts["val"]:
            add(archive, f"../../{c}/{name}.png", data)
            add(archive, f"../../{c}/{name}.cls", c.encode())
        data = parts["val"][0][2]
        add(archive, os.path.abspath("secret/x.png"), data)
        for name, kind in (("l.cls", tarfile.SYMTYPE), ("h.cls", tarfile.LNKTYPE), ("c.png", tarfile.CHRTYPE), ("b.png", tarfile.BLKTYPE), ("f.png", tarfile.FIFOTYPE), ("d.png", tarfile.DIRTYPE)):
            add(archive, name, b"", type=kind, linkname=os.path.abspath("secret/x.cls"))
        add(archive, "l.png", data)
        add(archive, "h.png", data)
    os.makedirs("sparse")
    with open("sparse/s.png", "wb") as f:
        f.truncate(1 << 30)
    for version in ("gnu", "posix"):
        subprocess.run(["tar", f"--format={version}", "--sparse", "-C", "sparse", "-cf", f"hostile/s-{version}.tar", "s.png"], check=True)
    ran = cresnet("data", "net.ini", "data.kind=tar", "data.root=hostile", "data.val_fraction=0.3", "--json")
    found = json.loads(ran.stdout or "{}")
    check("links and devices are passed over", ran.returncode == 0 and "7 links, device or sparse file" in ran.stderr.replace("devices", "device"), ran.stderr)
    check("nothing outside is read", "stolen" not in ran.stdout + ran.stderr and found["classes"] == CLASSES, ran.stdout)


def shards(parts):
    """How archives are named, and what is said about none."""
    members = [(f"{c}/{name}.{ending}", data if ending == "png" else c.encode()) for c, name, data in parts["val"] for ending in ("png", "cls")]
    for path in ("named/train/a.tar", "named/valid/b.tar", "named/test/c.tar", "flat/x_Train_1.tar", "flat/x-val.tar", "flat/x-testing.tar", "other/one.tar", "mixed/train.tar", "mixed/else.tar"):
        write(path, members)
    for root, told in (("named", "named/test/c.tar"), ("flat", "flat/x-testing.tar"), ("mixed", "mixed/else.tar")):
        ends(f"archives in {root}", 0, [told, "not used"], "data", "net.ini", "data.kind=tar", f"data.root={root}", "data.val_fraction=0.3")
    for keys, good in ((["data.root=other"], False), (["data.root=other", "data.val_fraction=0.3"], True), (["data.root=other/one.tar", "data.val=../flat/x-val.tar"], False),
                       (["data.root=flat", "data.train=x_Train_1.tar", "data.val=x-val.tar"], True), (["data.train=flat/x_*", "data.val=named/{test,valid}/b.tar"], False),
                       (["data.train=flat/x_Train_{1..1}.tar", "data.val=named/valid"], True), (["data.train=flat/x_Train_{1..3}.tar"], False), (["data.train=none/*.tar"], False)):
        ran = cresnet("data", "net.ini", "data.kind=tar", *keys)
        check(f"{keys}", (ran.returncode == 0) == good and (good or ran.returncode == 2), ran.stderr)
    os.makedirs("packed-only")
    open("packed-only/a.tar.gz", "w").close()
    ends("compressed archives", 2, "gzip -d", "data", "net.ini", "data.kind=tar", "data.root=packed-only")
    write("again/train-0.tar", members)
    write("again/train-1.tar", members[-2:])
    ends("a key in two archives", 1, ["train-0.tar", "train-1.tar: has the sample cat/"], "data", "net.ini", "data.kind=tar", "data.root=again", "data.val_fraction=0.3")


def stored_lists():
    """A set of 1,500 samples is stored, a changed archive is listed again, and a damaged list counts as none."""
    data = image((1, 2, 3))
    for k in range(3):
        write(f"large/train-{k}.tar", [(f"{k}/{i:04d}.{ending}", data if ending == "png" else str(i % 7).encode()) for i in range(500) for ending in ("png", "cls")])
    write("large/val-0.tar", [(f"v{i}.{ending}", data if ending == "png" else str(i % 7).encode()) for i in range(20) for ending in ("png", "cls")])
    cache = os.environ["XDG_CACHE_HOME"] + "/cresnet"

    def describe():
        ran = ends("describe", 0, [], "data", "net.ini", "data.kind=tar", "data.root=large", "--json")
        return ran.stdout, ran.stderr

    def lists():
        return [name for name in os.listdir(cache) if name.startswith("tar-")] if os.path.isdir(cache) else []

    first, _ = describe()
    check("recent archives are not stored", lists() == [])
    time.sleep(3.2)
    check("stored", describe()[0] == first and len(lists()) == 1)
    path = f"{cache}/{lists()[0]}"
    check("read again", describe() == (first, ""))
    stamp = os.stat(path).st_mtime_ns
    check("not written again", describe()[0] == first and os.stat(path).st_mtime_ns == stamp)
    damaged = bytearray(open(path, "rb").read())
    damaged[len(damaged) // 2] ^= 1
    open(path, "wb").write(damaged)
    check("a damaged list", describe()[0] == first and bytes(damaged) != open(path, "rb").read())
    os.utime("large/train-1.tar")
    check("touched: the same", describe() == (first, ""))
    write("large/train-1.tar", [(f"1/{i:04d}.{ending}", data if ending == "png" else str((i + (i == 9)) % 7).encode()) for i in range(500) for ending in ("png", "cls")])
    check("one label has changed", "large/train-1.tar has changed" in describe()[1])
    write("large/train-1.tar", [("new/0.png", data), ("new/0.cls", b"3")])
    changed, said = describe()
    check("a changed archive", changed != first and "large/train-1.tar has changed" in said and json.loads(changed)["train"]["images"] == 1001, said)


def cut_while_used(parts):
    """An archive that is cut off during a training ends it with one error that names the archive."""
    shutil.copytree("python-gnu", "cut-set")
    shutil.rmtree("run", ignore_errors=True)
    process = subprocess.Popen([os.environ.get("CRESNET_BIN", "build/cresnet"), "train", "net.ini", "data.kind=tar", "data.root=cut-set", "-o", "run", "train.epochs=100000"],
                               stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while "evaluation" not in process.stderr.readline():
        pass
    os.truncate("cut-set/set-train-0001.tar", 5000)
    said = process.stderr.read()
    check("cut off while it is used", process.wait(60) == 1 and said.count("cresnet train: ") == 1 and "set-train-0001.tar: was cut off" in said, said[-400:])


def main():
    open("net.ini", "w").write(TINY_MODEL + "[data]\nimage_size = 8\ncrop = pad\npad = 1\nworkers = 2\n[train]\nbatch = 8\nepochs = 2\nsave_every = 5\ndevice = cpu\nthreads = 1\n")
    parts = {"train": samples(12), "val": samples(5)}
    same_training(parts)
    layouts(parts)
    imagenet(parts)
    mistakes(parts)
    hostile(parts)
    shards(parts)
    stored_lists()
    cut_while_used(parts)


run(main)
