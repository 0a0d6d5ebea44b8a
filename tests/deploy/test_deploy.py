"""docker/ and deploy/ as far as they can be tried without a container engine or a cluster.

Usage: test_deploy.py SERVER_BINARY BENCH_BINARY, from the repository's root (tests/deploy/run does it).
"""
import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request

import yaml

SERVER, BENCH = (str(pathlib.Path(p).resolve()) for p in sys.argv[1:3])
BIN = pathlib.Path(sys.executable).parent
ROOT = pathlib.Path.cwd()
os.environ["PATH"] += ":/usr/sbin"
COMPOSE_FILES = ["docker/docker-compose.yml", "docker/fleet.yml"]


def run(*command, **options):
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, timeout=120, **options
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def interpolate(text, variables):
    """`${NAME:-default}` and `${NAME:+replacement}`, as Compose reads them."""

    def value(match):
        name, sign, word = match.groups()
        given = variables.get(name, "")
        return (given or word) if sign == "-" else (word if given else "")

    return re.sub(r"\$\{(\w+):([-+])([^}]*)\}", value, text)


def compose(path, **variables):
    text = interpolate(pathlib.Path(path).read_text(), variables)
    assert "${" not in text, "a variable without a default"
    return yaml.safe_load(text)


@contextlib.contextmanager
def served(command, **options):
    """A server started by `command`; gives the port that it chose and what it logged."""
    with tempfile.NamedTemporaryFile("r", suffix=".log") as log:
        process = subprocess.Popen(command, stderr=open(log.name, "w"), **options)
        try:
            port = None
            for _ in range(200):
                found = re.search(r"listening on http://[^ ]*:(\d+)", pathlib.Path(log.name).read_text())
                if found:
                    port = int(found.group(1))
                    break
                assert process.poll() is None, pathlib.Path(log.name).read_text()
                time.sleep(0.05)
            assert port, "the server did not start in 10 s"
            yield port, pathlib.Path(log.name)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0, pathlib.Path(log.name).read_text()


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return answer.read().decode()


def stream(port, model):
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "Hello"}]}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode()
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


def the_dockerfile_has_no_findings():
    run(BIN / "hadolint", "docker/Dockerfile")


def the_build_context_holds_every_workspace_member_whole_and_nothing_else():
    ignore = pathlib.Path("docker/Dockerfile.dockerignore").read_text().split("\n")
    members = re.search(r"^members = (\[.*\])", pathlib.Path("Cargo.toml").read_text(), re.M).group(1)
    for member in json.loads(members) + ["Cargo.toml", "Cargo.lock"]:
        assert f"!{member}" in ignore, f"{member} is not in the build context"
    # Whole, whatever a folder of theirs is called: no pattern takes a part away again.
    assert {line for line in ignore if line and line[0] not in "#!"} == {"*"}, ignore
    # What is compiled in, but for tests, must be in the context, too.
    for source in (path for member in json.loads(members) for path in pathlib.Path(member, "src").rglob("*.rs") if not path.stem.endswith("_test")):
        for name in re.findall(r'include_(?:str|bytes)!\(\s*"([^"]+)"', source.read_text()):
            inside = (source.parent / name).resolve().relative_to(ROOT)
            assert any(f"!{part}" in ignore for part in [inside, *inside.parents]), f"{source} includes {inside}, which is not in the build context"


def the_compose_files_fit_the_compose_specification():
    from compose_spec import PyCompose

    for path in COMPOSE_FILES:
        for variables in ({}, {"SIM_CONFIG_DIR": "/my", "SIM_PORT": "9000", "HOST_UID": "1", "HOST_GID": "1"}):
            spec = compose(path, **variables)
            for key in [key for key in spec if key.startswith("x-")]:
                del spec[key]
            for service in spec["services"].values():
                # The specification allows a number of tries here; this checker does not know it.
                if service.get("restart", "").startswith("on-failure:"):
                    service["restart"] = "on-failure"
            PyCompose.from_yaml(yaml.safe_dump(spec))
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        for path in COMPOSE_FILES:
            run("docker", "compose", "-f", path, "--profile", "*", "config", "--quiet")


def the_compose_files_name_only_what_exists():
    known = set(re.findall(r"\[(LLM_SIM_\w+)\]", run(SERVER, "--help")))
    stages = set(re.findall(r"^FROM .* AS (\S+)", pathlib.Path("docker/Dockerfile").read_text(), re.M))
    for path in COMPOSE_FILES:
        for name, service in compose(path)["services"].items():
            if "build" in service:
                assert service["build"]["target"] in stages, name
                assert (ROOT / "docker" / service["build"]["context"] / service["build"]["dockerfile"]).exists()
            for volume in service.get("volumes", []):
                source = volume["source"] if isinstance(volume, dict) else volume.split(":")[0]
                made = isinstance(volume, dict) and volume.get("bind", {}).get("create_host_path")
                assert made or (ROOT / "docker" / source).exists(), f"{name}: no {source}"
            for variable in service.get("environment", {}):
                if variable.startswith("LLM_SIM_"):
                    assert variable in known, f"{name}: the server does not know {variable}"
            for option in service.get("security_opt", []):
                if option.startswith("seccomp="):
                    assert (ROOT / "docker" / option.split("=")[1]).exists()
            for needed in service.get("depends_on", {}):
                assert needed in compose(path)["services"]


def without_a_config_dir_the_built_in_files_are_served_and_with_one_its_own():
    for variables, expected in (({}, "tiny-mock"), ({"SIM_CONFIG_DIR": "/my"}, "mine")):
        environment = compose("docker/docker-compose.yml", **variables)["services"]["simulator"]["environment"]
        with tempfile.TemporaryDirectory() as config:
            pathlib.Path(config, "models.yml").write_text("models: [{name: mine, context_length: 100}]\n")
            shutil.copy("defaults/responses.yml", config)
            environment = {k: (v or "").replace("/config", config) for k, v in environment.items()}
            command = [SERVER, "--host", "127.0.0.1", "--port", "0"]
            with served(command, env=os.environ | environment) as (port, _):
                models = [m["id"] for m in json.loads(get(port, "/v1/models"))["data"]]
                assert expected in models, models


def the_benchmark_of_the_compose_file_runs_against_its_target():
    services = compose("docker/docker-compose.yml")["services"]
    for bench, target in (("bench", "bench-target"), ("bench-host", "bench-target-host")):
        environment = {k: v or "" for k, v in services[target]["environment"].items()}
        with tempfile.TemporaryDirectory() as results:
            command = [SERVER, "--host", "127.0.0.1", "--port", "0"]
            with served(command, env=os.environ | environment | {"LLM_SIM_PORT": ""}) as (port, _):
                text = re.sub(r"--url \S+", f"--url http://127.0.0.1:{port}/v1", services[bench]["command"])
                # Less of the same, to be quick.
                text = text.replace("10,50,200,400", "10,50").replace("--duration 15", "--duration 1")
                words = [w.replace("/results", results) for w in shlex.split(text)]
                run(BENCH, *words, "--no-selftest", "--quiet")
            kinds = sorted(p.suffix for p in pathlib.Path(results).iterdir())
            assert kinds == [".html", ".json"], kinds


def no_shell_script_has_findings():
    tracked = [pathlib.Path(name) for name in run("git", "ls-files").splitlines()]
    scripts = [path for path in tracked if path.is_file() and re.match(rb"#!.*\b(ba)?sh\n", path.read_bytes()[:64])]
    assert pathlib.Path("docker/bench.sh") in scripts and len(scripts) > 9, scripts
    run(BIN / "shellcheck", *scripts)


def bench_sh_removes_its_target_even_after_a_failure():
    for arguments, suffix, fails in (([], "", False), (["--host"], "-host", True)):
        with tempfile.TemporaryDirectory() as box:
            for name in ("docker", "tests"):
                (pathlib.Path(box) / name).mkdir()
            shutil.copy("docker/bench.sh", f"{box}/docker/")
            fake = pathlib.Path(box, "tests", "docker")
            fake.write_text(
                "#!/bin/sh\necho \"$HOST_UID $*\" >> calls\n"
                + ("case \"$*\" in *' run '*) exit 7 ;; esac\n" if fails else "")
            )
            fake.chmod(0o755)
            done = subprocess.run(
                [f"{box}/docker/bench.sh", *arguments], env=os.environ | {"PATH": f"{fake.parent}:{os.environ['PATH']}"}
            )
            calls = pathlib.Path(box, "calls").read_text().splitlines()
            assert done.returncode == (7 if fails else 0)
            assert calls[0].startswith(f"{os.getuid()} compose -f docker/docker-compose.yml")
            assert calls[-2].endswith(f"run --rm bench{suffix}"), calls
            assert calls[-1].endswith(f"rm --stop --force bench-target{suffix}"), calls


UNDER_SECCOMP = ["/usr/bin/python3", "tests/deploy/under_seccomp.py", "docker/seccomp.json"]


def under_our_seccomp_profile_the_server_has_io_uring_and_all_it_needs():
    with served([*UNDER_SECCOMP, SERVER, "--host", "127.0.0.1", "--port", "0"]) as (port, log):
        assert "I/O driver: io_uring" in log.read_text(), log.read_text()
        assert stream(port, "qwen-mock").endswith("data: [DONE]\n\n")
        bench = [BENCH, "--url", f"http://127.0.0.1:{port}", "-c", "8", "-n", "64", "--max-tokens", "8", "-q"]
        run(*UNDER_SECCOMP, *bench, "--model", "tiny-mock", "--no-selftest")


def without_its_io_uring_lines_the_server_falls_back_to_epoll():
    command = [*UNDER_SECCOMP, "--without", "io_uring", SERVER, "--host", "127.0.0.1", "--port", "0"]
    with served(command) as (port, log):
        assert "I/O driver: epoll" in log.read_text()
        assert stream(port, "qwen-mock").endswith("data: [DONE]\n\n")


def our_seccomp_profile_refuses_namespaces_and_mounts():
    for command in (["unshare", "--net", "true"], ["unshare", "--user", "true"], ["mount", "-t", "tmpfs", "none", "/mnt"]):
        path = shutil.which(command[0])
        done = subprocess.run([*UNDER_SECCOMP, path, *command[1:]], capture_output=True, text=True)
        assert done.returncode != 0 and ("permitted" in done.stderr or "denied" in done.stderr), done.stderr


def in_a_root_with_nothing_but_libc_the_server_runs_as_an_unprivileged_user():
    """The image's situation: libc and libgcc, no shell, no /etc/passwd, no /proc, 64 KiB to lock."""
    if os.getuid() != 0:
        print("   (skipped: chroot needs root)")
        return
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        libraries = re.findall(r"(/\S+\.so\S*) \(0x", run("ldd", SERVER))
        names = {re.split(r"\.so", pathlib.Path(p).name)[0] for p in libraries}
        assert names <= {"libc", "libm", "libgcc_s", "libdl", "libpthread", "librt", "ld-linux-x86-64"}, names
        for library in libraries:
            target = pathlib.Path(root + library)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
        shutil.copy(SERVER, f"{root}/llmsimulator")
        command = ["chroot", "--userspec=65532:65532", root, "/llmsimulator", "--host", "127.0.0.1", "--port", "0"]
        with served(["prlimit", "--memlock=65536:65536", *command]) as (port, _):
            assert get(port, "/health") == ""
            assert stream(port, "qwen-mock").endswith("data: [DONE]\n\n")


def the_load_balancers_configs_are_read_without_a_warning_and_are_one_recipe():
    for name in ("nginx.conf", "haproxy.cfg"):
        recipe = pathlib.Path("docs/routers", name).read_text()
        fleet = pathlib.Path("docker/fleet", name).read_text()
        local = re.sub(r"simulator-([123]):8080", r"127.0.0.1:800\1", fleet).replace("0.0.0.0:8000", "127.0.0.1:8000")
        settings = [re.sub(r"\s*#.*", "", text) for text in (recipe, local)]
        assert settings[0] == settings[1], f"docs/routers/{name} and docker/fleet/{name} differ in more than addresses"
        with tempfile.NamedTemporaryFile("w", suffix=name) as file:
            file.write(local)
            file.flush()
            check = ["nginx", "-t", "-c"] if name == "nginx.conf" else ["haproxy", "-c", "-f"]
            said = run(*check, file.name)
            assert "warn" not in said.lower(), said


def prometheus_reads_the_fleets_config():
    with tempfile.TemporaryDirectory() as box:
        shutil.copy("docker/fleet/prometheus.yml", box)
        shutil.copy("docs/prometheus/rules.yml", box)
        assert "SUCCESS" in run("promtool", "check", "config", f"{box}/prometheus.yml")


def grafana_is_given_the_dashboard_where_its_provider_looks():
    fleet = compose("docker/fleet.yml")["services"]["grafana"]
    provider = yaml.safe_load(pathlib.Path("docker/fleet/grafana-dashboards.yml").read_text())["providers"][0]
    assert f"../docs/grafana:{provider['options']['path']}:ro" in fleet["volumes"]
    home = pathlib.Path(fleet["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (ROOT / "docs/grafana" / home.name).exists()


def kustomized():
    """Every kustomization, built; kubectl's own kustomize if it is there."""
    for folder in sorted(pathlib.Path("deploy/kubernetes").iterdir()):
        if folder.is_dir():
            yield folder, list(yaml.safe_load_all(run("kubectl", "kustomize", folder)))


def the_manifests_fit_kubernetes_schemas():
    if not shutil.which("kubectl"):
        print("   (skipped: no kubectl to build the kustomizations)")
        return
    # The kinds of operators are no part of Kubernetes: their schemas are not in the package.
    foreign = {"ServiceMonitor", "ScaledObject"}
    seen = set()
    for folder, objects in kustomized():
        for thing in objects:
            seen.add(thing["kind"])
            assert thing["metadata"].get("namespace") == "llmsim" or thing["kind"] == "Namespace"
            if thing["kind"] not in foreign:
                with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                    yaml.safe_dump(thing, file)
                    for version in ("1.30", "1.37"):
                        said = run(BIN / "kubernetes-validate", "--strict", "-k", version, file.name)
                        assert "passed" in said, said
    assert foreign < seen and {"Deployment", "Job", "HorizontalPodAutoscaler"} < seen, seen


def the_manifests_fit_each_other_and_the_programs():
    objects = {}
    for path in pathlib.Path("deploy/kubernetes").rglob("*.yaml"):
        if path.name not in ("kustomization.yaml", "prometheus-adapter-values.yaml"):
            for thing in yaml.safe_load_all(path.read_text()):
                objects[thing["kind"], thing["metadata"]["name"]] = thing
    base = pathlib.Path("deploy/kubernetes/base")
    run(SERVER, "--models", base / "models.yml", "--responses", base / "responses.yml", "--check")

    pod = objects["Deployment", "llm-simulator"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    known = set(re.findall(r"\[(LLM_SIM_\w+)\]", run(SERVER, "--help")))
    assert {e["name"] for e in container["env"]} <= known
    port_names = {p["name"] for p in container["ports"]}
    for name in ("llm-simulator", "llm-simulator-pods"):
        assert objects["Service", name]["spec"]["ports"][0]["targetPort"] in port_names
    monitor = objects["ServiceMonitor", "llm-simulator"]["spec"]["endpoints"][0]
    assert monitor["port"] == objects["Service", "llm-simulator-pods"]["spec"]["ports"][0]["name"]
    for kind in ("HorizontalPodAutoscaler", "ScaledObject"):
        assert objects[kind, "llm-simulator"]["spec"]["scaleTargetRef"]["name"] == "llm-simulator"
    adapter = yaml.safe_load(pathlib.Path("deploy/kubernetes/autoscale-hpa/prometheus-adapter-values.yaml").read_text())
    metric = objects["HorizontalPodAutoscaler", "llm-simulator"]["spec"]["metrics"][0]["pods"]["metric"]["name"]
    assert adapter["rules"]["custom"][0]["name"]["as"] == metric

    command = [SERVER, "--host", "127.0.0.1", "--port", "0"]
    with served([*command, "--models", base / "models.yml", "--responses", base / "responses.yml"]) as (port, _):
        assert "\nvllm:num_requests_waiting{" in get(port, "/metrics")
        arguments = objects["Job", "llmsim-bench"]["spec"]["template"]["spec"]["containers"][0]["args"]
        with tempfile.TemporaryDirectory() as results:
            swap = {"--url": f"http://127.0.0.1:{port}/v1", "--rate": "5", "--duration": "1"}
            words = [a.replace("/results", results) for a in arguments]
            words = [f"{k}={swap.get(k, v)}" if v else k for k, _, v in (w.partition("=") for w in words)]
            run(BENCH, *words, "--no-selftest")
            assert json.loads(pathlib.Path(results, "bench.json").read_text())


TESTS = [
    the_dockerfile_has_no_findings,
    the_build_context_holds_every_workspace_member_whole_and_nothing_else,
    the_compose_files_fit_the_compose_specification,
    the_compose_files_name_only_what_exists,
    without_a_config_dir_the_built_in_files_are_served_and_with_one_its_own,
    the_benchmark_of_the_compose_file_runs_against_its_target,
    no_shell_script_has_findings,
    bench_sh_removes_its_target_even_after_a_failure,
    under_our_seccomp_profile_the_server_has_io_uring_and_all_it_needs,
    without_its_io_uring_lines_the_server_falls_back_to_epoll,
    our_seccomp_profile_refuses_namespaces_and_mounts,
    in_a_root_with_nothing_but_libc_the_server_runs_as_an_unprivileged_user,
    the_load_balancers_configs_are_read_without_a_warning_and_are_one_recipe,
    prometheus_reads_the_fleets_config,
    grafana_is_given_the_dashboard_where_its_provider_looks,
    the_manifests_fit_kubernetes_schemas,
    the_manifests_fit_each_other_and_the_programs,
]

failed = 0
for test in TESTS:
    try:
        test()
        print("ok  ", test.__name__.replace("_", " "), flush=True)
    except Exception:
        failed += 1
        print("FAIL", test.__name__.replace("_", " "))
        traceback.print_exc()
print(f"{len(TESTS) - failed} passed, {failed} failed")
sys.exit(1 if failed else 0)
