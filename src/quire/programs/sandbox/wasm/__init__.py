"""The WebAssembly runtime: its engine and instance pool, the compiler, and the cache of compiled
code."""
