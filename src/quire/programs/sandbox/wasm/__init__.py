"""The WebAssembly runtime: its engine and pool, compiling, and the cache of what was compiled."""
