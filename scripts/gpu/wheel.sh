#!/usr/bin/env bash
# wheel.sh WHEEL PROGRAM: on a machine with a GPU: compares the program of a wheel with a built program of the same sources: ResNet-50 training and
# inference, images per second, in turns; medians of REPEATS (5). Fails when one differs by more than 1 %. With PyTorch in python3, also
# compares logits of a process that has opened PyTorch's cuDNN first with those of a process without PyTorch. NVIDIA's libraries are those
# that the machine has: LD_LIBRARY_PATH, or the site-packages folder in NVIDIA_WHEELS, next to which the package is installed by a link.
set -u
[ $# = 2 ] || { sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
wheel=$(realpath "$1") built=$(realpath "$2") repeats=${REPEATS:-5}
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CRESNET_CACHE=$work/cache
passed=0 failed=0 skipped=0
check() { # NAME COMMAND...
    local name=$1
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL $name"; fi
}
python3 -m zipfile -e "$wheel" "$work/site" && chmod +x "$work/site/cresnet/cresnet" || exit 1
[ -z "${NVIDIA_WHEELS:-}" ] || ln -s "$NVIDIA_WHEELS/nvidia" "$work/site/nvidia"
packaged=$work/site/cresnet/cresnet
"$packaged" --version | grep -E '^(cresnet|CUDA|NCCL|lib|device)'
rate() { # PROGRAM COMMAND: images per second; shorter runs differ by more than 1 %
    "$1" bench "$2" "$root/configs/resnet50.ini" --steps 300 data.kind=synthetic train.precision=fp16 --device cuda -b 256 --json -q |
        sed -n 's/.*"images_per_s": \([0-9.]*\).*/\1/p'
}
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'; }
for what in step infer; do
    rate "$built" $what >/dev/null # measures kernels once, for both
    for _ in $(seq "$repeats"); do
        rate "$built" $what >>"$work/built-$what"
        rate "$packaged" $what >>"$work/wheel-$what"
    done
    built_rate=$(median "$work/built-$what") wheel_rate=$(median "$work/wheel-$what")
    echo "ResNet-50 $what: built $built_rate, wheel $wheel_rate img/s"
    check "$what: within 1 %" awk -v a="$built_rate" -v b="$wheel_rate" 'BEGIN { exit !(a > 0 && b >= 0.99 * a && b <= 1.01 * a) }'
done

cat >"$work/logits.py" <<'PY'
import sys
if sys.argv[1] == "torch":
    import torch
    layer = torch.nn.Conv2d(8, 8, 3).cuda().half()  # opens PyTorch's cuDNN
    layer(torch.ones(2, 8, 16, 16, device="cuda", dtype=torch.half)).sum().item()
import numpy as np
import cresnet
pixels = np.random.default_rng(0).integers(0, 256, (8, 64, 64, 3), np.uint8)
with cresnet.Model("run", device="cuda", max_batch=8) as model:
    np.save(sys.argv[1] + ".npy", model.classify_images(list(pixels), logits=True).logits)
libraries = sorted({line.split()[-1] for line in open("/proc/self/maps") if "libcudnn.so" in line or "libgomp" in line})
print(sys.argv[1] + ":", *libraries)
PY
if python3 -c 'import numpy, torch; assert torch.cuda.is_available()' 2>/dev/null; then
    cd "$work" || exit 1
    check "a training" "$packaged" train demo.ini --steps 5 -o run --device cuda -q
    check "without PyTorch" env PYTHONPATH="$work/site" python3 logits.py alone
    check "with PyTorch" env PYTHONPATH="$work/site" python3 logits.py torch
    check "the same logits" python3 -c 'import numpy as n; a, b = n.load("alone.npy"), n.load("torch.npy"); print("largest difference", abs(a - b).max()); assert n.allclose(a, b, atol=1e-2)'
else
    echo "skip: no PyTorch with a GPU"
    skipped=1
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
