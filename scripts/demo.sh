#!/usr/bin/env bash
# demo.sh: from a fresh checkout to a trained network. Installs missing packages, builds into build/, generates the shapes dataset in
# datasets/shapes, trains configs/demo.ini, and predicts the classes of some validation images. A second call uses the same build
# and the same images; its run goes to a new folder.
#   OUTPUT   run folder (default: checkpoints/demo, or the first unused name of checkpoints/demo-2, -3, ...)
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
. scripts/deps.sh
minimum=95 # percent of the validation images
limit_s=180 # training time

need_packages
echo "== building into build/ (log: build/build.log)"
# Builds only what `cmake --install` needs: the tests are some hundred files more. The GPU kernels take minutes to compile and are
# excluded where there is no driver. An existing build folder keeps its configuration.
if [ ! -e build/CMakeCache.txt ] && [ ! -e /proc/driver/nvidia ] && [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
    echo "no NVIDIA driver was found: building for the CPU only (to add the GPU device: cmake -B build -DCRESNET_WITH_CUDA=AUTO && ninja -C build)"
    set -- -DCRESNET_WITH_CUDA=OFF
fi
build_target="cresnet libcresnet pages library_page" build build -DCMAKE_BUILD_TYPE=Release "$@"

cresnet=build/cresnet
images_dir=datasets/shapes
echo "== dataset"
$cresnet data shapes $images_dir

output=${OUTPUT:-checkpoints/demo}
number=2
while [ -z "${OUTPUT:-}" ] && [ -e "$output" ]; do
    output=checkpoints/demo-$number
    number=$((number + 1))
done
echo "== training: cresnet train configs/demo.ini data.root=$images_dir --output $output"
start=$SECONDS
$cresnet train configs/demo.ini data.root=$images_dir --output "$output"
elapsed=$((SECONDS - start))

echo "== result"
scores=$($cresnet eval "$output/best" data.root=$images_dir --json --quiet)
correct=$(printf '%s' "$scores" | sed -n 's/.*"correct": \([0-9]*\).*/\1/p')
images=$(printf '%s' "$scores" | sed -n 's/.*"images": \([0-9]*\).*/\1/p')
$cresnet predict "$output/best" -k 2 --quiet $(find $images_dir/val -name '*.png' | sort | awk 'NR % 125 == 1')

echo
echo "trained in $elapsed s: $correct of $images validation images correct"
echo "  checkpoints   $output/best, $output/last (model.safetensors loads in torchvision)"
echo "  log           $output/log.jsonl"
echo "  images        $images_dir"
echo "  try           build/cresnet predict $output a.png"
if [ $((correct * 100)) -lt $((images * minimum)) ]; then
    echo "demo.sh: FAILED: below $minimum %" >&2
    exit 1
fi
if [ $elapsed -gt $limit_s ]; then
    echo "demo.sh: note: the training took more than $limit_s s, the expected time on two cores; is the machine busy?" >&2
fi
