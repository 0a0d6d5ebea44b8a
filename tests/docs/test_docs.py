"""Runs the shell blocks of the documents, each document in a folder of its own.

Usage: test_docs.py SERVER_BINARY BENCH_BINARY [FILE.md...], from the repository's root.

A block is fenced as `bash` or `sh`, or begins with one of our programs. It runs as one script that
stops at the first failure; a server that it starts stays for the blocks behind it. A block behind
`<!-- not run: REASON -->` is not run, and its reason is printed. Links between the documents are
looked up as well.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

REPOSITORY = pathlib.Path.cwd()
SERVER, BENCH = sys.argv[1:3]
DOCUMENTS = [pathlib.Path(name) for name in sys.argv[3:]] or [
    pathlib.Path(name)
    for name in subprocess.run(["git", "ls-files", "*.md"], capture_output=True, text=True, check=True).stdout.split()
    if name in ("README.md", "CONTRIBUTING.md") or name.startswith("docs/")
]
OURS = ("llmsimulator", "llmsim-bench", "cargo")
STAND_INS = ("llmsimulator", "llmsim-bench", "cargo", "docker", "kubectl", "litellm", "vllm-router", "sglang-router", "nginx", "haproxy")
LONGEST = 180  # seconds for a block
passed, failed, left = 0, [], []


def blocks(text):
    """(line, reason not to run it, script) of each block of commands."""
    lines = text.split("\n")
    at, reason = 0, None
    while at < len(lines):
        line = lines[at]
        said = re.match(r"<!-- not run: (.+?) -->", line.strip())
        if said:
            reason = said.group(1)
        fence = re.match(r"^\s*```(\w*)", line)
        if not fence:
            if line.strip() and not said:
                reason = None
            at += 1
            continue
        end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
        body = lines[at + 1 : end]
        first = body[0].split()[0] if body and body[0].split() else ""
        if fence.group(1) in ("bash", "sh") or (not fence.group(1) and first in OURS):
            yield at + 1, reason, "\n".join(body)
        reason = None
        at = end + 1


def prepare(box):
    """A folder that looks like the repository, with stand-ins for programs."""
    for entry in subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split():
        top = entry.split("/")[0]
        if not (box / top).exists():
            (box / top).symlink_to(REPOSITORY / top)
    shims = box / ".stand-ins"
    shims.mkdir()
    for name in STAND_INS:
        shutil.copy(REPOSITORY / "tests/docs/shim", shims / name)
    (box / "target").mkdir()
    (box / "target/release").symlink_to(shims)
    return shims


def stop_servers(box):
    for place in box.glob("server-*.json"):
        pid = json.loads(place.read_text())["pid"]
        try:
            os.kill(pid, signal.SIGTERM)
            for _ in range(100):
                os.kill(pid, 0)
                time.sleep(0.05)
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def run(document):
    global passed
    text = document.read_text()
    box = pathlib.Path(tempfile.mkdtemp(prefix="llmsim-docs-"))
    shims = prepare(box)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LLM_SIM_")} | {
        "PATH": f"{shims}:{os.environ['PATH']}",
        "DOCS_TEST_HOME": str(box),
        "DOCS_TEST_SERVER": SERVER,
        "DOCS_TEST_BENCH": BENCH,
        "DOCS_TEST_REPOSITORY": str(REPOSITORY),
        "NO_PROXY": "*",
    }
    try:
        for line, reason, script in blocks(text):
            title = f"{document}:{line}"
            if reason:
                left.append(f"{title}: {reason}")
                continue
            began = time.monotonic()
            try:
                done = subprocess.run(
                    ["bash", "-euo", "pipefail", "-c", script], cwd=box, env=environment, stdin=subprocess.DEVNULL,
                    capture_output=True, text=True, timeout=LONGEST,
                )
                code, said = done.returncode, done.stdout[-1500:] + done.stderr[-1500:]
            except subprocess.TimeoutExpired as late:
                code, said = "none in time", str(late.stdout or b"")[-1500:] + str(late.stderr or b"")[-1500:]
            if code == 0:
                passed += 1
                print(f"ok   {title} ({time.monotonic() - began:.1f} s)", flush=True)
            else:
                failed.append(title)
                print(f"FAIL {title}: exit code {code}\n{script}\n--\n{said}", flush=True)
        elsewhere = box / "elsewhere"
        if elsewhere.exists():
            left.extend(f"{document}: {note}" for note in elsewhere.read_text().splitlines())
    finally:
        stop_servers(box)
        shutil.rmtree(box, ignore_errors=True)


def anchors(path):
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-") for heading in headings}


def links(document):
    global passed
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name) if name else document
        good = path.exists() and (not anchor or path.suffix != ".md" or anchor in anchors(path))
        if good:
            passed += 1
        else:
            failed.append(f"{document}: the link {target}")
            print(f"FAIL {document}: nothing is at the link {target}", flush=True)


def flags():
    """The manual names every flag and variable that the programs' help has."""
    global passed
    manual = pathlib.Path("docs/manual.md").read_text()
    for program in (SERVER, BENCH):
        told = lambda *words: subprocess.run([program, *words, "--help"], capture_output=True, text=True, check=True).stdout
        text = told()
        commands = re.search(r"^Commands:\n((?:  .*\n)+)", text, re.M)
        names = re.findall(r"^  (\w+)", commands.group(1), re.M) if commands else []
        for name in names:
            if name != "help":
                text += told(name)
        for word in sorted(set(re.findall(r"^ +(?:-\w, )?(--[a-z][a-z-]+)", text, re.M)) | set(re.findall(r"LLM_SIM_\w+", text))):
            if word in ("--help", "--version") or re.search(rf"{word}(?![\w-])", manual):
                passed += 1
            else:
                failed.append(f"docs/manual.md lacks {word} of {pathlib.Path(program).name}")
                print("FAIL", failed[-1], flush=True)


if not sys.argv[3:]:
    flags()
for document in DOCUMENTS:
    links(document)
    run(document)
for note in left:
    print("not run:", note)
for title in failed:
    print("failed:", title)
print(f"{passed} passed, {len(failed)} failed")
sys.exit(1 if failed else 0)
