#!/usr/bin/env python3
"""Replay a scenario file on vLLM's own V1 scheduler, without a GPU, and log every step.

    python drive_vllm.py SCENARIO.json [...]      writes SCENARIO.trace.jsonl beside each

Needs an importable `vllm` (see README.md for what to install). No weights, no
hub access, no GPU: the model is a tiny config.json written to a temporary folder, and the
"model" that runs is this script, which answers one token for each scheduled request that has
no prompt (or recomputed) token left to process.

The formats of scenarios and traces are specified in README.md.
"""
import json
import os
import sys
import tempfile

for key, value in dict(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
                       DO_NOT_TRACK="1", VLLM_LOGGING_LEVEL="ERROR").items():
    os.environ.setdefault(key, value)

import torch  # noqa: E402
import vllm  # noqa: E402
from vllm.config import (CacheConfig, DeviceConfig, ModelConfig,  # noqa: E402
                         SchedulerConfig, VllmConfig)
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_utils import (get_request_block_hasher,  # noqa: E402
                                         init_none_hash)
from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.kv_cache_interface import (FullAttentionSpec, KVCacheConfig,  # noqa: E402
                                        KVCacheGroupSpec)
from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request, RequestStatus  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

SEGMENT = 1 << 20      # token id of (segment, offset) = segment * SEGMENT + offset, segment >= 1
STOP_TOKEN = 1         # never inside a prompt, since segments start at 1
LETTER = {RequestStatus.WAITING: "W", RequestStatus.PREEMPTED: "P", RequestStatus.RUNNING: "R"}

CONFIG_DEFAULTS = dict(
    max_num_seqs=16, max_num_batched_tokens=1024, max_model_len=2048, block_size=16,
    num_blocks=129, prefix_caching=False, policy="fcfs", long_prefill_token_threshold=0,
    long_prefill_adaptive=False, chunked_prefill=True, reserve_full_isl=True, watermark=0.0,
    max_num_active_seqs=None, prefill_interval=1, async_scheduling=False)


def tiny_model_dir():
    path = tempfile.mkdtemp(prefix="tinymodel-")
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(dict(
            architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=64,
            intermediate_size=128, num_attention_heads=4, num_key_value_heads=4,
            num_hidden_layers=2, vocab_size=32000, max_position_embeddings=1 << 20,
            rms_norm_eps=1e-5, torch_dtype="float16", hidden_act="silu", bos_token_id=1,
            eos_token_id=2), f)
    return path


MODEL_DIR = None


def build_scheduler(cfg):
    """One KV-cache group of full attention, the case of an ordinary dense decoder model."""
    global MODEL_DIR
    if MODEL_DIR is None:
        MODEL_DIR = tiny_model_dir()
    sched = SchedulerConfig(
        max_model_len=cfg["max_model_len"], is_encoder_decoder=False,
        max_num_seqs=cfg["max_num_seqs"], max_num_batched_tokens=cfg["max_num_batched_tokens"],
        max_num_active_seqs=cfg["max_num_active_seqs"], policy=cfg["policy"],
        long_prefill_token_threshold=cfg["long_prefill_token_threshold"],
        long_prefill_token_threshold_adaptive=cfg["long_prefill_adaptive"],
        enable_chunked_prefill=cfg["chunked_prefill"],
        scheduler_reserve_full_isl=cfg["reserve_full_isl"], watermark=cfg["watermark"],
        prefill_schedule_interval=cfg["prefill_interval"],
        async_scheduling=cfg["async_scheduling"])
    cache = CacheConfig(block_size=cfg["block_size"], cache_dtype="auto",
                        enable_prefix_caching=cfg["prefix_caching"])
    config = VllmConfig(
        scheduler_config=sched, cache_config=cache, device_config=DeviceConfig("cpu"),
        model_config=ModelConfig(model=MODEL_DIR, skip_tokenizer_init=True, dtype="float16",
                                 seed=0, max_model_len=cfg["max_model_len"]))
    cache.num_gpu_blocks = cfg["num_blocks"]
    # Building VllmConfig may adapt settings to a platform: make sure that ours still hold.
    assert config.scheduler_config.async_scheduling == cfg["async_scheduling"]
    assert config.scheduler_config.enable_chunked_prefill == cfg["chunked_prefill"]
    assert config.cache_config.enable_prefix_caching == cfg["prefix_caching"]
    assert config.cache_config.block_size == cfg["block_size"]
    assert config.scheduler_config.max_num_batched_tokens == cfg["max_num_batched_tokens"]
    kv = KVCacheConfig(
        num_blocks=cfg["num_blocks"], kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], FullAttentionSpec(
            block_size=cfg["block_size"], num_kv_heads=1, head_size=1, dtype=torch.float32))])
    cls = AsyncScheduler if cfg["async_scheduling"] else Scheduler
    return config, cls(vllm_config=config, kv_cache_config=kv, block_size=cfg["block_size"],
                       structured_output_manager=StructuredOutputManager(config), log_stats=True)


def tokens_of(segments):
    out = []
    for segment, length in segments:
        assert segment >= 1 and 0 < length < SEGMENT
        out.extend(range(segment * SEGMENT, segment * SEGMENT + length))
    return out


class Replay:
    def __init__(self, scenario, on_update=None):
        self.cfg = {**CONFIG_DEFAULTS, **scenario.get("config", {})}
        unknown = set(self.cfg) - set(CONFIG_DEFAULTS)
        assert not unknown, unknown
        self.scenario = scenario
        self.specs = scenario["requests"]
        init_none_hash(sha256)
        self.hasher = (get_request_block_hasher(self.cfg["block_size"], sha256)
                       if self.cfg["prefix_caching"] else None)
        self.vllm_config, self.sched = build_scheduler(self.cfg)
        self.pool = self.sched.kv_cache_manager.block_pool
        self.on_update = on_update          # hook for the metrics replay
        self.lines, self.preempted, self.requests = [], [], {}
        self.info = [dict(admit=None, first=None, finish=None, reason=None, out=0, pre=0,
                          cached=None) for _ in self.specs]
        self.total = dict(scheduled_tokens=0, preemptions=0, max_running=0, queries=0, hits=0,
                          preempted_queries=0, preempted_hits=0)
        original = self.sched._preempt_request

        def watch(request, *args, **kwargs):
            self.preempted.append(int(request.request_id))
            return original(request, *args, **kwargs)
        self.sched._preempt_request = watch

    def on_step(self, step):
        """For the metrics replay: its clock."""

    # -- events -------------------------------------------------------------------------------
    def arrive(self, index):
        spec = self.specs[index]
        params = SamplingParams(max_tokens=spec["max_tokens"], stop_token_ids=[STOP_TOKEN],
                                temperature=0.0)
        request = Request(
            request_id=str(index), prompt_token_ids=tokens_of(spec["prompt"]),
            sampling_params=params, pooling_params=None, arrival_time=float(index),
            priority=spec.get("priority", 0), cache_salt=spec.get("salt"),
            block_hasher=self.hasher)
        self.requests[index] = request
        self.sched.add_request(request)

    def cancel(self, index, step):
        request = self.requests[index]
        if request.is_finished():
            return [index, "F"]
        state = LETTER[request.status]
        self.sched.finish_requests(str(index), RequestStatus.FINISHED_ABORTED)
        self.info[index].update(finish=step, reason="abort")
        return [index, state]

    def sample(self, index, request):
        """The token that the model gives after the position just computed."""
        n = request.num_computed_tokens - request.num_prompt_tokens
        spec = self.specs[index]
        if spec.get("stop_after") == n + 1:
            return STOP_TOKEN
        return spec["out_segment"] * SEGMENT + n

    # -- one step -----------------------------------------------------------------------------
    def run_model(self, output):
        """Decide now, as the device would, what this batch returns."""
        ids = list(output.num_scheduled_tokens)
        tokens = []
        for rid in ids:
            request = self.requests[int(rid)]
            tokens.append([] if request.is_prefill_chunk
                          else [self.sample(int(rid), request)])
        return ModelRunnerOutput(
            req_ids=ids, req_id_to_index={rid: i for i, rid in enumerate(ids)},
            sampled_token_ids=tokens, logprobs=None, prompt_logprobs_dict={}, pooler_output=[])

    def counts(self):
        running, waiting = self.sched.get_request_counts()
        return running, waiting, self.pool.get_num_free_blocks()

    def log_schedule(self, output, line, step):
        new, resumed, blocks = [], [], []
        for data in output.scheduled_new_reqs:
            index = int(data.req_id)
            request = self.requests[index]
            if request.num_preemptions:
                resumed.append([index, data.num_computed_tokens])
            else:
                new.append([index, data.num_computed_tokens])
                self.info[index].update(admit=step, cached=data.num_computed_tokens)
            blocks.append([index, list(data.block_ids[0])])
        cached = output.scheduled_cached_reqs
        assert not cached.resumed_req_ids
        grown = [[int(rid), list(ids[0])]
                 for rid, ids in zip(cached.req_ids, cached.new_block_ids) if ids]
        sched = [[int(rid), n] for rid, n in output.num_scheduled_tokens.items()]
        for _, n in sched:
            self.total["scheduled_tokens"] += n
        self.total["preemptions"] += len(self.preempted)
        for index in self.preempted:
            self.info[index]["pre"] += 1
        order = {index: k for k, (index, _) in enumerate(sched)}
        put(line, new=new, res=resumed, pre=self.preempted, sched=sched,
            blk=sorted(grown + blocks, key=lambda entry: order[entry[0]]))
        if self.preempted:
            line["wq"] = [int(r.request_id) for r in self.sched.waiting][:8]
        self.preempted = []
        line["rs"], line["ws"], line["fs"] = self.counts()
        self.total["max_running"] = max(self.total["max_running"], line["rs"])

    def log_update(self, outputs, line, step):
        first, finished, tokens = [], [], 0
        for eco in outputs.values():
            for out in eco.outputs:
                index = int(out.request_id)
                info = self.info[index]
                if out.new_token_ids and info["first"] is None:
                    info["first"] = step
                    first.append(index)
                info["out"] += len(out.new_token_ids)
                tokens += len(out.new_token_ids)
                if out.finish_reason is not None:
                    info.update(finish=step, reason=str(out.finish_reason))
                    finished.append([index, str(out.finish_reason)])
            stats = eco.scheduler_stats
            if stats is not None:
                p = stats.prefix_cache_stats
                if p.queries or p.preempted_queries:
                    line["pc"] = [p.queries, p.hits, p.preempted_queries, p.preempted_hits]
                for key in ("queries", "hits", "preempted_queries", "preempted_hits"):
                    self.total[key] += getattr(p, key)
        put(line, tok=tokens, ft=first, fin=finished)
        if self.on_update:
            self.on_update(step, outputs)

    def run(self):
        arrivals, cancels = {}, {}
        for index, spec in enumerate(self.specs):
            arrivals.setdefault(spec["arrive"], []).append(index)
        for index, step, phase in self.scenario.get("cancels", []):
            assert phase in ("before", "during") and step >= self.specs[index]["arrive"]
            cancels.setdefault((step, phase), []).append(index)
        depth = 2 if self.cfg["async_scheduling"] else 1
        inflight = []                              # oldest first
        step, last_arrival = 0, max(arrivals)
        limit = self.scenario.get("max_steps", 100000)
        while step <= limit:
            line = {"s": step}
            self.on_step(step)
            new = arrivals.get(step, [])
            for index in new:
                self.arrive(index)
            gone = [self.cancel(i, step) for i in cancels.get((step, "before"), [])]
            put(line, arr=new, can=gone)
            if self.sched.has_unfinished_requests() or any(m.req_ids for _, _, m in inflight):
                output = self.sched.schedule()
                inflight.append((step, output, self.run_model(output)))
                self.log_schedule(output, line, step)
                if len(inflight) == depth or not (
                        output.total_num_scheduled_tokens or self.sched.has_requests()):
                    of, output, result = inflight.pop(0)
                    put(line, mid=[self.cancel(i, step)
                                   for i in cancels.get((step, "during"), [])])
                    outputs = self.sched.update_from_output(output, result)
                    if depth > 1:
                        line["of"] = of
                    self.log_update(outputs, line, step)
                else:
                    put(line, mid=[self.cancel(i, step)
                                   for i in cancels.get((step, "during"), [])])
                line["re"], line["we"], line["fe"] = self.counts()
                if self.cfg["prefix_caching"]:
                    line["ch"] = len(self.pool.cached_block_hash_to_block)
                self.lines.append(line)
                step += 1
                continue
            if gone or new:                       # an arrival cancelled before it was seen
                line["re"], line["we"], line["fe"] = self.counts()
                self.lines.append(line)
            while inflight:                       # only empty batches are left
                _, output, result = inflight.pop(0)
                self.sched.update_from_output(output, result)
            later = [s for s in arrivals if s > step]
            if not later:
                break
            step = min(later)
        assert all(i["finish"] is not None for i in self.info), "did not finish"
        assert self.counts() == (0, 0, self.cfg["num_blocks"] - 1)
        return step

    def trace(self):
        self.run()
        head = {"trace": 1, "scenario": self.scenario["name"], "vllm": vllm.__version__,
                "config": self.cfg, "usable_blocks": self.cfg["num_blocks"] - 1}
        rows = [[i, self.specs[i]["arrive"], n["admit"], n["first"], n["finish"], n["reason"],
                 n["out"], n["pre"], n["cached"]] for i, n in enumerate(self.info)]
        tail = {"end": {"lines": len(self.lines), "requests": rows, **self.total}}
        return [head, *self.lines, tail]


def put(line, **fields):
    """Leave out what is empty or zero."""
    for key, value in fields.items():
        if value:
            line[key] = value


def dump(obj):
    return json.dumps(obj, separators=(",", ":"))


def main(paths):
    for path in paths:
        with open(path) as f:
            scenario = json.load(f)
        trace = Replay(scenario).trace()
        assert path.endswith(".json")
        out = path[:-len(".json")] + ".trace.jsonl"
        with open(out, "w") as f:
            f.writelines(dump(line) + "\n" for line in trace)
        end = trace[-1]["end"]
        print(f"{scenario['name']}: {end['lines']} steps, {len(end['requests'])} requests, "
              f"{end['preemptions']} preemptions, hits {end['hits']}/{end['queries']}, "
              f"{os.path.getsize(out)} bytes", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
