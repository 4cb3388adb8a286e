"""LoRA adapters (Hu et al., 2021): directories of PEFT, and their products beside the model's."""
