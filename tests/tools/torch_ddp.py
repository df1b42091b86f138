#!/usr/bin/env python3
"""torch_ddp.py GPUS BATCH...: the training speed of PyTorch's DistributedDataParallel, to compare with `cresnet bench step --gpus N`.

torchvision's ResNet-50, 224 px, channels_last, fp16 autocast with a constant loss scale, torch.compile, SGD with momentum (fused), synthetic images
on the device; gradients in 25 MiB buckets that are views, and a static graph. Starts one process for each GPU and prints for each BATCH per GPU
  b256: one GPU 7226 img/s, 8 GPUs 54000 img/s, efficiency 0.934
One GPU is measured without DDP while the other processes wait. Speeds are medians of five windows of --steps steps.

--device cpu tries the program itself: gloo, a small network, without torch.compile."""
import argparse
import os
import socket
import statistics
import time

import torch
import torch.distributed as dist
import torchvision


def make_step(a, batch, rank, parallel):
    gpu = a.device == "cuda"
    device = torch.device("cuda", rank) if gpu else torch.device("cpu")
    torch.manual_seed(0)
    net = getattr(torchvision.models, "resnet50" if gpu else "resnet18")().to(device, memory_format=torch.channels_last)
    if parallel:
        net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[rank] if gpu else None, gradient_as_bucket_view=True, static_graph=True)
    optimizer = torch.optim.SGD(net.parameters(), 1e-4, momentum=0.9, weight_decay=1e-4, fused=gpu)
    forward = torch.compile(net) if gpu else net
    loss_of = torch.nn.CrossEntropyLoss()
    size = 224 if gpu else 32
    images = torch.randn(batch, 3, size, size, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,), device=device)
    scale = 1024 if gpu else 1

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(a.device, torch.float16, enabled=gpu):
            loss = loss_of(forward(images), labels) * scale
        loss.backward()
        optimizer.step()

    return step


def rate(a, batch, rank, parallel):
    """Images/s of all processes that take part."""
    torch._dynamo.reset()
    step = make_step(a, batch, rank, parallel)
    finish = torch.cuda.synchronize if a.device == "cuda" else lambda: None
    rates = []
    for window in range(6):  # the first one warms up
        if parallel:
            dist.barrier()
        finish()
        start = time.perf_counter()
        for _ in range(a.steps):
            step()
        finish()
        rates.append(a.steps * batch * (a.gpus if parallel else 1) / (time.perf_counter() - start))
    return statistics.median(rates[1:])


def work(rank, a, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if a.device == "cuda":
        torch.cuda.set_device(rank)
        torch.backends.cudnn.benchmark = True
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if a.device == "cuda" else "gloo", rank=rank, world_size=a.gpus)
    for batch in a.batch:
        one = rate(a, batch, rank, False) if rank == 0 else 0
        dist.barrier()
        many = rate(a, batch, rank, True)
        if rank == 0:
            print(f"b{batch}: one GPU {one:.0f} img/s, {a.gpus} GPUs {many:.0f} img/s, efficiency {many / a.gpus / one:.3f}", flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gpus", type=int)
    parser.add_argument("batch", type=int, nargs="+")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=20)
    a = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(work, (a, port), a.gpus)


if __name__ == "__main__":
    main()
