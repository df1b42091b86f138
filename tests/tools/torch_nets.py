"""torch_nets.py: helpers of torch_parity.py and torch_grads.py: the networks in PyTorch, files of batches for steps_tool, and calls of
steps_tool. Needs torch, torchvision, numpy."""
import glob
import json
import lzma
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import numpy as np
import st
import torch
import torch_blocks as blocks
import torchvision
from torch import nn

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def build(said, weights):
    """The network that steps_tool ran, with the weights that it saved."""
    depth = int(said["arch"][len("resnet"):])
    if depth in (18, 34, 50, 101, 152):
        model = getattr(torchvision.models, said["arch"])(num_classes=said["classes"])
    else:
        model = blocks.basic([(depth - 2) // 6] * 3, (16, 32, 64), blocks.shortcut_a, classes=said["classes"])
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.eps, m.momentum = said["bn_eps"], said["bn_momentum"]
    model.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in st.load(weights)[0].items()}, strict=True)
    return model.train()


def normalised(images, said, device):
    """u8 [N,H,W,3] -> f32 [N,3,H,W]"""
    mean = torch.tensor(said["mean"], dtype=torch.float32, device=device)
    std = torch.tensor(said["std"], dtype=torch.float32, device=device)
    x = torch.from_numpy(images).to(device).to(torch.float32) / 255
    return ((x - mean) / std).permute(0, 3, 1, 2).contiguous()


def imagenet_input(pixels, dtype):
    """u8 images [N,H,W,3] with ImageNet's normalisation, in `dtype`: [N,3,H,W]."""
    mean, std = torch.tensor([0.485, 0.456, 0.406], dtype=dtype), torch.tensor([0.229, 0.224, 0.225], dtype=dtype)
    return ((torch.from_numpy(np.array(pixels)).to(dtype) / 255 - mean) / std).permute(0, 3, 1, 2).contiguous()


def imagenet_logits(model, pixels, dtype):
    """Logits of u8 images [N,H,W,3], computed in `dtype`, as doubles."""
    with torch.no_grad():
        return model.eval().to(dtype)(imagenet_input(pixels, dtype)).double().numpy()


def exact_fp32():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


# ---- batches: photos where there are some ----

def cifar_images(folder, count):
    for name in ("data_batch_1.bin", "data_batch_1.bin.xz", "test_batch.bin", "test_batch.bin.xz"):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            with (lzma.open if path.endswith(".xz") else open)(path, "rb") as f:
                raw = np.frombuffer(f.read(count * 3073), dtype=np.uint8).reshape(-1, 3073)
            return np.ascontiguousarray(raw[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), raw[:, 0].astype("<i4"), name
    raise FileNotFoundError("%s has no CIFAR-10 batch" % folder)


def folder_images(folder, count, size):
    from PIL import Image
    if os.path.isdir(os.path.join(folder, "train")):
        folder = os.path.join(folder, "train")
    classes = sorted(d for d in os.listdir(folder) if os.path.isdir(os.path.join(folder, d)))
    files = [(path, i) for i, c in enumerate(classes) for path in sorted(glob.glob(os.path.join(folder, c, "*")))]
    np.random.RandomState(1).shuffle(files)
    images = [np.asarray(Image.open(path).convert("RGB").resize((size, size))) for path, _ in files[:count]]
    return np.stack(images), np.array([int(label) for _, label in files[:count]], dtype="<i4"), "%d photos" % len(images)


def synthetic_images(count, size, classes, seed):
    """A few waves per class plus noise: the classes can be learned, and no area is constant."""
    r = np.random.RandomState(seed)
    y, x = np.mgrid[0:size, 0:size] * (2 * np.pi / size)
    patterns = []
    for _ in range(classes):
        a, b, c = r.randint(1, 5, 3), r.randint(1, 5, 3), r.rand(3) * 6
        patterns.append(np.stack([np.sin(a[k] * x + b[k] * y + c[k]) for k in range(3)], -1))
    labels = r.randint(0, classes, count).astype("<i4")
    noise = r.normal(0, 40, (count, size, size, 3))
    images = np.stack([patterns[l] for l in labels]) * 50 + 127 + noise
    return np.clip(np.rint(images), 0, 255).astype(np.uint8), labels, "synthetic images"


def random_images(count, size, classes, seed):
    r = np.random.RandomState(seed)
    return r.randint(0, 256, (count, size, size, 3)).astype(np.uint8), r.randint(0, classes, count).astype("<i4"), "random images"


def save_batches(path, images, labels, batch):
    k = len(images) // batch
    images, labels = images[:k * batch].reshape((k, batch) + images.shape[1:]), labels[:k * batch].reshape(k, batch)
    st.save(path, {"images": images, "labels": labels})
    return images, labels


# ---- the program under test ----

def steps_tool(tool, config, values, options):
    command = [tool, config] + values + options
    print("$ " + " ".join(command), flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    sys.stderr.write(done.stderr.decode())
    if done.returncode:
        raise RuntimeError("steps_tool failed with %d: %s" % (done.returncode, done.stderr.decode().strip()[-400:]))
    return json.loads(done.stdout)


def about(device):
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return "PyTorch %s, cuDNN %s, %s" % (torch.__version__, torch.backends.cudnn.version() if device == "cuda" else "-", name)
