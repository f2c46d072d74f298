"""Makes the files of this folder: a small BERT and a small Llama of PyTorch's operations, their weights written by the
safetensors of Hugging Face, their outputs as text. Run with PyTorch 1.13 and safetensors 0.8.0:

    python3 reference.py
"""
import json
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

torch.manual_seed(7)
torch.set_default_dtype(torch.float64)
OUTPUTS = open("outputs.txt", "w")


def draw(*shape, scale=0.3):
    return torch.randn(*shape) * scale


def heads(x, n):
    return x.view(*x.shape[:2], n, -1).transpose(1, 2)


def note(name, y):
    OUTPUTS.write(name + " " + " ".join("%.9g" % v for v in y.flatten().tolist()) + "\n")


def bert(ids, mask, w, layers=2, n=5):
    linear = lambda x, name: F.linear(x, w[name + ".weight"], w[name + ".bias"])
    norm = lambda x, name: F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], 1e-12)
    e = "embeddings."
    x = w[e + "word_embeddings.weight"][ids] + w[e + "token_type_embeddings.weight"][0]
    x = norm(x + w[e + "position_embeddings.weight"][: ids.shape[1]], e + "LayerNorm")
    for i in range(layers):
        p = "encoder.layer.%d." % i
        q, k, v = (heads(linear(x, p + "attention.self." + each), n) for each in ("query", "key", "value"))
        s = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5 + (mask[:, None, None, :] == 0) * -1e9
        y = (s.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
        x = norm(x + linear(y, p + "attention.output.dense"), p + "attention.output.LayerNorm")
        y = linear(F.gelu(linear(x, p + "intermediate.dense")), p + "output.dense")
        x = norm(x + y, p + "output.LayerNorm")
    return x


def llama(ids, w, layers=2, n=6, groups=3, base=10000.0):
    norm = lambda x, name: x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[name + ".weight"]
    x = w["model.embed_tokens.weight"][ids]
    for i in range(layers):
        p = "model.layers.%d." % i
        linear = lambda x, name: x @ w[p + name + ".weight"].T
        y = norm(x, p + "input_layernorm")
        q = heads(linear(y, "self_attn.q_proj"), n)
        k, v = (heads(linear(y, "self_attn." + each), groups) for each in ("k_proj", "v_proj"))
        d = q.shape[-1]
        angle = torch.arange(ids.shape[1])[:, None] * base ** -(torch.arange(0, d, 2) / d)
        cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
        turn = lambda z: z * cos + torch.cat((-z[..., d // 2 :], z[..., : d // 2]), -1) * sin
        q, k = turn(q), turn(k)
        k, v = (z.repeat_interleave(n // groups, 1) for z in (k, v))
        s = q @ k.transpose(2, 3) / d ** 0.5
        s = s.masked_fill(torch.ones(s.shape[-2:]).triu(1).bool(), -1e30)
        x = x + linear((s.softmax(-1) @ v).transpose(1, 2).reshape(*x.shape[:2], -1), "self_attn.o_proj")
        y = norm(x, p + "post_attention_layernorm")
        x = x + linear(F.silu(linear(y, "mlp.gate_proj")) * linear(y, "mlp.up_proj"), "mlp.down_proj")
    return norm(x, "model.norm") @ w["lm_head.weight"].T


def of_type(weights, types):
    """The weights as they are stored, and the same numbers for computing."""
    stored = {name: value.to(types(name)).contiguous() for name, value in weights.items()}
    return stored, {name: value.to(torch.float64) for name, value in stored.items()}


W, H = 20, 22
weights = {
    "embeddings.word_embeddings.weight": draw(13, W, scale=1),
    "embeddings.position_embeddings.weight": draw(8, W),
    "embeddings.token_type_embeddings.weight": draw(2, W),
    "embeddings.LayerNorm.weight": 1 + draw(W),
    "embeddings.LayerNorm.bias": draw(W),
}
for i in range(2):
    p = "encoder.layer.%d." % i
    for name, out, into in (
        ("attention.self.query", W, W), ("attention.self.key", W, W), ("attention.self.value", W, W),
        ("attention.output.dense", W, W), ("intermediate.dense", H, W), ("output.dense", W, H),
    ):
        weights[p + name + ".weight"], weights[p + name + ".bias"] = draw(out, into), draw(out)
    for name in ("attention.output.LayerNorm", "output.LayerNorm"):
        weights[p + name + ".weight"], weights[p + name + ".bias"] = 1 + draw(W), draw(W)
stored, numbers = of_type(weights, lambda name: torch.float32)
stored["embeddings.position_ids"] = torch.arange(8)[None]
save_file(stored, "bert.safetensors", {"format": "pt"})
ids = torch.tensor([[1, 7, 3, 12, 0], [2, 2, 9, 11, 5]])
mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
note("bert", bert(ids, mask, numbers))

W, H, V = 24, 26, 13
weights = {"model.embed_tokens.weight": draw(16, W, scale=1)}  # 13 words, and rows to spare
for i in range(2):
    p = "model.layers.%d." % i
    for name, out, into in (
        ("self_attn.q_proj", W, W), ("self_attn.k_proj", W // 2, W), ("self_attn.v_proj", W // 2, W),
        ("self_attn.o_proj", W, W), ("mlp.gate_proj", H, W), ("mlp.up_proj", H, W), ("mlp.down_proj", W, H),
    ):
        weights[p + name + ".weight"] = draw(out, into)
    for name in ("input_layernorm", "post_attention_layernorm"):
        weights[p + name + ".weight"] = 1 + draw(W)
weights["model.norm.weight"] = 1 + draw(W)
weights["lm_head.weight"] = draw(16, W)
types = {"o_proj": torch.float16, "down_proj": torch.float64, "model.norm": torch.float32}
stored, numbers = of_type(
    weights, lambda name: next((t for part, t in types.items() if part in name), torch.bfloat16)
)
parts = {"model-00001-of-00002.safetensors": {}, "model-00002-of-00002.safetensors": {}}
for name, value in stored.items():
    second = "layers.1" in name or "lm_head" in name or "model.norm" in name
    parts["model-0000%d-of-00002.safetensors" % (1 + second)][name] = value
for file, tensors in parts.items():
    save_file(tensors, file, {"format": "pt"})
index = {
    "metadata": {"total_size": sum(t.numel() * t.element_size() for t in stored.values())},
    "weight_map": {name: file for file, tensors in parts.items() for name in tensors},
}
json.dump(index, open("model.safetensors.index.json", "w"), indent=1)
note("llama", llama(ids, numbers)[..., :V])
