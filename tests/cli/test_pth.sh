#!/usr/bin/env bash
# Files of PyTorch: the program and scripts/pth_to_safetensors.py; skipped where there is no PyTorch.
set -u
here=$(cd "$(dirname "$0")" && pwd)
python=/usr/bin/python3
if ! "$python" -c 'import torch, numpy' 2>/dev/null; then
    echo "skipped: needs python3 with torch and numpy"
    exit 77
fi
exec "$python" -B "$here/../tools/check_pth.py"
