"""LoRA adapters (Hu et al., 2021): reading PEFT directories and adding adapters' products."""
