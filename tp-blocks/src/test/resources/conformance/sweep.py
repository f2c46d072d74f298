"""Trains the networks of the random sweep in PyTorch, in float64.

python3 sweep.py < cases > results     (PyTorch 1.13)

A line of the cases is a network as a tree of its parts, with the fields of the test's records, the
initial parameters, and the data and labels of three steps. A line of the results holds what the
test compares: of one step of SGD whose step is the gradient, and of three steps of the optimizer.
"""
import json
import math
import sys

import numpy
import torch
from torch.nn import functional as F

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
ACTIVATIONS = [F.relu, torch.tanh, torch.sigmoid, F.gelu]


def single(x):
    """A constant that is written as float in Java."""
    return float(numpy.float32(x))


RATE = single(0.005)


def tensor(array, grad=False):
    t = torch.tensor(array["values"], dtype=torch.float64).reshape(array["shape"])
    return t.requires_grad_() if grad else t


class Parameters:
    """Hands out parameters in the order of the blocks, by the end of their names."""

    def __init__(self, arrays):
        self.names = [a["name"] for a in arrays]
        self.all = [tensor(a, True) for a in arrays]
        self.at = 0

    def next(self, name):
        assert self.names[self.at].endswith(name), (self.names[self.at], name)
        self.at += 1
        return self.all[self.at - 1]

    def follows(self, name):
        return self.at < len(self.names) and self.names[self.at].endswith(name)


def linear(p, bias=True):
    weight = p.next("weight")
    offset = p.next("bias") if bias else None
    return lambda x: F.linear(x, weight, offset)


def rms(p, epsilon):
    weight = p.next("weight")
    return lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight


def layer_norm(p):
    gamma, beta = p.next("gamma"), p.next("beta")
    return lambda x: F.layer_norm(x, gamma.shape, gamma, beta, single(1e-5))


def plain(p, part):
    first = linear(p)
    norm = {"TANH": lambda: torch.tanh, "LAYER": lambda: layer_norm(p),
            "RMS": lambda: rms(p, single(1e-6))}[part["norm"]]()
    return lambda x: norm(first(x))


def layers(p, part):
    column, row = linear(p, part["bias"]), linear(p, part["bias"])
    activation = ACTIVATIONS[part["activation"]]
    return lambda x: row(activation(column(x)))


def mlp(p, part, bias=None):
    bias = part["bias"] if bias is None else bias
    up, down = linear(p, bias), linear(p, bias)

    def forward(x):
        y = up(x)
        if part["gated"]:
            gate, y = y.chunk(2, -1)
            y = F.silu(gate) * y
        else:
            y = F.gelu(y)
        return down(y)

    return forward


def heads(p, part):
    stacked, output = linear(p, part["bias"]), linear(p, part["bias"])
    count, keys, dim = part["heads"], part["keyHeads"], part["dim"]

    def forward(x):
        q, k, v = stacked(x).split([count * dim, keys * dim, keys * dim], -1)
        k, v = (z.unflatten(-1, (keys, dim)).repeat_interleave(count // keys, -2).flatten(-2)
                for z in (k, v))
        return output(q * torch.tanh(k) + v)

    return forward


def rotate(x):
    pairs = x.shape[-1] // 2
    positions = torch.arange(x.shape[1])[:, None, None]
    angles = positions * torch.pow(torch.tensor(1e4), -torch.arange(pairs) / pairs)
    cos, sin = (f(angles).float().double() for f in (torch.cos, torch.sin))
    a, b = x[..., :pairs], x[..., pairs:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def attention(p, part):
    """Returns a function of x, and of the memory where the attention is crossed."""
    count, keys, dim, bias = part["heads"], part["keyHeads"], part["dim"], part["bias"]
    if part["fused"]:
        stacked = linear(p, bias)
        project = lambda x, m: stacked(x).split([count * dim, keys * dim, keys * dim], -1)
    else:
        q, k, v = linear(p, bias), linear(p, bias), linear(p, bias)
        project = lambda x, m: (q(x), k(m), v(m))
    norms = [rms(p, single(1e-5)) for _ in range(2)] if part["normed"] else None
    output = linear(p, bias)

    def forward(x, memory=None, mask=None):
        q, k, v = (z.unflatten(-1, (-1, dim))
                   for z in project(x, x if memory is None else memory))
        if norms:
            q, k = norms[0](q), norms[1](k)
        if part["rotary"]:
            q, k = rotate(q), rotate(k)
        k, v = (z.repeat_interleave(count // keys, 2) for z in (k, v))
        q, k, v = (z.transpose(1, 2) for z in (q, k, v))
        seen = torch.ones(x.shape[0], 1, q.shape[2], k.shape[2], dtype=torch.bool)
        if part["causal"]:
            seen = seen.tril()
        if mask is not None:
            seen = seen & mask[:, None, None, :]
        scores = (q @ k.transpose(2, 3) / math.sqrt(dim)).masked_fill(~seen, -math.inf)
        none = ~seen.any(-1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(none, 0.0), -1).masked_fill(none, 0.0)
        return output((weights @ v).transpose(1, 2).flatten(2))

    return forward


def attention_part(p, part):
    forward = attention(p, part)
    return lambda x: forward(
        x, x if part["crossed"] else None, x[..., 0] > -0.3 if part["masked"] else None)


def transformer(p, part):
    norm = lambda: rms(p, single(1e-6)) if part["rms"] else layer_norm(p)
    steps = [(attention(p, part["attention"]), norm())]
    if part["crossAttention"] is not None:
        steps.append((attention(p, part["crossAttention"]), norm()))
    steps.append((mlp(p, part, True), norm()))

    def forward(memory):
        x = memory
        masked = part["attention"]["masked"] and False  # no mask is given to a layer
        for i, (step, normalize) in enumerate(steps):
            crossed = i == 1 and len(steps) == 3
            f = (lambda z: step(z, memory)) if crossed else step
            x = x + f(normalize(x)) if part["preNorm"] else normalize(x + f(x))
        return x

    return forward


def join(p, part):
    branches = [build(p, branch) for branch in part["branches"]]
    if part["residual"]:
        return lambda x: x + branches[0](x)
    return lambda x: torch.cat([branch(x) for branch in branches], -1)


KINDS = {"SweptPlain": plain, "SweptLayers": layers, "SweptMlp": mlp, "SweptHeads": heads,
         "SweptAttention": attention_part, "SweptTransformer": transformer, "SweptJoin": join,
         "SweptBorder": lambda p, part: lambda x: x}


def build(p, part):
    return KINDS[part["kind"]](p, part)


def network(p, tree):
    steps = []
    table = None
    if tree["table"] is not None:
        table = p.next("embedding")
        padding = 0 if tree["table"]["padded"] else None
        steps.append(lambda ids: F.embedding(ids.long(), table, padding))
    steps += [build(p, part) for part in tree["parts"]]
    end = tree["end"]
    if not end["classes"]:
        steps.append(linear(p))
    elif end["tied"] is None:
        steps.append(linear(p, end["bias"]))
    else:
        steps.append(linear(p))
        if p.follows("weight"):  # the table once more
            p.all[p.at] = table
            p.next("weight")
        bias = p.next("bias") if end["bias"] else None
        steps.append(lambda x: F.linear(x, table, bias))

    def forward(x):
        for step in steps:
            x = step(x)
        return x

    assert p.at == len(p.all), p.names[p.at:]
    return forward


def loss_of(tree, y, labels):
    if tree["end"]["classes"]:
        return F.cross_entropy(y.reshape(-1, y.shape[-1]), labels.reshape(-1).long())
    return (y - labels).square().mean() / 2


def adam(parameters, state, step):
    """As DJL: epsilon is added to the root that is not corrected."""
    rate = RATE * math.sqrt(1 - 0.999 ** step) / (1 - 0.9 ** step)
    for p, (m, v) in zip(parameters, state):
        m.mul_(0.9).add_(p.grad, alpha=0.1)
        v.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
        p.data -= rate * m / (v.sqrt() + 1e-8)


def train(case, gradients):
    tree, results = case["tree"], []
    p = Parameters(case["parameters"])
    forward = network(p, tree)
    put = lambda name, x: results.append(
        {"name": name, "values": x.detach().reshape(-1).tolist()})
    elements = case["rows"] * max(1, tree["tokens"])
    elements *= 1 if tree["end"]["classes"] else tree["end"]["outputs"]
    distinct = list(dict.fromkeys(p.all))
    sgd = torch.optim.SGD(
        distinct, 16.0 * elements if gradients else RATE,
        momentum=single(0.9) if case["optimizer"] == 1 and not gradients else 0)
    state = [(torch.zeros_like(x), torch.zeros_like(x)) for x in distinct]
    for step in range(1 if gradients else 3):
        y = forward(tensor(case["data"][step]))
        if gradients and not tree["end"]["classes"]:
            put("output", y)
        loss = loss_of(tree, y, tensor(case["labels"][step]))
        put("loss %d" % step, loss)
        sgd.zero_grad(set_to_none=False)
        loss.backward()
        for x in distinct:
            x.grad = torch.zeros_like(x) if x.grad is None else x.grad
        if case["optimizer"] == 2 and not gradients:
            adam(distinct, state, step + 1)
        else:
            sgd.step()
    for name, x in zip(p.names, p.all):
        put(name, x)
    return results


for line in sys.stdin:
    case = json.loads(line)
    print(json.dumps({"gradients": train(case, True), "steps": train(case, False)}))
