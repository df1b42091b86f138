#!/usr/bin/env bash
# Keeps the programs and memory plans that `cresnet plan` prints today for every shipped config, after showing what changed. The guard
# (tests/guard/test_programs.py) compares with them. Run it with a build of each kind, since each knows its devices only: with oneDNN,
# without, and with CUDA and cuDNN.
#   CRESNET_BIN=build/cresnet scripts/accept-programs.sh [--new-library]
set -euo pipefail
exec python3 "$(dirname "$0")/../tests/guard/accept_programs.py" "$@"
