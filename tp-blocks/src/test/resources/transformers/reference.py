"""What PyTorch computes of attention and transformer layers, in float64.

python3 reference.py > reference.txt    (PyTorch 1.13)

Parameters, inputs and the gradient of the output are number(seed, i), the parameters in the order
of our blocks, with the seeds 1, 2, ... A line is: case, array, numbers.
"""
import math

import torch
from torch import nn
from torch.nn import functional as F

torch.set_default_dtype(torch.float64)
B, T, S, D, H, HIDDEN = 2, 4, 3, 8, 4, 10


def number(seed, *shape):
    n = 1
    for s in shape:
        n *= s
    i = torch.arange(n)
    return (((i * 7 + seed * 13) % 23) / 23.0 - 0.5).reshape(shape)


class Parameters:
    """Hands out parameters in the order of our blocks."""

    def __init__(self):
        self.all = []

    def next(self, *shape):
        self.all.append(number(len(self.all) + 1, *shape).requires_grad_())
        return self.all[-1]


def write(case, name, x):
    print(case, name, *["%.9g" % v for v in x.detach().reshape(-1).tolist()])


def finish(case, y, inputs, parameters):
    y.backward(number(99, *y.shape))
    write(case, "output", y)
    for k, x in enumerate(inputs):
        write(case, "input%d" % k, x.grad)
    for k, p in enumerate(parameters.all):
        write(case, "parameter%d" % (k + 1), p.grad)


def inputs():
    return number(50, B, T, D).requires_grad_(), number(51, B, S, D).requires_grad_()


def call(module, values, *args, **kwargs):
    """Calls a module of PyTorch with parameters that were computed of ours."""
    return torch.nn.utils.stateless.functional_call(module, values, args, kwargs)


def projections(p, prefix):
    """query, key, value, output: weight and bias of each."""
    w, b = [], []
    for _ in range(3):
        w.append(p.next(D, D))
        b.append(p.next(D))
    return {
        prefix + "in_proj_weight": torch.cat(w),
        prefix + "in_proj_bias": torch.cat(b),
        prefix + "out_proj.weight": p.next(D, D),
        prefix + "out_proj.bias": p.next(D),
    }


def linear(p, name, out, features):
    return {name + ".weight": p.next(out, features), name + ".bias": p.next(out)}


def norm(p, name):
    return {name + ".weight": p.next(D), name + ".bias": p.next(D)}


def causal():
    return torch.triu(torch.ones(T, T), 1).bool()


def attention(case, mask, padding):
    p = Parameters()
    x, _ = inputs()
    module = nn.MultiheadAttention(D, H, batch_first=True)
    y, _ = call(
        module, projections(p, ""), x, x, x, attn_mask=mask, key_padding_mask=padding)
    finish(case, y, [x], p)


def encoder(case, first):
    p = Parameters()
    x, _ = inputs()
    module = nn.TransformerEncoderLayer(
        D, H, HIDDEN, 0.0, F.gelu, batch_first=True, norm_first=first)
    values = projections(p, "self_attn.")
    values.update(norm(p, "norm1"))
    values.update(linear(p, "linear1", HIDDEN, D))
    values.update(linear(p, "linear2", D, HIDDEN))
    values.update(norm(p, "norm2"))
    padding = torch.tensor([[False] * 4, [False, False, True, True]])
    y = call(module, values, x, src_key_padding_mask=padding)
    finish(case, y, [x], p)


def decoder(case, first):
    p = Parameters()
    x, memory = inputs()
    module = nn.TransformerDecoderLayer(
        D, H, HIDDEN, 0.0, F.relu, batch_first=True, norm_first=first)
    values = projections(p, "self_attn.")
    values.update(norm(p, "norm1"))
    values.update(projections(p, "multihead_attn."))
    values.update(norm(p, "norm2"))
    values.update(linear(p, "linear1", HIDDEN, D))
    values.update(linear(p, "linear2", D, HIDDEN))
    values.update(norm(p, "norm3"))
    padding = torch.tensor([[False, True, False], [False] * 3])
    y = call(module, values, x, memory, tgt_mask=causal(), memory_key_padding_mask=padding)
    finish(case, y, [x, memory], p)


def rotate(x, base, dim, interleaved):
    """x [B, H, T, d]"""
    angles = torch.arange(T)[:, None] * base ** (-torch.arange(0, dim, 2) / dim)
    rest = x[..., dim:]
    x = x[..., :dim]
    if interleaved:  # GPT-J
        sin, cos = angles.sin().repeat_interleave(2, 1), angles.cos().repeat_interleave(2, 1)
        other = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    else:  # Llama
        sin, cos = torch.cat((angles, angles), 1).sin(), torch.cat((angles, angles), 1).cos()
        other = torch.cat((-x[..., dim // 2:], x[..., :dim // 2]), -1)
    return torch.cat((x * cos + other * sin, rest), -1)


def rms(x, w, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def grouped(p, x, heads, groups, d, turn, stacked=False, norms=False):
    width = [heads * d, groups * d, groups * d]
    if stacked:
        w = p.next(sum(width), D).split(width)
    else:
        w = [p.next(n, D) for n in width]
    q, k, v = [(x @ each.t()).view(B, T, -1, d) for each in w]
    if norms:
        q, k = rms(q, p.next(d), 1e-6), rms(k, p.next(d), 1e-6)
    q, k, v = [each.transpose(1, 2) for each in (q, k, v)]
    q, k = turn(q), turn(k)
    k, v = [each.repeat_interleave(heads // groups, 1) for each in (k, v)]
    scores = (q @ k.transpose(2, 3) / d ** 0.5).masked_fill(causal(), float("-inf"))
    y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, heads * d)
    return y @ p.next(D, heads * d).t()


def llama():
    p = Parameters()
    x, _ = inputs()
    # the parameters come in the order of the blocks, the norms after their parts
    attention = Parameters()
    grouped(attention, x, 4, 2, 2, lambda a: a)
    first = number(len(attention.all) + 1, D).requires_grad_()
    y = x + grouped(p, rms(x, first, 1e-5), 4, 2, 2, lambda a: rotate(a, 100.0, 2, False))
    p.all.append(first)
    w = p.next(2 * HIDDEN, D)
    down = p.next(D, HIDDEN)
    gate, up = (rms(y, p.next(D), 1e-5) @ w.t()).split(HIDDEN, -1)
    finish("llama", y + (F.silu(gate) * up) @ down.t(), [x], p)


def groups(case, heads, keys, d, turn, **options):
    p = Parameters()
    x, _ = inputs()
    finish(case, grouped(p, x, heads, keys, d, turn, **options), [x], p)


attention("attention", None, None)
attention("causal", causal(), None)
attention("padding", None, torch.tensor([[False] * 4, [False, True, True, True]]))
encoder("post-norm", False)
encoder("pre-norm", True)
decoder("decoder", False)
decoder("decoder-pre-norm", True)
llama()
groups("llama-rotary", 6, 3, 4, lambda a: rotate(a, 10000.0, 4, False), stacked=True)
groups("gptj-rotary", 2, 1, 6, lambda a: rotate(a, 50.0, 4, True))
groups("neox-rotary", 2, 2, 6, lambda a: rotate(a, 50.0, 4, False), norms=True)


def alibi():
    slopes = 2.0 ** (-8.0 * torch.arange(1, H + 1) / H)
    distance = (torch.arange(T)[:, None] - torch.arange(T)[None, :]).abs()
    return -slopes[:, None, None] * distance


def positions():
    p = Parameters()
    x, _ = inputs()
    waves = torch.zeros(T, D)
    frequencies = torch.exp(torch.arange(0, D, 2) * (-math.log(10000.0) / D))
    waves[:, 0::2] = torch.sin(torch.arange(T)[:, None] * frequencies)
    waves[:, 1::2] = torch.cos(torch.arange(T)[:, None] * frequencies)
    finish("sinusoidal", x + waves, [x], p)


# as floats of each head of each row of the batch; -inf where the future is not seen
attention("alibi", alibi().repeat(B, 1, 1), None)
attention(
    "alibi-causal",
    alibi().masked_fill(causal(), float("-inf")).repeat(B, 1, 1),
    torch.tensor([[False] * 4, [False, True, True, True]]),
)
positions()
