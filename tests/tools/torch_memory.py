"""torch_memory.py: device memory of PyTorch's training step, to compare with `cresnet bench step --json`: one JSON line per mode.

    python3 torch_memory.py [--depth 50] [--batch 256] [--size 224] [--precision fp16] [--modes eager,compile] [--steps 10]

allocated_mib, reserved_mib: peak of the memory that the caching allocator allocated and reserved. device_mib: free memory of the GPU
after the context was created, minus free memory after the last step, including libraries, kernels and fragmentation. Each mode runs
in its own process, with its own memory. torchvision's ResNet, channels_last, autocast, SGD with momentum (fused), data on the device.
"""
import argparse
import json
import subprocess
import sys
import time


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--depth", type=int, default=50)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--precision", choices=("fp32", "tf32", "fp16", "bf16"), default="fp16")
    parser.add_argument("--modes", default="eager,compile")
    parser.add_argument("--steps", type=int, default=10, help="steps before memory is measured; the same number is timed afterwards")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(a):
    import torch
    import torchvision

    torch.cuda.init()
    torch.cuda.synchronize()
    before, total = torch.cuda.mem_get_info()
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = a.precision == "tf32"
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(a.precision)
    net = getattr(torchvision.models, f"resnet{a.depth}")().cuda().to(memory_format=torch.channels_last)
    x = torch.randn(a.batch, 3, a.size, a.size, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(0, 1000, (a.batch,), device="cuda")
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=5e-5, nesterov=True, fused=True)
    loss_of = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=a.precision == "fp16")
    forward = torch.compile(net) if a.one == "compile" else net

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", half or torch.bfloat16, enabled=half is not None):
            loss = loss_of(forward(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    for _ in range(a.steps):
        step()
    torch.cuda.synchronize()
    after, _ = torch.cuda.mem_get_info()
    start = time.perf_counter()
    for _ in range(a.steps):
        step()
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - start) / a.steps
    mib = 1 << 20
    print(json.dumps({"peer": "torch " + torch.__version__, "mode": a.one, "depth": a.depth, "batch": a.batch, "precision": a.precision,
                      "images_per_s": round(a.batch / seconds, 1), "allocated_mib": round(torch.cuda.max_memory_allocated() / mib, 1),
                      "reserved_mib": round(torch.cuda.max_memory_reserved() / mib, 1), "device_mib": round((before - after) / mib, 1),
                      "gpu_mib": round(total / mib, 1)}), flush=True)


def main():
    a = parse()
    if a.one:
        return measure(a)
    failed = 0
    for mode in a.modes.split(","):
        if mode not in ("eager", "compile"):
            sys.exit(f"torch_memory.py: there is no mode {mode}: eager, compile")
        failed |= subprocess.run([sys.executable, __file__, *sys.argv[1:], "--one", mode]).returncode
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
