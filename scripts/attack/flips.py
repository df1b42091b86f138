"""flips.py: single flipped bits in every file that a command reads back.

A command that reads a damaged file ends with one error, or its result is that of the undamaged file: a flip may lie in a
part that the command does not use, or an older checkpoint may take its place. It is never another result without a word.
"""
import json
import os
import re
from pathlib import Path

from .support import add

S = "bit flips"
WORDS = re.compile(r"warning|damaged|checksum|not applied|differs|changed|corrupt|unreadable|timed again", re.I)


def scores(result):
    """What a command computed: members of its JSON lines but times."""
    lines = [json.loads(x) for x in result.out.decode("utf-8", "replace").splitlines() if x.startswith("{")]
    for line in lines:
        for member in [m for m in line if re.search(r"seconds|per_s|_ms|^ms|mib|file|weights", m)]:
            del line[member]
    return lines


def weights(c, args):
    """The weights that a training has saved."""
    folder = c.cwd / args[args.index("-o") + 1] if args[0] == "train" and "-o" in args else None
    return (folder / "last/model.safetensors").read_bytes() if folder and (folder / "last").exists() else b""


def flip(path, part, bit):
    """Flips a bit at this part of a file: 0 its first byte, 1 its last byte."""
    blob = bytearray(path.read_bytes() or b"\0")
    at = min(int(part * len(blob)), len(blob) - 1)
    blob[at] ^= 1 << bit
    os.chmod(path, 0o644)
    path.write_bytes(bytes(blob))


EVAL = ["eval", "run", "--json"]
RESUME = ["train", "tiny.ini", "-o", "run", "--resume", "auto", "--steps", "5"]
# (what is copied, the file, the commands that read it)
FILES = {
    "config.ini of a checkpoint": (["run"], "run/step-4/config.ini", [EVAL, RESUME]),
    "model.safetensors": (["run"], "run/step-4/model.safetensors", [EVAL, ["export", "run", "-o", "out.safetensors"]]),
    "state.safetensors": (["run"], "run/step-4/state.safetensors", [RESUME]),
    "classes.txt": (["trained", "images"], "trained/step-2/classes.txt", [["predict", "trained", "images/a/0.png", "--json"]]),
    "checksums.txt": (["run"], "run/step-4/checksums.txt", [EVAL, RESUME]),
    "log.jsonl": (["run"], "run/log.jsonl", [["report", "run", "--no-eval", "-o", "r.html"],
                                             RESUME]),
    "best.json": (["run"], "run/best.json", [EVAL, RESUME]),
    "the event file of TensorBoard": (["run"], "run/events*", [RESUME]),
    "weights of a pruned network": (["pruned"], "pruned/step-*/model.safetensors", [["eval", "pruned", "--json"]]),
    "state of a pruned network": (["pruned"], "pruned/step-*/state.safetensors", [["eval", "pruned", "--json"],
                                                                                  ["report", "pruned", "-o", "r.html"]]),
    "scales of a quantised network": (["quantized"], "quantized/step-*/model.safetensors",
                                      [["eval", "quantized", "--json"], ["export", "quantized", "--onnx", "out.onnx"]]),
    "config.ini of a quantised network": (["quantized"], "quantized/step-*/config.ini", [["eval", "quantized", "--json"]]),
    "exported weights": (["weights.safetensors"], "weights.safetensors",
                         [["eval", "tiny.ini", "--weights", "weights.safetensors", "--json"]]),
    "packed training images": (["packed", "folder.ini"], "packed/train.crpk", [["data", "verify", "packed"]]),
    "packed validation images": (["packed", "trained"], "packed/val.crpk",
                                 [["data", "verify", "packed"],
                                  ["eval", "trained", "data.kind=packed", "data.root=packed", "--json"]]),
    "tiny.ini": ([], "tiny.ini", [["train", "tiny.ini", "-o", "R", "--steps", "1"]]),
    "log of a sweep's run": (["sweep"], "sweep/train.seed=1/log.jsonl",
                             [["sweep", "tiny.ini", "-o", "sweep", "train.seed=1,2", "--steps", "2"]]),
    "checkpoint of a sweep's run": (["sweep"], "sweep/train.seed=1/step-2/state.safetensors",
                                    [["sweep", "tiny.ini", "-o", "sweep", "train.seed=1,2", "--steps", "2"]]),
    "configuration of a finetune": (["tuned", "tuned.ini", "images"], "tuned.ini",
                                    [["finetune", "images", "-o", "tuned", "--epochs", "1", "--weights", "none"]]),
    "state of a finetune": (["tuned", "tuned.ini", "images"], "tuned/step-*/state.safetensors",
                            [["finetune", "images", "-o", "tuned", "--epochs", "1", "--weights", "none"]]),
    "images": (["images", "folder.ini"], "images/a/2.png", [["data", "stat", "images"], ["train", "folder.ini", "-o", "R", "--steps", "1"]]),
}
COMPRESS = ["compress", "BASE/run", "--speedup", "1.1", "--epochs", "1", "train.measure=no", "train.threads=1", "--multiple", "2",
            "-o", "compressed"]
for name in ("compress.ini", "compress.json", "dense.eval.json", "dense.time.json", "1.1x-channels/pruned.json",
             "1.1x-channels/bn.eval.json", "1.1x-channels/bn.time.json", "1.1x-channels/tuned.json",
             "1.1x-channels/pruned/step-0/model.safetensors"):
    FILES["%s of compress" % name] = (["compressed"], "compressed/" + name, [COMPRESS])
PLACES = [(0, 0), (0.01, 5), (0.2, 2), (0.5, 6), (0.8, 1), (0.97, 7), (1, 4)]


def files(c, pattern):
    found = [p for p in sorted(Path(c.cwd).glob(pattern)) if not p.is_symlink()]
    if not found:
        c.problem("the case itself", "no file %s" % pattern)
    return found[-1:]


def flipped(c, take, pattern, commands, part, bit):
    for args in commands:
        args = [a.replace("BASE", str(c.base)) for a in args]
        c.rm("R", "r.html", "out.safetensors", "out.onnx")
        results = []
        for damaged in (False, True):
            c.rm(*take)
            c.take("tiny.ini", *take)
            for path in files(c, pattern) if damaged else []:
                flip(path, part, bit)
            results.append((c.run(*args, deadline=60, **({"expect": (0,)} if not damaged else {})), weights(c, args)))
            c.rm("R", "r.html", "out.safetensors", "out.onnx")
        (good, network), (bad, other) = results
        if bad.code == 0 and not WORDS.search(bad.text):
            if "--json" in args and scores(good) != scores(bad):
                c.problem(" ".join(args), "another result, and no word: %s, was %s" % (scores(bad), scores(good)))
            if network != other:
                c.problem(" ".join(args), "other weights, and no word: %s" % bad.text[-400:])


for title, (take, pattern, commands) in FILES.items():
    for part, bit in PLACES:
        add(S, "%s, bit %d at %d %%" % (title, bit, 100 * part),
            lambda c, a=take, b=pattern, d=commands, p=part, q=bit: flipped(c, a, b, d, p, q))
