"""Documents with one mistake each: test_docs.py must find it, and must find nothing in a good one.

Usage: test_itself.py SERVER_BINARY BENCH_BINARY, from the repository's root.
"""
import pathlib
import subprocess
import sys
import tempfile

BLOCK = "```bash\n{}\n```\n"
GOOD = "# Good\n\n" + BLOCK.format("llmsimulator --port 8080\ncurl localhost:8080/v1/models") + "\n`--port`, [up](#good)\n"
# What is wrong, the document, and the words that must tell of it.
BROKEN = [
    ("a flag that is not", BLOCK.format("llmsimulator --prot 8080"), "--prot"),
    ("a flag of the other program", BLOCK.format("llmsim-bench --journal x"), "--journal"),
    ("a subcommand that is not", BLOCK.format("llmsimulator preset"), "preset"),
    ("a file that is not", BLOCK.format("llmsimulator --models docs/nothing.yml --check"), "nothing.yml"),
    ("a route that is not", BLOCK.format("llmsimulator\ncurl localhost:8080/v1/model"), "404"),
    ("a model that is not", BLOCK.format("llmsim-bench --simulate builtin:models --model mock -n 1"), "mock"),
    ("a failure in the middle", BLOCK.format("false\ntrue"), "exit code 1"),
    ("a failure before a pipe", BLOCK.format("llmsimulator --print-config model | cat"), "exit code 2"),
    ("a block without a language", BLOCK.replace("bash", "").format("curl localhost:1/"), "exit code 7"),
    ("Python", "```python\nimport openai\nopenai.OpenAPI\n```\n", "OpenAPI"),
    ("a fault that is not", "```yaml\nfaults: [stats=503]\n```\n", "stats"),
    ("a compose file that is not", BLOCK.format("docker compose -f docker/compose.yml up -d"), "no file docker/compose.yml"),
    ("a service that is not", BLOCK.format("docker compose -f docker/fleet.yml logs simulator-4"), "no service simulator-4"),
    ("a profile that is not", BLOCK.format("docker compose -f docker/fleet.yml --profile traefik up -d"), "no profile traefik"),
    ("a stage that is not", BLOCK.format("docker build -f docker/Dockerfile --target simulator ."), "no stage simulator"),
    ("a build argument that is not", BLOCK.format("docker build -f docker/Dockerfile --target llm-simulator --build-arg BASE=x ."), "no argument BASE"),
    ("a flag behind an image", BLOCK.format("docker run --rm llm-simulator --model x.yml"), "no flag --model"),
    ("a kustomization that is not", BLOCK.format("kubectl apply -k deploy/kubernetes/all"), "deploy/kubernetes/all"),
    ("a resource that is not", BLOCK.format("kubectl -n llmsim logs job/bench"), "no job/bench"),
    ("a package that is not", BLOCK.format("cargo test -p llmsim-core"), "no package llmsim-core"),
    ("a module that is not", BLOCK.format("cargo test -p llmsim-engine --test it planner::"), "no module planner::"),
    ("a link to nothing", "[x](nothing.md)\n", "nothing.md"),
    ("a link to no heading", "# One\n\n[x](#two)\n", "#two"),
    ("a file in the text", "See `sim/planner.rs`.\n", "no sim/planner.rs"),
    ("an indented block", "Do\n\n    curl localhost:1/\n", "exit code 7"),
    ("a subcommand of the measurements", "Do\n\n    target/release/llmsim-perf everything\n", "everything"),
    ("a flag in the text", "Say `llmsimulator --prot 1`.\n", "--prot"),
]
passed, failed = 0, 0
with tempfile.TemporaryDirectory() as box:
    for title, text, words in [("nothing", GOOD, None), *BROKEN]:
        document = pathlib.Path(box, "document.md")
        document.write_text(text)
        command = [sys.executable, "tests/docs/test_docs.py", *sys.argv[1:3], str(document)]
        done = subprocess.run(command, capture_output=True, text=True)
        told = [line for line in done.stdout.splitlines() if line.startswith("failed:")]
        good = (done.returncode == 0) if words is None else (done.returncode == 1 and len(told) == 1 and words in done.stdout)
        passed, failed = passed + good, failed + (not good)
        if not good:
            print(f"FAIL the test of the documents, of {title}: {done.stdout}{done.stderr}")
print(f"mistakes in documents are found: {passed} passed, {failed} failed")
sys.exit(1 if failed else 0)
