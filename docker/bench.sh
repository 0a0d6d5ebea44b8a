#!/usr/bin/env bash
# Runs the benchmark of docker-compose.yml in containers; its results go to results/, as your user.
# What it benchmarked is removed at the end, also after a failure or Ctrl-C; a running `simulator` is
# left alone.
#
# Usage: docker/bench.sh [--host] [ARGUMENT...]
#   --host       on the host's network, to measure (Linux only)
#   ARGUMENT...  instead of the command in docker-compose.yml; the target is
#                http://bench-target:8080/v1, with --host http://127.0.0.1:18080/v1
set -euo pipefail
cd "$(dirname "$0")/.."

suffix=
if [ "${1:-}" = --host ]; then
  suffix=-host
  shift
fi
HOST_UID=$(id -u)
HOST_GID=$(id -g)
export HOST_UID HOST_GID
compose=(docker compose -f docker/docker-compose.yml --profile "bench$suffix")

# Here, or else the Docker daemon makes it, for root.
mkdir -p results
trap '"${compose[@]}" rm --stop --force "bench-target$suffix"' EXIT
"${compose[@]}" build "bench-target$suffix" "bench$suffix"
"${compose[@]}" run --rm "bench$suffix" "$@"
