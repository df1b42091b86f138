#!/usr/bin/env bash
# test_lr_find.sh: cresnet lr-find: its losses are those of trainings, the suggestion follows from them as a script computes it, the demo trains
# with it, a run stays untouched, and mistakes. Ends with "N passed, N failed, N skipped".
. "$(dirname "$0")/../harness/cli_support.sh"
there python3 || { skip "no python3"; sum_up 77; }

cat >check.py <<'PY'
import json, math
def read(path): return json.loads(next(l for l in open(path) if l.startswith("{")))
def trained(run): return [json.loads(l)["loss"] for l in open(run + "/log.jsonl") if '"event":"train"' in l.replace(" ", "")]
def choice(found):
    """The suggestion and the range, from the descents alone."""
    rates = found["rates"]
    good = [i for i, r in enumerate(rates) if r["descent"] is not None and r["descent"] > 0 and r["descent"] >= 3 * r["error"]]
    if not good: return None, None, None
    best = max(good, key=lambda i: rates[i]["descent"])
    def around(part):
        low = high = best
        enough = lambda i: rates[i]["descent"] is not None and rates[i]["descent"] >= part * rates[best]["descent"]
        while low > 0 and enough(low - 1): low -= 1
        while high + 1 < len(rates) and enough(high + 1): high += 1
        return low, high
    low, high = around(0.8)
    middle = math.sqrt(rates[low]["lr"] * rates[high]["lr"]) * (1 + 1e-6)
    at = max(i for i in range(low, high + 1) if i == low or rates[i]["lr"] <= middle)
    return tuple(rates[i]["lr"] for i in (at, *around(0.5)))
def check(found):
    assert [found[k] for k in ("suggested_lr", "from_lr", "to_lr")] == list(choice(found)), (found, choice(found))
    assert [r["lr"] for r in found["rates"]] == sorted(r["lr"] for r in found["rates"]), found
PY

# ---- the losses are those of trainings whose rate falls to 0 along a cosine ----
data="data.kind=shapes data.root=images data.train_images=320 data.val_images=40"
common="train.log_every=1 train.batch=16 schedule.kind=cosine schedule.warmup_epochs=0 train.epochs=3"
for rate in 1e-30 0.01 0.0316227766 0.1; do # shellcheck disable=SC2086
    run train files.ini $data $common -o "R$rate" -q optim.lr=$rate; expect "train with $rate" 0
done
before=$(find R0.01 -type f | sort | xargs sha256sum | sha256sum)
# shellcheck disable=SC2086
run lr-find files.ini $data --json --steps 60 -b 16 --min-lr 0.01 --max-lr 0.1; cp stdout found.json
holds "losses, descents and their errors" python3 - <<'PY'
import statistics
from check import *
found = read("found.json")
start = trained("R1e-30")[40:]
assert abs(found["start_loss"] - statistics.mean(start)) < 1e-5 and found["steps"] == 60, found
assert ["%.3g" % r["lr"] for r in found["rates"]] == ["0.01", "0.0316", "0.1"], found
for r in found["rates"]:
    losses = trained("R%.9g" % r["lr"])[40:]
    falls = [a - b for a, b in zip(start, losses)]
    assert len(falls) == 20, falls
    assert abs(r["loss"] - statistics.mean(losses)) < 1e-5 and abs(r["descent"] - statistics.mean(falls)) < 1e-5, (r, losses)
    assert abs(r["error"] - statistics.stdev(falls) / len(falls) ** 0.5) < 1e-5, (r, falls)
check(found)
PY

# ---- a rate that trains ----
# shellcheck disable=SC2086
run lr-find files.ini $data --steps 30 -b 64 model.widths=8,16; expect "lr-find" 0 "suggested optim.lr = " "try it: cresnet train files.ini optim.lr=" "rate 0.0001: loss"
said=$(sed -n 's/^suggested optim.lr = //p' stdout)
# shellcheck disable=SC2086
run lr-find files.ini $data --steps 30 -b 64 model.widths=8,16 --json; cp stdout found.json
holds "the suggestion" python3 - "$said" <<'PY'
import sys; sys.path.insert(0, ".")
from check import *
found = read("found.json")
check(found)
assert float(sys.argv[1]) == float("%.2g" % found["suggested_lr"]), (sys.argv, found)
assert 0.01 <= found["suggested_lr"] <= 1, found
assert found["rates"][0]["lr"] == 1e-4 and len(found["rates"]) <= 8, found
PY
# shellcheck disable=SC2086
run lr-find files.ini $data --steps 20 -b 16 --min-lr 1e-3 --max-lr 1e9 --json; cp stdout diverged.json
holds "a rate that diverges or clearly trains worse is the last" python3 - <<'PY'
from check import *
found = read("diverged.json")
check(found)
assert found["rates"][-1]["lr"] < 1e8 and (found["suggested_lr"] is None or found["suggested_lr"] < 10), found
PY

# ---- configs/demo.ini trains with 0.02 to 0.5 ----
if [ -n "${CRESNET_SANITIZE:-}" ]; then skip "demo.ini: a sanitizer is too slow"
else
    run lr-find "$source_dir/configs/demo.ini" data.root=demo --json -q --min-lr 0.01 --max-lr 1 --steps 40; cp stdout demo.json
    holds "demo.ini: 0.02 to 0.5, or no descent" python3 - <<'PY'
from check import *
found = read("demo.json")
check(found)
assert found["suggested_lr"] is None or 0.02 <= found["suggested_lr"] <= 0.5, found
PY
fi

# ---- a run gives its weights and is left alone ----
# shellcheck disable=SC2086
run lr-find R0.01 $data --steps 20 --min-lr 1e-9 --max-lr 1e-8 --json; cp stdout numbers.json
holds "a run gives its weights" python3 - <<'PY'
from check import *
end, found = trained("R0.01")[-20:], read("numbers.json")
assert abs(found["start_loss"] - sum(end) / 20) < 0.1 and found["start_loss"] < 2.3, (end, found)  # chance is log(10)
PY
is "the run is untouched" "$(find R0.01 -type f | sort | xargs sha256sum | sha256sum)" "$before"
holds "no run folder is made" [ ! -e checkpoints ]

# ---- mistakes ----
# shellcheck disable=SC2086
run lr-find files.ini $data --steps 20 --min-lr 1e-20 --max-lr 1e-19; expect "no descent" 1 "no descent: no suggestion" "--max-lr"
run lr-find tiny.ini --min-lr 1 --max-lr 0.1; expect "rates in the wrong order" 2 "--min-lr 1 must be less than --max-lr 0.1"
for rate in 0 -1 nan inf x 0.1x ''; do run lr-find tiny.ini --min-lr "$rate"; expect "--min-lr '$rate'" 2 "--min-lr $rate: must be a learning rate"; done
run lr-find tiny.ini -o lr.svg; expect "-o" 2 "-o is now: cresnet lr-find --json"
run lr-find tiny.ini --batch 65; expect "a batch larger than the training set" 2 "65 images, but the training set has 64"
sum_up
