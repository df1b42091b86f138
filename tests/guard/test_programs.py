"""Compares what `cresnet plan` prints for every shipped config with what is kept (programs.py). A wanted change is accepted by
scripts/accept-programs.sh, which shows it.

  test_programs.py [--quick]     --quick leaves out, and counts as skipped: GPUs of 8.0, the memory limits of 9.0, and of configs with equal
                                 programs and plans, such as those that differ in epochs, all but the first"""
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


def unneeded(device, plans, texts):
    """The cases that --quick leaves out."""
    seen, skip = set(), set()
    for case, plan in plans.items():
        same = (*case.split()[1:], texts[case], plan)
        if same in seen or device == "cuda-8.0" or (device.startswith("cuda-9.0") and case.endswith(" limit")):
            skip.add(case)
        seen.add(same)
    return skip


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
    rekey_times.self_test()
    passed, failed, not_run = 1, 0, total * len(skipped)
    for device, why in skipped:
        print(f"skipped: {total} programs of {device}: {why}")
    for device in (device for device in use if device in plans):
        kept, texts = plans[device], programs.read_kept(device)
        skip = unneeded(device, kept, texts) if quick else set()
        if skip:
            not_run += len(skip)
            print(f"skipped: {len(skip)} programs of {device}: --quick")
        now = programs.print_programs(cresnet, device, kept, skip)
        kept = {case: plan for case, plan in kept.items() if case not in skip}
        found = differences(texts, kept, now)
        show(device, found, SHOWN_CASES, SHOWN_LINES)
        failed += len(found)
        passed += len(now.keys() | kept.keys()) - len(found)
    if failed:
        print("A wanted change is accepted by scripts/accept-programs.sh, which shows all of it; new names go into tests/guard/renames.txt.")
    print(f"{passed} passed, {failed} failed, {not_run} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
