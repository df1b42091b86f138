#!/usr/bin/env python3
"""watch_run.py RUN [--seconds S] [--kill-at-step K] -- COMMAND...: runs a training whose run folder is RUN, and measures it from outside.

--seconds S        Ctrl-C after S seconds since the first log line of a step: the run saves and ends
--kill-at-step K   kill -9 of the last rank once the log has reached step K; exit code 0 if all processes then end by themselves
Standard output has a line WHAT|NUMBERS for each result. Speed: images of the logged steps after the first 20 by the time at which their lines
appeared, so evaluations and checkpoints count; and the median of the logged speeds. Memory: of all processes of the run, pages that several of
them share counted once (Pss); files are pages of the page cache that are mapped. Without --kill-at-step the exit code is that of the run."""
import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time


def descendants(pid):
    """Processes that PID has started, and those that they have started, in the order of their numbers."""
    parent = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent[int(name)] = int(open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[1])
        except OSError:
            pass  # it has ended
    found = [pid]
    for ancestor in found:
        found += sorted(child for child in parent if parent[child] == ancestor)
    return found[1:]


def memory_of(pids):
    """MiB of the processes' own pages and of mapped files."""
    own = files = 0
    for pid in pids:
        try:
            pages = dict(re.findall(r"^(Pss\w*): +(\d+) kB", open(f"/proc/{pid}/smaps_rollup").read(), re.M))
        except OSError:
            continue
        files += int(pages.get("Pss_File", 0))
        own += int(pages.get("Pss", 0)) - int(pages.get("Pss_File", 0))
    return own / 1024, files / 1024


class Log:
    """The lines of log.jsonl with the time at which each of them was seen."""

    def __init__(self, path):
        self.path, self.lines, self.at = path, [], 0

    def read(self):
        try:
            with open(self.path, "rb") as file:
                file.seek(self.at)
                text = file.read()
        except OSError:
            return
        whole = text[:text.rfind(b"\n") + 1]
        self.at += len(whole)
        self.lines += [dict(json.loads(line), seen=time.time()) for line in whole.splitlines()]

    def of(self, event):
        return [line for line in self.lines if line["event"] == event]


def speed(log, per_step):
    steps = [t for t in log.of("train") if t["step"] > 20] or log.of("train")
    if len(steps) < 2:
        return
    whole = (steps[-1]["step"] - steps[0]["step"]) * per_step / max(steps[-1]["seen"] - steps[0]["seen"], 1e-9)
    rates = statistics.median(t["images_per_s"] for t in steps)
    print(f"files to weights|{whole:.0f} img/s with evaluations and checkpoints, {steps[-1]['step']} steps; median of the log {rates:.0f} img/s, "
          f"data wait {100 * statistics.median(t['data_wait'] for t in steps):.1f} %")


def pauses(log):
    saves = [s["seconds"] for s in log.of("save")]
    if saves:
        print(f"checkpoints|{len(saves)}, {statistics.median(saves):.2f} s, longest {max(saves):.2f} s")
    times = [b["seen"] - a["seen"] for a, b in zip(log.lines, log.lines[1:]) if b["event"] == "eval"]
    if times:
        print(f"evaluation|{log.of('eval')[-1]['images']} images, {statistics.median(times):.1f} s, {len(times)} times")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--kill-at-step", type=int)
    split = sys.argv.index("--")
    a = parser.parse_args(sys.argv[1:split])
    said = open(a.run + ".txt", "w+")
    start = time.time()
    process = subprocess.Popen(sys.argv[split + 1:], stdout=said, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: (process.terminate(), sys.exit(1)))
    log, peak, killed, stopped, sampled = Log(a.run + "/log.jsonl"), (0, 0), 0, False, 0
    while process.poll() is None:
        log.read()
        train = log.of("train")
        if time.time() - sampled > 2 and train:
            peak, sampled = max(peak, memory_of([process.pid, *descendants(process.pid)])), time.time()
        if a.kill_at_step and not killed and train and train[-1]["step"] >= a.kill_at_step:
            os.kill(descendants(process.pid)[-1], signal.SIGKILL)
            killed = time.time()
        if a.seconds and not stopped and train and time.time() - train[0]["seen"] > a.seconds:
            process.send_signal(signal.SIGINT)
            stopped = True
        time.sleep(0.02)
    log.read()
    said.seek(0)
    text = said.read()
    sys.stderr.write(text)
    if a.kill_at_step:
        messages = re.findall(r".*killed by signal 9.*", text)
        print(f"a rank is killed|the run ends after {time.time() - killed:.1f} s, exit code {process.returncode}: {'; '.join(messages)}")
        sys.exit(not (killed and process.returncode and len(messages) == 1))
    first = re.search(r"time to first step: (.*)", text)
    print(f"start|{first.group(1) if first else 'no step'}; the whole run {time.time() - start:.0f} s")
    per_step = re.search(r"(\d+) images per update", text)
    speed(log, int(per_step.group(1)) if per_step else 0)
    print(f"host memory|{peak[0]:.0f} MiB of all ranks, and {peak[1]:.0f} MiB of mapped files")
    pauses(log)
    sys.exit(process.returncode if not stopped else process.returncode not in (0, 130))


if __name__ == "__main__":
    main()
