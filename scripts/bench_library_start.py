#!/usr/bin/env python3
"""bench_library_start.py LIBRARY RUN [REPEATS]: time from opening a network on the CPU to its first answer, in milliseconds.

LIBRARY is the file libcresnet.so. Every repeat (10) is a new process on two threads with batch 1. Prints the fastest and the median repeat:
the whole time, cresnet_open, the first and the second classification of an image. Needs NumPy. On a busy machine the times are those of the
other programs: `chrt -f 10 scripts/bench_library_start.py ...` runs before them.
"""
import os
import subprocess
import sys
import time
from pathlib import Path


def measure(run):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
    import cresnet
    import numpy as np
    cresnet.version()  # loads the library
    times = [time.perf_counter()]
    with cresnet.Model(run, device="cpu", threads=2) as model:
        times.append(time.perf_counter())
        side = model.info.image_size
        image = np.full((1, side, side, 3), 100, np.uint8)
        for _ in range(2):
            model.classify_tensor(image)
            times.append(time.perf_counter())
    opened, first, second = (1e3 * (b - a) for a, b in zip(times, times[1:]))
    print(opened + first, opened, first, second)


def main():
    if len(sys.argv) not in (3, 4):
        print(__doc__, file=sys.stderr)
        return 2
    environment = dict(os.environ, CRESNET_LIBRARY=sys.argv[1])
    command = [sys.executable, __file__, "--once", sys.argv[2]]
    rows = []
    for _ in range(int(sys.argv[3]) if len(sys.argv) == 4 else 10):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            print(done.stderr.strip().splitlines()[-1], file=sys.stderr)
            return 1
        rows.append([float(word) for word in done.stdout.split()])
    rows.sort()
    for name, row in (("fastest", rows[0]), ("median", rows[len(rows) // 2])):
        print(f"{name:8} {row[0]:6.1f} ms: open {row[1]:.1f}, first image {row[2]:.1f}, second image {row[3]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(measure(sys.argv[2]) if sys.argv[1:2] == ["--once"] else main())
