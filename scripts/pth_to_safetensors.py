#!/usr/bin/env python3
"""Converts PyTorch weights (.pth, .pt, .th) to a safetensors file that cresnet reads.

  scripts/pth_to_safetensors.py resnet50.pth resnet50.safetensors
  cresnet eval configs/resnet50.ini --weights resnet50.safetensors

The file may hold a state dict, a training checkpoint that contains one or more (--key model_ema), or a whole pickled model. Prefixes
that wrappers add to every name ("module.", "_orig_mod.") are removed; cresnet removes others when it loads the file. Values are not changed.

The script needs Python but not torch, and it never executes code from the pickle: objects other than tensors and plain
containers become empty objects.
"""
import argparse
import collections
import io
import itertools
import json
import os
import pickle
import re
import struct
import sys
import zipfile

# Storage class of torch -> (type in safetensors, bytes). Types that cresnet does not read are listed for the error message.
STORAGES = {"FloatStorage": ("F32", 4), "DoubleStorage": ("F64", 8), "HalfStorage": ("F16", 2),
            "BFloat16Storage": ("BF16", 2), "ByteStorage": ("U8", 1), "IntStorage": ("I32", 4),
            "LongStorage": ("I64", 8), "BoolStorage": ("BOOL", 1), "CharStorage": ("I8", 1),
            "ShortStorage": ("I16", 2), "ComplexFloatStorage": ("C64", 8), "ComplexDoubleStorage": ("C128", 16)}
# Sort order of the format's reference implementation, reversed.
READABLE = ["U8", "F16", "BF16", "I32", "F32", "F64", "I64"]
# Keys under which training programs store the weights in a checkpoint.
WRAPPERS = ["state_dict", "model_state_dict", "model", "net", "weights", "params"]
PREFIXES = ["module.", "_orig_mod."]
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C


class Refused(Exception):
    """An error in the input, with a message for the user."""


# ---- objects that a pickle of torch refers to ----

class Storage:
    def __init__(self, kind, key, elems):
        self.kind, self.key, self.elems = kind, key, elems
        self.data = None  # bytes, once read

    def bytes(self):
        return self.elems * STORAGES[self.kind][1]


class Tensor:
    def __init__(self, storage, offset, shape, stride):
        if not isinstance(storage, Storage):
            raise Refused("a tensor without a storage")
        self.storage, self.offset, self.shape, self.stride = storage, offset, tuple(shape), tuple(stride)
        self.type, self.size = STORAGES[storage.kind]

    def count(self):
        n = 1
        for d in self.shape:
            n *= d
        return n

    def is_contiguous(self):
        step = 1
        for d, s in zip(reversed(self.shape), reversed(self.stride)):
            if d != 1 and s != step:
                return False
            step *= d
        return True

    def to_bytes(self):
        data, n, size = self.storage.data, self.count(), self.size
        if n == 0:
            return b""
        last = self.offset + sum((d - 1) * s for d, s in zip(self.shape, self.stride))
        if self.offset < 0 or min(self.stride, default=0) < 0 or last >= self.storage.elems:
            raise Refused("a tensor reaches beyond its storage")
        if self.is_contiguous():
            return data[self.offset * size:(self.offset + n) * size]
        out = bytearray()
        for index in itertools.product(*map(range, self.shape)):
            at = (self.offset + sum(i * s for i, s in zip(index, self.stride))) * size
            out += data[at:at + size]
        return bytes(out)


class Empty:
    """Replaces every class and function that has nothing to do with tensors: accepts any call and does nothing."""

    def __new__(cls, *args, **kwargs):
        return object.__new__(cls)

    def __init__(self, *args, **kwargs):
        self.state = None

    def __setstate__(self, state):
        self.state = state

    def __setitem__(self, key, value):
        pass

    def append(self, value):
        pass

    def extend(self, values):
        pass

    def add(self, value):
        pass

    def __hash__(self):
        return id(self)


def rebuild_tensor(storage, offset, shape, stride, *_):
    return Tensor(storage, offset, shape, stride)


def rebuild_parameter(tensor, *_):
    return tensor


def rebuild_from_type(function, _, args, *__):
    return function(*args) if function in (rebuild_tensor, rebuild_parameter) else Empty()


KNOWN = {("collections", "OrderedDict"): collections.OrderedDict,
         ("__builtin__", "set"): set, ("builtins", "set"): set,  # protocol 2 uses the old name
         ("torch._utils", "_rebuild_tensor"): rebuild_tensor,
         ("torch._utils", "_rebuild_tensor_v2"): rebuild_tensor,
         ("torch._utils", "_rebuild_parameter"): rebuild_parameter,
         ("torch._utils", "_rebuild_parameter_with_state"): rebuild_parameter,
         ("torch._tensor", "_rebuild_from_type_v2"): rebuild_from_type,
         ("torch", "Size"): tuple}


class Unpickler(pickle.Unpickler):
    def __init__(self, file):
        super().__init__(file, encoding="utf-8", errors="replace")
        self.storages = {}

    def find_class(self, module, name):
        if module in ("torch", "torch.cuda") and name in STORAGES:
            return name
        return KNOWN.get((module, name), Empty)

    def persistent_load(self, pid):
        if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage" or pid[1] not in STORAGES:
            raise Refused("a storage of a kind that is not known")
        if len(pid) > 5 and pid[5] is not None:
            raise Refused("it comes from a torch before 0.4 (views of storages)")
        _, kind, key, _, elems = pid[:5]
        if key not in self.storages:
            self.storages[key] = Storage(kind, key, int(elems))
        return self.storages[key]


# ---- the two file formats of torch ----

def load_zip(path):
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        heads = [n for n in names if n.endswith("/data.pkl") and n.count("/") == 1]
        if len(heads) != 1:
            raise Refused("a zip file, but not one of torch")
        root = heads[0][:-len("data.pkl")]
        if root + "byteorder" in names and archive.read(root + "byteorder") != b"little":
            raise Refused("it was saved on a big-endian machine")
        unpickler = Unpickler(io.BytesIO(archive.read(heads[0])))
        thing = unpickler.load()
        for storage in unpickler.storages.values():
            storage.data = archive.read("%sdata/%s" % (root, storage.key))
    return thing, unpickler.storages


def load_legacy(path):
    """Before torch 1.6: five pickles (magic, version, system, object, keys), then a count and bytes each key."""
    with open(path, "rb") as f:
        if Unpickler(f).load() != LEGACY_MAGIC:
            raise Refused("not a file of torch")
        Unpickler(f).load()
        if not Unpickler(f).load().get("little_endian", True):
            raise Refused("it was saved on a big-endian machine")
        unpickler = Unpickler(f)
        thing = unpickler.load()
        for key in Unpickler(f).load():
            storage = unpickler.storages.get(key)
            if storage is None or struct.unpack("<q", f.read(8))[0] != storage.elems:
                raise Refused("its storages do not match its tensors")
            storage.data = f.read(storage.bytes())
    return thing, unpickler.storages


def load(path):
    try:
        thing, storages = load_zip(path) if zipfile.is_zipfile(path) else load_legacy(path)
    except Refused as e:
        raise Refused("%s: cannot be converted: %s" % (path, e))
    except Exception as e:  # a damaged pickle can raise any exception
        why = (str(e).strip() or type(e).__name__).split("\n")[0][:200]
        raise Refused("%s: is no file that torch.save wrote, or is damaged: %s" % (path, why))
    for storage in storages.values():
        if storage.data is None or len(storage.data) != storage.bytes():
            raise Refused("%s: is damaged: storage %s is not whole" % (path, storage.key))
    return thing


# ---- from the unpickled object to names and tensors ----

def module_state(module, prefix=""):
    """The state dict of a pickled torch.nn.Module; {} if the object is not a module."""
    state, inner = {}, module.state if isinstance(module.state, dict) else {}
    hidden = inner.get("_non_persistent_buffers_set", ())
    for group in "_parameters", "_buffers":
        for name, value in (inner.get(group) or {}).items():
            if isinstance(value, Tensor) and not (isinstance(hidden, (set, frozenset)) and name in hidden):
                state[prefix + name] = value
    for name, child in (inner.get("_modules") or {}).items():
        if isinstance(child, Empty):
            state.update(module_state(child, prefix + name + "."))
    return state


def weights_in(thing):
    """The tensors of a state dict or a pickled model; {} if it is neither."""
    if isinstance(thing, Empty):
        return module_state(thing)
    return {str(k): v for k, v in thing.items() if isinstance(v, Tensor)} if isinstance(thing, dict) else {}


def is_average(key):
    """True for the names that training programs give moving averages: "model_ema", "state_dict_ema", "averaged_model"."""
    return any(word in ("ema", "swa", "avg", "average", "averaged", "averages") for word in re.split("[_.\\- ]", key))


def choose_entry(thing, path):
    """The weights of a file without --key, by the rules of cresnet (choose_entry in src/formats/torch/torch_read.c): entries with about as many
    tensors as the largest are candidates; those under the usual keys come first, and several others are the user's choice."""
    entries = {str(k): weights_in(v) for k, v in thing.items()} if isinstance(thing, dict) else {}
    entries[""] = weights_in(thing)  # the dictionary itself
    most = max(map(len, entries.values()))
    if not most:
        raise Refused("%s: no weights found in it (it has %s)" % (path, ", ".join(sorted(filter(None, entries))[:20]) or "no entries"))
    entries = {k: v for k, v in entries.items() if 2 * len(v) >= most}
    used = next((k for k in ["", *WRAPPERS] if k in entries), None)
    others = ", ".join("%s%s" % (k, " (moving averages)" if is_average(k) else "") for k in entries if k not in ("", used))
    if used is None and len(entries) > 1:
        raise Refused("%s: has the weights of several networks: choose one of %s with --key" % (path, others))
    if used is not None and others:
        name = "the entry %s" % used if used else "the dictionary itself"
        print("%s: %s is used; --key chooses another one: %s" % (path, name, others), file=sys.stderr)
    return entries[used] if used is not None else next(iter(entries.values()))


def find_state_dict(thing, key, path):
    """--key names an entry, or a prefix of the names."""
    found = weights_in(thing.get(key)) if key and isinstance(thing, dict) else {}
    if found:
        return found
    found = choose_entry(thing, path)
    if not key:
        return found
    prefix = key.rstrip(".") + "."
    inside = {n[len(prefix):]: v for n, v in found.items() if n.startswith(prefix)}
    if not inside:
        raise Refused("%s: has no entry %r, and no tensor whose name begins with it; its first tensor is %r" % (path, key, next(iter(found))))
    return inside


def strip_prefixes(state):
    """Prefixes that every name has; counters without it (n_averaged of AveragedModel) are no weights and are left out."""
    again = True
    while again:
        again = False
        for prefix in PREFIXES:
            inside = {n[len(prefix):]: t for n, t in state.items() if n.startswith(prefix) and len(n) > len(prefix)}
            if inside and all(n.startswith(prefix) or (not t.shape and t.type[0] == "I") for n, t in state.items()):
                state, again = inside, True
    state.pop("n_averaged", None)
    return state


def check(state, path):
    for name, t in state.items():
        if t.type not in READABLE:
            raise Refused("%s: tensor %r has elements of type %s; cresnet reads %s"
                          % (path, name, t.type, ", ".join(READABLE)))
        if name == "__metadata__":
            raise Refused("%s: a tensor is called __metadata__, which the format keeps for itself" % path)


def write(path, state):
    """Header (length, JSON, spaces up to a multiple of 8), then the tensors; through a temporary name, synced."""
    order = sorted(state, key=lambda n: (-READABLE.index(state[n].type), n.encode()))
    table, at = {"__metadata__": {"format": "pt"}}, 0
    for name in order:
        t = state[name]
        size = t.count() * t.size
        table[name] = {"dtype": t.type, "shape": list(t.shape), "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    temporary = "%s.tmp.%d" % (path, os.getpid())
    try:
        with open(temporary, "xb") as f:
            f.write(struct.pack("<Q", len(head)) + head)
            for name in order:
                f.write(state[name].to_bytes())
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except OSError as e:
        raise Refused("%s: cannot be written: %s" % (path, e.strerror))
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)
    return 8 + len(head) + at


def convert(args):
    if not os.path.isfile(args.input):
        raise Refused("%s: there is no such file" % args.input)
    found = find_state_dict(load(args.input), args.key, args.input)
    state = strip_prefixes(found)
    check(state, args.input)
    size = write(args.output, state)
    values = sum(t.count() for t in state.values())
    print("%s: %d tensors, %d values, %d bytes" % (args.output, len(state), values, size))


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", help="PyTorch file")
    parser.add_argument("output", help="safetensors file to write")
    parser.add_argument("-f", "--force", action="store_true", help="overwrite the output when it is there")
    parser.add_argument("--key", help="entry of the checkpoint, such as model_ema, or the beginning of the names (default: the weights, not "
                        "their moving averages)")
    args = parser.parse_args(argv)
    if os.path.lexists(args.output) and not args.force:
        print("pth_to_safetensors: %s: is there already; add -f to overwrite it" % args.output, file=sys.stderr)
        return 2
    try:
        convert(args)
    except Refused as e:
        print("pth_to_safetensors: %s" % e, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
