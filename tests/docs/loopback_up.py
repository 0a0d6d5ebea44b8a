"""Brings the loopback interface up, where there is no `ip`."""
import fcntl
import socket
import struct

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    name = b"lo".ljust(16, b"\0")
    flags = struct.unpack("16sh", fcntl.ioctl(s, SIOCGIFFLAGS, name + bytes(2))[:18])[1]
    fcntl.ioctl(s, SIOCSIFFLAGS, name + struct.pack("h", flags | IFF_UP))
