# vLLM's router (PyPI: vllm-router) in front of three simulators or vLLM servers.
#   bash docs/routers/vllm-router.sh
# POLICY: cache_aware, round_robin, power_of_two, consistent_hash, random, ...
exec vllm-router --host 127.0.0.1 --port 8000 --prometheus-port 29000 \
  --policy "${POLICY:-cache_aware}" \
  --worker-urls http://127.0.0.1:8001 http://127.0.0.1:8002 http://127.0.0.1:8003 \
  --worker-startup-check-interval 1 \
  --health-check-interval-secs 1 --health-check-timeout-secs 1 \
  --health-failure-threshold 2 --health-success-threshold 1 \
  --cb-failure-threshold 2 --cb-timeout-duration-secs 3 \
  --retry-max-retries 5 --retry-initial-backoff-ms 20
