#!/usr/bin/env bash
# test_lr_find.sh: cresnet lr-find: its steps are those of a training, the smoothed loss, the end and the suggestion follow from the losses as a
# script computes them, a run stays untouched, the plot, and mistakes. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"
there python3 || { skip "no python3"; sum_up 77; }

cat >check.py <<'PY'
import json, math, sys
def read(path): return json.loads(open(path).readline())
def check(found, steps, low, high):
    """The rates, the moving average, the end of the run and the suggestion, from the losses alone."""
    s, average, lowest = found["steps"], 0, math.inf
    for i, step in enumerate(s):
        want = low * (high / low) ** (i / (steps - 1))
        assert abs(step["lr"] / want - 1) < 1e-6, (i, step, want)
        average = 0.98 * average + 0.02 * step["loss"]
        smoothed = average / (1 - 0.98 ** (i + 1))
        assert abs(smoothed - step["smoothed"]) < 1e-6 * abs(smoothed), (i, step, smoothed)
        lowest = min(lowest, smoothed)
        if smoothed > 4 * lowest: assert found["diverged"] and i == len(s) - 1, i
    assert found["diverged"] or len(s) == steps, len(s)
    window, best, at = steps * 15 // 100, -3, None
    for i in range(window, len(s) - window):
        x, y = [math.log(t["lr"]) for t in s[i - window:i + window + 1]], [t["loss"] for t in s[i - window:i + window + 1]]
        n, mx, my = len(x), sum(x) / len(x), sum(y) / len(y)
        sxx, sxy, syy = sum((a - mx) ** 2 for a in x), sum((a - mx) * (b - my) for a, b in zip(x, y)), sum((b - my) ** 2 for b in y)
        r = sxy / math.sqrt(sxx * syy)
        t = r * math.sqrt((n - 2) / (1 - r * r))  # of the correlation: the same number as that of the slope
        if t < best: best, at = t, i
    assert found["suggested_lr"] is None if at is None else abs(found["suggested_lr"] / s[at]["lr"] - 1) < 1e-5, (at, found["suggested_lr"])
    return at
PY

# ---- the steps are those of a training with the same rate ----
data="data.kind=shapes data.root=images data.train_images=600 data.val_images=40"
# shellcheck disable=SC2086
run train files.ini $data -o R --steps 120 -q train.log_every=1 train.batch=16 optim.lr=0.02 schedule.kind=constant; expect "train" 0
before=$(find R -type f | sort | xargs sha256sum | sha256sum)
# shellcheck disable=SC2086
run lr-find files.ini $data --json --steps 25 -b 16 --min-lr 0.02 --max-lr 0.0200000001; cp stdout constant.json
holds "the losses are those of the training" python3 - <<'PY'
import json
trained = [json.loads(l)["loss"] for l in open("R/log.jsonl") if '"event":"train"' in l.replace(" ", "")]
found = [s["loss"] for s in json.loads(open("constant.json").readline())["steps"]]
assert len(trained) == 120 and len(found) == 25, (len(trained), len(found))
for a, b in zip(trained, found): assert abs(a - b) < 2e-6 * max(1, abs(a)), (trained, found)
PY

# ---- a curve with a clear descent, and one that diverges ----
# shellcheck disable=SC2086
run lr-find files.ini $data --steps 60 -b 64 --min-lr 1e-4 --max-lr 1 model.widths=8,16; expect "lr-find" 0 "suggested optim.lr = " "try it: cresnet train files.ini optim.lr="
said=$(sed -n 's/^suggested optim.lr = //p' stdout)
# shellcheck disable=SC2086
run lr-find files.ini $data --steps 60 -b 64 --min-lr 1e-4 --max-lr 1 model.widths=8,16 --json; cp stdout found.json
holds "the suggestion" python3 - "$said" <<'PY'
import sys; sys.path.insert(0, ".")
from check import *
found = read("found.json")
at = check(found, 60, 1e-4, 1)
assert at is not None and float(sys.argv[1]) == float("%.2g" % found["steps"][at]["lr"]), (at, sys.argv)
PY
# shellcheck disable=SC2086
run lr-find files.ini $data --steps 60 -b 16 --min-lr 1e-3 --max-lr 1e9 --json; cp stdout diverged.json
holds "divergence ends the steps" python3 - <<'PY'
from check import *
found = read("diverged.json")
check(found, 60, 1e-3, 1e9)
assert found["diverged"] and 10 < len(found["steps"]) < 60, len(found["steps"])
PY

# ---- a run gives its weights and is left alone ----
# shellcheck disable=SC2086
run lr-find R $data --steps 20 --min-lr 1e-9 --max-lr 1e-8 --json; cp stdout numbers.json
holds "a run gives its weights" python3 - <<'PY'
import json
steps = next(json.loads(l) for l in open("numbers.json") if l.startswith("{"))["steps"]
mean = sum(s["loss"] for s in steps) / len(steps)
assert mean < 2.28, mean  # the initial weights give 2.33, and chance gives log(10) = 2.30
PY
is "the run is untouched" "$(find R -type f | sort | xargs sha256sum | sha256sum)" "$before"
holds "no run folder is made" [ ! -e checkpoints ]

# ---- mistakes ----
# shellcheck disable=SC2086
run lr-find files.ini $data --steps 20 --min-lr 1e-20 --max-lr 1e-19; expect "no descent" 1 "no suggestion" "--max-lr"
run lr-find tiny.ini --min-lr 1 --max-lr 0.1; expect "rates in the wrong order" 2 "--min-lr 1 must be less than --max-lr 0.1"
for rate in 0 -1 nan inf x 0.1x ''; do run lr-find tiny.ini --min-lr "$rate"; expect "--min-lr '$rate'" 2 "--min-lr $rate: must be a learning rate"; done
run lr-find tiny.ini -o lr.svg; expect "-o" 2 "-o is now: cresnet lr-find --json"
run lr-find tiny.ini --batch 65; expect "a batch larger than the training set" 2 "65 images, but the training set has 64"
sum_up
