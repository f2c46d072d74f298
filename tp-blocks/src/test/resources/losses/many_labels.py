"""Trains a small network in float64 with losses of many labels: a JSON object per line of input."""
import json
import sys

import torch

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


def loss_of(case, z, rows):
    """The mean over the rows; labels below 0 are none."""
    classes = z.shape[1]
    weights = torch.tensor(case["class_weights"] or [1.0] * classes)
    positives = torch.tensor(case["positive_weights"] or [1.0] * classes)
    labels = torch.zeros_like(z)
    for row, each in enumerate(rows):
        for label in each:
            if label >= 0:
                labels[row, label] = 1
    if case["kind"] == "SOFTMAX":
        counts = labels.sum(1)
        of_labels = labels * weights / counts.clamp(min=1).unsqueeze(1)
        return -(of_labels * z.log_softmax(1)).sum() / of_labels.sum()
    if case["kind"] == "BINARY_CROSS_ENTROPY":
        entropy = torch.nn.functional.binary_cross_entropy_with_logits
        return entropy(z, labels, weights, pos_weight=positives, reduction="sum") / len(z)
    signs = 1 - 2 * labels
    terms = weights * (1 + labels * (positives - 1)) * (1 + signs * z).relu().square()
    return terms.sum() / len(z)


for line in sys.stdin:
    case = json.loads(line)
    parameters = [torch.tensor(p).requires_grad_() for p in case["parameters"]]
    first, first_bias, second, second_bias = parameters
    optimizer = torch.optim.SGD(parameters, lr=case["rate"])
    losses = []
    for x, labels in zip(case["data"], case["labels"]):
        hidden = torch.tanh(torch.tensor(x) @ first.t() + first_bias)
        loss = loss_of(case, hidden @ second.t() + second_bias, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(json.dumps([losses] + [p.detach().flatten().tolist() for p in parameters]))
