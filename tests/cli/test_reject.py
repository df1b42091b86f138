#!/usr/bin/env python3
"""test_reject.py: `cresnet eval --reject` and `predict --reject`: the scores against numpy, from the logits and features that `cresnet features`
writes; the fraction of other images that is rejected; JSON, CSV, text, the ONNX file and the Python package say the same; the score that
outliers choose; wrong calls and damaged files."""
import csv
import json
import os
import shutil
import subprocess
import sys

from support import ROOT, TINY_MODEL, check, cresnet, good, need, refused, run, skip

need("numpy")
import numpy as np
import onnx_text
import png
import st

RATE, IMAGES = 0.1, 600


def unit(x):
    return x / np.sqrt((x ** 2).sum(axis=-1, keepdims=True))


def scores_of(name, folder, means=None):
    """The three scores of the images of a folder, by name."""
    good("features", "features", "net", folder, "-o", f"{name}.npy", "--force")
    x, z = np.load(f"{name}.npy").astype(np.float64), np.load(f"{name}.logits.npy").astype(np.float64)
    top = z.max(axis=1)
    out = {"logit": top, "energy": top + np.log(np.exp(z - top[:, None]).sum(axis=1))}
    if means is not None:
        out["distance"] = (unit(x) @ means.T).max(axis=1) - 1
    with open(f"{name}.csv", newline="") as f:
        files = [f"{folder}/{row['file']}" for row in csv.DictReader(f)]
    return {score: dict(zip(files, values)) for score, values in out.items()}


def area(inside, outside):
    inside, outside = np.array(list(inside.values()))[:, None], np.array(list(outside.values()))
    return (inside > outside).mean() + (inside == outside).mean() / 2


def predictions(folder):
    ran = good("predict", "predict", "net", folder, "--reject", "--json")
    return {line["image"]: line for line in map(json.loads, ran.stdout.splitlines())}


def compare(name, score, threshold, want, folder):
    """JSON, CSV and text of predict against the scores `want` {file: score}."""
    lines = predictions(folder)
    check(f"{name}: images", sorted(lines) == sorted(want), (len(lines), len(want)))
    largest = max(map(abs, want.values()))
    check(f"{name}: scores", all(abs(lines[f]["score"] - s) <= 2e-6 * largest for f, s in want.items()))
    check(f"{name}: rejected", all(line["rejected"] == (line["score"] < threshold) for line in lines.values()))
    ran = good(f"{name}: CSV", "predict", "net", folder, "--reject", "--csv", "-")
    rows = {row["file"]: row for row in csv.DictReader(ran.stdout.splitlines())}
    check(f"{name}: CSV", all(float(rows[f]["score"]) == line["score"] and int(rows[f]["rejected"]) == line["rejected"] for f, line in lines.items()))
    ran = cresnet("predict", "net", folder, "--reject")
    count = sum(line["rejected"] for line in lines.values())
    check(f"{name}: text", ran.stdout.count("  rejected ") == count and f"rejected: {count} of {len(lines)} images" in ran.stderr, ran.stderr)
    good(f"{name}: export", "export", "net", "--onnx", "net.onnx", "--force")
    meta = onnx_text.graph_of("net.onnx")[2]
    check(f"{name}: ONNX", meta["reject_score"] == score and meta["reject_threshold"] == threshold, {k: meta.get(k) for k in ("reject_score", "reject_threshold")})
    by_python(name, score, threshold, lines)
    return lines, meta


def by_python(name, score, threshold, lines):
    library = os.environ.get("CRESNET_LIBRARY") or os.path.join(os.path.dirname(os.environ.get("CRESNET_BIN", f"{ROOT}/build/cresnet")), "libcresnet.so")
    if not os.path.exists(library) or os.environ.get("CRESNET_SANITIZE"):
        return skip("no libcresnet.so without a sanitizer")
    code = ("import cresnet, json, sys\nfiles = json.load(sys.stdin)\nmodel = cresnet.Model('net', device='cpu', max_batch=32)\n"
            "r = model.classify_files(files)\ni = model.info\n"
            "print(json.dumps([i.reject_score, i.reject_threshold, r.scores.tolist(), r.rejected.tolist()]))")
    files = sorted(lines)
    ran = subprocess.run([sys.executable, "-B", "-c", code], input=json.dumps(files), capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": f"{ROOT}/python", "CRESNET_LIBRARY": library})
    want = [score, threshold, [lines[f]["score"] for f in files], [lines[f]["rejected"] for f in files]]
    check(f"{name}: Python", ran.returncode == 0 and json.loads(ran.stdout) == want, ran.stderr)


def main():
    good("images", "data", "shapes", "set", "data.train_images=300", f"data.val_images={2 * IMAGES}")
    for k in sorted(os.listdir("set/val")):  # every other image is held out
        os.makedirs(f"held/{k}")
        for f in sorted(os.listdir(f"set/val/{k}"))[::2]:
            shutil.move(f"set/val/{k}/{f}", f"held/{k}/{f}")
    os.makedirs("noise/deep")
    draw = np.random.default_rng(5)
    for i in range(80):
        noise = draw.integers(0, 256, (32, 32, 3)).tolist()
        png.write(f"noise/deep/{i}.png" if i % 2 else f"noise/{i}.png", 32, 32, lambda x, y: tuple(noise[y][x]))
    with open("tiny.ini", "w") as f:
        f.write(TINY_MODEL + "[data]\nkind = folder\nroot = set\n[train]\nbatch = 30\nepochs = 3\ndevice = cpu\nthreads = 2\n[optim]\nlr = 0.05\n")
    good("training", "train", "tiny.ini", "-o", "net")

    refused("no threshold yet", 2, "cresnet eval net --reject 0.05 does", "predict", "net", "held", "--reject")
    check("no word of it", "reject" not in json.dumps(onnx_text.graph_of("net.onnx")[2]) if not cresnet("export", "net", "--onnx", "net.onnx", "-q").returncode else False)

    # a rate: the default score
    found = json.loads(good("a rate", "eval", "net", "--reject", str(RATE), "--json").stdout)["reject"]
    score, threshold = found["score"], found["threshold"]
    check("the rate", found["rejected"] == RATE and found["images"] == IMAGES and os.path.exists(found["file"]), found)
    means = np.array(st.load(found["file"])[0]["class_means"], np.float64)
    inside = scores_of("v", "set/val", means)[score]
    check("the quantile", sum(s < threshold for s in inside.values()) == RATE * IMAGES)
    lines, _ = compare("held out", score, threshold, scores_of("h", "held", means)[score], "held")
    held = sum(line["rejected"] for line in lines.values()) / IMAGES
    check("held out: the rate", abs(held - RATE) < 3 * (2 * RATE * (1 - RATE) / IMAGES) ** 0.5, held)  # of both samples
    ran = good("text", "eval", "net", "--reject", "0")
    check("a rate of 0", "reject: score distance below " in ran.stdout and ": 0.00 % of these 600 images; stored in net/" in ran.stdout, ran.stdout)
    check("nothing is rejected", not any(line["rejected"] for line in predictions("set/val").values()))

    # examples choose the score
    found = json.loads(good("outliers", "eval", "net", "--reject", str(RATE), "data.outliers=noise", "--json").stdout)["reject"]
    reject = st.load(found["file"])[0]
    good("training images", "features", "net", "set/train", "-o", "t.npy")
    x, label = np.load("t.npy").astype(np.float64), [row["file"].split("/")[0] for row in csv.DictReader(open("t.csv"))]
    groups = [x[[i for i, name in enumerate(label) if name == k]] for k in sorted(set(label))]
    own = unit(np.array([unit(g).mean(axis=0) for g in groups]))
    check("the means of the classes", abs(own - means).max() < 1e-5 and np.array_equal(reject["class_means"], means))
    inside, outside = scores_of("v", "set/val", means), scores_of("n", "noise", means)
    areas = {name: area(inside[name], outside[name]) for name in inside}
    check("areas", all(abs(found["auroc"][name] - areas[name]) < 1e-3 for name in areas), (found["auroc"], areas))
    check("the largest area", areas[found["score"]] >= max(areas.values()) - 1e-3 and found["outliers"] == 80, (found, areas))
    check("outliers that are rejected", abs(found["outliers_rejected"] - np.mean([s < found["threshold"] for s in outside[found["score"]].values()])) < 0.03, found)
    lines, _ = compare("outliers", found["score"], found["threshold"], outside[found["score"]], "noise")

    # the distance, whatever the outliers say
    middle = float(np.median(list(outside["distance"].values())))
    numbers = {"score": "energy", "threshold": "1"}
    st.save(found["file"], {"class_means": means.astype(np.float32)}, {**numbers, "score": "distance", "threshold": str(middle)})
    _, meta = compare("distance", "distance", middle, scores_of("n", "noise", means.astype(np.float32))["distance"], "noise")
    check("distance: ONNX", np.array_equal(np.array(meta["reject_means"], np.float32), means.astype(np.float32)))

    found = json.loads(good("auto", "eval", "net", "--reject", "auto", "data.outliers=noise", "--json").stdout)["reject"]
    right = [found["outliers_rejected"] - found["rejected"]]
    check("auto divides them best", abs(right[0] - max(np.mean(o < t) - np.mean(i < t) for i, o in [(np.array(list(inside[found["score"]].values())), np.array(list(outside[found["score"]].values())))] for t in [*i, *o])) < 0.02, (right, found))

    # moving averages have scores of their own
    weights = f"{os.path.dirname(found['file'])}/model.safetensors"
    shutil.copy(weights, f"{os.path.dirname(weights)}/ema.safetensors")
    refused("chosen without the averages", 2, "ema.safetensors: cresnet eval net --reject 0.05 does", "predict", "net", "noise", "--reject")
    good("--no-ema", "predict", "net", "noise", "--reject", "--no-ema")
    own = json.loads(good("a threshold of the averages", "eval", "net", "--reject", "0.2", "--json").stdout)["reject"]
    check("both thresholds are stored", own["file"].endswith("/reject-ema.safetensors") and os.path.exists(found["file"]), own)
    os.remove(f"{os.path.dirname(weights)}/ema.safetensors")

    # wrong calls, and files that do not fit
    for rate in ("-0.1", "0.6", "x", "nan"):
        refused(f"--reject {rate}", 2, "must be auto, or the fraction of images to reject, from 0 to 0.5", "eval", "net", f"--reject={rate}")
    refused("auto without examples", 2, "--reject auto needs examples: data.outliers=DIR", "eval", "net", "--reject", "auto")
    refused("examples alone", 2, "needs --reject RATE", "eval", "net", "data.outliers=noise")
    os.mkdir("empty")
    refused("no examples", 2, "contains no images", "eval", "net", "--reject", "0.1", "data.outliers=empty")
    os.mkdir("alone")
    shutil.copy(weights, "alone/w.safetensors")
    refused("weights of no run", 2, "is in no run", "eval", "tiny.ini", "--weights", "alone/w.safetensors", "--reject", "0.1")
    for name, text, tensors, changes in (
            ("another network", "is of a network with 4 classes, but this one has 10", {"class_means": np.zeros((4, 8), np.float32)}, {}),
            ("no number", "lacks the score, its threshold or class_means", {"class_means": means.astype(np.float32)}, {"threshold": "x"}),
            ("another score", "lacks the score, its threshold or class_means", {"class_means": means.astype(np.float32)}, {"score": "luck"}),
            ("no means", "lacks the score, its threshold or class_means", {"x": np.zeros(1, np.float32)}, {"score": "distance"}),
            ("features of another network", "the class means of --reject have 5 features, but the network has 8",
             {"class_means": np.zeros((10, 5), np.float32)}, {"score": "distance"})):
        st.save(found["file"], tensors, {**numbers, **changes})
        refused(name, 1, text, "predict", "net", "noise", "--reject")
    os.remove(found["file"])
    good("without the file", "predict", "net", "noise")


run(main)
