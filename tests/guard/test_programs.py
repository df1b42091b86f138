"""Compares what `cresnet plan` prints for every shipped config with what is kept (programs.py). A wanted change is accepted by
scripts/accept-programs.sh, which shows it.

  test_programs.py [--quick]     --quick leaves out GPUs of 8.0 and the memory limits of 9.0, which take two minutes; they are counted as skipped"""
import difflib
import itertools
import sys

import programs
import rekey_times

SHOWN_CASES, SHOWN_LINES = 3, 40


def differences(kept_programs, kept_plans, now):
    """[(case, lines that show the difference)]"""
    found = []
    for case in kept_plans.keys() | now.keys():
        if case not in now:
            found.append((case, ["the config no longer exists"]))
        elif case not in kept_plans:
            found.append((case, ["the config is new"]))
        else:
            program, plan = now[case]
            lines = []
            if not programs.same(kept_programs[case], program):
                lines = list(difflib.unified_diff([" ".join(l.split()) for l in kept_programs[case].splitlines()],
                                                  [" ".join(l.split()) for l in program.splitlines()], "kept", "now", "", "", 0, ""))
            if kept_plans[case] != plan:
                lines += [f"- plan {kept_plans[case]}", f"+ plan {plan}"]
            if lines:
                found.append((case, lines))
    return sorted(found)


def show(device, found, cases, lines):
    for case, text in itertools.islice(found, cases):
        print(f"{device}: {case}:")
        print("".join(f"    {line}\n" for line in itertools.islice(text, lines)), end="")
        if len(text) > lines:
            print(f"    ... {len(text) - lines} more lines")
    if len(found) > cases:
        print(f"{device}: {len(found) - cases} more: {', '.join(case for case, _ in found[cases:])}")


def main():
    cresnet = programs.cresnet_path()
    plans, versions = programs.read_plans()
    use, skipped = programs.usable_devices(cresnet, versions)
    skipped += [(device, "no programs are kept") for device in use if device not in plans]
    total = len(programs.configs()) * len(programs.PROGRAMS) * len(programs.LIMITS)
    quick = "--quick" in sys.argv[1:]
    if quick and "cuda-8.0" in use:
        use.remove("cuda-8.0")
        skipped.append(("cuda-8.0", "--quick"))
    rekey_times.self_test()
    passed, failed, not_run = 1, 0, total * len(skipped)
    for device, why in skipped:
        print(f"skipped: {total} programs of {device}: {why}")
    for device in (device for device in use if device in plans):
        kept = plans[device]
        limits = ("whole",) if quick and device.startswith("cuda-9.0") else programs.LIMITS
        if limits != programs.LIMITS:
            kept = {case: plan for case, plan in kept.items() if case.endswith(" whole")}
            not_run += total // 2
            print(f"skipped: {total // 2} programs of {device} with a memory limit: --quick")
        now = programs.print_programs(cresnet, device, kept, limits)
        found = differences(programs.read_kept(device), kept, now)
        show(device, found, SHOWN_CASES, SHOWN_LINES)
        failed += len(found)
        passed += len(now.keys() | kept.keys()) - len(found)
    if failed:
        print("A wanted change is accepted by scripts/accept-programs.sh, which shows all of it; new names go into tests/guard/renames.txt.")
    print(f"{passed} passed, {failed} failed, {not_run} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
