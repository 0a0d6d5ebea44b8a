"""Three servers behind each router, with the recipes of docs/routers: as in the recipes three
replicas of one process, each with its own port, and where a server has to die three processes.

Usage: test_routers.py SERVER_BINARY [ROUTER...], from the repository's root (tests/routers/run
installs what it needs). Everything is on loopback; every wait has an end.
"""
import asyncio
import collections
import contextlib
import http.client
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import traceback

SERVER = str(pathlib.Path(sys.argv[1]).resolve())
HERE = pathlib.Path(__file__).parent
WORK = pathlib.Path("target/routers").resolve()
RECIPES = pathlib.Path("docs/routers")
RECIPE = {
    "nginx": "nginx.conf",
    "haproxy": "haproxy.cfg",
    "vllm-router": "vllm-router.sh",
    "sglang-router": "sglang-router.sh",
    "litellm": "litellm.yaml",
}
# Policies tried beside the recipe's own.
OTHER_POLICIES = {"vllm-router": ["round_robin", "power_of_two"], "sglang-router": ["round_robin", "power_of_two"]}
# Who goes by load, and the same router when it takes turns: a policy, or a change of the recipe.
TIGHT = "--policy \"${POLICY:-cache_aware}\""
LEAST_LOADED = {
    # Its cache_aware looks at open requests only once they differ by 64, unless told otherwise.
    "vllm-router": (TIGHT, f"{TIGHT} --balance-abs-threshold 1 --balance-rel-threshold 1.1"),
    "sglang-router": "power_of_two",
}
BY_TURNS = {
    "nginx": ("least_conn;", ""),
    "haproxy": ("balance leastconn", "balance roundrobin"),
    "litellm": ("routing_strategy: least-busy", "routing_strategy: simple-shuffle"),
    "vllm-router": "round_robin",
    "sglang-router": "round_robin",
}
KEY = "sk-" + secrets.token_hex(32)  # LiteLLM's clients need one; the others do not look
HEADERS = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
TOKEN = 0.010  # seconds between the tokens of the model `paced`


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def free_ports(count):
    """The first of so many free ports in a row."""
    while True:
        base = free_port()
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, OverflowError):
            for port in range(base, base + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return base


def until(seconds, question, what):
    """The first truthy answer to `question`, asked again and again for some time."""
    end = time.monotonic() + seconds
    while True:
        answer = question()
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.05)


def get(port, path, timeout=5):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path, headers=HEADERS)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


class Server:
    def __init__(self, port, *more, models=RECIPES / "models.yml"):
        self.port = port
        self.models = models
        self.more = more
        self.process = None
        # Of a replica: the port for all of them.
        self.shared = None

    def start(self):
        command = [SERVER, "--host", "127.0.0.1", "--port", str(self.port), "--no-pin", *self.more]
        command += ["--models", self.models, "--responses", HERE / "responses.yml"]
        self.process = subprocess.Popen(command, stderr=open(WORK / f"server-{self.port}.log", "a"))
        until(20, self.answers, "a server answers")

    def answers(self):
        with contextlib.suppress(OSError):
            return get(self.port, "/health")[0] == 200

    def kill(self):
        self.process.kill()
        self.process.wait()

    def value(self, name, label=""):
        """The sum of a family of /metrics."""
        text = get(self.port, "/metrics")[1]
        lines = [l for l in text.splitlines() if l.startswith(name) and l[len(name)] in " {" and label in l]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def requests(self):
        return self.value("llm_sim_requests_total") + self.value("llm_sim_requests_running")


@contextlib.contextmanager
def fleet(models=RECIPES / "models.yml"):
    """One process with three replicas behind a port each, which are given."""
    base = free_ports(3)
    process = Server(free_port(), "--port-per-replica", str(base), "--admin", models=models)
    try:
        process.start()
        pool = [Server(base + replica) for replica in range(3)]
        for member in pool:
            member.shared = process
        yield pool
    finally:
        if process.process:
            process.kill()


def fault(pool, method, words=""):
    connection = http.client.HTTPConnection("127.0.0.1", pool[0].shared.port, timeout=5)
    connection.request(method, "/admin/faults", words)
    assert connection.getresponse().status == 200, words
    connection.close()


class Relay:
    """Passes bytes on to `port` and notes which requests were asked, and how they were answered."""

    def __init__(self, port):
        self.target = port
        self.port = free_port()
        self.seen = collections.Counter()
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()
        threading.Thread(target=self.run, args=(ready,), daemon=True).start()
        ready.wait()

    def run(self, ready):
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(asyncio.start_server(self.serve, "127.0.0.1", self.port))
        ready.set()
        self.loop.run_forever()

    async def serve(self, reader, writer):
        asked = collections.deque()

        def note_request(data):
            for method, path in re.findall(rb"^(GET|POST|HEAD|OPTIONS|PRI) ([^ ?]+)[^ ]* HTTP/", data, re.M):
                asked.append((method.decode(), path.decode()))

        def note_answer(data):
            for status in re.findall(rb"^HTTP/1\.[01] (\d{3})", data, re.M):
                method, path = asked.popleft() if asked else ("?", "?")
                self.seen[method, path, int(status)] += 1

        async def pump(source, sink, note):
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    note(data)
                    sink.write(data)
                    await sink.drain()
            sink.close()

        try:
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, upstream_writer, note_request), pump(upstream_reader, writer, note_answer))


class Answer:
    """What a client got: the status, when each content chunk came, whether the stream ended well."""

    def __init__(self):
        self.status = None
        self.stamps = []
        self.done = False
        self.error_event = b""
        self.began = time.monotonic()
        self.body = b""

    def kind(self):
        if self.status == 200 and self.done and not self.error_event:
            return "answered"
        # With its head an answer has begun: no router can send it elsewhere any more.
        return "broken" if self.status == 200 else "failed"


def ask(port, content="Hello", max_tokens=20, on_first=None, hang_up_after=None, over=None):
    answer = Answer()
    body = {
        "model": "paced",
        "stream": True,
        "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": content}],
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        answer.began = time.monotonic()
        connection.request("POST", "/v1/chat/completions", json.dumps(body), HEADERS)
        response = connection.getresponse()
        answer.status = response.status
        if answer.status != 200:
            answer.body = response.read()
            return answer
        while line := response.readline():
            now = time.monotonic()
            if line.startswith(b"data: [DONE]"):
                answer.done = True
            elif line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    answer.error_event = line
                choices = event.get("choices") or [{}]
                if (choices[0].get("delta") or {}).get("content"):
                    answer.stamps.append(now)
                    if len(answer.stamps) == 1 and on_first:
                        on_first()
                    if len(answer.stamps) == hang_up_after or (over and over.is_set()):
                        return answer
    except (OSError, http.client.HTTPException):
        pass
    finally:
        # A half-read answer keeps the socket open otherwise.
        if connection.sock:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        with contextlib.suppress(UnboundLocalError):
            response.close()
    return answer


def version(name):
    if name in ("nginx", "haproxy"):
        done = subprocess.run([name, "-v"], capture_output=True, text=True)
        return re.search(r"[0-9]+\.[0-9.]+", done.stdout + done.stderr).group(0)
    metadata = WORK.glob(f"{name}/lib/python*/site-packages/{name.replace('-', '_')}-*.dist-info")
    return next(metadata).name.removesuffix(".dist-info").split("-")[-1]


@contextlib.contextmanager
def routed(name, ports, policy=None):
    """Starts a router as its recipe's head says, with other ports; gives the port it listens on.

    A policy is a word that the recipe takes, or words of it and what stands there instead.
    """
    port = free_port()
    text = (RECIPES / RECIPE[name]).read_text()
    if isinstance(policy, tuple):
        assert text.count(policy[0]) == 1, policy
        text, policy = text.replace(*policy), None
    box = WORK / "run"
    shutil.rmtree(box, ignore_errors=True)
    box.mkdir()
    box.chmod(0o755)

    def moved(text):
        for old, new in zip((8000, 8001, 8002, 8003, 29000), (port, *ports, free_port())):
            text = re.sub(rf"\b{old}\b", f"@{new}@", text)
        return re.sub(r"@(\d+)@", r"\1", text).replace("/tmp/llmsim-", f"{box}/")

    (box / RECIPE[name]).write_text(moved(text))
    command = re.findall(r"^#   (.+)$", text, re.M)[-1]
    command = moved(command).replace('"$PWD/docs/routers/', f'"{box}/').replace("docs/routers/", f"{box}/")
    environment = os.environ | {"PATH": f"{WORK / name / 'bin'}:{os.environ['PATH']}", "NO_PROXY": "127.0.0.1"}
    environment["LITELLM_MASTER_KEY"] = KEY
    # LiteLLM would fetch its table of prices.
    environment["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    if policy:
        environment["POLICY"] = policy
    log = open(WORK / f"{name}.log", "w")
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"], stdout=log, stderr=log, env=environment, start_new_session=True
    )
    try:

        def ready():
            assert process.poll() is None, f"{name} ended:\n" + pathlib.Path(log.name).read_text()[-3000:]
            return ask(port, max_tokens=1).kind() == "answered"

        until(90, ready, f"{name} answers (its log is {log.name})")
        yield port
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def spread(pool, requests):
    before = [server.requests() for server in pool]
    requests()
    return [int(server.requests() - b) for server, b in zip(pool, before)]


# Each test is a story about one router; it gets its port and the servers behind it.


def it_lists_the_models(name, port, pool):
    status, text = get(port, "/v1/models", 10)
    assert status == 200 and "paced" in text, (status, text[:300])


def streaming_stays_streaming(name, port, pool):
    running = []
    alone = 0
    # LiteLLM needs longer for a chunk than there is between two, wherever processors are scarce.
    least = 0.2 if name == "litellm" else 0.5
    # A machine that is busy with other things bundles chunks too: one good try shows that the router
    # does not.
    for attempt in range(4):
        running.clear()
        note = lambda: running.append(sum(s.value("llm_sim_requests_running") for s in pool))
        answer = ask(port, "stream", 100, note)
        assert answer.done and len(answer.stamps) >= 95, (answer.status, len(answer.stamps), answer.body[:300])
        # When the client has the first token the server is still at work on the others.
        assert running == [1.0], f"requests running when the first token came: {running}"
        gaps = [b - a for a, b in zip(answer.stamps, answer.stamps[1:])]
        alone = sum(gap > TOKEN / 3 for gap in gaps) / len(gaps)
        span = answer.stamps[-1] - answer.stamps[0]
        print(f"   {len(answer.stamps)} chunks over {span:.2f} s, {alone:.0%} came by themselves")
        if alone > least:
            break
    assert alone > least, "chunks come in bundles"


def the_lag_that_it_adds(name, port, pool):
    """Of each chunk: through the router, less straight from a server, in alternation."""
    for way in (port, *(server.port for server in pool)):
        ask(way, "warm up", 60)
    late = {"straight": [], "through": []}
    first = {"straight": [], "through": []}
    for turn in range(12):
        for way, where in (("straight", pool[turn % 3].port), ("through", port)):
            answer = ask(where, f"turn {turn}", 60)
            assert answer.done, (way, answer.status)
            offsets = [stamp - answer.began - TOKEN * k for k, stamp in enumerate(answer.stamps)]
            first[way].append(offsets[0])
            late[way] += offsets
    added = statistics.median(first["through"]) - statistics.median(first["straight"])
    quantile = lambda values, q: statistics.quantiles(values, n=100)[q - 1]
    p50, p90, p99 = (1e3 * (quantile(late["through"], q) - quantile(late["straight"], q)) for q in (50, 90, 99))
    print(f"   LAG {name}: first chunk +{1e3 * added:.2f} ms; all chunks p50 {p50:+.2f}, p90 {p90:+.2f}, p99 {p99:+.2f} ms")


def an_error_keeps_its_status(name, port, pool):
    """A prompt with an answer that exceeds the context: nothing that a router finds out itself."""
    answer = ask(port, max_tokens=1_000_000)
    assert answer.status == 400, (answer.status, answer.body[:300])


def a_client_that_hangs_up_ends_the_request_behind_it(name, port, pool):
    cancelled = lambda: sum(s.value("llm_sim_requests_total", 'finish_reason="cancelled"') for s in pool)
    before = cancelled()
    answer = ask(port, "long", 1000, hang_up_after=5)
    assert len(answer.stamps) == 5
    until(5, lambda: cancelled() == before + 1, "the server hears of it")


def different_prompts_use_every_server(name, port, pool):
    def requests():
        threads = [threading.Thread(target=ask, args=(port, f"{i * 7919} different", 30)) for i in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    counts = spread(pool, requests)
    print(f"   12 at once went to {counts}")
    assert sum(counts) == 12 and min(counts) > 0, counts


def prompts_that_begin_alike_go_to_one_server(name, port, pool):
    prefix = "You are a careful assistant that answers in one sentence. " * 40
    ask(port, prefix + "0", 2)

    def requests():
        for i in range(9):
            assert ask(port, prefix + str(i), 2).done

    counts = spread(pool, requests)
    print(f"   9 with one prefix went to {counts}")
    assert max(counts) == 9, counts


@contextlib.contextmanager
def long_streams(*ports):
    """A long stream on each of these ports, as long as the block runs."""
    over, threads = threading.Event(), []
    for number, port in enumerate(ports):
        begun = threading.Event()

        def hold(port=port, number=number, begun=begun):
            # Each token is looked at, so that the stream ends within one of `over`.
            ask(port, f"{number * 6007} hold", 30_000, begun.set, over=over)

        threads.append(threading.Thread(target=hold))
        threads[-1].start()
        assert begun.wait(20), "a long stream begins"
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def running(server):
    return server.value("llm_sim_requests_running")


def the_idle_server_is_preferred(name, port, pool):
    """Routers that count their own open requests: with two servers at work the third gets the next."""
    with long_streams(port, port):
        idle = [server for server in pool if running(server) == 0]
        assert len(idle) == 1, [running(server) for server in pool]
        counts = spread(pool, lambda: [ask(port, f"{i * 7907} short", 2) for i in range(9)])
        print(f"   with a stream on two of them, 9 in turn went to {counts}")
        assert counts[pool.index(idle[0])] == 9, counts
    until(10, lambda: sum(running(server) for server in pool) == 0, "the long streams are over")


def power_of_two_goes_by_what_the_servers_say(name, pool):
    """The load comes from elsewhere, straight to two servers; the router can only know it from them.

    It looks at two of the three at random: the idle one is among them two times in three, and is then
    taken; a router that does not know would send a third there. vLLM's router does not know, neither
    here nor of vLLM: it reads `{"load": N}`, as SGLang once answered and vLLM never did.
    """
    with routed(name, [server.port for server in pool], "power_of_two") as port:
        with long_streams(*[pool[i].port for i in (0, 1) for _ in range(10)]):
            time.sleep(2)  # for the router to ask
            counts = spread(pool, lambda: [ask(port, f"{i * 6997} short", 1) for i in range(90)])
        print(f"   with 10 streams on two of them each, 90 in turn went to {counts}")
        assert sum(counts) == 90 and (counts[2] > 45 or name == "vllm-router"), counts


def a_slowed_replica_gets_fewer_requests(name, pool):
    """One of three takes ten times as long. By turns it gets a third all the same."""
    counts = {}
    for way, policy in (("by load", LEAST_LOADED.get(name)), ("by turns", BY_TURNS[name])):
        with routed(name, [server.port for server in pool], policy) as port:
            fault(pool, "PUT", "slow=10 gpu=1")
            work = iter(range(120))

            def client():
                for i in work:
                    assert ask(port, f"{i * 7907} {i} prompt", 8).done

            def requests():
                threads = [threading.Thread(target=client) for _ in range(6)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

            counts[way] = spread(pool, requests)
            fault(pool, "DELETE")
    print(f"   with the second of them ten times slower, 120 went by load to {counts['by load']}, by turns to {counts['by turns']}")
    assert sum(counts["by load"]) == sum(counts["by turns"]) == 120, counts
    # SGLang's gateway looks at two of three at random, and LiteLLM keeps most requests to itself for
    # longer than the servers do.
    most = 30 if name in ("sglang-router", "litellm") else 20
    assert counts["by load"][1] <= most, counts
    # LiteLLM's turns are chance.
    assert counts["by turns"][1] == 40 or name == "litellm", counts


def prefixes_are_found_in_the_cache_more_often_than_by_turns(name):
    """Seven long prompts, six times each, in front of caches that hold four."""
    found = {}
    for policy in ("cache_aware", "round_robin"):
        # Caches that nobody has filled.
        with fleet(HERE / "cached.yml") as pool, routed(name, [server.port for server in pool], policy) as port:
            family = lambda what: sum(server.value(f"vllm:prefix_cache_{what}_total") for server in pool)
            hits, queries = family("hits"), family("queries")

            def requests():
                for turn in range(6):
                    # One begins when the one before has its first token, and all overlap: with nobody at
                    # work both routers send whatever is new to them to the same server.
                    threads = []
                    for prompt in range(7):
                        words = " ".join(f"{prompt * 7919 + k * 104729 % 1000}" for k in range(400))
                        begun = threading.Event()
                        threads.append(threading.Thread(target=ask, args=(port, f"{words} {turn}", 80, begun.set)))
                        threads[-1].start()
                        assert begun.wait(20), "a stream begins"
                    for thread in threads:
                        thread.join()

            counts = spread(pool, requests)
            hits, queries = family("hits") - hits, family("queries") - queries
            found[policy] = hits / queries
            print(f"   {policy}: {counts}; {hits:.0f} of {queries:.0f} prompt tokens were in a cache ({hits / queries:.0%})")
    # At best all but the first of six.
    assert found["cache_aware"] > 0.6 > 0.3 > found["round_robin"], found


def rush(port, victim, deed):
    """12 clients, 72 requests; after a third of them `deed` is done to a server that has streams.

    How many were answered, broken and failed, of those begun before the deed and after it.
    """
    kinds, ends, lock, done = [], collections.Counter(), threading.Lock(), threading.Event()

    def client(n):
        for i in range(6):
            late = done.is_set()
            answer = ask(port, f"{n * 6 + i} {n * 31 + i} prompt", 20)
            with lock:
                kinds.append((late, answer.kind()))
                if answer.kind() == "broken":
                    end = "an error event" if answer.error_event else "an end without [DONE]"
                    ends[end] += 1
                elif answer.kind() == "failed":
                    ends[f"{answer.status} {answer.body[:200]}"] += 1

    threads = [threading.Thread(target=client, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    until(30, lambda: len(kinds) >= 24, "a third is done")
    running = until(10, lambda: victim.value("llm_sim_requests_running"), "the victim has streams")
    deed()
    done.set()
    for thread in threads:
        thread.join()
    assert len(kinds) == 72
    count = collections.Counter(kinds)
    early, late = ({k: count[when, k] for k in ("answered", "broken", "failed")} for when in (False, True))
    print(f"   with {running:.0f} streams on it; begun before: {early}; begun after: {late}")
    if ends:
        print("   what the client saw of those lost:", dict(ends))
    return early, late


def a_crashed_replica_costs_only_the_streams_on_it(name, port, pool):
    """The engine dies and its server lives: the streams end with an error, the next get a 503."""
    victim = pool[1]

    early, late = rush(port, victim, lambda: fault(pool, "PUT", "crash=6s gpu=1"))
    comes_back(port, victim, lambda: until(10, victim.answers, "it is up again"))
    # To HAProxy a server that fails fast is the one with the fewest connections, for retries too, until
    # its checks have failed twice: in that second some requests use their tries up.
    most = 12 if name == "haproxy" else 0
    assert early["failed"] + late["failed"] <= most, "a request that had not begun was not sent elsewhere"
    assert late["broken"] == 0
    assert early["broken"] <= 12


def comes_back(port, victim, start=None):
    began = time.monotonic()
    (start or victim.start)()

    def used():
        had = victim.requests()
        # Prompts without a common beginning: a prefix-aware router would go on with whom it knows.
        # So many at once that a router with a wrong count of open requests comes to it all the same.
        threads = [threading.Thread(target=ask, args=(port, secrets.token_hex(64), 10)) for _ in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return victim.requests() > had

    until(40, used, "the restarted server gets requests again")
    print(f"   back in the pool after {time.monotonic() - began:.1f} s")


def a_server_that_drains_loses_nothing(name, port, pool):
    """A rolling update: SIGTERM, while it has streams."""
    victim = pool[2]
    early, late = rush(port, victim, lambda: victim.process.send_signal(signal.SIGTERM))
    assert victim.process.wait(40) == 0
    for count in (early, late):
        assert count["broken"] == count["failed"] == 0, "a drained server cost requests"
    comes_back(port, victim)


def a_killed_server_costs_only_the_streams_on_it(name, port, pool):
    victim = pool[1]
    early, late = rush(port, victim, victim.kill)
    # Whose answer had not begun is served by another; a stream that had begun cannot be.
    assert early["failed"] + late["failed"] == 0, "a request that had not begun was not sent elsewhere"
    assert late["broken"] == 0
    assert early["broken"] <= 12
    comes_back(port, victim)


def what_it_asks_the_servers(name, pool, policy):
    """Not a promise but a record: the requests that reached a server, and their answers."""
    relays = [Relay(server.port) for server in pool]
    with routed(name, [relay.port for relay in relays], policy) as port:
        counts = spread(pool, lambda: [ask(port, f"{i * 104729} other", 2) for i in range(12)])
        get(port, "/v1/models", 10)
        time.sleep(3)  # for its probes, whose interval is a second
    seen = sum((relay.seen for relay in relays), collections.Counter())
    print(f"   PROBES {name}" + (f" {policy}" if policy else "") + f": 12 in turn went to {counts}")
    for (method, path, status), n in sorted(seen.items()):
        print(f"     {method} {path} -> {status}" + f", {n} times")
    assert sum(counts) == 12, counts
    if policy == "round_robin":
        assert counts == [4, 4, 4], counts


def main():
    names = sys.argv[2:] or list(RECIPE)
    # Only stories whose titles have these words, to work on one.
    only = os.environ.get("STORY", "")
    print(f"{os.cpu_count()} processors, load average {os.getloadavg()[0]:.1f} at the start")
    passed, failed = 0, []

    def tried(title, story, *arguments):
        nonlocal passed
        if only not in title and "starts with" not in title:
            return
        try:
            story(*arguments)
            passed += 1
            print("ok  ", title, flush=True)
        except Exception:
            failed.append(title)
            print("FAIL", title)
            traceback.print_exc(file=sys.stdout)
            sys.stdout.flush()

    def told(name, pool, stories):
        if not any(only in story.__name__.replace("_", " ") for story in stories):
            return

        def all_stories():
            with routed(name, [server.port for server in pool]) as port:
                for story in stories:
                    tried(f"{name}: {story.__name__.replace('_', ' ')}", story, name, port, pool)

        tried(f"{name}: starts with its recipe, and ends", all_stories)

    for name in names:
        print(f"== {name} {version(name)}")
        stories = [
            it_lists_the_models,
            streaming_stays_streaming,
            the_lag_that_it_adds,
            an_error_keeps_its_status,
            a_client_that_hangs_up_ends_the_request_behind_it,
            different_prompts_use_every_server,
        ]
        if name in OTHER_POLICIES:
            stories.append(prompts_that_begin_alike_go_to_one_server)
        else:
            stories.append(the_idle_server_is_preferred)
        stories.append(a_crashed_replica_costs_only_the_streams_on_it)
        with fleet() as pool:
            told(name, pool, stories)
            for policy in [None, *OTHER_POLICIES.get(name, [])]:
                title = f"{name}: what it asks the servers" + (f" as {policy}" if policy else "")
                tried(title, what_it_asks_the_servers, name, pool, policy)
            if name in OTHER_POLICIES:
                title = f"{name}: power of two goes by what the servers say"
                tried(title, power_of_two_goes_by_what_the_servers_say, name, pool)
            tried(f"{name}: a slowed replica gets fewer requests", a_slowed_replica_gets_fewer_requests, name, pool)
        if name in OTHER_POLICIES:
            title = f"{name}: prefixes are found in the cache more often than by turns"
            tried(title, prefixes_are_found_in_the_cache_more_often_than_by_turns, name)
        pool = [Server(free_port()) for _ in range(3)]
        try:
            for server in pool:
                server.start()
            told(name, pool, [a_server_that_drains_loses_nothing, a_killed_server_costs_only_the_streams_on_it])
        finally:
            for server in pool:
                if server.process:
                    server.kill()
    for title in failed:
        print("failed:", title)
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed else 0


sys.exit(main())
