#!/usr/bin/env python3
"""torch_loading.py FOLDER [--cores N]: the training speed of ResNet-50 in PyTorch on a folder of JPEG photos, for comparison with cresnet.

Prints a line for each way of loading, in images/s after a warm-up:
  synthetic   one batch that stays on the GPU: the speed of the step (fp16, channels_last, torch.compile, fused SGD)
  workers     ImageFolder and DataLoader with N processes: read, decode, RandomResizedCrop, flip on the CPU; pinned batches
  gpu         N threads read files; torchvision.io.decode_jpeg(list, device="cuda") decodes a batch; crops, antialiased resizes and
              flips on the GPU, in a thread and a stream of its own, a batch ahead of the step
"""
import argparse
import os
import queue
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torchvision
from torchvision.transforms import v2

SIZE = 224


def make_step(batch):
    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9, weight_decay=1e-4, fused=True)
    forward = torch.compile(model)
    loss_of = torch.nn.CrossEntropyLoss()
    mean = torch.tensor([0.485, 0.456, 0.406], device="cuda").view(1, 3, 1, 1) * 255
    std = torch.tensor([0.229, 0.224, 0.225], device="cuda").view(1, 3, 1, 1) * 255

    def step(images, labels):
        x = ((images.float() - mean) / std).half().to(memory_format=torch.channels_last)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16):
            loss = loss_of(forward(x), labels)
        (loss * 1024).backward()
        optimizer.step()

    return step


def synthetic(batch):
    images = torch.randint(0, 256, (batch, 3, SIZE, SIZE), dtype=torch.uint8, device="cuda")
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    while True:
        yield images, labels


def workers(folder, batch, cores):
    transform = v2.Compose([v2.PILToTensor(), v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])
    data = torchvision.datasets.ImageFolder(os.path.join(folder, "train"), transform)
    while True:
        loader = torch.utils.data.DataLoader(data, batch, shuffle=True, num_workers=cores, pin_memory=True, drop_last=True, prefetch_factor=4)
        for images, labels in loader:
            yield images.cuda(non_blocking=True), labels.cuda(non_blocking=True)


def gpu(folder, batch, cores):
    samples = torchvision.datasets.ImageFolder(os.path.join(folder, "train")).samples
    crop = v2.RandomResizedCrop(SIZE, antialias=True)
    ready = queue.Queue(3)

    def decode(batch_bytes):
        try:
            return torchvision.io.decode_jpeg(batch_bytes, mode=torchvision.io.ImageReadMode.RGB, device="cuda")
        except RuntimeError:  # a file that nvJPEG refuses: each by itself, on the CPU where necessary
            out = []
            for b in batch_bytes:
                try:
                    out.append(torchvision.io.decode_jpeg(b, mode=torchvision.io.ImageReadMode.RGB, device="cuda"))
                except RuntimeError:
                    out.append(torchvision.io.decode_jpeg(b, mode=torchvision.io.ImageReadMode.RGB).cuda())
            return out

    def produce():
        stream = torch.cuda.Stream(priority=-1)
        with ThreadPoolExecutor(cores) as pool, torch.cuda.stream(stream):
            while True:
                random.shuffle(samples)
                for first in range(0, len(samples) - batch + 1, batch):
                    part = samples[first:first + batch]
                    files = list(pool.map(lambda s: torchvision.io.read_file(s[0]), part))
                    images = torch.stack([crop(image) for image in decode(files)])
                    flip = torch.rand(batch, 1, 1, 1, device="cuda") < 0.5
                    images = torch.where(flip, images.flip(3), images)
                    labels = torch.tensor([s[1] for s in part]).cuda()
                    done = torch.cuda.Event()
                    done.record()
                    ready.put((images, labels, done))

    threading.Thread(target=produce, daemon=True).start()
    while True:
        images, labels, done = ready.get()
        torch.cuda.current_stream().wait_event(done)
        images.record_stream(torch.cuda.current_stream())
        yield images, labels


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    step = make_step(args.batch)
    sources = {"synthetic": synthetic(args.batch), "workers": workers(args.folder, args.batch, args.cores), "gpu": gpu(args.folder, args.batch, args.cores)}
    for name, source in sources.items():
        for _ in range(20):
            step(*next(source))
        torch.cuda.synchronize()
        start = time.time()
        for _ in range(args.steps):
            step(*next(source))
        torch.cuda.synchronize()
        print(f"{name:10} {args.steps * args.batch / (time.time() - start):8.0f} images/s, {args.cores} cores", flush=True)
    os._exit(0)  # the decoding thread does not end


if __name__ == "__main__":
    main()
