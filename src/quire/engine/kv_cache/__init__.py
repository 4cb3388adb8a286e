"""KV memory: pools of blocks on device and host, resident page tables, written positions."""
