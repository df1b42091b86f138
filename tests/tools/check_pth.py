#!/usr/bin/env python3
"""Tests scripts/pth_to_safetensors.py, and the reader of the program ($CRESNET_BIN), with common kinds of files that this PyTorch writes; reads
the results with st.py."""
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import st  # noqa: E402

SCRIPT = os.path.join(HERE, "..", "..", "scripts", "pth_to_safetensors.py")
PROGRAM = os.environ.get("CRESNET_BIN", os.path.join(HERE, "..", "..", "build", "cresnet"))
failures = []


def check(condition, what):
    if not condition:
        failures.append(what)
        print("FAIL", what)


def run(*args):
    p = subprocess.run([sys.executable, SCRIPT, *args], capture_output=True, text=True)
    return p.returncode, p.stdout, p.stderr


def program(source, out):
    p = subprocess.run([PROGRAM, "export", source, "-o", out], capture_output=True, text=True)
    return p.returncode, p.stderr


class Evil:
    """A pickle that would create a file if it were executed."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def state():
    torch.manual_seed(1)
    return {"conv1.weight": torch.randn(4, 3, 2, 5), "fc.weight": torch.randn(6, 10).t(),  # a view, not contiguous
            "fc.bias": torch.randn(10).half(), "bn1.num_batches_tracked": torch.tensor(7),
            "b": torch.randn(3).bfloat16(), "d": torch.randn(2).double(), "e": torch.zeros(0, 2)}


def compare(path, wanted, what):
    got, meta = st.load(path)
    check(set(got) == set(wanted), what + ": names " + str(sorted(got)))
    check(meta.pop("format", "") == "pt" and meta in ({}, {"cresnet_export": "1"}), what + ": metadata " + str(meta))
    for name, t in wanted.items():
        v = got.get(name)
        if v is None:
            continue
        v = v.floats() if isinstance(v, st.BF16) else v
        w = t.float().numpy() if t.dtype == torch.bfloat16 else t.numpy()
        check(v.shape == w.shape and v.dtype == w.dtype and np.array_equal(v, w), "%s: %s" % (what, name))


def good_files(d):
    plain = state()
    wrapped = {"module." + n: t for n, t in plain.items()}
    kinds = {"plain.pth": plain, "wrapped.th": {"state_dict": wrapped, "epoch": 3, "best_prec1": 91.7},
             "model.pt": {"model": plain, "optimizer": {"state": {}, "param_groups": []}},
             "compiled.pt": {"module._orig_mod." + n: t for n, t in plain.items()}}
    first = None
    for name, thing in kinds.items():
        source, out = os.path.join(d, name), os.path.join(d, name + ".safetensors")
        torch.save(thing, source)
        rc, said, err = run(source, out)
        check(rc == 0 and "7 tensors" in said, "%s: %s %s %s" % (name, rc, said, err))
        compare(out, plain, name)
        data = open(out, "rb").read()
        first = first or data
        check(data == first, name + ": equal weights, equal bytes")
        rc, err = program(source, out + ".program")
        check(rc == 0, "%s: the program: %s" % (name, err))
        prefix = os.path.commonprefix(sorted(st.load(out + ".program")[0])) if rc == 0 else ""
        compare(out + ".program", {prefix + n: t for n, t in plain.items()}, name + ", the program")
        check((8 + int.from_bytes(data[:8], "little")) % 8 == 0, name + ": alignment")
    torch.save({"ours": plain, "theirs": plain, "other": 1}, os.path.join(d, "key.pth"))
    rc, _, err = run(os.path.join(d, "key.pth"), os.path.join(d, "key.st"))
    check(rc == 1 and "--key" in err and "ours" in err, "unknown wrapper: " + err)
    rc, err = program(os.path.join(d, "key.pth"), os.path.join(d, "key.program.st"))
    check(rc == 1 and 'key.pth:theirs"' in err, "unknown wrapper: the program: " + err)
    rc, _, err = run(os.path.join(d, "key.pth"), os.path.join(d, "key.st"), "--key", "ours")
    check(rc == 0, "--key: " + err)
    torch.save(plain, os.path.join(d, "old.pth"), _use_new_zipfile_serialization=False)
    rc, _, err = run(os.path.join(d, "old.pth"), os.path.join(d, "old.st"))
    check(rc == 0 and open(os.path.join(d, "old.st"), "rb").read() == first, "the old file format: " + err)


def read_by_the_program(d):
    """What the program reads: both serialisations of every protocol, parameters, shared and strided storages."""
    plain = state()
    last = torch.randn(2, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    every = torch.randn(20)
    parameter = torch.nn.Parameter(torch.randn(3, 2))
    parameter.tag = "an attribute"
    plain.update({"last": last, "slice": every[3:9], "steps": every[::3], "all": every, "parameter": parameter,
                  "buffer": torch.nn.Parameter(torch.randn(2), requires_grad=False), "i8": torch.arange(5).to(torch.int8),
                  "i32": torch.arange(5).int(), "u8": torch.arange(5).byte(), "part": torch.randn(3, 5, 4)[1:, ::2, 1:3]})
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    for new in True, False:
        for protocol in 2, 3, 4, 5:
            name = os.path.join(d, "program-%s-%d.pt" % ("zip" if new else "stream", protocol))
            for thing, wanted in (plain, plain), (module.state_dict(), module.state_dict()):
                torch.save(thing, name, _use_new_zipfile_serialization=new, pickle_protocol=protocol)
                rc, err = program(name, name + ".st")
                check(rc == 0, name + ": " + err)
                if rc == 0:
                    compare(name + ".st", {n: t.detach() for n, t in wanted.items()}, name)
                    os.remove(name + ".st")
        made = os.path.join(d, "made-by-the-program")
        torch.save({"state_dict": state(), "args": Evil(made)}, name, _use_new_zipfile_serialization=new)
        rc, err = program(name, name + ".st")
        check(rc == 1 and ".mkdir" in err and "GLOBAL" in err and not os.path.exists(made), "evil: " + err)
        torch.save(module, name, _use_new_zipfile_serialization=new)
        rc, err = program(name, name + ".st")
        check(rc == 1 and "whole model" in err, "a whole model: " + err)
    torch.jit.save(torch.jit.script(module), name)
    rc, err = program(name, name + ".st")
    check(rc == 1 and "TorchScript" in err, "TorchScript: " + err)


def bad_files(d):
    def refuse(name, part):
        out = os.path.join(d, "bad.safetensors")
        rc, _, err = run(os.path.join(d, name), out)
        check(rc == 1 and part in err and err.count("\n") == 1, "%s: %d %s" % (name, rc, err))
        check(not os.path.exists(out), name + ": left a file")

    with open(os.path.join(d, "text.pth"), "w") as f:
        f.write("no tensors here")
    torch.save([1, 2], os.path.join(d, "list.pth"))
    for name in "plain.pth", "old.pth":
        data = open(os.path.join(d, name), "rb").read()
        for part in 3, 2, 1:
            with open(os.path.join(d, "cut%d-%s" % (part, name)), "wb") as f:
                f.write(data[:len(data) * part // 4])
            refuse("cut%d-%s" % (part, name), "damaged")
    refuse("missing.pth", "no such file")
    refuse("text.pth", "no file that torch.save wrote")
    refuse("list.pth", "no weights found")
    rc, _, err = run(os.path.join(d, "plain.pth"), os.path.join(d, "no", "where"))
    check(rc == 1 and "cannot be written" in err, "unwritable: " + err)


def main():
    rc, said, _ = run("--help")
    check(rc == 0 and "--force" in said, "--help")
    check(run()[0] == 2, "no arguments")
    with tempfile.TemporaryDirectory() as d:
        good_files(d)
        read_by_the_program(d)
        bad_files(d)
        check(not [n for n in os.listdir(d) if ".tmp." in n], "temporary files left")
    print("%d failures" % len(failures))
    return 1 if failures else 0


sys.exit(main())
