"""What a real Prometheus makes of our metrics: lints, scrapes, queries, rules, dashboard.

Starts the server and a Prometheus on free ports of the loopback, drives a little load, counts it as
a client counts, and asks Prometheus for the same figures. Needs nothing but Python's library.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
results = {"passed": 0, "failed": 0}


def check(name, ok, detail=""):
    results["passed" if ok else "failed"] += 1
    print(f"{'ok  ' if ok else 'FAIL'} {name}" + (f"\n     {detail}" if detail and not ok else ""))


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def get(url, headers=None):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {})) as answer:
        return answer.headers, answer.read().decode()


def run(command, **kwargs):
    return subprocess.run(command, capture_output=True, text=True, **kwargs)


def wait_for(url, seconds=30):
    end = time.monotonic() + seconds
    while True:
        try:
            return get(url)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def chat(base, model, stream, max_tokens, counts, lock):
    """One request; adds what the client sees: requests, tokens, prompt tokens."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Count the words of this sentence, please."}],
        "max_tokens": max_tokens,
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    request = urllib.request.Request(
        base + "/v1/chat/completions", json.dumps(body).encode(), {"x-llmsim-timing": "1"}
    )
    with urllib.request.urlopen(request) as answer:
        text = answer.read().decode()
    chunks = 0
    if stream:
        events = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
        events = [json.loads(event) for event in events]
        last = events[-1]
        chunks = sum(1 for event in events if event["choices"] and event["choices"][0]["delta"].get("content"))
        finish = next(e["choices"][0]["finish_reason"] for e in reversed(events) if e["choices"])
    else:
        last = json.loads(text)
        finish = last["choices"][0]["finish_reason"]
    usage = last["usage"]
    with lock:
        mine = counts.setdefault(model, {"requests": {}, "tokens": 0, "prompt": 0, "sent": 0, "ttft": 0.0, "timing": []})
        mine["requests"][finish] = mine["requests"].get(finish, 0) + 1
        mine["tokens"] += usage["completion_tokens"]
        mine["prompt"] += usage["prompt_tokens"]
        mine["sent"] += chunks
        mine["ttft"] += last["metrics"]["first_token_latency"]
        mine["timing"].append(last["metrics"])


def drive(base):
    counts, lock, threads = {}, threading.Lock(), []
    for index in range(24):
        model = ["batched", "paced", 'in"stant'][index % 3]
        # One more than the answer is long, or fewer: both ends, `stop` and `length`.
        tokens = [5, 40, 400][(index // 3) % 3]
        arguments = (base, model, index % 4 != 3, tokens, counts, lock)
        threads.append(threading.Thread(target=chat, args=arguments))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return counts


def families_of(text):
    return {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}


def lint(base):
    """promtool's opinion. vLLM's own names have colons, and a histogram that ends in `_total`: of
    those it complains with every vLLM, so ours must pass as a whole and vLLM's only fail by that."""
    _, text = get(base + "/metrics")
    whole = run(["promtool", "check", "metrics"], input=text)
    ours = text[text.index("# HELP llm_sim_"):]
    check("promtool check metrics: our own families", run(["promtool", "check", "metrics"], input=ours).returncode == 0,
          run(["promtool", "check", "metrics"], input=ours).stderr)
    others = [line for line in (whole.stdout + whole.stderr).splitlines() if line and not line.startswith("vllm:")]
    check("promtool check metrics: vLLM's families parse, and only their names are complained of",
          whole.returncode in (0, 3) and not others, "\n".join(others[:5]))
    headers, openmetrics = get(base + "/metrics", {"Accept": "application/openmetrics-text; version=1.0.0"})
    check("OpenMetrics is served when asked for",
          headers["content-type"].startswith("application/openmetrics-text") and openmetrics.endswith("# EOF\n"))


class Prometheus:
    def __init__(self, directory, target):
        self.port = free_port()
        config = f"""
global: {{ scrape_interval: 1s, evaluation_interval: 1s }}
rule_files: ["{ROOT}/docs/prometheus/rules.yml"]
scrape_configs:
  - job_name: llmsim
    static_configs: [{{ targets: ["{target}"] }}]
"""
        path = os.path.join(directory, "prometheus.yml")
        with open(path, "w") as file:
            file.write(config)
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={path}", f"--storage.tsdb.path={directory}/data",
             f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"],
            stdout=subprocess.DEVNULL, stderr=open(os.path.join(directory, "log"), "w"))
        wait_for(self.url("/-/ready"))

    def url(self, path, **query):
        query = "?" + urllib.parse.urlencode(query) if query else ""
        return f"http://127.0.0.1:{self.port}{path}{query}"

    def query(self, expression):
        answer = json.loads(get(self.url("/api/v1/query", query=expression))[1])
        assert answer["status"] == "success", answer
        return answer["data"]["result"]

    def value(self, expression):
        result = self.query(expression)
        return float(result[0]["value"][1]) if len(result) == 1 else None

    def settle(self, expression, wanted, seconds=15):
        """Waits for the scrape after the load."""
        end = time.monotonic() + seconds
        while (value := self.value(expression)) != wanted and time.monotonic() < end:
            time.sleep(0.2)
        return value


def figures(prometheus, counts):
    for model, mine in counts.items():
        ours = '{model="%s"}' % model.replace('"', '\\"')
        theirs = '{model_name="%s"}' % model.replace('"', '\\"')
        finished = sum(mine["requests"].values())
        for what, expression, wanted in [
            ("output tokens", f"llm_sim_generation_tokens_total{ours}", mine["tokens"]),
            ("output tokens, vLLM's name", f"vllm:generation_tokens_total{theirs}", mine["tokens"]),
            ("prompt tokens", f"llm_sim_prompt_tokens_total{ours}", mine["prompt"]),
            ("prompt tokens, vLLM's name", f"vllm:prompt_tokens_total{theirs}", mine["prompt"]),
            ("streamed tokens", f"llm_sim_sent_tokens_total{ours}", mine["sent"]),
            ("first tokens", f"llm_sim_time_to_first_token_seconds_count{ours}", finished),
            ("requests", f"sum(llm_sim_requests_total{ours})", finished),
            ("requests, vLLM's name", f"sum(vllm:request_success_total{theirs})", finished),
            ("ITL values", f"vllm:inter_token_latency_seconds_count{theirs}", mine["tokens"] - finished),
            ("lags", f"llm_sim_token_lag_seconds_count{ours}", mine["sent"]),
            ("nothing runs", f"llm_sim_requests_running{ours}", 0),
        ]:
            value = prometheus.settle(expression, wanted)
            check(f"{model}: {what}: {wanted}", value == wanted, f"{expression} is {value}")
        for reason, wanted in mine["requests"].items():
            expression = f'llm_sim_requests_total{{model="{ours[8:-2]}",finish_reason="{reason}"}}'
            value = prometheus.value(expression)
            check(f"{model}: {wanted} ended with {reason}", value == wanted, f"{expression} is {value}")
        # The sum of what each request was told about itself is the sum that is exported.
        for name, label in [("llm_sim_time_to_first_token_seconds_sum", ours), ("vllm:time_to_first_token_seconds_sum", theirs)]:
            value = prometheus.value(name + label)
            check(f"{model}: {name} is the sum of the requests' own", value is not None and abs(value - mine["ttft"]) < 1e-6,
                  f"{value} against {mine['ttft']}")
        for timing in mine["timing"]:
            if timing["first_token_sent"] is not None:
                ordered = timing["first_token_scheduled"] <= timing["first_token_released"] <= timing["first_token_sent"]
                if not ordered:
                    check(f"{model}: due, released and sent come in that order", False, timing)


def agree(prometheus):
    for one, other in [
        ("vllm:time_to_first_token_seconds_sum", "llm_sim_time_to_first_token_seconds_sum"),
        ("vllm:inter_token_latency_seconds_sum", "llm_sim_inter_token_latency_seconds_sum"),
        ("vllm:e2e_request_latency_seconds_sum", "llm_sim_e2e_request_latency_seconds_sum"),
        ("vllm:request_queue_time_seconds_sum", "llm_sim_queue_time_seconds_sum"),
        ("vllm:request_prefill_time_seconds_sum", "llm_sim_prefill_time_seconds_sum"),
        ("vllm:request_decode_time_seconds_sum", "llm_sim_decode_time_seconds_sum"),
        ("vllm:request_generation_tokens_sum", "llm_sim_request_generation_tokens_sum"),
        ("vllm:kv_cache_usage_perc", "llm_sim_kv_cache_usage_ratio"),
    ]:
        values = [prometheus.value(f"sum({name})") for name in (one, other)]
        check(f"{one} = {other}", values[0] is not None and abs(values[0] - values[1]) < 1e-9, values)


def expressions():
    with open(os.path.join(ROOT, "docs/grafana/llmsimulator.json")) as file:
        dashboard = json.load(file)
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"].replace("$__rate_interval", "1m").replace("$model", ".*")
            yield f"dashboard, {panel['title']}", expression
    with open(os.path.join(ROOT, "docs/prometheus/rules.yml")) as file:
        for expression in re.findall(r"^ +expr: (.*)$", file.read(), re.M):
            yield "rules", expression


def rules_and_dashboard(prometheus, text):
    check("promtool check rules", run(["promtool", "check", "rules", f"{ROOT}/docs/prometheus/rules.yml"]).returncode == 0)
    check("promtool check config", run(["promtool", "check", "config", f"{ROOT}/docs/prometheus/prometheus.yml"]).returncode == 0)
    tested = run(["promtool", "test", "rules", f"{HERE}/rules_test.yml"])
    check("promtool test rules: alerts fire when they should", tested.returncode == 0, tested.stdout + tested.stderr)
    known = families_of(text) | {"up", "model:llm_sim_time_to_first_token_seconds:p99_5m"}
    bad = []
    for where, expression in expressions():
        try:
            prometheus.query(expression)
        except Exception as error:
            bad.append(f"{where}: {expression}: {error}")
        for name in re.findall(r"\b(?:llm_sim_|process_|vllm:|up\b|model:)[a-z0-9_:]*", expression):
            if name not in known and re.sub(r"_(bucket|sum|count)$", "", name) not in known:
                bad.append(f"{where}: {name} is not exported")
    check("every query of the dashboard and the rules is understood, and asks for what there is", not bad, "\n".join(bad))


def main(server):
    directory = tempfile.mkdtemp(prefix="llmsim-prometheus-")
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    log = open(os.path.join(directory, "server.log"), "w")
    processes = [subprocess.Popen(
        [server, "--host", "127.0.0.1", "--port", str(port), "--models", f"{HERE}/models.yml",
         "--responses", "builtin:responses"], stderr=log)]
    try:
        wait_for(base + "/health")
        lint(base)
        prometheus = Prometheus(directory, f"127.0.0.1:{port}")
        processes.append(prometheus.process)
        counts = drive(base)
        check("all models were asked", len(counts) == 3)
        figures(prometheus, counts)
        agree(prometheus)
        check("the target is up", prometheus.value('up{job="llmsim"}') == 1)
        rules_and_dashboard(prometheus, get(base + "/metrics")[1])
    finally:
        for process in processes:
            process.terminate()
            process.wait()
        shutil.rmtree(directory, ignore_errors=True)
    print(f"{results['passed']} passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
