"""library_arrays.py RUN IMAGE: checks the module cresnet with NumPy arrays. Called by test_library.sh."""
import copy
import os
import pickle
import signal
import socket
import sys
import threading

import cresnet
import numpy as np

run, path = sys.argv[1:3]
lines = []
with cresnet.Model(run, device="cpu", max_batch=2, features=True, log=lambda level, line: lines.append(line)) as model:
    info, rng = model.info, np.random.default_rng(1)
    side = info.image_size
    u8 = rng.integers(0, 256, (5, side, side, 3), dtype=np.uint8)
    want = model.classify_tensor(u8, top=info.classes, logits=True, features=True)
    exp = np.exp(want.logits - want.logits.max(axis=1, keepdims=True))
    softmax = exp / exp.sum(axis=1, keepdims=True)
    assert (np.argsort(-softmax, axis=1, kind="stable")[:, 0] == want.labels[:, 0]).all()
    assert np.allclose(np.take_along_axis(softmax, want.labels, axis=1), want.probabilities, atol=1e-6)
    assert want.features.shape == (5, info.features) and (want.features >= 0).all()
    same = model.classify_images(list(u8), top=info.classes, logits=True)
    assert (same.logits == want.logits).all()
    nchw = model.classify_tensor(np.ascontiguousarray(u8.transpose(0, 3, 1, 2)), layout="NCHW", logits=True)
    assert (nchw.logits == want.logits).all()
    both = model.classify_encoded([open(path, "rb").read(), b"no image"])
    assert both.errors[0] is None and "not an image; JPEG, PNG, WebP, TIFF and BMP can be read" in both.errors[1] and both.labels[1, 0] == -1
    assert model.classify_files([path]).labels[0, 0] == both.labels[0, 0]
    assert model.class_name(0) == "checker" and model.class_name(99) is None
    assert model.class_names == [model.class_name(k) for k in range(info.classes)] and model.class_names[0] == "checker"
    assert info.mean == (0.485, 0.456, 0.406) and info.std == (0.229, 0.224, 0.225), info
    data = open(path, "rb").read()
    kinds = model.classify_encoded(f(data) for f in (bytes, bytearray, memoryview))
    assert kinds.errors == [None] * 3 and (kinds.labels == both.labels[0]).all()
    assert model.classify_images(u8).labels.shape == (5, 1)  # [N, H, W, C] is a sequence of images
    for error, text, wrong in (
            (ValueError, "a tensor must be", lambda: model.classify_tensor(u8[:, 1:])),
            (ValueError, "a tensor must be", lambda: model.classify_tensor(u8.astype(np.float64))),
            (ValueError, 'give layout="NCHW" for this shape', lambda: model.classify_tensor(u8.transpose(0, 3, 1, 2))),
            (ValueError, "layout must be", lambda: model.classify_tensor(u8, layout="nhwc")),
            (TypeError, "a list of paths", lambda: model.classify_files(path)),
            (TypeError, "a list of the bytes", lambda: model.classify_encoded(data)),
            (TypeError, "a list of images", lambda: model.classify_images(u8[0])),
            (ValueError, "null character", lambda: model.classify_files([path + "\0"])),
            (ValueError, "null character", lambda: cresnet.Model(run + "\0")),
            (ValueError, "top = -1: the network has 10 classes", lambda: model.classify_files([path], top=-1)),
            (ValueError, "top = 11: the network has 10 classes", lambda: model.classify_files([path], top=11)),
            (ValueError, "max_batch = 4294967297", lambda: cresnet.Model(run, max_batch=2**32 + 1)),
            (TypeError, "device must be a string", lambda: cresnet.Model(run, device=None)),
            (ValueError, "device has a null character", lambda: cresnet.Model(run, device="cpu\0x")),
            (ValueError, "settings has a null character", lambda: cresnet.Model(run, settings={"data.tta": "flip\0x"})),
            (TypeError, "cannot be copied or pickled", lambda: copy.copy(model)),
            (TypeError, "cannot be copied or pickled", lambda: copy.deepcopy(model)),
            (TypeError, "cannot be copied or pickled", lambda: pickle.dumps(model)),
            (cresnet.ArgumentError, "f32_tensors=True", lambda: model.classify_tensor(u8.astype(np.float32))),
            (TypeError, "settings must be a dict", lambda: cresnet.Model(run, settings=["data.tta=flip"])),
            (TypeError, "log must be a function", lambda: cresnet.Model(run, log=1))):
        try:
            wrong()
        except error as said:
            assert text in str(said), said
            continue
        raise AssertionError("accepted, but wrong: " + text)

    child = os.fork()
    if not child:
        signal.alarm(20)  # without the check of the library the call would wait forever
        try:
            model.classify_tensor(u8)
        except cresnet.CresnetError as error:
            os._exit(7 if error.status == "argument" and "fork()" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 7 << 8
    assert (model.classify_tensor(u8, logits=True).logits == want.logits).all()

# close() waits for the calls of other threads.
model = cresnet.Model(run, device="cpu")
closing = threading.Thread(target=model.close)
with model._call_handle():
    closing.start()
    closing.join(0.3)
    assert closing.is_alive()
closing.join(20)
assert not closing.is_alive()

for closed in (lambda: model.class_name(0), lambda: model.threshold(0), lambda: model.classify_files([path]), model.__enter__):
    try:
        closed()
    except ValueError as said:
        assert str(said) == "the model is closed"
        continue
    raise AssertionError("a closed model was used")

with cresnet.Model(run, device="cpu", f32_tensors=True) as model:
    f32 = (u8 / np.float32(255) - np.float32(info.mean)) / np.float32(info.std)
    assert np.allclose(model.classify_tensor(f32.astype(np.float32), logits=True).logits, want.logits, atol=1e-4)
# Errors are in the words of Python, and numbers are as they were written.
for text, status, wrong in (
        ("max_batch=0: give a number from 1 to", "argument", {"max_batch": 0}), ("threads=-1: give", "argument", {"threads": -1}),
        ('device="tpu": must be one of', "configuration", {"device": "tpu"}), ('device="cpu:1": only cuda', "configuration", {"device": "cpu:1"}),
        ('precision="fp8": must be one of', "configuration", {"precision": "fp8"}), ('use device="cpu"', "device", {"device": "cuda:1023"}),
        ("config is empty: give a path or None", "argument", {"config": ""}), ("settings: [data] tta = x", "configuration", {"settings": {"data.tta": "x"}})):
    try:
        cresnet.Model(run, **wrong)
    except cresnet.CresnetError as error:
        assert error.status == status and (text in str(error) or status == "device"), error
        assert "options" not in str(error) and "NULL" not in str(error), error
        continue
    raise AssertionError("accepted, but wrong: " + text)
with cresnet.Model(run, device="cpu", settings={"data.mean": "0.49139968,0.1,0.3", "data.std": "0.24703233,0.2,1"}) as model:
    assert (model.info.mean, model.info.std) == ((0.49139968, 0.1, 0.3), (0.24703233, 0.2, 1.0)), model.info
    try:
        model._call(cresnet._lib().cresnet_classify_files, lambda first, count: (None, count), 0, 1, False, True)
    except cresnet.CresnetError as error:
        assert "open the model with features=True" in str(error), error

# Ctrl-C ends a download from a server that accepts the connection and is silent, although its limit is an hour.
with socket.create_server(("127.0.0.1", 0)) as server:
    os.environ.update(CRESNET_WEIGHTS_URL="http://127.0.0.1:%d" % server.getsockname()[1], CRESNET_WEIGHTS_LIST="names", CRESNET_CACHE="cache",
                      CRESNET_DOWNLOAD_TIMEOUT="3600", no_proxy="127.0.0.1")
    with open("names", "w") as f:
        f.write("silent silent-01234567.pth")
    threading.Thread(target=lambda: (server.accept(), os.kill(os.getpid(), signal.SIGINT)), daemon=True).start()
    try:
        cresnet.Model("silent", config=run + "/last/config.ini", device="cpu")
    except KeyboardInterrupt:
        pass
    except cresnet.CresnetError as error:
        assert "no libcurl" in str(error), error
    else:
        raise AssertionError("no interruption")

try:
    cresnet.Model("/nowhere")
except cresnet.CresnetError as error:
    assert error.status == "input/output"
else:
    raise AssertionError("no error")
assert cresnet.memory_needed(run, device="cpu")[0] > 1000
