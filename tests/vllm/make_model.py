"""Write a folder that vLLM can serve with `--load-format dummy`: a tiny Llama's config and a byte tokenizer.

usage: make_model.py FOLDER

No weights and no download. The tokenizer knows single bytes only, so a prompt of n ASCII characters is n tokens.
"""

import json
import sys
from pathlib import Path

SPECIAL = ("<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
BEGIN, END = 0, 1
MODEL_TOKENS = 4096  # positions the model could have; --max-model-len sets what is served
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_characters() -> list[str]:
    """The printable stand-in of each byte in byte-level tokenizers: itself, or the next free one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    free = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(free)) for byte in range(256)]


def tokenizer() -> dict[str, object]:
    """A byte-level BPE without merges, in the format of `tokenizer.json`."""
    vocabulary = {text: number for number, text in enumerate((*SPECIAL, *byte_characters()))}
    added = [
        {"id": number, "content": text, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for number, text in enumerate(SPECIAL)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }


def tokenizer_config() -> dict[str, object]:
    """How transformers is to load it."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[BEGIN],
        "eos_token": SPECIAL[END],
        "pad_token": SPECIAL[END],
        "model_max_length": MODEL_TOKENS,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }


def model_config() -> dict[str, object]:
    """Two small layers; the vocabulary is the tokenizer's."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(SPECIAL) + 256,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": MODEL_TOKENS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "torch_dtype": "bfloat16",
    }


def write_model(folder: Path) -> None:
    """All files of the model."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": tokenizer_config(),
        "config.json": model_config(),
        "generation_config.json": {"bos_token_id": BEGIN, "eos_token_id": END},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
