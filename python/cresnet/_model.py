"""cresnet._model: cresnet.Model: inference with trained networks (classifies images) through the shared library. See the package's help."""
from __future__ import annotations

import contextlib
import ctypes
import operator
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable, NoReturn, Optional, Union

import numpy as np
import numpy.typing as npt

from . import _dlpack
from ._arguments import value_text
from ._errors import CresnetError, PathLike
from ._library import INTERRUPT, LOG, Encoded, Error, Image, InfoStruct, Memory, Options, Output, Tensor, check_library, lib

LogFunction = Callable[[int, str], None]
Part = Callable[[int, int], tuple[object, ...]]  # arguments for some images of a call: the first one, their number
_PART_IMAGES = 32  # of one call of the library, or those of one batch


def _call_interruptible(options: Options, function: Callable[..., int], *arguments: object) -> int:
    """Calls a function that may download weights; Ctrl-C ends it within about a second."""
    stop = threading.Event()
    options.interrupt = INTERRUPT(lambda context: stop.is_set())
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(function, *arguments)
        try:
            return call.result()
        except BaseException:
            stop.set()
            raise


def _decimal(value: float) -> float:
    """The shortest decimal number that is this number of 32 bits: 0.485 instead of 0.48500001430511475."""
    return float(str(np.float32(value)))


@dataclass(frozen=True)
class Info:
    """Properties of an open network: Model.info."""
    #: Number of classes: the length of a vector of logits.
    classes: int
    #: Length of a vector of pooled features.
    features: int
    #: Height of prepared images in pixels.
    image_size: int
    #: Short side in pixels that images are resized to before the centre is cut out; 0: not resized.
    resize: int
    #: Images that the device computes at once. A call may have more.
    max_batch: int
    #: Mean of each channel, as in the configuration (0.485): prepared float32 images hold (pixel / 255 - mean) / std.
    mean: tuple[float, ...]
    #: Standard deviation of each channel.
    std: tuple[float, ...]
    #: Architecture, such as resnet50.
    network: str
    #: Path of the file or checkpoint of the weights.
    weights: str
    #: Description of the device: "CPU, 2 threads, oneDNN 3.7.1".
    device: str
    #: Type of the computation: fp32, tf32, fp16 or bf16.
    precision: str
    #: Memory on the device, without driver and libraries, in bytes.
    device_bytes: int
    #: Memory on the host for batches, in bytes.
    host_bytes: int
    #: Whether an image has any number of labels; probabilities are sigmoids then.
    multi_label: bool
    #: Width of prepared images in pixels.
    image_width: int
    #: Channels of images: 1 (grey), 3 (red, green, blue) or 4 (and alpha).
    channels: int
    #: Bits of a channel: 8 or 16.
    bits: int
    #: What images show: "crop" (the centre), or the whole image: "squash" (resized) or "letterbox" (resized and padded).
    fit: str
    #: What Result.scores are: "logit" (the largest logit), "energy" (the log of the sum of exp(logit)) or "distance" (minus the cosine distance
    #: of the features to the nearest class mean); None: `cresnet eval --reject` has chosen no score for these weights.
    reject_score: Optional[str]
    #: Images with a smaller score are rejected; 0 without a score.
    reject_threshold: float


@dataclass
class Result:
    """Results of one call in host memory, in arrays of their own."""
    #: [images, top]: the most probable classes, best first; -1: the image could not be read.
    labels: npt.NDArray[np.int32]
    #: [images, top]: their softmax probabilities (Info.multi_label: sigmoids); 0: the image could not be read.
    probabilities: npt.NDArray[np.float32]
    #: [images, classes]; None unless logits=True.
    logits: Optional[npt.NDArray[np.float32]]
    #: [images, Info.features]: the last feature map, its mean over all pixels; None unless features=True.
    features: Optional[npt.NDArray[np.float32]]
    #: For each image why it could not be read, or None.
    errors: list[Optional[str]]
    #: [images]: how well an image fits the classes, larger is better; None without Info.reject_score.
    scores: Optional[npt.NDArray[np.float64]] = None
    #: [images]: the score is less than Info.reject_threshold: the image is of none of the classes; None without Info.reject_score.
    rejected: Optional[npt.NDArray[np.bool_]] = None


def _text(what: str, value: Union[str, bytes]) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    if b"\0" in data:  # C would end the text there
        raise ValueError(f"{what} has a null character: {value!r}")
    return data


def _path(path: PathLike) -> bytes:
    return _text("a path", os.path.expanduser(os.fsencode(path)))


def _int(name: str, value: int) -> int:
    number = operator.index(value)
    if not -2**31 <= number < 2**31:  # ctypes would drop the upper bits
        raise ValueError(f"{name} = {number}: not a number of 32 bits")
    return number


def _parts(array: ctypes.Array[Any]) -> Part:
    """Of images in an array of structures or texts."""
    kind: Any = type(array)._type_
    return lambda first, count: (ctypes.cast(ctypes.addressof(array) + first * ctypes.sizeof(kind), ctypes.POINTER(kind)), count)


def _numbered(text: bytes, first: int) -> bytes:
    """An error that numbers the images of a part, with the numbers of the call."""
    return re.sub(rb"^image (\d+): ", lambda found: b"image %d: " % (first + int(found[1])), text)


def _make_options(device: str, precision: str, max_batch: int, threads: int, features: bool, f32_tensors: bool,
                  config: Optional[PathLike], settings: Optional[Mapping[str, object]], log: Optional[LogFunction]) -> Options:
    for name, text in (("device", device), ("precision", precision)):
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a string, not {type(text).__name__}")
    if settings is not None and not isinstance(settings, Mapping):
        raise TypeError('settings must be a dict, such as {"data.tta": "flip"}, not ' + type(settings).__name__)
    if log is not None and not callable(log):
        raise TypeError("log must be a function(level, line), not " + type(log).__name__)
    options = Options()
    lib().cresnet_options_init(ctypes.byref(options))
    options.device, options.precision = _text("device", device), _text("precision", precision)
    options.max_batch, options.threads = _int("max_batch", max_batch), _int("threads", threads)
    options.features, options.f32_tensors = int(features), int(f32_tensors)
    if config is not None:
        options.config = _path(config)
    if settings:
        lines = [_text("settings", f"{key}={value_text(value)}") for key, value in settings.items()]
        options.settings, options.setting_count = (ctypes.c_char_p * len(lines))(*lines), len(lines)
    if log is not None:
        options.log = LOG(lambda context, level, line: log(level, line.decode(errors="replace")))
    return options


def memory_needed(path: PathLike, *, device: str = "auto", precision: str = "auto", max_batch: int = 1, threads: int = 0,
                  features: bool = False, f32_tensors: bool = False, config: Optional[PathLike] = None,
                  settings: Optional[Mapping[str, object]] = None) -> tuple[int, int]:
    """Bytes of device memory and of host memory that Model(...) with these arguments would reserve. Reserves nothing. Raises as Model does."""
    options = _make_options(device, precision, max_batch, threads, features, f32_tensors, config, settings, None)
    memory, error = Memory(), Error()
    check_library(_call_interruptible(options, lib().cresnet_memory_needed, _path(path), ctypes.byref(options), ctypes.byref(memory),
                               ctypes.byref(error)), error)
    return int(memory.device_bytes), int(memory.host_bytes)


class Model:
    """An open network, which classifies images.

    - path: a run folder (its best checkpoint), a checkpoint (run/last, run/step-1000), a file .safetensors, .pth or .pt, or with `config` a
      name of published weights such as resnet50, which may be downloaded.
    - device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1".
    - precision: "auto" (fp16 on a GPU, fp32 on the CPU), "fp32", "tf32", "fp16", "bf16".
    - max_batch: images that the device computes at once.
    - threads: of the CPU and of image decoding; 0: one for each core.
    - features, f32_tensors: whether calls may ask for pooled features, and give float32 tensors.
    - config: a configuration file, for weights without one. settings: further keys, such as {"data.tta": "flip"}.
    - log(level, line) gets log lines: level 1 is a warning, 2 information. It is called in a thread of the model.

    A with statement closes the model at its end. Calls from several threads wait for each other; other Python threads run meanwhile. A
    model cannot be copied, pickled or used after fork(): each process opens its own.

    Raises ArgumentError for a wrong argument or configuration, and CresnetError with the status "input/output", "format", "memory" or "device";
    Ctrl-C ends a download, and a call after its next batches, but not classify(). After an error of a call the model can be used again, unless
    the status is "device" or "broken"."""

    def __init__(self, path: PathLike, *, device: str = "auto", precision: str = "auto", max_batch: int = 1, threads: int = 0,
                 features: bool = False, f32_tensors: bool = False, config: Optional[PathLike] = None,
                 settings: Optional[Mapping[str, object]] = None, log: Optional[LogFunction] = None) -> None:
        self._handle = ctypes.c_void_p()
        self._calls, self._no_call, self._process = 0, threading.Condition(), os.getpid()
        self._options = _make_options(device, precision, max_batch, threads, features, f32_tensors, config, settings, log)
        error = Error()
        check_library(_call_interruptible(self._options, lib().cresnet_open, _path(path), ctypes.byref(self._options),
                                   ctypes.byref(self._handle), ctypes.byref(error)), error)
        #: Properties of the network.
        self.info: Info = self._read_info()
        names = [self.class_name(label) for label in range(self.info.classes)]
        #: The names of all classes, in the order of the labels; None when the network came without names.
        self.class_names: Optional[list[str]] = None if None in names else [str(name) for name in names]

    def _read_info(self) -> Info:
        info = InfoStruct(size=ctypes.sizeof(InfoStruct))
        lib().cresnet_get_info(self._handle, ctypes.byref(info))
        mean, std = (tuple(map(_decimal, all_of[:info.channels])) for all_of in ((*info.mean, info.mean4), (*info.std, info.std4)))
        return Info(info.classes, info.features, info.image_size, info.resize, info.max_batch, mean, std,
                    info.network.decode(), os.fsdecode(info.weights), info.device.decode(errors="replace"),
                    info.precision.decode(), int(info.memory.device_bytes), int(info.memory.host_bytes),
                    bool(info.multi_label), info.image_width, info.channels, info.bits, info.fit.decode(),
                    info.reject_score.decode() if info.reject_score else None, float(info.reject_threshold))

    def close(self) -> None:
        """Frees the network, after the calls that other threads have begun and the work of a GPU. Further calls are errors."""
        if self._handle and os.getpid() == self._process:
            with contextlib.suppress(CresnetError):
                self.synchronize()
        with self._no_call:
            handle, self._handle = self._handle, ctypes.c_void_p()
            self._no_call.wait_for(lambda: self._calls == 0 or os.getpid() != self._process)  # a child has no such threads
        if handle:
            lib().cresnet_close(handle)

    def _open_handle(self) -> ctypes.c_void_p:
        if not self._handle:
            raise ValueError("the model is closed")
        return self._handle

    @contextlib.contextmanager
    def _call_handle(self) -> Iterator[ctypes.c_void_p]:
        """The handle, which close() does not free before the end of the block."""
        with self._no_call:
            handle = self._open_handle()
            self._calls += 1
        try:
            yield handle
        finally:
            with self._no_call:
                self._calls -= 1
                self._no_call.notify_all()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Model cannot be copied or pickled: open it again")

    def __enter__(self) -> "Model":
        self._open_handle()
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def class_name(self, label: int) -> Optional[str]:
        """The name of a class; None when the network came without names, or has no such label."""
        with self._call_handle() as handle:
            name = lib().cresnet_class_name(handle, _int("label", label))
        return name.decode(errors="replace") if name is not None else None

    def threshold(self, label: int) -> float:
        """Of a network with several labels per image: the probability above which an image has the label, chosen by training; else -1."""
        with self._call_handle() as handle:
            return float(lib().cresnet_threshold(handle, _int("label", label)))

    def classify_files(self, paths: Iterable[PathLike], *, top: int = 1, logits: bool = False, features: bool = False) -> Result:
        """Classifies JPEG, PNG, WebP, TIFF and BMP files of any size, which are resized and cut as in an evaluation.

        top: number of classes in labels and probabilities. logits, features: whether the result has them. A file that cannot be read raises
        nothing: see Result.errors."""
        if isinstance(paths, (str, bytes, os.PathLike)):
            raise TypeError("paths must be a list of paths: classify_files([path])")
        encoded = [_path(path) for path in paths]
        names = (ctypes.c_char_p * len(encoded))(*encoded)
        return self._call(lib().cresnet_classify_files, _parts(names), len(encoded), top, logits, features)

    def classify_encoded(self, files: Iterable[Union[bytes, bytearray, memoryview]], *, top: int = 1, logits: bool = False,
                         features: bool = False) -> Result:
        """Classifies the bytes of JPEG, PNG, WebP, TIFF and BMP files. Arguments and result as of classify_files()."""
        if isinstance(files, (bytes, bytearray, memoryview)):
            raise TypeError("files must be a list of the bytes of files: classify_encoded([data])")
        contents = [f if isinstance(f, bytes) else bytes(memoryview(f)) for f in files]
        encoded = (Encoded * len(contents))(*[Encoded(f, len(f)) for f in contents])
        return self._call(lib().cresnet_classify_encoded, _parts(encoded), len(contents), top, logits, features)

    def classify_images(self, images: Iterable[npt.NDArray[np.uint8]], *, top: int = 1, logits: bool = False,
                        features: bool = False) -> Result:
        """Classifies images of any sizes, which are resized and cut as in an evaluation.

        images: arrays [height, width, info.channels], uint8, or uint16 if info.bits is 16, channels in the order red, green, blue, alpha. A
        grey image may be [height, width]. Arguments and result as of classify_files(); ValueError for another shape or type."""
        channels, dtype = self.info.channels, np.dtype(f"uint{self.info.bits}")
        if isinstance(images, np.ndarray) and (images.ndim < 3 or images.shape[2:] == (channels,)):
            raise TypeError("images must be a list of images: classify_images([image])")
        arrays = [np.require(image, requirements=("C", "A")) for image in images]
        for array in arrays:
            if array.dtype != dtype or array.shape[2:] != (channels,) and (channels != 1 or array.ndim != 2):
                raise ValueError(f"an image must be {dtype} [height, width, {channels}], not {array.dtype} {list(array.shape)}")
        c_images = (Image * len(arrays))(*[Image(a.ctypes.data, a.shape[1], a.shape[0], 0) for a in arrays])
        return self._call(lib().cresnet_classify_images, _parts(c_images), len(arrays), top, logits, features)

    def classify_tensor(self, tensor: npt.NDArray[np.generic], *, layout: str = "NHWC", top: int = 1, logits: bool = False,
                        features: bool = False) -> Result:
        """Classifies prepared images in host memory, which are not resized.

        tensor: [N, info.image_size, info.image_width, info.channels] with the layout "NHWC", or [N, C, H, W] with "NCHW"; uint8 (uint16 if
        info.bits is 16), or normalised float32 if the model was opened with f32_tensors=True. Arguments and result as of classify_files();
        ValueError for another shape or type."""
        array, height, width, channels = np.require(tensor, requirements=("C", "A")), self.info.image_size, self.info.image_width, self.info.channels
        if layout not in ("NHWC", "NCHW"):
            raise ValueError(f'layout must be "NHWC" or "NCHW", not {layout!r}')
        want = (height, width, channels) if layout == "NHWC" else (channels, height, width)
        integers = np.dtype(f"uint{self.info.bits}")
        if array.dtype not in (integers, np.float32) or array.shape[1:] != want:
            other = ("NCHW", (channels, height, width)) if layout == "NHWC" else ("NHWC", (height, width, channels))
            hint = f'; give layout="{other[0]}" for this shape' if array.shape[1:] == other[1] else ""
            raise ValueError(f"a tensor must be {integers} or float32 [N, {', '.join(map(str, want))}], "
                             f"not {array.dtype} {list(array.shape)}{hint}")
        kind = 1 if array.dtype == np.float32 else 2 if array.dtype == np.uint16 else 0

        def part(first: int, count: int) -> tuple[object, ...]:
            return (ctypes.byref(Tensor(array[first:].ctypes.data, kind, int(layout == "NCHW"), count, 0, None)),)

        return self._call(lib().cresnet_classify_tensor, part, array.shape[0], top, logits, features)

    def classify(self, images: object, *, stream: object = None) -> _dlpack.Logits:
        """Classifies prepared images in the memory of another library, and returns their logits there: arrays of PyTorch, CuPy, JAX, NumPy and
        others with __dlpack__ or __cuda_array_interface__.

        images: [N, info.image_size, info.image_width, info.channels] or [N, C, H, W] without gaps, uint8 (uint16 if info.bits is 16) or
        normalised float32 (f32_tensors=True). On a GPU, which must be that of the model, the order in memory is N, H, W, C: tensors of PyTorch
        in channels_last. Nothing is copied to the host or to another array.

        stream: of a GPU: a stream of PyTorch, CuPy, Numba or cuda.core, or a number (1: the default stream). The work is put into the order of this
        stream, and the call returns at once; later work of the stream may change the images and use the logits. A call that needs new
        memory for its logits (the first calls on a stream, and those after logits that another stream has read) also waits for the earlier
        work of the stream. Without `stream` the call returns when the logits are there."""
        with self._call_handle() as handle:
            return _dlpack.classify(handle, self, images, stream)

    def synchronize(self) -> None:
        """Waits until the GPU has done all work of classify(); a closed model has none."""
        if self._handle:
            error = Error()
            with self._call_handle() as handle:
                check_library(lib().cresnet_synchronize(handle, ctypes.byref(error)), error)

    def _call(self, function: Callable[..., int], part: Part, count: int, top: int, logits: bool, features: bool) -> Result:
        """Calls the library with whole batches, a few at a time: Python handles Ctrl-C only between two calls."""
        self._open_handle()
        top = operator.index(top)
        if not 1 <= top <= self.info.classes:
            raise ValueError(f"top = {top}: the network has {self.info.classes} classes")
        result = Result(np.full((count, top), -1, np.int32), np.zeros((count, top), np.float32),
                        np.zeros((count, self.info.classes), np.float32) if logits else None,
                        np.zeros((count, self.info.features), np.float32) if features else None, [])
        if self.info.reject_score:
            result.scores, result.rejected = np.zeros(count, np.float64), np.zeros(count, np.bool_)
        step = -(-_PART_IMAGES // self.info.max_batch) * self.info.max_batch
        errors, error, output = (Error * step)(), Error(), Output()
        lib().cresnet_output_init(ctypes.byref(output))
        output.top, output.image_errors = top, ctypes.addressof(errors)
        with self._call_handle() as handle:
            for first in range(0, max(count, 1), step):
                images = min(step, count - first)
                for name in ("labels", "probabilities", "logits", "features", "scores", "rejected"):
                    array = getattr(result, name)
                    setattr(output, name, None if array is None else array[first:].ctypes.data)
                status = function(handle, *part(first, images), ctypes.byref(output), ctypes.byref(error))
                error.text = _numbered(error.text, first)
                check_library(status, error)
                named = function is lib().cresnet_classify_files  # by the path
                result.errors += [(e.text if named else _numbered(e.text, first)).decode(errors="replace") if e.status else None
                                  for e in errors[:images]]
        return result
