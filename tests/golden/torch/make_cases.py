#!/usr/bin/env python3
"""Writes PyTorch files into tests/fuzz/corpus/fuzz_torch, and cases.txt in the folder of this script: file name, tab, `ok` when the file has
the tensors of tests/golden/safetensors/demo.safetensors, otherwise a part of the error message. Run from the root of the repository:
  python3 tests/golden/torch/make_cases.py"""
import collections
import os
import pickle
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tools"))
import torch_file as t  # noqa: E402
import weights_file  # noqa: E402

OUT = os.path.join(HERE, "..", "..", "fuzz", "corpus", "fuzz_torch")
DEMO = weights_file.read(os.path.join(HERE, "..", "safetensors", "demo.safetensors"))[0]
CASES = []


def case(name, data, message="ok"):
    CASES.append((name, data, message))


def demo():
    return t.state_dict(DEMO)


def transposed(data, rows, columns, size):
    return b"".join(data[(r * columns + c) * size:(r * columns + c + 1) * size] for c in range(columns) for r in range(rows))


def strided():
    """a.weight is a transposed view of a storage that has values around it; b.f64 has every second value."""
    kind, shape, data = DEMO["a.weight"]
    d = demo()
    d["a.weight"] = t.tensor(t.Storage(kind, b"\xff" * 8 + transposed(data, *shape, 4) + b"\xff" * 4), 2, shape, (1, shape[0]))
    kind, shape, data = DEMO["b.f64"]
    d["b.f64"] = t.tensor(t.Storage(kind, data[:8] + b"\xee" * 8 + data[8:]), 0, shape, (2,))
    return d


def shared():
    """a.weight and the tensor i are parts of one storage."""
    d, names = demo(), [n for n in DEMO if DEMO[n][0] == "F32" and len(DEMO[n][2])]
    storage = t.Storage("F32", b"".join(DEMO[n][2] for n in names))
    at = 0
    for name in names:
        d[name] = t.tensor(storage, at, DEMO[name][1])
        at += len(DEMO[name][2]) // 4
    return d


def rebuilt():
    d = demo()
    hooks = collections.OrderedDict()
    parameter = sys.modules["torch.nn.parameter"].Parameter
    d["a.weight"] = t.Call(t.UTILS._rebuild_parameter, d["a.weight"], True, hooks)
    d["b.f64"] = t.Call(t.UTILS._rebuild_parameter_with_state, d["b.f64"], True, hooks, {"tag": 1})
    d["c.f16"] = t.Call(sys.modules["torch._tensor"]._rebuild_from_type_v2, t.UTILS._rebuild_tensor_v2, parameter,
                        d["c.f16"].call[1], {"tag": "x"})
    storage, offset, shape, stride = d["e.u8"].call[1][:4]
    d["e.u8"] = t.Call(t.UTILS._rebuild_tensor, storage, offset, shape, stride)
    return d


def checkpoint():
    return {"epoch": 3, "best": 91.5, "none": None, "flags": [True, False, -1, 70000, 2**40, -2**70], "text": "x" * 300, "bytes": b"y",
            "set": {1, 2}, "nested": {"a": [1, (2,), (3, 4), (5, 6, 7), (8, 9, 10, 11)]}, "counts": collections.Counter({5: 1}),
            "optimizer": {"state": {0: {"momentum_buffer": demo()["a.weight"]}}, "param_groups": [{"lr": 0.1, "params": [0, 1]}]},
            "state_dict": demo()}


class StateDict:
    """State dicts have an attribute: the versions of their modules."""

    def __reduce__(self):
        return collections.OrderedDict, (), {"_metadata": collections.OrderedDict({"": {"version": 1}})}, None, iter(demo().items())


def good():
    case("zip", t.zipped(demo()))
    case("stream", t.stream(demo()))
    for protocol in 3, 4, 5:
        case(f"zip-protocol-{protocol}", t.zipped(demo(), protocol))
    case("stream-protocol-4", t.stream(demo(), 4))
    case("zip-64", t.zipped(demo(), zip64=True))
    case("zip-comment", t.zipped(demo(), comment=b"PK\5\6 is not the end of this archive" * 3))
    case("zip-root", t.zipped(demo(), root="resnet18-1234"))
    case("zip-metadata", t.zipped(StateDict()))
    case("zip-strided", t.zipped(strided()))
    case("stream-strided", t.stream(strided()))
    case("zip-shared", t.zipped(shared()))
    case("stream-shared", t.stream(shared()))
    case("zip-rebuilt", t.zipped(rebuilt()))
    case("zip-checkpoint", t.zipped(checkpoint()))
    case("stream-checkpoint", t.stream(checkpoint()))
    case("zip-plain-dict", t.zipped({"model": dict(demo()), "epoch": 1}))
    # Python 2 wrote OrderedDict([[key, value], ...])
    case("zip-pairs", t.zipped(t.Call(collections.OrderedDict, [[k, v] for k, v in demo().items()])))


def pickled(opcodes):
    """A stream whose object is made of these opcodes."""
    return b"".join(pickle.dumps(v, 2) for v in (t.MAGIC, t.PROTOCOL, {})) + b"\x80\2" + opcodes


def opcodes():
    """Opcodes and functions that are refused by their names."""
    case("global-system", pickled(b"cos\nsystem\n(X\2\0\0\0lstR."), '"os.system" (opcode GLOBAL')
    case("global-posix", pickled(b"}X\1\0\0\0acposix\nmkdir\nX\4\0\0\0evil\x85Rs."), '"posix.mkdir" (opcode GLOBAL')
    case("global-eval", pickled(b"c__builtin__\neval\n."), '"__builtin__.eval"')
    case("stack-global-eval", pickled(b"\x8c\x08builtins\x8c\x04eval\x93."), '"builtins.eval" (opcode STACK_GLOBAL')
    case("stack-global-no-text", pickled(b"K\1K\2\x93."), "its name is no text")
    case("global-getattr", pickled(b"cbuiltins\ngetattr\n."), '"builtins.getattr"')
    case("global-load", pickled(b"ctorch\nload\n."), '"torch.load"')
    case("global-sparse", pickled(b"ctorch._utils\n_rebuild_sparse_tensor\n."), "dense tensors")
    case("global-model", pickled(b"ctorchvision.models.resnet\nResNet\n)\x81."), "whole model")
    case("global-numpy", pickled(b"cnumpy.core.multiarray\nscalar\n."), "torch.save(torch.load(OLD, weights_only=False)[KEY], FILE)")
    case("global-control", pickled(b"c\x1b[31mos\nsys\x07tem\n."), "(opcode GLOBAL")
    case("global-endless", pickled(b"c" + b"a" * 300), "name is too long")
    for name, code in (("INST", b"(ios\nsystem\n."), ("OBJ", b"(cbuiltins\nset\no."), ("NEWOBJ", b"ccollections\nOrderedDict\n)\x81."),
                       ("NEWOBJ_EX", b"ccollections\nOrderedDict\n)}\x92."), ("EXT1", b"\x82\1."), ("EXT2", b"\x83\1\0."),
                       ("EXT4", b"\x84\1\0\0\0."), ("PERSID", b"Pkey\n."), ("POP", b"N0."), ("POP_MARK", b"(N1."), ("DUP", b"N2."),
                       ("INT", b"I1\n."), ("LONG", b"L1L\n."), ("FLOAT", b"F1.5\n."), ("STRING", b"S'a'\n."), ("UNICODE", b"Va\n."),
                       ("GET", b"g0\n."), ("PUT", b"Np0\n."), ("EMPTY_SET", b"\x8f."), ("ADDITEMS", b"\x8f(N\x90."),
                       ("FROZENSET", b"(N\x91."), ("BYTEARRAY8", b"\x96" + bytes(8) + b"."), ("NEXT_BUFFER", b"\x97."),
                       ("READONLY_BUFFER", b"N\x98.")):
        refused = "EMPTY_SET" if name == "ADDITEMS" else name
        case("opcode-" + name.lower(), pickled(code), f"has the opcode {refused} ")
    case("opcode-none", pickled(b"\xff."), "byte 0xff at")


def damaged():
    """Opcodes without what they need."""
    for name, code, message in (
            ("stack-empty", b".", "opcode STOP"), ("stack-left", b"NN.", "values are left"), ("mark-left", b"N(.", "the stack is empty"),
            ("tuple-no-mark", b"Nt.", "there is no MARK"), ("tuple-few", b"N\x87.", "the stack is empty"),
            ("tuple-below-mark", b"N(N\x86.", "the stack is empty"), ("append-no-list", b"K\1Na.", "opcode APPEND"),
            ("append-tuple", b")Na.", "not on a list"), ("setitem-list", b"]NNs.", "not on a dictionary"),
            ("setitems-odd", b"}(Nu.", "a key has no value"), ("dict-odd", b"(Nd.", "a key has no value"),
            ("setitems-below-mark", b"((Nu.", "opcode SETITEMS"), ("binget-none", b"h\1.", "nothing was stored"),
            ("binput-empty", b"q\1.", "the stack is empty"), ("binput-far", b"Nr\xff\xff\xff\xff.", "index is too large"),
            ("memo-hole", b"Nq\5h\3.", "nothing was stored"), ("text-long", b"X\xff\xff\xff\x7fa.", "beyond the end"),
            ("text-8", b"\x8d" + b"\xff" * 8 + b".", "beyond the end"), ("long-4", b"\x8b\xff\xff\xff\xff.", "beyond the end"),
            ("frame-long", b"\x95" + b"\xff" * 8 + b"N.", "the frame reaches"), ("protocol-9", b"\x80\x09N.", "version is not known"),
            ("build-none", b"K\1}b.", "attributes of what has none"), ("reduce-number", b"K\1)R.", "what is no function"),
            ("reduce-list", b"ccollections\nOrderedDict\n]R.", "what is no function"), ("no-end", b"N", "truncated"),
            ("reduce-storage", b"ctorch\nFloatStorage\n)R.", "only names the type of a storage"),
            ("ordered-number", b"ccollections\nOrderedDict\nK\1\x85R.", "an OrderedDict is made of"),
            ("ordered-no-pairs", b"ccollections\nOrderedDict\n(]K\1atR.", "an OrderedDict is made of"),
            ("persistent-number", b"K\1Q.", "opcode BINPERSID"), ("persistent-short", b"X\7\0\0\0storage\x85Q.", "opcode BINPERSID"),
            ("parameter-none", b"ctorch._utils\n_rebuild_parameter\nN\x85R.", "a parameter has no tensor"),
            ("tensor-none", b"ctorch._utils\n_rebuild_tensor_v2\n(NK\0))tR.", "no storage, offset"),
            ("from-type-none", b"ctorch._tensor\n_rebuild_from_type_v2\n(ccollections\nOrderedDict\nN)tR.", "no function that builds"),
            ("size-none", b"ctorch\nSize\nN\x85R.", "a size has no tuple"), ("no-dict", b"K\1.", "no names"),
            ("list-in-itself", b"]q\0h\0a.", "no list of storages"), ("no-tensors", b"}X\1\0\0\0aK\1s.", 'it has "a"')):
        tail = pickle.dumps([], 2) if name in ("no-dict", "no-tensors") else b"N." if name == "list-in-itself" else b""
        case("pickle-" + name, pickled(code) + tail, message)


def one(shape=(2,), stride=None, offset=0, elems=2, kind="F32", name="a"):
    return {name: t.tensor(t.Storage(kind, bytes(elems * t.TYPES[kind][1])), offset, shape, stride)}


def tensors():
    for name, thing, message in (
            ("beyond", one(elems=1), "beyond its storage"), ("offset", one(offset=1), "beyond its storage"),
            ("stride", one(stride=(2,)), "beyond its storage"), ("overflow", one((2**40, 2**40), (1, 1)), "beyond its storage"),
            ("stride-overflow", one((2, 2), (2**62, 2**62)), "beyond its storage"), ("negative-size", one((-1,), (1,)), "no list of sizes"),
            ("negative-stride", one((2,), (-1,), 1), "no list of sizes"), ("negative-offset", one(offset=-1), "no storage, offset"),
            ("expanded", one((3, 2), (0, 1)), "call clone()"), ("strides", one((2,), (1, 1)), "1 sizes, but 2 strides"),
            ("dims", one((1,) * 9, (1,) * 9), "9 dimensions"), ("bool", one(kind="BOOL"), "torch.BoolStorage"),
            ("size-text", one(("x",), (1,)), "no list of sizes"), ("name-number", {1: one()["a"]}, "no text in UTF-8"),
            ("name-zero", one(name="a\0b"), "no text in UTF-8")):
        case("tensor-" + name, t.zipped(thing), message)
    twice = t.zipped({"a": one()["a"], "b": one()["a"]}).replace(b"X\1\0\0\0b", b"X\1\0\0\0a")
    case("tensor-twice", twice, 'two tensors have the name "a"')
    case("tensor-name-bytes", t.zipped(one(name="q")).replace(b"X\1\0\0\0q", b"X\1\0\0\0\xff"), "no text in UTF-8")


def archives():
    whole, files = t.zipped(one()), t.parts(one())
    end = whole.rindex(b"PK\5\6")
    case("zip-truncated", whole[:-1], "its end is missing")
    case("zip-head-only", whole[:40], "its end is missing")
    case("zip-directory-far", whole[:end + 16] + struct.pack("<I", 2**31) + whole[end + 20:], "beyond its end record")
    case("zip-directory-damaged", whole.replace(b"PK\1\2", b"PK\1\3"), "directory is damaged")
    case("zip-many", whole[:end + 10] + struct.pack("<H", 60000) + whole[end + 12:], "60000 files in a directory")
    case("zip-local", whole.replace(b"PK\3\4", b"PK\3\3").replace(b"PK\3\3", b"PK\3\4", 1).replace(b"PK\3\3", b"PX\3\4"), "has no header at byte")
    case("zip-compressed", t.archive(files, compress=["archive/data.pkl"]), "compressed")
    case("zip-compressed-storage", t.archive({**files, "archive/data/0": bytes(64)}, compress=["archive/data/0"]), "storage \"0\" has 64 bytes")
    case("zip-no-pickle", t.archive({"archive/x": b"1"}), "no data.pkl")
    case("zip-two-pickles", t.archive({**files, "b/data.pkl": b"1"}), "several data.pkl")
    case("zip-script", t.archive({**files, "archive/constants.pkl": b"1"}), "TorchScript")
    case("zip-big-endian", t.archive({**files, "archive/byteorder": b"big"}), "big-endian")
    case("zip-storage-missing", t.archive({k: v for k, v in files.items() if k != "archive/data/0"}), 'storage "0" is missing')
    case("zip-storage-short", t.archive({**files, "archive/data/0": bytes(4)}), 'storage "0" has 4 bytes instead of 8')
    twice = t.archive({**files, "archive/data/1": bytes(8)}).replace(b"archive/data/1", b"archive/data/0")
    case("zip-name-twice", twice, "two files with the name")
    case("zip-64-far", t.zipped(one(), zip64=True).replace(b"PK\6\6", b"PK\6\5"), "no 64-bit end record")
    case("zip-other", t.archive({"a.txt": b"text"}), "not one of torch.save")


def streams():
    whole = t.stream(one())
    case("stream-truncated", whole[:-1], 'truncated in storage "0"')
    case("stream-truncated-count", whole[:-12], 'truncated before storage "0"')
    case("stream-size", whole[:-16] + struct.pack("<q", 3) + whole[-8:], "another size than its tensors")
    case("stream-big-endian", t.stream(one(), system={"little_endian": False}), "big-endian")
    case("stream-magic", pickle.dumps(2**75, 2) + whole[16:], "not one of torch.save")
    case("stream-other", pickle.dumps({"a": 1}, 2), "not one of torch.save")
    no_keys = whole.replace(pickle.dumps(["0"], 2), pickle.dumps([], 2))
    case("stream-no-keys", no_keys, 'storage "0" is missing')
    case("stream-keys-twice", whole.replace(pickle.dumps(["0"], 2), pickle.dumps(["0", "0"], 2)) + whole[-16:], "two storages have the name")
    case("stream-unknown-key", whole.replace(pickle.dumps(["0"], 2), pickle.dumps(["7"], 2)), "belongs to no tensor")
    case("tar", b"sys_info" + bytes(249) + b"ustar\x0000" + bytes(248), "tar archive")


def main():
    for make in good, opcodes, damaged, tensors, archives, streams:
        make()
    os.makedirs(OUT, exist_ok=True)
    lines = []
    for name, data, message in CASES:
        file = ("good-" if message == "ok" else "bad-") + name
        with open(os.path.join(OUT, file), "wb") as f:
            f.write(data)
        lines.append(f"{file}\t{message}\n")
    assert len(set(lines)) == len(CASES)
    with open(os.path.join(HERE, "cases.txt"), "w") as f:
        f.writelines(lines)


if __name__ == "__main__":
    main()
