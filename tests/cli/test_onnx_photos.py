#!/usr/bin/env python3
"""test_onnx_photos.py: photos of all sizes through `export --preprocess --dynamic` in onnxruntime and OpenVINO, against libcresnet, for
each data.fit. The prepared pixels and the logits must be within a bound, and the most probable class equal, except for ties: two logits
that are closer than twice the largest difference of a logit.

  CRESNET_TEST_DATA  has weights for CIFAR-10, which classify photos of 96 pixels here, and photos
  CRESNET_PHOTOS     another folder of photos; the first 300 are used
  CRESNET_RUN        a run to classify with; by default, the weights for CIFAR-10

Needs numpy, Pillow and onnxruntime (scripts/deps.sh installs them); without OpenVINO only onnxruntime is compared."""
import ctypes
import glob
import os
import re
import sys

HERE = os.path.abspath(__file__)
from support import BIN, ROOT, check, ends, run, skip
import peers

DATA = os.environ.get("CRESNET_TEST_DATA", "")
WEIGHTS = f"{DATA}/resnet-cifar10-weights/resnet20-cifar10.safetensors"
PHOTOS = os.environ.get("CRESNET_PHOTOS", f"{DATA}/imagenet-sample-jpegs")
RUN = os.environ.get("CRESNET_RUN", "")
LIBRARY = os.environ.get("CRESNET_LIBRARY", os.path.join(os.path.dirname(BIN), "libcresnet.so"))
needed = [path for path in (PHOTOS, RUN or WEIGHTS, LIBRARY) if not os.path.exists(path)]
if os.environ.get("CRESNET_SANITIZE"):
    needed.append("a library without a sanitizer")
if needed or not peers.with_modules(HERE, "numpy", "PIL", "onnxruntime"):
    print(f"skip {', '.join(needed) or 'no python3 with numpy, PIL and onnxruntime'}\n0 passed, 0 failed, 1 skipped")
    sys.exit(77)
import numpy as np
import onnxruntime
from PIL import Image

try:
    import openvino
except ImportError:
    openvino = None

os.environ["CRESNET_LIBRARY"] = LIBRARY
sys.path.insert(0, f"{ROOT}/python")
import cresnet as library

FITS = ("crop", "squash", "letterbox")
COUNT = 300
LEVELS = 2  # a prepared pixel differs by at most so many of 255: by one for each pass whose exact value is half-way between two of them
PIXELS = 0.1  # at most this fraction of the pixels of an image differs
LOGITS = 0.02  # a logit differs by at most this fraction of the range of an image's logits


def odd_shapes(photo):
    """Files of shapes that photos seldom have, from a photo."""
    image = Image.open(photo).convert("RGB")
    w, h = image.size
    for i, (width, height) in enumerate(((w, max(w // 10, 1)), (max(h // 10, 1), h), (1, 1), (3, 2), (1, 200), (500, 3), (97, 31), (96, 96), (2400, 1700))):
        path = f"odd{i}.png"
        image.resize((width, height), Image.BICUBIC).save(path)
        yield path
    image.convert("L").save("grey.jpg")
    yield "grey.jpg"


def photos():
    files = sorted(f for f in glob.glob(f"{PHOTOS}/**/*", recursive=True) if re.search(r"(?i)\.jpe?g$", f))[:COUNT]
    return files + list(odd_shapes(files[0]))


def runtimes(file):
    """{name: function of an image that gives (logits, prepared image)}"""
    def with_onnxruntime(image):
        return session.run(None, {"images": image})

    def with_openvino(image):
        return [compiled({"images": image})[output] for output in compiled.outputs]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    found = {"onnxruntime " + onnxruntime.__version__: with_onnxruntime}
    if openvino:
        config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        compiled = openvino.Core().compile_model(file, "CPU", config)
        found["OpenVINO " + openvino.__version__.split("-")[0]] = with_openvino
    return found


def with_pixels(file):
    """The file with the prepared image as a second output."""
    with open(file, "rb") as f:
        model = f.read()
    name = b"images.small.rounded"  # ValueInfoProto of GraphProto, which protocol buffers merge with the graph of the file
    value = b"\x0a" + bytes([len(name)]) + name + b"\x12\x04\x0a\x02\x08\x01"
    output = b"\x62" + bytes([len(value)]) + value
    with open("pixels-" + file, "wb") as f:
        f.write(model + b"\x3a" + bytes([len(output)]) + output)
    return "pixels-" + file


def prepared_files(model, files):
    """The images that the network sees, [count, H, W, 3]; the module has no function for them."""
    out = np.empty((len(files), model.info.image_size, model.info.image_width, 3), np.uint8)
    names = (ctypes.c_char_p * len(files))(*map(os.fsencode, files))
    status = library._library.lib().cresnet_prepare_files(model._handle, names, len(files), out.ctypes.data_as(ctypes.c_void_p), None, None)
    check("cresnet_prepare_files", status == 0, status)
    return out


def compare(fit, files):
    keys = [] if RUN else ["data.image_size=96"]
    source = [RUN] if RUN else ["net.ini", "--weights", WEIGHTS]
    ends(f"{fit}: export", 0, [], "export", *source, "--onnx", f"{fit}.onnx", "--preprocess", "--dynamic", f"data.fit={fit}", *keys)
    settings = {"data.fit": fit, **({} if RUN else {"data.image_size": 96})}
    with library.Model(RUN or WEIGHTS, config=None if RUN else "net.ini", settings=settings, device="cpu", threads=1, precision="fp32") as model:
        wanted = model.classify_files(files, logits=True)
        pixels = prepared_files(model, files)
        # the graph adds the colour of the border after the value that is compared
        border = np.rint(np.array(model.info.mean) * 255) if fit == "letterbox" else 0
    check(f"{fit}: the library's fit", model.info.fit == fit)
    for name, classify in runtimes(with_pixels(f"{fit}.onnx")).items():
        judge(f"{fit}, {name}", files, classify, wanted.logits, pixels - border)


def judge(name, files, classify, wanted, pixels):
    worst, levels, others, gaps, different = 0.0, 0.0, 0.0, [], []
    for i, file in enumerate(files):
        image = np.asarray(Image.open(file).convert("RGB"))[None]
        logits, prepared = classify(image)
        gap = abs(logits[0] - wanted[i]).max()
        gaps.append(gap)
        worst = max(worst, gap / np.ptp(wanted[i]))
        off = abs(prepared[0].transpose(1, 2, 0) - pixels[i])
        levels, others = max(levels, off.max()), max(others, (off > 0).mean())
        if logits[0].argmax() != wanted[i].argmax():
            different.append((file, np.diff(np.sort(wanted[i])[-2:])[0]))
    ties = [d for d in different if d[1] <= 2 * max(gaps)]
    print(f"{name}: {len(files)} images, top-1 equal on {len(files) - len(different)}, ties {len(ties)}; logits differ by at most {max(gaps):.2g} "
          f"(median {np.median(gaps):.2g}), {worst:.2g} of their range; pixels by at most {levels:.0f} on at most {others:.2%}")
    check(f"{name}: most probable classes", len(ties) == len(different), different)
    check(f"{name}: logits", worst <= LOGITS, worst)
    check(f"{name}: pixels", levels <= LEVELS and others <= PIXELS, (levels, others))


def test():
    with open("net.ini", "w") as f:
        f.write("[model]\narch = resnet20\nclasses = 10\n[data]\nkind = folder\nroot = x\nmean = 0.4914,0.4822,0.4465\nstd = 0.2470,0.2435,0.2616\n")
    files = photos()
    for fit in FITS:
        compare(fit, files)
    if not openvino:
        skip("no OpenVINO")


run(test)
