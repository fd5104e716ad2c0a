"""The other side of `harness.workload.tasks.sandbox`: confines its own process and runs the program there.

Runs alone, without this package: reads one JSON object from standard input and writes one to standard output.
"""

import json
import os
import resource
import sys

REFUSED = (
    *("socket.", "subprocess.", "shutil.", "os.", "ctypes.", "pty.", "urllib.", "webbrowser.", "syslog.", "fcntl."),
    "sqlite3.",
)
"""Beginnings of the audit events that a program may not raise (Python's table of audit events)."""
UNSEEN = ("mkfifo", "mknod")
"""Functions of os that make files and raise no event."""
ALLOWED = ("os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.putenv", "os.unsetenv", "os.add_dll_directory")
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000


def confine(cpu_s, memory_bytes):
    """Set every limit that the system has; returns the names of the others."""
    missing = []
    limits = {
        "CPU": cpu_s,
        "AS": memory_bytes,
        "FSIZE": 0,
        "CORE": 0,
    }
    for name, value in limits.items():
        try:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
        except (AttributeError, ValueError, OSError):
            missing.append({"AS": "memory"}.get(name, name.lower()))
    if not leave_network():
        missing.append("network namespace")
    return missing


def leave_network():
    """Whether the process has a network of its own from here on, which leads nowhere."""
    import ctypes

    try:
        return ctypes.CDLL(None, use_errno=True).unshare(NEW_USER | NEW_NETWORK) == 0
    except (AttributeError, OSError):
        return False


def refuse(event, arguments):
    """Audit hook: raises where a program reaches out of its process."""
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    is_write = event == "open" and isinstance(arguments[2], int) and arguments[2] & writes
    if is_write or (event.startswith(REFUSED) and event not in ALLOWED):
        raise PermissionError(f"refused: {event}")


def main():
    given = json.load(sys.stdin)
    not_confined = confine(given["cpu_s"], given["memory_bytes"])
    told = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    for module, name in ((module, name) for module in (os, sys.modules[os.name]) for name in UNSEEN):
        # one of them is not there on every system
        module.__dict__.pop(name, None)
    sys.addaudithook(refuse)
    error = ""
    try:
        exec(compile(given["source"], "answer", "exec"), {"__name__": "answer"})
    except BaseException as found:
        error = type(found).__name__
    os.write(told, json.dumps({"token": given["token"], "error": error, "not_confined": not_confined}).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
