#!/usr/bin/env python3
"""Runs other ONNX runtimes for test_onnx.c.

  onnx_peer.py truth DIR WEIGHTS   PyTorch's side (torch, torchvision): resnet18 and resnet50 with random weights, and the CIFAR
                                   ResNet-20 of WEIGHTS: DIR/NAME.safetensors, images DIR/NAME.u8, logits DIR/NAME.f64 and .f32
  onnx_peer.py run FILE.onnx PIXELS SIZE OUT   onnxruntime's logits of u8 images [n][SIZE][SIZE][3], normalised by the file's own
                                   metadata; all at once must be the same as one by one; written as f32
"""
import json
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import numpy as np

IMAGES = 4


def cifar(where, weights):
    import st
    import torch
    import torch_nets

    shutil.copy(weights, f"{where}/resnet20.safetensors")
    tensors = {k.replace("linear.", "fc."): torch.from_numpy(np.array(v)) for k, v in st.load(weights)[0].items()}
    model = torch_nets.CifarResNet(20, 10)
    model.load_state_dict(tensors, strict=False)
    assert {k for k in model.state_dict() if not k.endswith("tracked")} <= set(tensors)
    pixels = np.random.RandomState(5).randint(0, 256, (IMAGES, 32, 32, 3)).astype(np.uint8)
    torch_nets.save_logits(f"{where}/resnet20", model, pixels)


def imagenet(where, name):
    import st
    import torch
    import torch_nets
    import torch_resnets

    torch.manual_seed(7)
    model, _ = torch_resnets.build(name)
    with torch.no_grad():
        torch_resnets.random_values(model)
    st.save(f"{where}/{name}.safetensors", {k: v.numpy() for k, v in model.state_dict().items()})
    pixels = np.random.RandomState(3).randint(0, 256, (IMAGES, 64, 64, 3)).astype(np.uint8)
    torch_nets.save_logits(f"{where}/{name}", model, pixels)


def run(path, pixels, size, out):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (given,), (logits,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.shape) == ("input", ["batch", 3, size, size]), (given.name, given.shape)
    assert logits.name == "logits" and logits.shape[0] == "batch", (logits.name, logits.shape)
    meta = session.get_modelmeta().custom_metadata_map
    mean, std = (np.array(json.loads(meta[key]), np.float32) for key in ("mean", "std"))
    x = np.fromfile(pixels, np.uint8).reshape(-1, size, size, 3)
    x = ((x.astype(np.float32) / np.float32(255) - mean) / std).transpose(0, 3, 1, 2)
    y = session.run(None, {"input": np.ascontiguousarray(x)})[0]
    for i in range(len(x)):
        one = session.run(None, {"input": np.ascontiguousarray(x[i : i + 1])})[0]
        assert one.shape == (1, y.shape[1]) and np.allclose(one[0], y[i], rtol=1e-4, atol=1e-4 * np.abs(y).max())
    y.astype(np.float32).tofile(out)


if __name__ == "__main__":
    if sys.argv[1] == "truth":
        for network in "resnet18", "resnet50":
            imagenet(sys.argv[2], network)
        if len(sys.argv) > 3:
            cifar(sys.argv[2], sys.argv[3])
    else:
        run(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
