#!/usr/bin/env python3
"""Writes files as torch.save does, without PyTorch: Python's pickle writes the objects under the names that PyTorch gives them.

  torch_file.py SAFETENSORS OUTPUT [stream]   converts weights to a zip archive, or to the older stream of pickles
"""
import collections
import io
import pickle
import struct
import sys
import types
import zipfile

import weights_file

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
# safetensors type: (storage class, bytes)
TYPES = {"F32": ("FloatStorage", 4), "F64": ("DoubleStorage", 8), "F16": ("HalfStorage", 2), "BF16": ("BFloat16Storage", 2),
         "U8": ("ByteStorage", 1), "I32": ("IntStorage", 4), "I64": ("LongStorage", 8), "I8": ("CharStorage", 1),
         "BOOL": ("BoolStorage", 1)}


def fake(name, **members):
    """A module that pickle finds by name. Classes and functions in it belong to it."""
    module = sys.modules[name] = types.ModuleType(name)
    for key, member in members.items():
        member.__module__, member.__qualname__, member.__name__ = name, key, key
        setattr(module, key, member)
    return module


def function():
    return lambda *args: None


torch = fake("torch", **{cls: type(cls, (), {}) for cls, _ in TYPES.values()})
fake("torch._utils", _rebuild_tensor=function(), _rebuild_tensor_v2=function(), _rebuild_parameter=function(),
     _rebuild_parameter_with_state=function())
fake("torch._tensor", _rebuild_from_type_v2=function())
fake("torch.nn")
fake("torch.nn.parameter", Parameter=type("Parameter", (), {}))
UTILS = sys.modules["torch._utils"]


class Storage:
    def __init__(self, kind, data):
        self.kind, self.data = kind, data

    def elems(self):
        return len(self.data) // TYPES[self.kind][1]


class Call:
    """Pickled as a call of the function with the arguments."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def contiguous(shape):
    strides, step = [], 1
    for d in reversed(shape):
        strides.insert(0, step)
        step *= max(d, 1)
    return tuple(strides)


def tensor(storage, offset, shape, stride=None):
    stride = contiguous(shape) if stride is None else stride
    return Call(UTILS._rebuild_tensor_v2, storage, offset, tuple(shape), tuple(stride), False, collections.OrderedDict())


class Pickler(pickle.Pickler):
    def __init__(self, file, protocol, storages, stream):
        super().__init__(file, protocol)
        self.storages, self.stream = storages, stream

    def persistent_id(self, thing):
        if not isinstance(thing, Storage):
            return None
        key = self.storages.setdefault(id(thing), (str(len(self.storages)), thing))[0]
        pid = "storage", getattr(torch, TYPES[thing.kind][0]), key, "cpu", thing.elems()
        return pid + (None,) if self.stream else pid


def dump(thing, protocol=2, stream=False):
    """(pickle, storages by key)"""
    out, storages = io.BytesIO(), {}
    Pickler(out, protocol, storages, stream).dump(thing)
    return out.getvalue(), dict(storages.values())


def archive(files, compress=(), zip64=False, comment=b""):
    """A zip archive of {name: bytes}; contents are aligned to 64 bytes as PyTorch does."""
    out, limit = io.BytesIO(), zipfile.ZIP64_LIMIT
    zipfile.ZIP64_LIMIT = 0 if zip64 else limit
    with zipfile.ZipFile(out, "w") as z:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED if name in compress else zipfile.ZIP_STORED
            pad = -(len(out.getvalue()) + 30 + len(name) + 4) % 64
            info.extra = b"" if zip64 else struct.pack("<HH", 0x4246, pad) + b"Z" * pad
            z.writestr(info, data)
        z.comment = comment
    zipfile.ZIP64_LIMIT = limit
    return out.getvalue()


def parts(thing, protocol=2, root="archive"):
    data, storages = dump(thing, protocol)
    files = {f"{root}/data.pkl": data, f"{root}/byteorder": b"little"}
    files.update({f"{root}/data/{key}": s.data for key, s in storages.items()})
    files[f"{root}/version"] = b"3\n"
    return files


def zipped(thing, protocol=2, root="archive", **options):
    return archive(parts(thing, protocol, root), **options)


def stream(thing, protocol=2, system=None):
    body, storages = dump(thing, protocol, True)
    system = {"protocol_version": PROTOCOL, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}} \
        if system is None else system
    out = b"".join(pickle.dumps(v, protocol) for v in (MAGIC, PROTOCOL, system)) + body
    out += pickle.dumps(sorted(storages), protocol)
    return out + b"".join(struct.pack("<q", storages[key].elems()) + storages[key].data for key in sorted(storages))


def state_dict(tensors):
    return collections.OrderedDict((name, tensor(Storage(kind, data), 0, shape)) for name, (kind, shape, data) in tensors.items())


if __name__ == "__main__":
    with open(sys.argv[2], "wb") as f:
        f.write((stream if "stream" in sys.argv[3:] else zipped)(state_dict(weights_file.read(sys.argv[1])[0])))
