"""The verdict under a processor hog: good, then bad with the reason, then good again; told once each.

Burns every processor for a few seconds. No time is asserted: only that the verdict follows, within
a minute, whatever machine this is.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from test_prometheus import HERE, check, free_port, get, results, wait_for

STREAMS = 8


def keep_streaming(base, stop):
    body = {"model": "paced", "messages": [{"role": "user", "content": "Hello"}], "stream": True, "max_tokens": 400}
    while not stop.is_set():
        request = urllib.request.Request(base + "/v1/chat/completions", json.dumps(body).encode())
        with urllib.request.urlopen(request) as answer:
            while answer.read(4096):
                pass


def verdict(base):
    text = get(base + "/metrics")[1]
    ok = re.search(r"^llm_sim_fidelity_ok (\S+)", text, re.M)
    reasons = re.findall(r'^llm_sim_fidelity_reason\{reason="(\w+)"\} 1(?:\.0)?$', text, re.M)
    return float(ok[1]) == 1, reasons


def wait_until(base, wanted, seconds=60):
    """Until the verdict is as wanted; and the reasons that were seen on the way."""
    seen, end = set(), time.monotonic() + seconds
    while time.monotonic() < end:
        ok, reasons = verdict(base)
        seen.update(reasons)
        if ok == wanted:
            return True, seen
        time.sleep(0.5)
    return False, seen


def hog():
    """One program that does nothing but use a processor."""
    return subprocess.Popen([sys.executable, "-c", "while True: pass"])


def main(server):
    log_path = tempfile.mkstemp(prefix="llmsim-verdict-")[1]
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    with open(log_path, "w") as log:
        process = subprocess.Popen(
            [server, "--host", "127.0.0.1", "--port", str(port), "--models", f"{HERE}/models.yml",
             "--responses", "builtin:bench-responses", "--fidelity-window", "3s", "--fidelity-lag", "5ms"], stderr=log)
    hogs, stop, threads = [], threading.Event(), []
    try:
        wait_for(base + "/health")
        threads = [threading.Thread(target=keep_streaming, args=(base, stop)) for _ in range(STREAMS)]
        for thread in threads:
            thread.start()
        good, _ = wait_until(base, True)
        check("the verdict is good to begin with", good)
        hogs = [hog() for _ in range(6 * len(os.sched_getaffinity(0)))]
        bad, seen = wait_until(base, False)
        time.sleep(2)
        seen.update(verdict(base)[1])
        check("it turns bad when a hog starves the server", bad)
        check("and says that the processors are taken", "cpu_starved" in seen, seen)
        for program in hogs:
            program.kill()
            program.wait()
        hogs = []
        good, _ = wait_until(base, True)
        check("it is good again when the hog is gone", good)
    finally:
        for program in hogs:
            program.kill()
        stop.set()
        for thread in threads:
            thread.join()
        process.terminate()
        process.wait()
    with open(log_path) as log:
        lines = [line.strip() for line in log if "timeline" in line]
    os.unlink(log_path)
    print("\n".join(lines))
    turns = ["NOT" in line for line in lines]
    check("the log tells each turn once", turns[:1] == [True] and all(a != b for a, b in zip(turns, turns[1:])), lines)
    print(f"{results['passed']} passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
