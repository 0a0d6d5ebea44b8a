#!/bin/sh
# llmsim-bench against a server that this project did not write: fakellm from PyPI.
# Needs python3 with venv, and the network once. Usage: run.sh [path of llmsim-bench]
set -eu
bench=$(realpath "${1:-target/debug/llmsim-bench}")
work=$(mktemp -d)
server=
stop() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap stop EXIT INT TERM

python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check fakellm==0.3.5
cd "$work"
venv/bin/fakellm init >/dev/null
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
venv/bin/fakellm serve --port "$port" >server.log 2>&1 &
server=$!
# Up as soon as it takes a connection.
python3 - "$port" <<'PY'
import socket, sys, time
for _ in range(600):
    try:
        socket.create_connection(("127.0.0.1", int(sys.argv[1])), 1).close()
        break
    except OSError:
        time.sleep(0.1)
else:
    sys.exit("the server did not come up")
PY

check() {
    "$bench" --url "http://127.0.0.1:$port" --model gpt-4o-mini --quiet "$@" >out.txt 2>err.txt || {
        cat out.txt err.txt
        exit 1
    }
    grep -q ' 0 failed' out.txt || { cat out.txt; exit 1; }
    grep -q 'server      not available' out.txt || { cat out.txt; exit 1; }
}
check --concurrency 4 --requests 40
check --rate 20 --requests 40 --output out.json
grep -q '"state": "not_available"' out.json
echo "llmsim-bench against fakellm: ok"
