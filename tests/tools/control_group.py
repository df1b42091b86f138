"""control_group.py memory MIB | cpu CORES COMMAND...: runs a command in a new control group with a limit, and removes the
group. Exit code of the command; 128 + the signal that ended it; 77 when this process may not make such a group."""
import os
import signal
import sys
import time


def make(controller, limit):
    """The folder of a new group below the group of this process, in a hierarchy that has the controller; None without."""
    for line in open("/proc/self/mountinfo"):
        fields, kind = line.split(" - ")[0].split(), line.split(" - ")[1].split()
        unified = kind[0] == "cgroup2"
        if not unified and (kind[0] != "cgroup" or controller not in kind[2].split(",")):
            continue
        for group in open("/proc/self/cgroup"):
            number, names, path = group.rstrip("\n").split(":", 2)
            if (number == "0" if unified else controller in names.split(",")) and path.startswith(fields[3]):
                break
        else:
            continue
        folder = fields[4] + "/" + path[len(fields[3]):] + f"/cresnet-test-{os.getpid()}"
        files = {("memory", False): "memory.limit_in_bytes", ("memory", True): "memory.max",
                 ("cpu", False): "cpu.cfs_quota_us", ("cpu", True): "cpu.max"}
        try:
            os.mkdir(folder)
        except OSError:
            continue
        try:
            with open(f"{folder}/{files[controller, unified]}", "r+") as file:
                file.write(str(int(limit) << 20 if controller == "memory" else int(float(limit) * 100000)))
            return folder
        except OSError:
            os.rmdir(folder)
    return None


group = make(sys.argv[1], sys.argv[2])
if not group:
    sys.exit(77)
child = os.fork()
if child == 0:
    with open(group + "/cgroup.procs", "w") as procs:
        procs.write("0")
    os.execvp(sys.argv[3], sys.argv[3:])
signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))  # a test that takes too long
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
for _ in range(100):  # the group stays for a moment after its last process
    try:
        os.rmdir(group)
        break
    except OSError:
        time.sleep(0.05)
sys.exit(code if code >= 0 else 128 - code)
