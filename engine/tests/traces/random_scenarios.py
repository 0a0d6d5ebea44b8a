#!/usr/bin/env python3
"""Write random scenarios that mix every feature, to be recorded by drive_vllm.py and replayed.

    python random_scenarios.py FOLDER COUNT [FIRST_SEED]

Memory is tight, prompts share prefixes and continue earlier answers, requests are cancelled in every
state. The same seed gives the same scenario.
"""
import json
import os
import random
import sys


def scenario(seed):
    r = random.Random(seed)
    block = r.choice([16, 16, 32, 64])
    model_len = r.choice([200, 400, 900])
    chunked = r.random() < 0.85
    seqs = r.choice([2, 4, 8, 16])
    budget = r.choice([48, 64, 128, 256]) if chunked else model_len + r.choice([0, 100])
    need = -(-model_len // block)
    config = dict(
        max_num_seqs=seqs, max_num_batched_tokens=max(budget, seqs), max_model_len=model_len,
        block_size=block, num_blocks=1 + need + r.choice([0, 1, need // 4, need // 2, need]),
        prefix_caching=r.random() < 0.65, policy=r.choice(["fcfs", "priority"]),
        long_prefill_token_threshold=r.choice([0, 0, 24, 60]),
        long_prefill_adaptive=r.random() < 0.4, chunked_prefill=chunked,
        reserve_full_isl=r.random() < 0.7, watermark=r.choice([0.0, 0.0, 0.02, 0.1]),
        max_num_active_seqs=r.choice([None, None, None, max(1, seqs // 2)]),
        prefill_interval=r.choice([1, 1, 1, 2, 3, 5]), async_scheduling=r.random() < 0.6)
    shared = [(segment, r.randrange(1, model_len // 2)) for segment in range(1, 4)]
    requests, step = [], 0
    spread = r.choice([1, 3, 8])
    for index in range(r.choice([6, 20, 50])):
        step += r.choice([0, 0, r.randrange(2 * spread)]) + (r.random() < 0.03) * 300
        prompt, room = [], model_len - 1
        kind = r.random()
        if kind < 0.35:
            segment, length = r.choice(shared)
            prompt.append([segment, r.choice([length, max(1, length // 2)])])
        elif kind < 0.55 and requests:
            before = r.choice(requests)
            prompt += [list(part) for part in before["prompt"]]
            prompt.append([before["out_segment"], r.randrange(1, 40)])
        if not prompt or r.random() < 0.7:
            prompt.append([10000 + index, r.randrange(1, max(2, model_len // 2))])
        kept = []
        for segment, length in prompt:
            length = min(length, room)
            if length > 0:
                kept.append([segment, length])
                room -= length
        request = dict(arrive=step, prompt=kept, max_tokens=r.choice([1, 2, 10, 40, 120, 2000]),
                       out_segment=100000 + index)
        if r.random() < 0.4:
            request["stop_after"] = r.randrange(1, 60)
        if config["policy"] == "priority" or r.random() < 0.1:
            request["priority"] = r.randrange(-1, 3)
        if config["prefix_caching"] and r.random() < 0.15:
            request["salt"] = r.choice(["a", "b"])
        requests.append(request)
    cancels = [[i, q["arrive"] + r.choice([0, 1, r.randrange(80)]), r.choice(["before", "during"])]
               for i, q in enumerate(requests) if r.random() < 0.15]
    return dict(name=f"r{seed:05}", about="random", tier=5, features=["mix"], seed=seed,
                config=config, requests=requests, cancels=cancels)


def main(folder, count, first=0):
    os.makedirs(folder, exist_ok=True)
    for seed in range(int(first), int(first) + int(count)):
        made = scenario(seed)
        with open(os.path.join(folder, made["name"] + ".json"), "w") as f:
            json.dump(made, f)


if __name__ == "__main__":
    main(*sys.argv[1:])
