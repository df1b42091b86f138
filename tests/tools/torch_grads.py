#!/usr/bin/env python3
"""torch_grads.py: the gradient of every parameter tensor of a fresh ResNet-50 in fp16, beside PyTorch's: how far is cresnet's fused
fp16 program from its plain fp32 program, and how far is PyTorch's autocast fp16 from PyTorch's fp32 (TF32 off)? Both start from
the same weights and see the same random pictures; nothing is updated.

The distance of a tensor has two parts: 1 - cosine, and |norm ratio - 1|. Each is the root of the mean square over the batches,
for one batch hits or misses a norm by chance. Bars for exit code 0: no tensor's distance, in either part, and not that of all
gradients as one vector, is more than 1.5 times PyTorch's. Ours in fp32 is also compared with PyTorch's fp32: that shows
that both compute the same gradient, and how much rounding alone moves it.

  torch_grads.py --tool build/tests/steps_tool --device cuda [--batch 32] [--batches 4] [--out grads.json]
  --also bf16 prints the same for bf16 (no bar); on a CPU there is no 16-bit program: ours is the fused fp32 one then, and PyTorch's
  16-bit type is bf16, which tries the script and proves nothing.
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

BAR = 1.5


def torch_grads(said, weights, images, labels, device, half, scale):
    """[{name: f64 gradient} a batch]; half: None or the autocast type."""
    model = nets.build(said, weights).to(device)
    found = []
    for pixels, label in zip(images, labels):
        x = nets.normalised(pixels, said, device)
        y = torch.from_numpy(label).long().to(device)
        while True:
            model.zero_grad(set_to_none=True)
            with torch.autocast(device, dtype=half or torch.bfloat16, enabled=half is not None):
                loss = F.cross_entropy(model(x), y)
            (loss * scale).backward()
            if scale <= 1 or all(bool(torch.isfinite(p.grad).all()) for p in model.parameters()):
                break
            scale /= 2
        found.append({n: p.grad.detach().double().cpu().numpy() / scale for n, p in model.named_parameters()})
    return found, scale


def our_grads(prefix, count):
    return [{n: np.asarray(v, dtype="f8") for n, v in st.load("%s-%d.safetensors" % (prefix, k))[0].items()} for k in range(count)]


def parts(a, b):
    """(1 - cosine, |norm ratio - 1|) of vectors"""
    a, b = a.ravel(), b.ravel()
    na, nb = np.linalg.norm(a), np.linalg.norm(b)
    if na == 0 or nb == 0 or not (np.isfinite(na) and np.isfinite(nb)):
        return np.array([0.0, 0.0] if na == 0 and nb == 0 else [np.inf, np.inf])
    d = a / na - b / nb # 1 - cos = |a/na - b/nb|^2 / 2, which does not cancel
    return np.array([0.5 * float(d @ d), abs(float(na / nb) - 1)])


def distances(got, want, names):
    """{name: [1 - cosine, norm]}, root mean square over batches; "all": everything as one vector"""
    out = {n: np.sqrt(np.mean([parts(g[n], w[n]) ** 2 for g, w in zip(got, want)], 0)) for n in names}
    flat = [parts(np.concatenate([g[n].ravel() for n in names]), np.concatenate([w[n].ravel() for n in names])) for g, w in zip(got, want)]
    out["all"] = np.sqrt(np.mean(np.square(flat), 0))
    return out


def judge(title, ours, theirs, names):
    """Prints ratios of the distances; True when all are within the bar."""
    print("\n%s: ours against PyTorch's distance" % title)
    print("%-8s %10s %10s %10s %10s  %s" % ("", "within", "median", "worst", "all", "worst tensor (ours, PyTorch)"))
    good, found = True, {}
    for k, part in enumerate(("cosine", "norm")):
        ratio = {n: ours[n][k] / theirs[n][k] if theirs[n][k] > 0 else (0.0 if ours[n][k] == 0 else np.inf) for n in names + ["all"]}
        worst = max(names, key=lambda n: ratio[n])
        within = sum(ratio[n] <= BAR for n in names)
        print("%-8s %4d of %3d %10.3f %10.3f %10.3f  %s (%.2e, %.2e)" % (part, within, len(names), float(np.median([ratio[n] for n in names])),
              ratio[worst], ratio["all"], worst, ours[worst][k], theirs[worst][k]))
        over = sorted((n for n in names if not ratio[n] <= BAR), key=lambda n: -ratio[n])
        for n in over[:12]:
            print("    over: %-34s %8.3f  (%.2e, %.2e)" % (n, ratio[n], ours[n][k], theirs[n][k]))
        good = good and within == len(names) and ratio["all"] <= BAR
        found[part] = {"within": within, "of": len(names), "median": float(np.median([ratio[n] for n in names])), "worst": ratio[worst],
                       "worst_tensor": worst, "all": ratio["all"]}
    found["ok"] = bool(good)
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
    p.add_argument("--batches", type=int, default=4)
    p.add_argument("--size", type=int, default=224)
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
        images, labels, _ = nets.random_pictures(a.batches * a.batch, a.size, 10 if "resnet20" in a.config else 1000, 5)
        images, labels = nets.save_batches(batches, images, labels, a.batch)
        for name, more in wanted.items():
            start, prefix = ["--save", weights] if name == "plain" else ["--weights", weights], os.path.join(d, name)
            said = nets.steps_tool(a.tool, a.config, values + more, ["--batches", batches, "--grads", prefix] + start)
            ours[name] = our_grads(prefix, a.batches)
            print("ours %s (%s): losses %s, loss scales %s, %.1f s" % (name, said["type"], said["losses"], said["loss_scales"], said["seconds"]), flush=True)
            for k in range(a.batches):
                os.unlink("%s-%d.safetensors" % (prefix, k))
        begin = time.time()
        theirs32, _ = torch_grads(said, weights, images, labels, a.device, None, 1.0)
        theirs = {k: torch_grads(said, weights, images, labels, a.device, t, a.scale if t == torch.float16 else 1.0) for k, t in kinds.items()}
    names = list(theirs32[0])
    missing = sorted(set(names) ^ set(ours["plain"][0]))
    if missing:
        print("grads: FAIL: other tensors than PyTorch has: %s" % missing)
        return 1
    print("%s, %d px, batch %d, %d batches, %d tensors; %s; %s (%.1f s, loss scale %g)" % (said["arch"], a.size, a.batch, a.batches, len(names),
          said["device"], nets.about(a.device), time.time() - begin, theirs["half"][1]))
    across = distances(ours["plain"], theirs32, names)
    summary("ours fp32 plain / PyTorch fp32", across, names)
    ok = bool(across["all"][0] < 1e-4 and across["all"][1] < 1e-2) # another gradient altogether would be far beyond
    print("same gradient in fp32: %s" % ("PASS" if ok else "FAIL"))
    out["fp32"] = {n: v.tolist() for n, v in across.items()}
    for kind in kinds:
        mine, peer = distances(ours[kind], ours["plain"], names), distances(theirs[kind][0], theirs32, names)
        summary("ours %s / ours fp32 plain" % kind, mine, names)
        summary("PyTorch %s / PyTorch fp32" % kind, peer, names)
        found = judge(kind, mine, peer, names)
        out[kind] = {"found": found, "ours": {n: v.tolist() for n, v in mine.items()}, "torch": {n: v.tolist() for n, v in peer.items()}}
        if kind == "half":
            ok = ok and found["ok"]
    if a.out:
        with open(a.out, "w") as f:
            json.dump(out, f)
    print("grads: %s" % ("PASS" if ok else "FAIL"))
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
