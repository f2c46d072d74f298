"""Language models of Hugging Face folders in PyTorch's float64, written from their papers.

python3 reference.py < cases > results     (PyTorch 1.13 or newer)

A line of the cases is {"folder": a folder with config.json and model.safetensors, "ids": [[...],
...]}, a line of the results the logits of all tokens, flat. With "greedy": n a line has the n
likeliest next tokens of the first row, each computed from the whole text. With "labels", "steps" and
"rate" it has the mean losses of so many steps of SGD, and the logits after them. An encoder has "mask" and "kinds" too, and a
line of the results the features of all tokens. With "adapter", a folder as PEFT writes it, a layer
computes x W^T + s x A^T B^T, and SGD trains A and B, which "save" names a folder for.
"""
import json
import math
import re
import struct
import sys

import numpy
import torch
from torch.nn import functional as F

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


ADAPTER = {}  # A, B and s by the name of the layer


def read(folder, config="config.json", file="model.safetensors"):
    with open(folder + "/" + config) as f:
        config = json.load(f)
    with open(folder + "/" + file, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        data = f.read()
    weights = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            if entry["dtype"] == "BF16":
                bits = numpy.frombuffer(data[begin:end], numpy.uint16).astype(numpy.uint32) << 16
                values = bits.view(numpy.float32)
            else:
                kind = {"F32": numpy.float32, "F16": numpy.float16}[entry["dtype"]]
                values = numpy.frombuffer(data[begin:end], kind)
            weights[name] = torch.from_numpy(values.astype(numpy.float64)).reshape(entry["shape"])
    return config, weights


def read_adapter(folder):
    c, tensors = read(folder, "adapter_config.json", "adapter_model.safetensors")
    assert c["peft_type"] == "LORA" and c["bias"] == "none"
    scale = c["lora_alpha"] / (math.sqrt(c["r"]) if c.get("use_rslora") else c["r"])
    for name in tensors:
        base, factor = name.split(".lora_")
        assert base.startswith("base_model.model.") and factor in ("A.weight", "B.weight"), name
        module = base[len("base_model.model."):]
        assert module.split(".")[-1] in c["target_modules"], module
        ADAPTER[module] = tensors[base + ".lora_A.weight"], tensors[base + ".lora_B.weight"], scale
    assert all(a.shape[0] == c["r"] == b.shape[1] for a, b, _ in ADAPTER.values())
    return c, tensors


def save_adapter(folder, config, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, each in tensors.items():
        values = each.detach().numpy().astype(numpy.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": list(each.shape),
                        "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    with open(folder + "/adapter_model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    with open(folder + "/adapter_config.json", "w") as f:
        json.dump(config, f)


def adapted(x, name, y):
    if name not in ADAPTER:
        return y
    a, b, scale = ADAPTER[name]
    return y + scale * (x @ a.T) @ b.T


def rope_of(c):
    return c.get("rope_scaling") or c.get("rope_parameters") or {}


def angles(c, d, length):
    """Returns the angle of each pair at position 1, and the factor of cosines and sines."""
    rope = rope_of(c)
    default = 2000000.0 if c["model_type"] == "smollm3" else 10000.0
    base = rope.get("rope_theta") or c.get("rope_theta", default)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    longest = c["max_position_embeddings"]
    plain = base ** (-torch.arange(0, d, 2) / d)
    if kind == "default":
        return plain, 1.0
    s = rope.get("factor")
    if kind == "linear":
        return plain / s, 1.0
    if kind == "dynamic":
        n = max(length, longest)
        return (base * (s * n / longest - (s - 1)) ** (d / (d - 2))) ** (-torch.arange(0, d, 2) / d), 1.0
    original = (rope.get("original_max_position_embeddings")
                or c.get("original_max_position_embeddings") or longest)
    if kind == "longrope":
        divisors = rope["long_factor" if length > original else "short_factor"]
        return plain / torch.tensor(divisors), math.sqrt(1 + math.log(longest / original, original))
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        turned = []
        for f in plain.tolist():
            wave = 2 * math.pi / f
            if wave < original / high:
                turned.append(f)
            elif wave > original / low:
                turned.append(f / s)
            else:
                m = (original / wave - low) / (high - low)
                turned.append((1 - m) * f / s + m * f)
        return torch.tensor(turned), 1.0
    assert kind == "yarn", kind
    place = lambda turns: d * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
    low = max(math.floor(place(rope.get("beta_fast", 32))), 0)
    high = min(math.ceil(place(rope.get("beta_slow", 1))), d - 1)
    ramp = ((torch.arange(d // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain / s * ramp + plain * (1 - ramp), 0.1 * math.log(s) + 1


def rotate(x, c):
    whole, length = x.shape[-1], x.shape[2]
    share = rope_of(c).get("partial_rotary_factor") or c.get("partial_rotary_factor") or 1
    d = int(whole * share)
    per, scale = angles(c, d, length)
    t = torch.arange(length)[:, None] * per
    cos, sin = torch.cos(t) * scale, torch.sin(t) * scale
    a, b, rest = x.split([d // 2, d // 2, whole - d], -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def rms(x, weight, epsilon):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon) * weight


def layer_norm(x, weight, bias, epsilon):
    return rms(x - x.mean(-1, keepdim=True), weight, epsilon) + bias


def attend(q, k, v, window):
    """Of [B, H, T, d] each, of which keys and values have fewer heads."""
    share = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    t = torch.arange(q.shape[2])
    distance = t[:, None] - t[None, :]
    hidden = distance < 0
    if window:
        hidden = hidden | (distance >= window)
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    y = torch.softmax(scores.masked_fill(hidden, -math.inf), -1) @ v
    return y.transpose(1, 2).flatten(2)


def tanh_gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


ACTIVATIONS = {"silu": lambda x: x / (1 + torch.exp(-x)), "relu": torch.relu,
               "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
               "gelu_new": tanh_gelu, "gelu_pytorch_tanh": tanh_gelu}


def rotates(c, layer):
    if c["model_type"] != "smollm3":
        return True
    listed = c.get("no_rope_layers")
    return listed[layer] == 1 if listed else (layer + 1) % c.get("no_rope_layer_interval", 4) != 0


def window_of(c, layer):
    if c["model_type"] == "smollm3":
        return c["sliding_window"] if c.get("use_sliding_window") and not rotates(c, layer) else None
    if "layer_types" in c and c["layer_types"][layer] == "full_attention":
        return None
    if c["model_type"] in ("mistral", "ministral", "phi3", "starcoder2"):
        return c.get("sliding_window")
    if c["model_type"] in ("qwen2", "qwen3") and c.get("use_sliding_window"):
        return c["sliding_window"] if layer >= c["max_window_layers"] else None
    return None


def llama(c, w, ids):
    heads = c["num_attention_heads"]
    groups = c.get("num_key_value_heads") or heads
    d = c.get("head_dim") or c["hidden_size"] // heads
    starcoder = c["model_type"] == "starcoder2"
    act = ACTIVATIONS[c.get("hidden_act", "gelu_pytorch_tanh" if starcoder else "silu")]
    eps = c["norm_epsilon" if starcoder else "rms_norm_eps"]
    linear = lambda x, name: adapted(x, name, F.linear(x, w[name + ".weight"], w.get(name + ".bias")))
    norm = lambda x, name: (layer_norm(x, w[name + ".weight"], w[name + ".bias"], eps) if starcoder
                            else rms(x, w[name + ".weight"], eps))
    x = w["model.embed_tokens.weight"][ids]
    for i in range(c["num_hidden_layers"]):
        p = "model.layers.%d." % i
        y = norm(x, p + "input_layernorm")
        if c["model_type"] == "phi3":
            y = linear(y, p + "self_attn.qkv_proj").split([heads * d, groups * d, groups * d], -1)
        else:
            y = [linear(y, p + "self_attn.%s_proj" % n) for n in "qkv"]
        q, k, v = (each.unflatten(-1, (-1, d)).transpose(1, 2) for each in y)
        if c["model_type"] == "qwen3":
            q = rms(q, w[p + "self_attn.q_norm.weight"], eps)
            k = rms(k, w[p + "self_attn.k_norm.weight"], eps)
        if rotates(c, i):
            q, k = rotate(q, c), rotate(k, c)
        y = attend(q, k, v, window_of(c, i))
        x = x + linear(y, p + "self_attn.o_proj")
        y = norm(x, p + "post_attention_layernorm")
        if starcoder:
            x = x + linear(act(linear(y, p + "mlp.c_fc")), p + "mlp.c_proj")
            continue
        if c["model_type"] == "phi3":
            gate, up = linear(y, p + "mlp.gate_up_proj").chunk(2, -1)
        else:
            gate, up = linear(y, p + "mlp.gate_proj"), linear(y, p + "mlp.up_proj")
        y = act(gate) * up
        x = x + linear(y, p + "mlp.down_proj")
    x = norm(x, "model.norm")
    tied = c.get("tie_word_embeddings", c["model_type"] in ("smollm3", "starcoder2"))
    return x @ w["model.embed_tokens.weight" if tied else "lm_head.weight"].T


def gpt2(c, w, ids):
    w = {name.replace("transformer.", ""): each for name, each in w.items()}
    heads, eps = c["n_head"], c["layer_norm_epsilon"]
    act = ACTIVATIONS[c.get("activation_function", "gelu_new")]
    linear = lambda x, name: adapted(x, "transformer." + name, x @ w[name + ".weight"] + w[name + ".bias"])
    norm = lambda x, name: layer_norm(x, w[name + ".weight"], w[name + ".bias"], eps)

    x = w["wte.weight"][ids] + w["wpe.weight"][:ids.shape[1]]
    for i in range(c["n_layer"]):
        p = "h.%d." % i
        q, k, v = (y.unflatten(-1, (heads, -1)).transpose(1, 2)
                   for y in linear(norm(x, p + "ln_1"), p + "attn.c_attn").chunk(3, -1))
        x = x + linear(attend(q, k, v, None), p + "attn.c_proj")
        x = x + linear(act(linear(norm(x, p + "ln_2"), p + "mlp.c_fc")), p + "mlp.c_proj")
    tied = c.get("tie_word_embeddings", True)
    return norm(x, "ln_f") @ w["wte.weight" if tied else "lm_head.weight"].T


QKV = {"q": "query", "k": "key", "v": "value"}


def bert(c, w, ids, mask, kinds):
    w = {re.sub(r"^(distil|ro)?berta?\.", "", name): each for name, each in w.items()}
    distil, first = c["model_type"] == "distilbert", 0
    if distil:
        for name in list(w):
            own = name.replace("transformer.layer", "encoder.layer").replace("sa_layer_norm", "attention.output.LayerNorm")
            own = re.sub(r"attention\.([qkv])_lin", lambda m: "attention.self." + QKV[m[1]], own)
            own = own.replace("attention.out_lin", "attention.output.dense").replace("output_layer_norm", "output.LayerNorm")
            w[own.replace("ffn.lin1", "intermediate.dense").replace("ffn.lin2", "output.dense")] = w[name]
    elif c["model_type"] != "bert":
        first = c.get("pad_token_id", 1) + 1
    heads, eps = c["n_heads" if distil else "num_attention_heads"], c.get("layer_norm_eps", 1e-12)
    act = ACTIVATIONS[c.get("activation" if distil else "hidden_act", "gelu")]
    linear = lambda x, name: F.linear(x, w[name + ".weight"], w[name + ".bias"])
    norm = lambda x, name: layer_norm(x, w[name + ".weight"], w[name + ".bias"], eps)

    p = "embeddings."
    x = w[p + "word_embeddings.weight"][ids]
    if not distil:
        x = x + w[p + "token_type_embeddings.weight"][kinds]
    x = norm(x + w[p + "position_embeddings.weight"][first:first + ids.shape[1]], p + "LayerNorm")
    for i in range(c["n_layers" if distil else "num_hidden_layers"]):
        p = "encoder.layer.%d." % i
        q, k, v = (linear(x, p + "attention.self." + n).unflatten(-1, (heads, -1)).transpose(1, 2)
                   for n in ("query", "key", "value"))
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        y = torch.softmax(scores.masked_fill(mask[:, None, None] == 0, -math.inf), -1) @ v
        y = y.transpose(1, 2).flatten(2)
        x = norm(x + linear(y, p + "attention.output.dense"), p + "attention.output.LayerNorm")
        y = linear(act(linear(x, p + "intermediate.dense")), p + "output.dense")
        x = norm(x + y, p + "output.LayerNorm")
    return x


for line in sys.stdin:
    case = json.loads(line)
    config, weights = read(case["folder"])
    network = gpt2 if config["model_type"] == "gpt2" else llama
    ids = torch.tensor(case["ids"])
    ADAPTER.clear()
    trained = weights
    if "adapter" in case:
        adapter, trained = read_adapter(case["adapter"])
    if "kinds" in case:
        mask, kinds = torch.tensor(case["mask"]), torch.tensor(case["kinds"])
        print(json.dumps(bert(config, weights, ids, mask, kinds).flatten().tolist()))
    elif "steps" in case:
        labels, losses = torch.tensor(case["labels"]), []
        for w in trained.values():
            w.requires_grad_()
        for _ in range(case["steps"]):
            logits = network(config, weights, ids)
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
            loss.backward()
            losses.append(loss.item())
            for w in trained.values():
                if w.grad is not None:
                    w.data -= case["rate"] * w.grad
                    w.grad = None
        if "save" in case:
            save_adapter(case["save"], adapter, trained)
        losses += network(config, weights, ids).flatten().tolist()
        print(json.dumps(losses))
    elif "greedy" in case:
        first = ids.shape[1]
        for _ in range(case["greedy"]):
            ids = torch.cat([ids, network(config, weights, ids)[:, -1:].argmax(-1)], 1)
        print(json.dumps(ids[0, first:].tolist()))
    else:
        print(json.dumps(network(config, weights, ids).flatten().tolist()))
