#!/usr/bin/env python3
"""torch_grads.py: compares the fp16 gradient of every parameter tensor of an untrained ResNet-50 with PyTorch's. It measures the distance
of cresnet's fused fp16 program from its unfused fp32 program, and of PyTorch's autocast fp16 from PyTorch's fp32 (TF32 off). Both
start from the same weights and use the same random images; weights are not updated.

The distance of a tensor has two parts: 1 - cosine, and |norm ratio - 1|. Each is the root mean square over the batches, because the
value of a single batch is noisy. Targets for exit code 0: in both parts, the distance of each tensor and of all gradients as one
vector is at most 1.5 times PyTorch's. To show the noise of this ratio, PyTorch's second 16-bit run, in another memory layout, is
compared in the same way. Our fp32 gradients are also compared with PyTorch's fp32 gradients, and these with PyTorch's fp32 gradients
in another layout: this shows that both compute the same gradient, and the effect of rounding alone.

  torch_grads.py --tool build/tests/steps_tool --device cuda [--batch 32] [--batches 4] [--out grads.json]
  --also bf16 prints the same for bf16 (no target). On a CPU there is no 16-bit program: cresnet runs the fused fp32 program and
  PyTorch's 16-bit type is bf16, which tests only the script.
"""
import argparse
import json
import os
import tempfile
import time

import numpy as np
import st
import torch_nets as nets
import torch
import torch.nn.functional as F

TARGET = 1.5


def torch_grads(said, weights, images, labels, device, half=None, scale=1.0, channels_last=False):
    """([{name: gradient} per batch], loss scale); half: None or the autocast type."""
    format_ = torch.channels_last if channels_last else torch.contiguous_format
    model = nets.build(said, weights).to(device).to(memory_format=format_)
    found = []
    for pixels, label in zip(images, labels):
        x = nets.normalised(pixels, said, device).contiguous(memory_format=format_)
        y = torch.from_numpy(label).long().to(device)
        while True:
            model.zero_grad(set_to_none=True)
            with torch.autocast(device, dtype=half or torch.bfloat16, enabled=half is not None):
                loss = F.cross_entropy(model(x), y)
            (loss * scale).backward()
            if scale <= 1 or all(bool(torch.isfinite(p.grad).all()) for p in model.parameters()):
                break
            scale /= 2
        found.append({n: p.grad.detach() / scale for n, p in model.named_parameters()})
    return found, scale


def our_grads(prefix, count, device):
    files = [st.load("%s-%d.safetensors" % (prefix, k))[0] for k in range(count)]
    return [{n: torch.from_numpy(np.array(v)).to(device) for n, v in f.items()} for f in files]


def parts(got, want, names):
    """[tensor][1 - cosine, |norm ratio - 1|] of one batch; the last row has all gradients as one vector. Reads from the device once."""
    squares = [[v[n].double().square().sum() for n in names] for v in (got, want)]
    norms = [torch.stack(s + [torch.stack(s).sum()]).sqrt() for s in squares]
    def apart(n, i): # 1 - cos = |a/|a| - b/|b||^2 / 2, which does not cancel; the norms are those of the i-th row
        return (got[n].double() / norms[0][i] - want[n].double() / norms[1][i]).square().sum()

    whole = torch.stack([apart(n, -1) for n in names]).sum()
    cosine = torch.stack([apart(n, i) for i, n in enumerate(names)] + [whole]) / 2
    out = torch.stack([cosine, (norms[0] / norms[1] - 1).abs()], 1).cpu().numpy()
    zero = ((norms[0] == 0) & (norms[1] == 0)).cpu().numpy()
    out[zero] = 0
    return np.where(np.isfinite(out), out, np.inf)


def distances(got, want, names):
    """{name: [1 - cosine, norm]}, root mean square over batches; "all": all gradients as one vector"""
    mean = np.sqrt(np.mean([parts(g, w, names) ** 2 for g, w in zip(got, want)], 0))
    return dict(zip(names + ["all"], mean))


def ratios(ours, theirs, names, k):
    return {n: ours[n][k] / theirs[n][k] if theirs[n][k] > 0 else (0.0 if ours[n][k] == 0 else np.inf) for n in names + ["all"]}


def compare(title, ours, theirs, second, names):
    """Prints ratios of the distances. `second`: PyTorch's second run, which shows the noise of the counts."""
    print("\n%s, ratio to PyTorch's distance:" % title)
    print("%-8s %-24s %11s %9s %9s %9s  %s" % ("", "", "<= %.1f" % TARGET, "median", "worst", "all", "worst tensor (its distance, PyTorch's)"))
    found = {}
    for k, part in enumerate(("cosine", "norm")):
        for who, d in (("ours", ours), ("PyTorch, channels_last", second)):
            ratio = ratios(d, theirs, names, k)
            worst = max(names, key=lambda n: ratio[n])
            within = int(sum(ratio[n] <= TARGET for n in names))
            print("%-8s %-24s %4d of %3d %9.3f %9.3f %9.3f  %s (%.2e, %.2e)" % (part, who, within, len(names),
                  float(np.median([ratio[n] for n in names])), ratio[worst], ratio["all"], worst, d[worst][k], theirs[worst][k]))
            found["%s, %s" % (part, who)] = {"within": within, "of": len(names), "median": float(np.median([ratio[n] for n in names])),
                                             "worst": float(ratio[worst]), "worst_tensor": worst, "all": float(ratio["all"])}
            if who == "ours":
                for n in sorted((n for n in names if not ratio[n] <= TARGET), key=lambda n: -ratio[n])[:8]:
                    print("    over: %-34s %8.3f  (%.2e, %.2e)" % (n, ratio[n], d[n][k], theirs[n][k]))
    found["strict"] = all(f["within"] == f["of"] and f["all"] <= TARGET for key, f in found.items() if key.endswith("ours"))
    found["as_good"] = all(found[p + ", ours"]["within"] >= found[p + ", PyTorch, channels_last"]["within"] and found[p + ", ours"]["median"] <= TARGET
                           and found[p + ", ours"]["all"] <= TARGET for p in ("cosine", "norm"))
    print("%s: every tensor within %.1f: %s; medians and all gradients within, and at least as many tensors as PyTorch's second run: %s"
          % (title, TARGET, "PASS" if found["strict"] else "FAIL", "PASS" if found["as_good"] else "FAIL"))
    return found


def summary(name, d, names):
    print("%-46s 1-cos: median %.2e, worst %.2e, all %.2e;  norm: median %.2e, worst %.2e, all %.2e" % (
        (name,) + tuple(f for k in (0, 1) for f in (np.median([d[n][k] for n in names]), max(d[n][k] for n in names), d["all"][k]))))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tool", required=True, help="the built steps_tool")
    p.add_argument("--config", default=os.path.join(nets.SOURCE, "configs/resnet50.ini"))
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--batches", type=int, default=8)
    p.add_argument("--size", type=int, default=224)
    p.add_argument("--after", type=int, default=0, metavar="N", help="train N steps in fp32 first, instead of fresh weights")
    p.add_argument("--scale", type=float, default=8192, help="PyTorch's loss scale; halved while a gradient overflows")
    p.add_argument("--also", action="append", default=[], choices=["bf16"])
    p.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="more values for cresnet")
    p.add_argument("--out", help="JSON with all distances")
    a = p.parse_args()
    nets.exact_fp32()
    nets.torch.backends.cudnn.deterministic = True
    gpu = a.device == "cuda"
    values = ["data.kind=synthetic", "data.image_size=%d" % a.size, "train.device=" + a.device] + a.set
    wanted = {"plain": ["train.precision=fp32", "train.fuse=no"], "half": ["train.precision=fp16"] if gpu else ["train.precision=fp32"]}
    kinds = {"half": torch.float16 if gpu else torch.bfloat16}
    if "bf16" in a.also and gpu:
        wanted["bf16"], kinds["bf16"] = ["train.precision=bf16"], torch.bfloat16
    ours, out = {}, {}
    with tempfile.TemporaryDirectory() as d:
        batches, weights = os.path.join(d, "batches.safetensors"), os.path.join(d, "start.safetensors")
        images, labels, _ = nets.random_images(a.batches * a.batch, a.size, 10 if "resnet20" in a.config else 1000, 5)
        images, labels = nets.save_batches(batches, images, labels, a.batch)
        if a.after:
            rate = ["optim.lr=%g" % (0.1 * a.batch / 256), "train.precision=fp32"]
            nets.steps_tool(a.tool, a.config, values + rate, ["--batches", batches, "--steps", str(a.after), "--save-end", weights])
        for name, more in wanted.items():
            start, prefix = ["--save", weights] if name == "plain" and not a.after else ["--weights", weights], os.path.join(d, name)
            said = nets.steps_tool(a.tool, a.config, values + more, ["--batches", batches, "--grads", prefix] + start)
            ours[name] = our_grads(prefix, a.batches, a.device)
            print("ours %s (%s): losses %s, loss scales %s, %.1f s" % (name, said["type"], said["losses"], said["loss_scales"], said["seconds"]), flush=True)
            for k in range(a.batches):
                os.unlink("%s-%d.safetensors" % (prefix, k))
        begin = time.time()
        theirs32, _ = torch_grads(said, weights, images, labels, a.device)
        other32, _ = torch_grads(said, weights, images, labels, a.device, channels_last=True)
        theirs, second = [{k: torch_grads(said, weights, images, labels, a.device, t, a.scale if t == torch.float16 else 1.0, last)
                           for k, t in kinds.items()} for last in (False, True)]
    names = list(theirs32[0])
    missing = sorted(set(names) ^ set(ours["plain"][0]))
    if missing:
        print("grads: FAIL: the tensors differ from PyTorch's: %s" % missing)
        return 1
    print("%s, %d px, batch %d, %d batches, %d tensors; %s; %s (%.1f s, loss scale %g)" % (said["arch"], a.size, a.batch, a.batches, len(names),
          said["device"], nets.about(a.device), time.time() - begin, theirs["half"][1]))
    across = distances(ours["plain"], theirs32, names)
    other = distances(other32, theirs32, names)
    summary("ours fp32 plain / PyTorch fp32", across, names)
    summary("PyTorch fp32 channels_last / PyTorch fp32", other, names)
    ok = bool(across["all"][0] < max(1e-6, 10 * other["all"][0]) and across["all"][1] < max(1e-3, 10 * other["all"][1]))
    print("the same gradient in fp32: %s" % ("PASS" if ok else "FAIL"))
    out["fp32"] = {n: v.tolist() for n, v in across.items()}
    for kind in kinds:
        mine, peer = distances(ours[kind], ours["plain"], names), distances(theirs[kind][0], theirs32, names)
        summary("ours %s / ours fp32 plain" % kind, mine, names)
        summary("PyTorch %s / PyTorch fp32" % kind, peer, names)
        found = compare(kind, mine, peer, distances(second[kind][0], theirs32, names), names)
        out[kind] = {"found": found, "ours": {n: v.tolist() for n, v in mine.items()}, "torch": {n: v.tolist() for n, v in peer.items()}}
        if kind == "half":
            ok = ok and found["strict"]
    if a.out:
        with open(a.out, "w") as f:
            json.dump(out, f)
    print("grads: %s" % ("PASS" if ok else "FAIL"))
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
