"""cable.py NAMESPACE_A ADDRESS_A NAMESPACE_B ADDRESS_B: a network cable between two network namespaces.

Creates a point-to-point interface `cable` in each namespace and passes packets on. Lines on standard input change the cable:
  delay SECONDS    every packet arrives later
  loss FRACTION    this fraction of the packets is lost, by random numbers of a fixed seed
  down, up         no packet arrives; again all
Prints "ready" when the interfaces exist, and "ok" after each line. Ends when standard input ends. Needs root and /dev/net/tun.
(tc netem does the same in the kernel, but many kernels are built without it.)
"""
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI, CLONE_NEWNET, MTU = 0x400454CA, 0x0001, 0x1000, 0x40000000, 1500


def enter(path):
    handle = os.open(path, os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(handle, CLONE_NEWNET) != 0:
        sys.exit(f"cable.py: {path}: {os.strerror(ctypes.get_errno())}")
    os.close(handle)


def end_of_cable(namespace, address, peer):
    enter(f"/run/netns/{namespace}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22s", b"cable", IFF_TUN | IFF_NO_PI, b""))
    for command in (f"addr add {address} peer {peer} dev cable", f"link set cable mtu {MTU} up", "link set lo up"):
        subprocess.run(["ip", *command.split()], check=True)
    return device


def main():
    name_a, address_a, name_b, address_b = sys.argv[1:5]
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    ends = [end_of_cable(name_a, address_a, address_b), end_of_cable(name_b, address_b, address_a)]
    enter(f"/proc/self/fd/{home}")  # whoever kills all processes of a host spares the cable
    print("ready", flush=True)
    delay, loss, down, waiting, count = 0.0, 0.0, False, [], 0
    chance = random.Random(1)
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select([*ends, sys.stdin], [], [], timeout)
        for device in readable:
            if device is sys.stdin:
                words = sys.stdin.readline().split()
                if not words:
                    return
                if words[0] == "delay":
                    delay = float(words[1])
                elif words[0] == "loss":
                    loss = float(words[1])
                else:
                    down = words[0] == "down"
                print("ok", flush=True)
                continue
            packet = os.read(device, MTU + 64)
            if down or chance.random() < loss:
                continue
            count += 1
            heapq.heappush(waiting, (time.monotonic() + delay, count, ends[1] if device == ends[0] else ends[0], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, target, packet = heapq.heappop(waiting)
            try:
                os.write(target, packet)
            except OSError:
                pass  # a full queue loses packets, as a real one does


main()
