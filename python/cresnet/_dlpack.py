"""cresnet._dlpack: images in the memory of other libraries and logits for them, by DLPack and the CUDA array interface, through ctypes."""
from __future__ import annotations

import ctypes
import weakref
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from ._errors import ArgumentError
from ._library import Error, check_library, lib

__all__ = ["Logits"]

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # devices of DLPack
LEGACY, PER_THREAD = 1, 2  # default streams, in the array API and as a cudaStream_t
_CODES = {"u": 1, "f": 2}
_NAMES = {(2, 16): "float16", (2, 32): "float32", (4, 16): "bfloat16"}
_CAPSULE = b"dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("index", ctypes.c_int32), ("dims", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("dim", ctypes.POINTER(ctypes.c_int64)),
                ("stride", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p))]


def _python(name: str, result: Any, *arguments: Any) -> Any:
    """A function of Python's C interface; it runs with the interpreter's lock."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_new_capsule = _python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_is_capsule = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_pointer = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
# The same for a capsule that is being freed, which must not be a Python object any more.
_is_dying = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_dying_pointer = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)


def _free(managed: int) -> None:
    _Managed.from_address(managed).deleter(managed)


def _free_dying(capsule: int) -> None:
    """A capsule that no library has taken over still owns its tensor."""
    if _is_dying(capsule, _CAPSULE):
        _free(_dying_pointer(capsule, _CAPSULE))


_free_capsule = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_free_dying)
for _used in (_free_capsule, _CAPSULE):  # a capsule may be freed after this module, at the end of Python
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_used))


def stream_handle(stream: object) -> Optional[int]:
    """The cudaStream_t of a number of the array API (1: the default stream) or of a stream of PyTorch, CuPy, Numba or cuda.core."""
    if stream is None:
        return None
    handle: Any = stream
    if isinstance(stream, int):
        if stream < 1:
            raise ArgumentError(f"stream = {stream}: give 1 for the default stream, or the address of a CUDA stream", "argument")
    elif hasattr(stream, "__cuda_stream__"):
        handle = stream.__cuda_stream__()[1]
    else:
        handle = getattr(stream, "cuda_stream", getattr(stream, "ptr", None))
    if not isinstance(handle, int):
        raise TypeError(f"stream must be a number or a CUDA stream, not {type(stream).__name__}")
    # The per-thread default stream is that of another thread in the model, and ordered with the legacy default stream.
    return LEGACY if handle in (0, PER_THREAD) else handle


def _made(address: int, shape: tuple[int, ...], strides: Optional[tuple[int, ...]], dtype: np.dtype[Any], device: int,
          keep: object) -> tuple[_Tensor, object]:
    """A tensor from the members of an array interface; strides are in bytes."""
    if dtype.kind not in _CODES or not dtype.isnative:
        order = "" if dtype.isnative else " in the byte order of other machines"
        raise ArgumentError(f"the images are of the type {dtype.name}{order}: they must be uint8, uint16 or float32", "argument")
    if strides is not None and any(stride % dtype.itemsize for stride in strides):
        raise ArgumentError("the images have gaps that are no multiple of their element's size: copy them", "argument")
    dim = (ctypes.c_int64 * len(shape))(*shape)
    stride = None if strides is None else (ctypes.c_int64 * len(shape))(*(s // dtype.itemsize for s in strides))
    return _Tensor(address, device, 0, len(shape), _CODES[dtype.kind], 8 * dtype.itemsize, 1, dim, stride, 0), (keep, dim, stride)


def _of_cuda_interface(images: Any, stream: Optional[int]) -> tuple[_Tensor, int, object]:
    described = images.__cuda_array_interface__
    if described.get("mask") is not None:
        raise ArgumentError("the images have a mask, which cannot be used", "argument")
    tensor, keep = _made(described["data"][0], tuple(described["shape"]), described.get("strides"), np.dtype(described["typestr"]), CUDA, images)
    tensor.index = -1  # the interface does not name the GPU
    its = stream_handle(described.get("stream"))
    if its is not None and stream is not None and its != stream:
        raise ArgumentError(f"the images belong to the stream {its:#x}, not to the stream {stream:#x}: give no stream, or theirs", "argument")
    return tensor, its or stream or LEGACY, keep


def tensor_of(images: Any, stream: Optional[int]) -> tuple[_Tensor, int, object]:
    """The images where they are, the stream whose earlier work writes them, and what keeps them there."""
    if isinstance(images, np.ndarray):  # may be read-only, which DLPack cannot say
        tensor, keep = _made(images.ctypes.data, images.shape, images.strides, images.dtype, CPU, images)
        return tensor, LEGACY, keep
    if not hasattr(images, "__dlpack__"):
        if hasattr(images, "__cuda_array_interface__"):
            return _of_cuda_interface(images, stream)
        raise TypeError(f"images must have __dlpack__ or __cuda_array_interface__, as arrays of NumPy, PyTorch, CuPy and JAX: "
                        f"{type(images).__name__} has neither")
    on_gpu = images.__dlpack_device__()[0] in (CUDA, CUDA_MANAGED)
    try:
        capsule = images.__dlpack__(stream=stream or LEGACY) if on_gpu else images.__dlpack__()
    except (BufferError, RuntimeError) as error:  # PyTorch, as its version
        raise ArgumentError(f"the images cannot be read in place: {error}", "argument") from error
    if not _is_capsule(capsule, _CAPSULE):
        raise ArgumentError(f"__dlpack__ of {type(images).__name__} returns no capsule of the name dltensor", "argument")
    # The capsule is not renamed: it frees the tensor when the call has ended.
    return _Managed.from_address(_pointer(capsule, _CAPSULE)).tensor, stream or LEGACY, (images, capsule)


class _HostArray:
    def __init__(self, logits: Logits) -> None:
        self.logits = logits  # which owns the memory
        self.__array_interface__ = logits._interface()


class Logits:
    """Logits [images, classes] in the memory where the images were: host memory (float32), or a GPU (the type of Info.precision).

    They belong to this object and to all arrays that others make of it without a copy: torch.from_dlpack(logits), cupy.from_dlpack(logits),
    jax.dlpack.from_dlpack(logits), numpy.asarray(logits) in host memory. The memory is valid until the last of these is gone, also after the
    model was closed."""

    def __init__(self, address: int, model: Any, stream: Optional[int]) -> None:
        self._address, self._model, self._stream = address, model, stream  # stream: None when all work is done
        self._tensor = _Managed.from_address(address).tensor
        weakref.finalize(self, _free, address).atexit = False  # an array may still use the memory then
        #: (images, classes).
        self.shape: tuple[int, int] = (self._tensor.dim[0], self._tensor.dim[1])
        #: float32, float16 or bfloat16.
        self.dtype: str = _NAMES[self._tensor.code, self._tensor.bits]

    def __repr__(self) -> str:
        place = "host memory" if self._tensor.device == CPU else f"GPU {self._tensor.index}"
        return f"<cresnet.Logits {list(self.shape)} {self.dtype} in {place}>"

    def __dlpack_device__(self) -> tuple[int, int]:
        """(1, 0): host memory; (2, n): GPU n."""
        return int(self._tensor.device), int(self._tensor.index)

    def __dlpack__(self, *, stream: Optional[int] = None, max_version: Optional[tuple[int, int]] = None,
                   dl_device: Optional[tuple[int, int]] = None, copy: Optional[bool] = None) -> Any:
        """A capsule. On a GPU, later work of `stream` finds the logits (None: the default stream; -1: the caller sees to that)."""
        del max_version  # all libraries read a capsule without a version
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("logits are given where they are, without a copy")
        user: Optional[int] = None
        if self._tensor.device != CPU:
            user = -1 if stream == -1 else stream_handle(stream) or LEGACY
            if user != -1:
                self._order(user)
        lib().cresnet_logits_retain(self._address, user)
        return _new_capsule(self._address, _CAPSULE, ctypes.cast(_free_capsule, ctypes.c_void_p))

    def _order(self, stream: int) -> None:
        """Another stream than that of the call gets finished work."""
        if self._stream is not None and stream != self._stream:
            self._model.synchronize()
            self._stream = None

    def __array__(self, dtype: Optional[npt.DTypeLike] = None, copy: Optional[bool] = None) -> npt.NDArray[Any]:
        if self._tensor.device != CPU:
            raise TypeError("these logits are on a GPU: use torch.from_dlpack() or cupy.from_dlpack(), and copy them to the host there")
        array = np.asarray(_HostArray(self))
        return array.astype(dtype or array.dtype, copy=bool(copy))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._tensor.device == CPU or self.dtype == "bfloat16":  # the interface has no such type
            raise AttributeError(f"{self!r} has no __cuda_array_interface__")
        lib().cresnet_logits_retain(self._address, -1)  # any stream may use them now
        _free(self._address)
        return {**self._interface(), "stream": self._stream}

    def _interface(self) -> dict[str, Any]:
        return {"version": 3, "shape": self.shape, "typestr": np.dtype(self.dtype).str, "data": (self._tensor.data or 0, False)}


def classify(handle: ctypes.c_void_p, model: Any, images: Any, stream: object) -> Logits:
    """See Model.classify."""
    given = stream_handle(stream)
    tensor, ordered, keep = tensor_of(images, given)
    logits, error = ctypes.c_void_p(), Error()
    status = lib().cresnet_classify_dlpack(handle, ctypes.byref(tensor), ordered, ctypes.byref(logits), ctypes.byref(error))
    del keep
    check_library(status, error)
    result = Logits(logits.value or 0, model, ordered)
    if given is None:
        result._order(0)  # no stream of the caller: all work is done before the images may change
    return result
