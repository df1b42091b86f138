#!/usr/bin/env bash
# make-screenshots.sh: makes the PNG files of docs/figures with the built program.
#   scripts/make-screenshots.sh [PROGRAM]     PROGRAM: build/cresnet unless named
# memory-plan.png   the memory plan of a ResNet-50 training step in fp16 for one H200 (needs no GPU)
# report-page.png   the first sections of the page that `cresnet report` writes after training configs/demo.ini on the CPU;
#                   needs chromium (apt-get install chromium). Takes two to five minutes on two cores.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
program=$(realpath "${1:-$root/build/cresnet}")
figures=$root/docs/figures
width=1200
limit=300000 # bytes of a PNG file

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache
cd "$work"

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || {
    echo "make-screenshots.sh: chromium was not found" >&2
    exit 1
}

# browse ARGUMENT...: runs the browser without a window. The sandbox of chromium refuses to run as root.
browse() {
    [ "$(id -u)" != 0 ] || set -- --no-sandbox "$@"
    timeout 60 "$browser" --headless --disable-gpu --hide-scrollbars --force-device-scale-factor=1 \
        --user-data-dir="$work/browser" "$@" 2>>browser.log
}

# check_png FILE: a PNG file must not be empty or larger than the limit.
check_png() {
    local bytes
    bytes=$(stat -c %s "$1")
    echo "$1: $bytes bytes"
    if [ "$bytes" -lt 2000 ] || [ "$bytes" -gt $limit ]; then
        echo "make-screenshots.sh: $1 has $bytes bytes; expected 2000 to $limit" >&2
        exit 1
    fi
}

mkdir -p "$figures"
echo "== memory plan"
"$program" plan "$root/configs/resnet50.ini" --target h200 train.precision=fp16 -b 256 --svg plan.svg >plan.log
browse --window-size=1000,446 --screenshot="$work/plan.png" "file://$work/plan.svg"
check_png plan.png

echo "== demo training"
"$program" train "$root/configs/demo.ini" --device cpu --quiet data.root="$work/shapes" --output "$work/demo"
"$program" report demo data.root="$work/shapes" -o report.html

# The screenshot ends above the section "evaluation". A copy of the page with a script measures where that section begins; the
# copy lacks the page's content security policy, which forbids scripts.
echo "== screenshot"
sed 's/<meta[^>]*Content-Security-Policy[^>]*>//' report.html >measure.html
cat >>measure.html <<'HTML'
<script>
document.body.innerHTML = "height=" + Math.floor(document.getElementById("evaluation").getBoundingClientRect().top);
</script>
HTML
height=$(browse --window-size=$width,1000 --dump-dom "file://$work/measure.html" | sed -n 's/.*height=\([0-9][0-9]*\).*/\1/p')
if [ -z "$height" ]; then
    echo "make-screenshots.sh: the report page has no section with the id \"evaluation\"" >&2
    exit 1
fi
browse --window-size="$width,$height" --screenshot="$work/report.png" "file://$work/report.html"
check_png report.png

mv plan.png "$figures/memory-plan.png"
mv report.png "$figures/report-page.png"
