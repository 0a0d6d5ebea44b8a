"""Runs a program under a Docker seccomp profile, as a container's runtime would.

Usage: /usr/bin/python3 under_seccomp.py PROFILE [--without NAME_PREFIX] COMMAND...
Needs Debian's package python3-seccomp. Names that this kernel or libseccomp does not know are
skipped, as Docker does.
"""
import json
import os
import sys

import seccomp

profile_path, *command = sys.argv[1:]
without = None
if command[0] == "--without":
    without, command = command[1], command[2:]
profile = json.load(open(profile_path))
assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
filter_ = seccomp.SyscallFilter(seccomp.ERRNO(profile["defaultErrnoRet"]))
operators = {"SCMP_CMP_EQ": seccomp.EQ, "SCMP_CMP_MASKED_EQ": seccomp.MASKED_EQ}
actions = {"SCMP_ACT_ALLOW": lambda rule: seccomp.ALLOW, "SCMP_ACT_ERRNO": lambda rule: seccomp.ERRNO(rule["errnoRet"])}
for rule in profile["syscalls"]:
    arguments = []
    for a in rule.get("args", []):
        values = [a["value"]]
        if a["op"] == "SCMP_CMP_MASKED_EQ":
            values.append(a["valueTwo"])
        arguments.append(seccomp.Arg(a["index"], operators[a["op"]], *values))
    for name in rule["names"]:
        if without and name.startswith(without):
            continue
        try:
            number = seccomp.resolve_syscall(seccomp.Arch(), name)
        except ValueError:
            number = -1
        if number >= 0:
            filter_.add_rule(actions[rule["action"]](rule), name, *arguments)
filter_.load()
os.execv(command[0], command)
