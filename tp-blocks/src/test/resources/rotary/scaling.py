"""Turns the features of heads by scaled rotary positions in PyTorch's float64, case by case.

python3 scaling.py < cases > results     (PyTorch 1.13)

A line of the cases has a rope_scaling of a config.json, the base, max_position_embeddings, the
first position, and heads [B, T, H, d]; a line of the results the same heads, turned.
"""
import json
import math
import sys

import torch

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


def linear(c, base, d, longest, last):
    return base ** (-torch.arange(0, d, 2) / d) / c["factor"], 1.0


def dynamic(c, base, d, longest, last):
    n = max(last, longest)
    base = base * (c["factor"] * n / longest - (c["factor"] - 1)) ** (d / (d - 2))
    return base ** (-torch.arange(0, d, 2) / d), 1.0


def llama3(c, base, d, longest, last):
    original, low, high = c["original_max_position_embeddings"], c["low_freq_factor"], c["high_freq_factor"]
    angles = []
    for i in range(0, d, 2):
        f = base ** (-i / d)
        wave = 2 * math.pi / f
        if wave > original / low:
            f = f / c["factor"]
        elif wave >= original / high:
            smooth = (original / wave - low) / (high - low)
            f = (1 - smooth) * f / c["factor"] + smooth * f
        angles.append(f)
    return torch.tensor(angles), 1.0


def yarn(c, base, d, longest, last):
    original = c.get("original_max_position_embeddings") or longest
    factor = c.get("factor") or longest / original
    place = lambda turns: d * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
    low, high = place(c.get("beta_fast", 32)), place(c.get("beta_slow", 1))
    if c.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(d // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    plain = base ** (-torch.arange(0, d, 2) / d)
    grow = lambda m: 0.1 * m * math.log(factor) + 1
    scale = c.get("attention_factor")
    if scale is None:
        both = c.get("mscale") and c.get("mscale_all_dim")
        scale = grow(c["mscale"]) / grow(c["mscale_all_dim"]) if both else grow(1)
    return plain / factor * ramp + plain * (1 - ramp), scale


for line in sys.stdin:
    case = json.loads(line)
    c = case["scaling"]
    x = torch.tensor(case["heads"]).reshape(case["shape"])
    d, start = x.shape[-1], case["start"]
    kind = {"linear": linear, "dynamic": dynamic, "llama3": llama3, "yarn": yarn}
    angles, scale = kind[c.get("rope_type") or c["type"]](
        c, case["base"], d, case["longest"], start + x.shape[1])
    t = torch.arange(start, start + x.shape[1])[:, None, None] * angles
    cos, sin = torch.cos(t) * scale, torch.sin(t) * scale
    a, b = x[..., :d // 2], x[..., d // 2:]
    print(json.dumps(torch.cat([a * cos - b * sin, b * cos + a * sin], -1).flatten().tolist()))
