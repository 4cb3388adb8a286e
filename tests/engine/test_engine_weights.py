"""Hostile and damaged model directories give an error with the problem and the remedy."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from quire.core.config import EngineConfig
from quire.core.errors import (
    ConfigError,
    ModelError,
    ModelFormatError,
    ModelNotFound,
    UnsupportedModel,
)
from quire.core.ids import ModelId
from quire.engine.checkpoint.model_card import MAX_TEMPLATE_BYTES, read_model_card
from quire.engine.checkpoint.model_directory import ModelDirectory, locate
from quire.engine.engine import Engine
from quire.engine.layers.parameters import Destination
from quire.engine.tokenizer import load_tokenizer
from quire.engine.weights import Checkpoint, weights_digest

EMBEDDING = "model.embed_tokens.weight"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def model(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of a good checkpoint that a test may damage."""
    path = tmp_path / "model"
    shutil.copytree(checkpoint("llama"), path)
    return path


def start(path: Path, **changes: Any) -> Engine:
    settings = {"dtype": "float32", "num_blocks": 8, "host_cache_bytes": 0, "num_threads": 1}
    return Engine(
        EngineConfig(source=str(path), name=ModelId("m"), **{**settings, **changes})  # type: ignore[arg-type]
    )


def change_config(path: Path, **changes: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    config.update(changes)
    (path / "config.json").write_text(json.dumps(config))


def change_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(path / WEIGHTS)
    change(tensors)
    save_file(tensors, path / WEIGHTS)


def shard(path: Path, num_shards: int = 3) -> dict[str, str]:
    """Split the weights into shards with an index; returns the index's weight map."""
    tensors = load_file(path / WEIGHTS)
    (path / WEIGHTS).unlink()
    names = sorted(tensors)
    weight_map = {}
    for number in range(num_shards):
        file = f"model-{number + 1:05}-of-{num_shards:05}.safetensors"
        part = {name: tensors[name] for name in names[number::num_shards]}
        save_file(part, path / file)
        weight_map.update(dict.fromkeys(part, file))
    write_index(path, weight_map)
    return weight_map


def write_index(path: Path, weight_map: Any) -> None:
    (path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_shards_are_one_checkpoint(model: Path) -> None:
    whole = start(model).info
    shard(model)
    sharded = start(model).info
    assert sharded.num_parameters == whole.num_parameters
    assert sharded.content != whole.content


def test_progress_is_told(model: Path) -> None:
    calls: list[tuple[int, int]] = []
    config = EngineConfig(source=str(model), name=ModelId("m"), num_blocks=4, host_cache_bytes=0)
    Engine(config, progress=lambda done, total: calls.append((done, total)))
    total = calls[0][1]
    assert calls == [(count + 1, total) for count in range(total)]


Damage = Callable[[Path], None]


def missing_tensor(path: Path) -> None:
    change_tensors(path, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))


def unexpected_tensor(path: Path) -> None:
    change_tensors(path, lambda tensors: tensors.update(extra=torch.zeros(2)))


def wrong_shape(path: Path) -> None:
    change_tensors(path, lambda t: t.update({"model.norm.weight": torch.zeros(33)}))


def integer_tensor(path: Path) -> None:
    change_tensors(
        path, lambda t: t.update({"model.norm.weight": torch.zeros(32, dtype=torch.int8)})
    )


def truncated(path: Path) -> None:
    file = path / WEIGHTS
    file.write_bytes(file.read_bytes()[:-100])


def no_header(path: Path) -> None:
    (path / WEIGHTS).write_bytes(b"\xff" * 64)


def header_beyond_file(path: Path) -> None:
    (path / WEIGHTS).write_bytes((1 << 62).to_bytes(8, "little") + b"{}")


def overlapping_tensors(path: Path) -> None:
    header = {
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
    }
    text = json.dumps(header).encode()
    (path / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 12)


def pickles(path: Path) -> None:
    (path / WEIGHTS).unlink()
    (path / "pytorch_model.bin").write_bytes(b"\x80\x04.")


def gguf(path: Path) -> None:
    (path / WEIGHTS).unlink()
    (path / "model-q4_k_m.gguf").write_bytes(b"GGUF")


def last_value(value: float) -> Damage:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.1.mlp.up_proj.weight"][-1, -1] = value

    return lambda path: change_tensors(path, damage)


def nothing(path: Path) -> None:
    (path / WEIGHTS).unlink()


def missing_shard(path: Path) -> None:
    (path / next(iter(set(shard(path).values())))).unlink()


def index_outside(path: Path) -> None:
    weight_map = shard(path)
    (path / WEIGHTS).unlink(missing_ok=True)
    outside = path.parent / "outside.safetensors"
    save_file({EMBEDDING: torch.zeros(300, 32)}, outside)
    write_index(path, {**weight_map, EMBEDDING: "../outside.safetensors"})


def absolute_index(path: Path) -> None:
    write_index(path, {**shard(path), EMBEDDING: "/etc/passwd"})


def index_to_pickle(path: Path) -> None:
    write_index(path, {**shard(path), EMBEDDING: "pytorch_model.bin"})


def index_of_numbers(path: Path) -> None:
    write_index(path, {**shard(path), EMBEDDING: 5})


def long_name_in_index(path: Path) -> None:
    write_index(path, {**shard(path), EMBEDDING: "x" * 5000 + ".safetensors"})


def half_a_surrogate_in_index(path: Path) -> None:
    write_index(path, {**shard(path), EMBEDDING: "\ud800.safetensors"})


def pointer_of_lfs(path: Path) -> None:
    (path / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\nsize 12\n")


def empty_index(path: Path) -> None:
    shard(path)
    write_index(path, [])


def lying_index(path: Path) -> None:
    weight_map = shard(path)
    files = sorted(set(weight_map.values()))
    write_index(
        path, {**weight_map, EMBEDDING: next(f for f in files if f != weight_map[EMBEDDING])}
    )


def tensor_in_two_shards(path: Path) -> None:
    weight_map = shard(path)
    other = next(f for f in sorted(set(weight_map.values())) if f != weight_map[EMBEDDING])
    tensors = load_file(path / other)
    save_file({**tensors, EMBEDDING: torch.zeros(300, 32)}, path / other)


def config(**changes: Any) -> Damage:
    return lambda path: change_config(path, **changes)


def config_text(text: bytes) -> Damage:
    return lambda path: bool((path / "config.json").write_bytes(text)) and None


def broken_link(path: Path) -> None:
    nothing(path)
    (path / "model.safetensors").symlink_to(path / "blob that is gone")


def no_config(path: Path) -> None:
    (path / "config.json").unlink()


DAMAGES: list[tuple[str, Damage, type[ModelError], str]] = [
    ("missing tensor", missing_tensor, ModelFormatError, "1 missing tensor .*layers.1.mlp.up"),
    ("unexpected tensor", unexpected_tensor, ModelFormatError, r"1 unexpected tensor \(extra\)"),
    ("wrong shape", wrong_shape, ModelFormatError, r"model.norm.weight.*\[33\].*\[32\]"),
    ("integer tensor", integer_tensor, UnsupportedModel, "dtype I8.*unquantised"),
    ("truncated", truncated, ModelFormatError, "truncated or damaged"),
    ("no header", no_header, ModelFormatError, "truncated or damaged"),
    ("header beyond file", header_beyond_file, ModelFormatError, "truncated or damaged"),
    ("overlapping tensors", overlapping_tensors, ModelFormatError, "truncated or damaged"),
    ("pickles", pickles, ModelFormatError, "pickle files .*never opened: convert"),
    ("GGUF", gguf, ModelFormatError, "q4_k_m.*llama.cpp.*safetensors"),
    ("NaN", last_value(float("nan")), ModelFormatError, "layers.1.mlp.up_proj.weight.* are NaN"),
    ("infinite", last_value(float("-inf")), ModelFormatError, "up_proj.weight.* or infinite"),
    ("nothing", nothing, ModelFormatError, "weights are missing; download them"),
    ("broken link", broken_link, ModelFormatError, r"gone \(model.safetensors\).*: copy the"),
    ("missing shard", missing_shard, ModelFormatError, "shard .* is missing"),
    ("index outside", index_outside, ModelFormatError, "same directory"),
    ("absolute index", absolute_index, ModelFormatError, "same directory"),
    ("index to pickle", index_to_pickle, ModelFormatError, "same directory"),
    ("index of numbers", index_of_numbers, ModelFormatError, "same directory"),
    ("long name", long_name_in_index, ModelFormatError, "cannot be read"),
    ("half a surrogate", half_a_surrogate_in_index, ModelFormatError, "index.json is not valid"),
    ("LFS pointer", pointer_of_lfs, ModelFormatError, "pointer of Git LFS.*git lfs pull"),
    ("empty index", empty_index, ModelFormatError, "weight_map"),
    ("lying index", lying_index, ModelFormatError, "where they are not"),
    ("tensor twice", tensor_in_two_shards, ModelFormatError, "is in both"),
    ("no config", no_config, ModelFormatError, "has no config.json"),
    ("config no JSON", config_text(b"{not json"), ModelFormatError, "not valid JSON"),
    ("config a list", config_text(b"[]"), ModelFormatError, "not an object"),
    ("config Latin-1", config_text(b'{"a": "\xe9"}'), ModelFormatError, "not UTF-8"),
    ("config deep", config_text(b"[" * 200_000), ModelFormatError, "not valid JSON"),
    ("custom code", config(auto_map={"AutoModel": "x.Y"}), UnsupportedModel, "never runs code"),
    ("custom code list", config(auto_map=["x"]), UnsupportedModel, "never runs code"),
    ("custom code number", config(auto_map=7), UnsupportedModel, "never runs code"),
    ("other family", config(model_type="gpt2"), UnsupportedModel, "LlamaForCausalLM"),
    ("odd family", config(model_type=["llama"]), UnsupportedModel, "Built in are"),
    ("other head", config(architectures=["LlamaForX"]), UnsupportedModel, "LlamaForX"),
    ("odd architectures", config(architectures=[["x"]]), UnsupportedModel, "Built in are"),
    ("huge size", config(hidden_size=1 << 40), ModelFormatError, "hidden_size"),
    ("large size", config(hidden_size=1 << 20), ModelFormatError, "has shape"),
    ("large vocabulary", config(vocab_size=1 << 23), ModelFormatError, "has shape"),
    ("many layers", config(num_hidden_layers=1000), ModelFormatError, "missing tensors"),
    ("too many layers", config(num_hidden_layers=10**9), ModelFormatError, "num_hidden_layers"),
    ("negative", config(num_attention_heads=-4), ModelFormatError, "num_attention_heads"),
    ("text for number", config(hidden_size="32"), ModelFormatError, "hidden_size"),
    ("bool for number", config(num_hidden_layers=True), ModelFormatError, "num_hidden_layers"),
    ("uneven heads", config(num_key_value_heads=3), ModelFormatError, "divide evenly"),
    ("odd head", config(head_dim=7), ModelFormatError, "be even"),
    ("zero", config(vocab_size=0), ModelFormatError, "vocab_size"),
    ("infinite eps", config(rms_norm_eps=float("inf")), ModelFormatError, "rms_norm_eps"),
    ("activation", config(hidden_act="gelu"), UnsupportedModel, "gelu"),
    ("window", config(layer_types=["sliding_attention"] * 3), UnsupportedModel, "sliding"),
    ("use window", config(use_sliding_window=True), UnsupportedModel, "sliding"),
    ("quantised", config(quantization_config={"bits": 4}), UnsupportedModel, "quantised"),
    ("rope list", config(rope_parameters=[1]), ModelFormatError, "rope_parameters"),
    (
        "rope unknown",
        config(rope_parameters={"rope_type": "proportional", "factor": 2.0}),
        UnsupportedModel,
        "proportional.*built in are",
    ),
    (
        "rope factor",
        config(rope_parameters={"rope_type": "linear", "factor": 0}),
        ModelFormatError,
        "factor",
    ),
]


@pytest.mark.parametrize(
    ("damage", "error", "part"), [case[1:] for case in DAMAGES], ids=[case[0] for case in DAMAGES]
)
def test_damage_is_named(damage: Damage, error: type[ModelError], part: str, model: Path) -> None:
    damage(model)
    with pytest.raises(error, match=part) as raised:
        start(model)
    assert type(raised.value) is error


def test_values_beyond_the_range_of_the_dtype_are_refused(model: Path) -> None:
    last_value(1e6)(model)
    start(model)
    with pytest.raises(ModelFormatError, match=r"up_proj.weight.*range of torch.float16.*bfloat16"):
        start(model, dtype="float16")


def test_every_piece_of_a_large_tensor_is_looked_through(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.engine.weights._CHECKED_ELEMENTS", 100)
    start(model)
    last_value(float("nan"))(model)
    with pytest.raises(ModelFormatError, match="are NaN"):
        start(model)


def test_a_hub_id_that_cannot_be_reached_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFound, match=r"nobody/nothing.*--local-dir DIRECTORY"):
        locate("nobody/nothing")


@pytest.mark.parametrize(
    "source", ["/no/such/dir", "no-such-dir", "a/b/c", "", "x y/z", "../up/x", "./up", "~/up"]
)
def test_a_source_that_is_neither_a_directory_nor_a_hub_id_is_not_found(
    source: str, tmp_path: Path
) -> None:
    if source == "":
        source = str(tmp_path / "gone")
    with pytest.raises(ModelNotFound, match="neither a directory nor a hub id"):
        locate(source)


@pytest.mark.parametrize("source", ["model.gguf", "/a/m-Q4_K_M.GGUF", "org/name-GGUF:Q4_K_M"])
def test_a_model_of_llama_cpp_is_refused_with_what_to_do(source: str) -> None:
    with pytest.raises(ModelNotFound, match=r"GGUF, which Quire does not read: .*safetensors"):
        locate(source)


def test_a_folder_of_llama_cpp_is_told_from_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"no config\.json: a model directory needs"):
        ModelDirectory(tmp_path).read_config()
    with pytest.raises(ModelFormatError, match=r"gone has no config\.json"):
        ModelDirectory(tmp_path / "gone").read_config()
    (tmp_path / "m-q8_0.gguf").touch()
    with pytest.raises(ModelFormatError, match=r"m-q8_0\.gguf.*which Quire does not read"):
        ModelDirectory(tmp_path).read_config()


def test_a_file_is_no_model(model: Path) -> None:
    with pytest.raises(ModelNotFound):
        locate(str(model / "config.json"))


def test_tied_embeddings_may_bring_an_output_matrix(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path = tmp_path / "tied"
    shutil.copytree(checkpoint("qwen2-tied"), path)
    change_tensors(path, lambda t: t.update({"lm_head.weight": t[EMBEDDING].clone()}))
    change_tensors(
        path, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    )
    assert start(path).info.family == "qwen2"


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_weights_are_converted(stored: torch.dtype, model: Path) -> None:
    def convert(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            tensors[name] = tensor.to(stored)

    change_tensors(model, convert)
    assert start(model).info.dtype == "float32"
    assert start(model, dtype="bfloat16").info.dtype == "bfloat16"
    with Checkpoint(locate(str(model))) as opened:
        assert opened.dtype_of(EMBEDDING) is stored
        loaded = torch.empty(300, 32)
        opened.load({EMBEDDING: Destination(loaded, (300, 32))})
    assert torch.equal(loaded, load_file(model / WEIGHTS)[EMBEDDING].float())


def test_weights_and_configuration_are_content(model: Path) -> None:
    contents = {start(model).info.content}
    change_config(model, rms_norm_eps=1e-4)
    contents.add(start(model).info.content)
    change_tensors(model, lambda t: t["model.norm.weight"].add_(1e-3))
    contents.add(start(model).info.content)
    assert len(contents) == 3


def test_the_digest_of_a_large_checkpoint_samples_it(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest() -> str:
        return weights_digest([model / WEIGHTS], {}, {})

    whole = digest()
    monkeypatch.setattr("quire.engine.weights._WHOLE_HASH_BYTES", 1000)
    assert digest() == whole  # smaller than one sample
    with (model / WEIGHTS).open("ab") as file:
        file.write(b"x")
    assert digest() != whole


@pytest.mark.parametrize(("backend", "head_dim"), [("torch", 8), ("cpu", 16)])
def test_the_pool_is_sized_by_bytes(model: Path, backend: str, head_dim: int) -> None:
    """The kernel keeps heads of 8 elements in rows of 16."""
    sizes = {"num_blocks": None, "kv_cache_bytes": 1 << 20, "host_cache_bytes": 1 << 19}
    info = start(model, backend=backend, **sizes).info
    group = info.pool.groups[0]
    assert group.bytes_per_block == 3 * 16 * 2 * 2 * head_dim * 4
    assert group.num_blocks == (1 << 20) // group.bytes_per_block
    assert group.num_host_blocks == (1 << 19) // group.bytes_per_block
    assert info.max_model_len == 512


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"num_blocks": None, "kv_cache_bytes": 10}, "kv_cache_bytes is 10"),
        ({"max_model_len": 10_000}, "max_model_len"),
        ({"device": "cuda:77"}, "device is 'cuda:77', which cannot be used"),
        ({"device": "abacus"}, "device is 'abacus': choose cpu"),
        ({"num_threads": 0}, "num_threads"),
        ({"num_blocks": 1 << 50}, "cannot be allocated"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    changes: dict[str, Any], part: str, model: Path
) -> None:
    with pytest.raises(ConfigError, match=part):
        start(model, **changes)


def test_the_card(model: Path) -> None:
    (model / "chat_template.jinja").write_text("{{ messages }}")
    (model / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [1, 2], "bos_token_id": 0, "temperature": 0.7, "x": 1})
    )
    card = read_model_card(str(model))
    assert card.chat_template == "{{ messages }}"
    assert card.defaults == {"temperature": 0.7}
    assert card.eos_token_ids == (1, 2)
    assert card.bos_token_id == 0
    assert card.special_tokens["eos_token"] == "</s>"
    assert card.max_length == 512


def test_defaults_that_models_ship_are_taken(model: Path) -> None:
    shipped = {"do_sample": False, "temperature": 1e-6, "top_k": 0, "top_p": 0.001, "min_p": 0}
    generation(**shipped, repetition_penalty=1.05, max_new_tokens=None)(model)
    assert read_model_card(str(model)).defaults == {**shipped, "repetition_penalty": 1.05}


def test_typical_p_is_a_default_too(model: Path) -> None:
    generation(typical_p=0.95)(model)
    assert read_model_card(str(model)).defaults == {"typical_p": 0.95}
    generation(typical_p=0)(model)
    with pytest.raises(ModelFormatError, match="typical_p"):
        read_model_card(str(model))


def test_the_card_of_a_model_that_sees_images(model: Path) -> None:
    """Its length and tokens are in the text part, its template in a separate file."""
    config = json.loads((model / "config.json").read_text())
    wrapped = {"model_type": "llava", "text_config": {**config, "max_position_embeddings": 77}}
    (model / "config.json").write_text(json.dumps(wrapped))
    (model / "chat_template.json").write_text(json.dumps({"chat_template": "P"}))
    card = read_model_card(str(model))
    assert card.max_length == 77
    assert card.chat_template == "P"
    change_tokenizer_config(model, chat_template="A")
    assert read_model_card(str(model)).chat_template == "A"


def change_tokenizer_config(path: Path, **changes: Any) -> None:
    file = path / "tokenizer_config.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps({**values, **changes}))


def test_templates_in_the_tokenizer_config(model: Path) -> None:
    assert read_model_card(str(model)).chat_template is None
    change_tokenizer_config(model, chat_template="A")
    assert read_model_card(str(model)).chat_template == "A"
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    change_tokenizer_config(model, chat_template=named)
    assert read_model_card(str(model)).chat_template == "D"


def large_template(path: Path) -> None:
    (path / "chat_template.jinja").write_text("x" * (MAX_TEMPLATE_BYTES + 1))


def large_inline_template(path: Path) -> None:
    change_tokenizer_config(path, chat_template="x" * (MAX_TEMPLATE_BYTES + 1))


def numeric_template(path: Path) -> None:
    change_tokenizer_config(path, chat_template=7)


def named_template(name: object, template: object) -> Damage:
    templates = [{"name": name, "template": template}]
    return lambda path: change_tokenizer_config(path, chat_template=templates)


def half_a_surrogate_in_template(path: Path) -> None:
    change_tokenizer_config(path, chat_template="\ud800")


def generation(**values: Any) -> Damage:
    def write(path: Path) -> None:
        (path / "generation_config.json").write_text(json.dumps(values))

    return write


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (large_template, "at most"),
        (large_inline_template, "at most"),
        (numeric_template, "no string"),
        (named_template("default", 7), "no string"),
        (half_a_surrogate_in_template, r"tokenizer_config.json is not valid JSON .*surrogates"),
        (generation(eos_token_id=["x"]), "eos_token_id = .*integer or a list"),
        (generation(eos_token_id="</s>"), "eos_token_id = </s>: .*integer or a list"),
        (generation(eos_token_id=-1), "eos_token_id = -1.*none below 0"),
        (generation(eos_token_id=True), "eos_token_id = True"),
        (generation(temperature="hot"), "generation_config.json has temperature = 'hot'"),
        (generation(temperature=-0.5), "temperature = .*from 0 to"),
        (generation(temperature=float("nan")), "temperature = .*from 0 to"),
        (generation(top_k=-3), "top_k = .*integer from -1 to"),
        (generation(top_k=2.5), "top_k = .*integer"),
        (generation(top_p=0), "top_p = .*to 1"),
        (generation(min_p=1.5), "min_p = .*from 0 to 1"),
        (generation(repetition_penalty=0), "repetition_penalty"),
        (generation(do_sample="no"), "do_sample = .*true or false"),
        (generation(max_new_tokens=0), "max_new_tokens = .*from 1 to"),
        (config(auto_map={"a": "b"}), "never runs code"),
        (config(max_position_embeddings="many"), "max_position_embeddings"),
    ],
)
def test_a_bad_card_is_refused(damage: Damage, part: str, model: Path) -> None:
    damage(model)
    with pytest.raises(ModelError, match=part):
        read_model_card(str(model))


def test_a_template_whose_name_is_not_a_string_is_not_the_default(model: Path) -> None:
    named_template(["default"], "{{ messages }}")(model)
    assert read_model_card(str(model)).chat_template is None


def test_a_bad_tokenizer_is_refused(model: Path) -> None:
    (model / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(ModelFormatError, match="not a tokenizer"):
        load_tokenizer(str(model))
    (model / "tokenizer.json").write_text("[" * 100_000)
    with pytest.raises(ModelFormatError, match="not a tokenizer"):
        load_tokenizer(str(model))
    (model / "tokenizer.json").unlink()
    with pytest.raises(ModelFormatError, match=r"has no tokenizer\.json"):
        load_tokenizer(str(model))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "a.safetensors"])
def test_a_pipe_in_place_of_a_file_does_not_block(name: str, model: Path) -> None:
    if name == "a.safetensors":
        tensors = load_file(model / WEIGHTS)
        (model / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, name)}))
    else:
        (model / name).unlink()
    os.mkfifo(model / name)
    with pytest.raises(ModelFormatError, match=f"{name} is not a regular file|no tokenizer.json"):
        start(model)
