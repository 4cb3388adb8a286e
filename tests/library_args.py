"""Cheap arguments for every program of the library: what the tests run natively and as guests."""

from __future__ import annotations

SCHEMA = '{"begin": "once ", "dog": "a dog ran. ", "fox": "a fox sat. "}'

LIBRARY_ARGS: dict[str, tuple[str, ...]] = {
    "text_completion": ("hello", "5"),
    "low_level_completion": ("hello", "5"),
    "parallel_generation": ("a story", "one", "two"),
    "prefix_caching": ("be brief and be kind", "hello", "who are you"),
    "modular_caching": (SCHEMA, "begin dog: who ran?", "begin fox: who sat?"),
    "movable_modules": (SCHEMA, "begin dog: who ran?", "fox begin dog: who sat?"),
    "windowed_attention": ("a question of some length", "12", "9"),
    "attention_sink": ("a question of some length", "12", "2", "8"),
    "streaming": ("a text of some length", "60", "2", "64"),
    "hierarchical_attention": ("# one\na dog\n# two\na fox", "which?", "6"),
    "heavy_hitters": ("a question of some length", "3", "12"),
    "snapkv": ("a question of some length", "6", "12", "4"),
    "json_output": ("who?", '{"type": "boolean"}'),
    "ebnf_decoding": ("say", 'start: "a" ("b" | "c")', "8"),
    "token_healing": ("hello wor", "6"),
    "output_validation": ("say", "never matched", "12"),
    "watermarking": ("say", "12", "3.0", "0.0"),
    "watermark_detection": ("a text that nobody marked",),
    "beam_search": ("say", "3", "6"),
    "best_of_n": ("say", "3", "0.5", "6"),
    "contrastive_decoding": ("say", "6"),
    "context_aware_decoding": ("a dog ran.", "who ran?", "6"),
    "prompt_lookup": ("say say say", "10"),
    "speculative_decoding": ("say", "10", "3"),
    "jacobi_decoding": ("say", "8", "4"),
    "self_consistency": ("say", "2", "0.8", "6"),
    "tree_of_thought": ("say", "2", "2", "2"),
    "recursion_of_thought": ("how many?",),
    "graph_of_thought": ("5",),
    "mcts": ("say", "2", "2"),
    "react": ("what is 2 + 3", '{"a": {"b": 1}}'),
    "codeact": ("say",),
}
