"""An exported drafter in the published PyTorch code: does it load whole, and give the golden logits?

    PYTHONPATH=DIR python benchmarks/compare_export.py EXPORT TARGET

DIR holds the published code's model.py (z-lab's dflash, directory dflash/); torch, transformers and
safetensors are needed. Prints what did not load, and relative errors of output and logits.
"""
import sys

import torch
from safetensors.torch import load_file

from model import DFlashDraftModel

export, target = sys.argv[1:3]
drafter, loading = DFlashDraftModel.from_pretrained(
    export, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
print("not loaded:", {k: v for k, v in loading.items() if v} or "nothing")
print("taps", drafter.target_layer_ids, "block", drafter.block_size, "mask", drafter.mask_token_id)

weights = load_file(f"{target}/model.safetensors")
embed = weights["model.embed_tokens.weight"].float()
head = weights.get("lm_head.weight", embed).float()
golden = load_file(f"{export}/golden/block.safetensors")
with torch.no_grad():
    output = drafter(position_ids=golden["positions"].long()[None],
                     noise_embedding=embed[golden["draft_ids"].long()][None],
                     target_hidden=golden["context_features"][None], is_causal=False)[0]
    logits = output @ head.T
for name, got in (("output", output), ("logits", logits)):
    error = (got - golden[name]).norm() / golden[name].norm()
    print(f"{name}: relative error {float(error):.1e}")
