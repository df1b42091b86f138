"""cresnet._library: the shared library libcresnet.so through ctypes: its structures, its functions, its errors."""
from __future__ import annotations

import ctypes
import os
import re
from typing import Optional

from ._errors import error_of
from ._version import __version__

LOG = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
INTERRUPT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
STATUS = ("ok", "argument", "configuration", "input/output", "format", "memory", "device", "not finite", "broken")


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("text", ctypes.c_char * 1024)]


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("device", ctypes.c_char_p), ("precision", ctypes.c_char_p),
                ("max_batch", ctypes.c_int), ("threads", ctypes.c_int), ("features", ctypes.c_int),
                ("f32_tensors", ctypes.c_int), ("config", ctypes.c_char_p), ("settings", ctypes.POINTER(ctypes.c_char_p)),
                ("setting_count", ctypes.c_int), ("log", LOG), ("log_context", ctypes.c_void_p), ("interrupt", INTERRUPT),
                ("interrupt_context", ctypes.c_void_p)]


class Memory(ctypes.Structure):
    _fields_ = [("device_bytes", ctypes.c_uint64), ("host_bytes", ctypes.c_uint64)]


class InfoStruct(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("classes", ctypes.c_int), ("features", ctypes.c_int), ("image_size", ctypes.c_int),
                ("resize", ctypes.c_int), ("max_batch", ctypes.c_int), ("mean", ctypes.c_float * 3), ("std", ctypes.c_float * 3),
                ("network", ctypes.c_char_p), ("weights", ctypes.c_char_p), ("device", ctypes.c_char_p),
                ("precision", ctypes.c_char_p), ("memory", Memory), ("image_width", ctypes.c_int), ("multi_label", ctypes.c_int),
                ("channels", ctypes.c_int), ("bits", ctypes.c_int), ("mean4", ctypes.c_float), ("std4", ctypes.c_float),
                ("fit", ctypes.c_char_p), ("reject_score", ctypes.c_char_p), ("reject_threshold", ctypes.c_double)]


class Image(ctypes.Structure):
    _fields_ = [("pixels", ctypes.c_void_p), ("width", ctypes.c_int), ("height", ctypes.c_int), ("stride", ctypes.c_size_t)]


class Encoded(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char_p), ("count", ctypes.c_size_t)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("type", ctypes.c_int), ("layout", ctypes.c_int), ("count", ctypes.c_int),
                ("on_device", ctypes.c_int), ("stream", ctypes.c_void_p)]


class Output(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("top", ctypes.c_int), ("labels", ctypes.c_void_p), ("probabilities", ctypes.c_void_p),
                ("logits", ctypes.c_void_p), ("features", ctypes.c_void_p), ("image_errors", ctypes.c_void_p), ("scores", ctypes.c_void_p),
                ("rejected", ctypes.c_void_p)]


_library: Optional[ctypes.CDLL] = None
_FUNCTIONS = {  # name: (result, arguments)
    "cresnet_version": (ctypes.c_char_p, []),
    "cresnet_options_init": (None, [ctypes.POINTER(Options)]),
    "cresnet_output_init": (None, [ctypes.POINTER(Output)]),
    "cresnet_open": (ctypes.c_int, [ctypes.c_char_p, ctypes.POINTER(Options), ctypes.POINTER(ctypes.c_void_p),
                                    ctypes.POINTER(Error)]),
    "cresnet_close": (None, [ctypes.c_void_p]),
    "cresnet_memory_needed": (ctypes.c_int, [ctypes.c_char_p, ctypes.POINTER(Options), ctypes.POINTER(Memory),
                                             ctypes.POINTER(Error)]),
    "cresnet_get_info": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(InfoStruct)]),
    "cresnet_class_name": (ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_int]),
    "cresnet_threshold": (ctypes.c_double, [ctypes.c_void_p, ctypes.c_int]),
    "cresnet_classify_images": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(Image), ctypes.c_int, ctypes.POINTER(Output),
                                               ctypes.POINTER(Error)]),
    "cresnet_classify_encoded": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(Encoded), ctypes.c_int,
                                                ctypes.POINTER(Output), ctypes.POINTER(Error)]),
    "cresnet_classify_files": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int,
                                              ctypes.POINTER(Output), ctypes.POINTER(Error)]),
    "cresnet_classify_tensor": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(Tensor), ctypes.POINTER(Output),
                                               ctypes.POINTER(Error)]),
    "cresnet_classify_dlpack": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p),
                                               ctypes.POINTER(Error)]),
    "cresnet_logits_retain": (None, [ctypes.c_void_p, ctypes.c_void_p]),
    "cresnet_synchronize": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(Error)]),
}


def _file() -> str:
    """The library that CRESNET_LIBRARY names, else the one of the wheel, next to this file, else the one that the system finds."""
    name = "libcresnet.so." + __version__.rpartition(".")[0]
    packaged = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    return os.environ.get("CRESNET_LIBRARY") or (packaged if os.path.exists(packaged) else name)


def lib() -> ctypes.CDLL:
    global _library
    if _library is None:
        name = _file()
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            raise ImportError(f"{name} cannot be loaded ({error}): install cresnet, or set CRESNET_LIBRARY to the file "
                              "libcresnet.so of a build") from error
        for function, (result, arguments) in _FUNCTIONS.items():
            if not hasattr(library, function):
                raise ImportError(f"{name} has no function {function}: it is no libcresnet, or one of another version than "
                                  f"{__version__}")
            getattr(library, function).restype = result
            getattr(library, function).argtypes = arguments
        _library = library
    return _library


def version() -> str:
    """The version of the shared library."""
    return str(lib().cresnet_version().decode())


def _words(text: str) -> str:
    """An error of the library in the words of this module: "options.features = 1" of C is "features=True" here."""
    for pattern, here in ((r"options(?:: \[train\] |\.)(device|precision) = (\w+(?::\d+)?)", r'\1="\2"'), (r"options: ", "settings: "),
                          (r"options\.(features|f32_tensors) = 1\b", r"\1=True"), (r"options\.(\w+) = ", r"\1="),
                          (r"options\.(\w+)", r"\1"), (r"output\.features", "features=True"),
                          (r"a path or NULL", "a path or None"), (r"tensor\.type = ", "type "), (r"CRESNET_U(8|16)\b", r"uint\1"),
                          (r"CRESNET_F32\b", "float32"), (r"CRESNET_NHWC\b", "the order N, H, W, C")):
        text = re.sub(r"(?<![\w./-])" + pattern, here, text)
    return text


def check_library(status: int, error: Error) -> None:
    if status != 0:
        raise error_of(_words(error.text.decode(errors="replace")), STATUS[status] if 0 <= status < len(STATUS) else "unknown")
