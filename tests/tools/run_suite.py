#!/usr/bin/env python3
"""run_suite.py: runs the tests of a build folder where there is no CTest, in parallel and the longest first.

    run_suite.py tests.json LOGS [--jobs N] [--seconds S] [--each S] [--only REGEX] [--without REGEX]
                 [--shards N] [--cases REGEX] [--last REGEX] [--times CTestCostData.txt]

tests.json is what `ctest --show-only=json-v1` prints; CTestCostData.txt has the seconds of tests in an earlier run of CTest. LOGS is a
folder for the output of each test. Tests still run or wait after S seconds in all are counted as not finished.
--shards: test_checkops runs as N tests. --cases: these programs run as one test for each case. --last: these start after all others.
Ends with the tests that failed or did not finish, and "N passed, N failed, N skipped". Exit code 0: all passed."""
import argparse
import concurrent.futures
import glob
import json
import os
import re
import signal
import subprocess
import time

SUM = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped", re.M)


def read_tests(path):
    tests = []
    for test in json.load(open(path))["tests"]:
        if "command" not in test:
            continue
        own = {p["name"]: p["value"] for p in test.get("properties", [])}
        tests.append({"name": test["name"], "command": test["command"], "folder": own.get("WORKING_DIRECTORY", "."),
                      "environment": dict(e.split("=", 1) for e in own.get("ENVIRONMENT", [])),
                      "limit": float(own.get("TIMEOUT", 1200)), "cost": float(own.get("COST", 0))})
    return tests


def case_names(test):
    """The names that select every case of a program once: `program NAME` runs all cases whose name contains NAME."""
    source, = glob.glob(os.path.join(test["environment"]["CRESNET_SOURCE"], "tests", "**", test["name"] + ".c"), recursive=True)
    text = open(source).read()
    names = re.findall(r"^(?:TEST|VARIANT|NET)\((\w+)", text, re.M)
    return [n for n in names if not any(other != n and other in n for other in names)]


def divided(tests, args):
    """Long programs as several tests."""
    seconds = {}
    if args.times:
        seconds = {f[0]: float(f[2]) for f in map(str.split, open(args.times)) if len(f) == 3}
    result = []
    for test in tests:
        parts = [(test["name"], [])]
        if test["name"] == "test_checkops" and args.shards:
            parts = [(f"test_checkops.{i}", ["--device", "cpu", "--shard", f"{i}/{args.shards}"]) for i in range(args.shards)]
        elif re.search(args.cases, test["name"]):
            parts = [(f"{test['name']}.{case}", [case]) for case in case_names(test)]
        for name, arguments in parts:
            cost = seconds.get(test["name"], test["cost"]) / len(parts)
            result.append({**test, "name": name, "command": test["command"] + arguments, "cost": cost})
    return sorted(result, key=lambda t: (bool(re.search(args.last, t["name"])), -t["cost"]))


def run_test(test, args, end):
    """Returns the verdict and the counts of one test."""
    start = time.monotonic()
    limit = min(args.each or test["limit"], end - start)
    test["seconds"] = 0.0
    if limit <= 1:
        return "not started", (0, 0, 0)
    log = os.path.join(args.logs, test["name"] + ".txt")
    with open(log, "w") as out:
        process = subprocess.Popen(test["command"], cwd=test["folder"], env={**os.environ, **test["environment"]}, stdin=subprocess.DEVNULL,
                                   stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        try:
            os.killpg(process.pid, signal.SIGKILL)  # also what a test left running
        except ProcessLookupError:
            pass
        process.wait()
    test["seconds"] = time.monotonic() - start
    found = SUM.findall(open(log, errors="replace").read())
    passed, failed, skipped = map(int, found[-1]) if found else (0, 0, 0)
    if code is None:
        return f"not finished in {limit:.0f} s", (0, 0, 0)
    if code == 77:
        return "skipped", (0, 0, max(skipped, 1))
    if code != 0:
        return f"failed, exit code {code}", (passed, max(failed, 1), skipped)
    return "passed", (passed, failed, skipped) if found else (1, 0, 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tests")
    parser.add_argument("logs")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--each", type=float, default=0)
    parser.add_argument("--shards", type=int, default=0)
    parser.add_argument("--times")
    parser.add_argument("--only", default="")
    for name in ("--without", "--cases", "--last"):
        parser.add_argument(name, default="^$")
    args = parser.parse_args()
    os.makedirs(args.logs, exist_ok=True)
    tests = [t for t in divided(read_tests(args.tests), args) if re.search(args.only, t["name"]) and not re.search(args.without, t["name"])]
    end = time.monotonic() + args.seconds
    sums, bad = [0, 0, 0], []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        futures = {pool.submit(run_test, test, args, end): test for test in tests}
        for future in concurrent.futures.as_completed(futures):
            verdict, counts = future.result()
            test = futures[future]
            print(f"{test['seconds']:7.1f} s  {test['name']}: {verdict}", flush=True)
            sums = [a + b for a, b in zip(sums, counts)]
            if not verdict.startswith(("passed", "skipped")):
                bad.append(f"{test['name']}: {verdict}")
    print(f"{len(tests)} tests, {len(bad)} of them failed or did not finish", *sorted(bad), sep="\n  ")
    print("{} passed, {} failed, {} skipped".format(*sums))
    return 1 if bad else 0


raise SystemExit(main())
