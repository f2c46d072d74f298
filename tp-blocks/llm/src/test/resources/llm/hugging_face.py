"""Language models of Hugging Face folders by transformers in float64.

python3 hugging_face.py < cases > results     (transformers 5)

A line of the cases is {"folder": a folder with config.json and model.safetensors, "ids": [[...],
...]}, a line of the results the logits of all tokens, flat. The model is saved in the folder "saved"
of the folder, in several files.
"""
import json
import sys

import torch
from transformers import AutoModelForCausalLM, logging

logging.set_verbosity_error()
logging.disable_progress_bar()
torch.set_num_threads(1)
for line in sys.stdin:
    case = json.loads(line)
    model = AutoModelForCausalLM.from_pretrained(
        case["folder"], dtype=torch.float64, attn_implementation="eager")
    model.save_pretrained(case["folder"] + "/saved", max_shard_size="20KB")
    with torch.no_grad():
        print(json.dumps(model(torch.tensor(case["ids"])).logits.flatten().tolist()))
