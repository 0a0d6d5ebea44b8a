"""Runs the shell blocks of the documents, each document in a folder of its own.

Usage: test_docs.py SERVER_BINARY BENCH_BINARY [FILE.md...], from the repository's root.

A block is fenced as `bash` or `sh`, or as nothing, or indented, and begins with a program. It runs as one script
that stops at the first failure; a server that it starts stays for the blocks behind it. A block
fenced as `python` runs too, with OpenAI's client. A block behind `<!-- not run: REASON -->` is not
run, and its reason is printed.

Beside the blocks: links between the documents lead somewhere, every file that a document names
exists, every flag is one of its program's, the manual names every flag and variable, docs/schema.md
and docs/faults.md every key of the schemas, and examples of faults are taken by the program. (Other
YAML is tests/schema's.)
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
OURS = ("llmsimulator", "llmsim-bench", "llmsim-perf", "cargo")
STAND_INS = ("llmsimulator", "llmsim-bench", "llmsim-perf", "cargo", "curl", "docker", "kubectl", "litellm", "vllm-router", "sglang-router", "nginx", "haproxy")
LONGEST = 180  # seconds for a block
# Flags of other programs that a document names alone.
FOREIGN = {
    # vLLM's server; vLLM's client, whose flags ours takes without telling.
    "docs/bench.md": {"--enable-per-request-metrics", "--tokenizer", "--trust-remote-code"},
    "docs/docker.md": {"--profile", "--locked"},
}
MODELS = "models: [{name: qwen-mock, engine: scheduler, hardware: h100-sxm, model: llama-3.1-8b, max_model_len: 8192}]"
# What a document takes for granted: files of the reader's own.
GIVEN = {
    "docs/cost-model.md": {
        "models.yml": "models: [{name: Qwen/Qwen3-14B, engine: scheduler, hardware: h100-sxm, model: qwen3-14b, max_model_len: 8192}]\n"
    },
}
passed, failed, left = 0, [], []


def blocks(text):
    """(line, reason not to run it, language, text) of each block."""
    lines = text.split("\n")
    at, reason = 0, None
    while at < len(lines):
        line = lines[at]
        said = re.match(r"<!-- not run: (.+?) -->", line.strip())
        if said:
            reason = said.group(1)
        fence = re.match(r"^( *)```(\w*)", line)
        # Markdown's other way.
        indented = re.match(r"    \S", line) and (at == 0 or not lines[at - 1].strip())
        if not fence and not indented:
            if line.strip() and not said:
                reason = None
            at += 1
            continue
        if fence:
            end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
            body = lines[at + 1 : end]
        else:
            end = next((i for i in range(at, len(lines)) if not lines[i].startswith("    ")), len(lines))
            body = [text[4:] for text in lines[at:end]]
        first = body[0].split()[0] if body and body[0].split() else ""
        language = fence.group(2) if fence else ""
        if not language and (first in OURS or first.startswith("target/release/") or re.fullmatch(r"[a-z]\w*", first) and shutil.which(first)):
            language = "bash"
        yield at + 1, reason, "bash" if language == "sh" else language, "\n".join(body)
        reason = None
        at = end + 1


def prepare(box, document):
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
    for name, text in GIVEN.get(str(document), {}).items():
        (box / name).write_text(text)
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
    shims = prepare(box, document)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LLM_SIM_")} | {
        "PATH": f"{shims}:{os.environ['PATH']}",
        "DOCS_TEST_HOME": str(box),
        "DOCS_TEST_SERVER": SERVER,
        "DOCS_TEST_BENCH": BENCH,
        "DOCS_TEST_REPOSITORY": str(REPOSITORY),
        "NO_PROXY": "*",
    }
    try:
        for line, reason, language, script in blocks(text):
            title = f"{document}:{line}"
            command = ["bash", "-euo", "pipefail", "-c", script]
            if language == "python":
                command = [sys.executable, "-c", script]
            elif language == "yaml" and re.search(r"^(faults|rules|timeline):", script, re.M) and "models:" not in script:
                rest = script.startswith("faults:") or "\nfaults:" in script
                (box / ".example.yml").write_text(f"{script}\n{MODELS}" if rest else script)
                command = [SERVER, "--models" if rest else "--faults", box / ".example.yml", "--check"]
            elif language != "bash":
                continue
            if reason:
                left.append(f"{title}: {reason}")
                continue
            began = time.monotonic()
            try:
                done = subprocess.run(
                    command, cwd=box, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONGEST,
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


def help_of(program):
    """The help of a program and of its subcommands, in one."""
    told = lambda *words: subprocess.run([program, *words, "--help"], capture_output=True, text=True, check=True).stdout
    text = told()
    commands = re.search(r"^Commands:\n((?:  .*\n)+)", text, re.M)
    names = re.findall(r"^  ([\w-]+)", commands.group(1), re.M) if commands else []
    # One that is hidden, and told of in docs/bench.md.
    names += ["reference"] if program == BENCH else []
    return text + "".join(told(name) for name in names if name != "help")


def tell(good, mistake):
    global passed
    if good:
        passed += 1
    else:
        failed.append(mistake)
        print("FAIL", mistake, flush=True)


FLAGS = {}
PERF = pathlib.Path(SERVER).with_name("llmsim-perf")
for program in (SERVER, BENCH, *([str(PERF)] if PERF.exists() else [])):
    text = help_of(program)
    FLAGS[program] = set(re.findall(r"^ +(?:-\w, )?(--[a-z][a-z-]+)", text, re.M))
    # Other names, too: `[alias: --x]`, `[aliases: --x, --y]`.
    FLAGS[program] |= {name for names in re.findall(r"\[alias(?:es)?: ([^\]]+)\]", text) for name in names.split(", ")}
    FLAGS[program] |= set(re.findall(r"\bLLM_SIM_[A-Z_]+", text))


def the_manual_names_every_flag_and_variable_and_no_other():
    manual = pathlib.Path("docs/manual.md").read_text()
    for program in (SERVER, BENCH):
        names = FLAGS[program]
        for name in sorted(names - {"--help", "--version"}):
            tell(re.search(rf"{name}(?![\w-])", manual), f"docs/manual.md lacks {name} of {pathlib.Path(program).name}")
    rows = re.findall(r"^\| `(--[a-z-]+)", manual, re.M)
    for row in sorted(set(rows)):
        tell(rows.count(row) == 1, f"docs/manual.md has {rows.count(row)} rows for {row}")


def keys_of(schema):
    """The keys of all mappings that a JSON Schema describes, but for those that are fault words."""
    if isinstance(schema, dict):
        for name, inner in schema.get("properties", {}).items():
            yield name
            yield from keys_of(inner)
        for name, inner in schema.items():
            if name != "properties":
                yield from keys_of(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from keys_of(inner)


def the_documents_of_the_files_name_every_key():
    documents = pathlib.Path("docs/schema.md").read_text() + pathlib.Path("docs/faults.md").read_text()
    for kind in ("models", "responses"):
        printed = subprocess.run([SERVER, "--print-schema", kind], capture_output=True, text=True, check=True).stdout
        for key in sorted(set(keys_of(json.loads(printed)))):
            tell(re.search(rf"(?<!\w){re.escape(key)}(?!\w)", documents), f"docs/schema.md and docs/faults.md lack the key {key} of {kind} files")


def the_flags_that_it_names_exist(document):
    """In running text and tables; what is in blocks is run. A foreign flag stands behind its program."""
    if not PERF.exists():
        return
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.S)
    if document.name == "migrating.md":
        # What is elsewhere stands in the first column.
        text = re.sub(r"^\|.*?[^\\]\|", "", text, flags=re.M)
    programs = {"llmsimulator": SERVER, "llmsim-bench": BENCH, "llmsim-perf": str(PERF)}
    for code in re.findall(r"`([^`\n]+)`", text):
        program = code.split()[0]
        if program.startswith("-") or program in programs:
            names = FLAGS[programs[program]] if program in programs else set().union(*FLAGS.values())
            for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", code):
                tell(flag in names | FOREIGN.get(str(document), set()), f"{document}: `{code}`: there is no {flag}")


# Files that are the reader's.
YOURS = {"config.json", "config.toml", "tokenizer.json", "tokenizer_config.json"}
TRACKED = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split()
PLACES = {f"/{name}" for name in TRACKED} | {f"/{folder}/" for name in TRACKED for folder in pathlib.Path(name).parents}


def the_files_that_it_names_exist(document):
    """Whole, or from any folder on: `sim/journal.rs` and `journal.rs` are both in engine/src/sim/."""
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.S)
    for code in re.findall(r"`([\w./{},-]+(?:\.(?:rs|md|ya?ml|json|csv|toml|py|sh|txt|cfg|conf)|/))`", text):
        either = re.search(r"\{([^}]*)\}", code)
        for path in [code.replace(either.group(0), name) for name in either.group(1).split(",")] if either else [code]:
            if path not in YOURS and not path.startswith(("/", "target/")):
                tell(any(place.endswith(f"/{path}") for place in PLACES), f"{document}: there is no {path}")


if not sys.argv[3:]:
    the_manual_names_every_flag_and_variable_and_no_other()
    the_documents_of_the_files_name_every_key()
for document in DOCUMENTS:
    links(document)
    the_flags_that_it_names_exist(document)
    the_files_that_it_names_exist(document)
    run(document)
for note in left:
    print("not run:", note)
for title in failed:
    print("failed:", title)
print(f"{passed} passed, {len(failed)} failed")
sys.exit(1 if failed else 0)
