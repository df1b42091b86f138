#!/usr/bin/env python3
"""accuracy.py OUT: the accuracy of a run of scripts/mlperf.sh --accuracy.

Compares OUT/mlperf_log_accuracy.json, LoadGen's log of the answers, with OUT/labels.txt, which has a line "label path" for each
sample. An answer is a 32-bit integer, the class. Prints the line of MLPerf's own script: accuracy=76.456%, good=38228, total=50000.
Every sample must have been answered: a sample that is missing is an error. Answers to one sample must agree.
"""
import json
import struct
import sys
from pathlib import Path


def fail(text):
    print(f"accuracy.py: error: {text}", file=sys.stderr)
    return 1


def read_answers(path):
    """{sample: class}"""
    answers = {}
    for entry in json.loads(path.read_text()):
        sample, data = entry["qsl_idx"], bytes.fromhex(entry["data"])
        if len(data) != 4:
            raise ValueError(f"{path}: sample {sample} has {len(data)} bytes instead of 4")
        label = struct.unpack("<i", data)[0]
        if answers.setdefault(sample, label) != label:
            raise ValueError(f"{path}: sample {sample} has the answers {answers[sample]} and {label}")
    return answers


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    out = Path(sys.argv[1])
    try:
        answers = read_answers(out / "mlperf_log_accuracy.json")
        lines = (out / "labels.txt").read_text().splitlines()
    except (OSError, ValueError, KeyError) as error:
        return fail(f"{error}")
    labels = [int(line.split(" ", 1)[0]) for line in lines]
    missing = sorted(set(range(len(labels))) - set(answers))
    foreign = sorted(set(answers) - set(range(len(labels))))
    if missing or foreign:
        return fail(f"{len(missing)} of {len(labels)} samples have no answer, {len(foreign)} answers have no sample: "
                    "was the run made with --accuracy?")
    good = sum(answers[i] == label for i, label in enumerate(labels))
    print(f"accuracy={100 * good / max(1, len(labels)):.3f}%, good={good}, total={len(labels)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
