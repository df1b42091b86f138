"""Keeps what `cresnet plan` prints today, and shows what changes by that: see scripts/accept-programs.sh."""
import argparse
import os
import sys

import programs
import test_programs


def accept(device, cresnet, plans, versions):
    now = programs.print_programs(cresnet, device, plans.get(device, {}))
    broken = [case for case, (_, plan) in now.items() if plan == "none"]
    if broken:
        sys.exit(f"{device}: {broken[0]}: {now[broken[0]][0]}")
    found = test_programs.differences(programs.read_kept(device), plans.get(device, {}), now)
    test_programs.show(device, found, len(found), sys.maxsize)
    print(f"{device}: {len(found)} of {len(now)} programs and plans changed")
    if not found:
        return
    programs.write_kept(device, {case: program for case, (program, _) in now.items()})
    plans[device] = {case: plan for case, (_, plan) in now.items()}
    if library := programs.DEVICES[device][0]:
        versions[device] = programs.versions_of_libraries(cresnet)[library]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--new-library", action="store_true", help="also devices that were kept with another version of oneDNN or cuDNN")
    options = parser.parse_args()
    cresnet = programs.cresnet_path()
    plans, versions = programs.read_plans() if os.path.exists(os.path.join(programs.HERE, "plans.txt")) else ({}, {})
    use, skipped = programs.usable_devices(cresnet, {} if options.new_library else versions)
    for device, why in skipped:
        print(f"{device} stays as it is: {why}")
    for device in use:
        accept(device, cresnet, plans, versions)
    programs.write_plans(plans, versions)


if __name__ == "__main__":
    main()
