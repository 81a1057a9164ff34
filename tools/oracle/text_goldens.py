#!/usr/bin/env python3
"""Writes tests/golden/text/encodings.json: what Hugging Face `tokenizers` makes of odd texts, and the n-gram memory's id map.

    python3 -m pip install tokenizers==0.23.1
    tools/fetch_vocabulary.py && tools/oracle/text_goldens.py
"""
import hashlib
import json
import pathlib
import random
import struct
import sys

import tokenizers
from tokenizers import Regex, normalizers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SEED = 20261130
TOKENIZERS = {"demo": "tests/golden/text/demo_tokenizer.json", "release": "build/vocabulary/tokenizer.json"}

# Characters at the borders of the pre-tokeniser's classes; all of them older than Unicode 13.
ALPHABET = (
    ["a", "B", "z", "é", "ß", "Ж", "ω", "א", "ا", "ก", "한"]  # letters
    + ["0", "7", "½", "Ⅷ", "②", "٣", "๕"]  # numbers
    + [" ", " ", " ", "\t", "\n", "\r", "\r\n", "\u00a0", "\u2003", "\u3000", "\u000b", "\u2028"]  # white space
    + [".", ",", "'", "\"", "_", "(", ")", "<", "/", "\\", "-", "`", "“", "…", "｜", "¿", "、", "。"]  # punctuation
    + ["$", "+", "=", "€", "©", "→", "∑", "😀", "🏽", "˘"]  # symbols
    + ["\u0301", "\u0323", "\u0e31", "\u093f", "\ufe0f", "\u20e3"]  # marks
    + ["中", "龥", "龦", "々", "〇", "あ", "ゟ", "ァ", "ー", "・", "ｱ", "㐀", "𠮷"]  # CJK, in and out of the ranges
    + ["\u0000", "\u0007", "\u007f", "\u200b", "\u200d", "\ufeff", "\u0085", "\ue000", "\U000e0041"]  # none of them
)
WORDS = ["don't", "getHTTPResponse", "snake_case", "naïve", "日本語テキスト", "x1y2", "https://a.b/c?d=1", "3.14159", "<｜User｜>",
         "<think>", "</think>", "｜DSML｜", "<｜DSML｜ calls>", "hello", " world", "\n\n", "    ", "<｜end▁of▁sentence｜>", "<|EOT|>"]


def texts():
    rng = random.Random(SEED)
    result = ["", " ", "\n", "a  1", "a  b", "1 2  3", "\x01\x02a", "\x01\x02 ", " \x01", "a\u0301\u0301", "\u0301", " \u0301a", "\u0301.",
              "a \r\n \n b", "  \n  ", "\r\r\n", ".\n\n.", " .\r\n\r\nx", "'s 'S _x", "1234567", "½½½½", "龦あ龥", "・・ー", "・\n", "a・\n\nb・。\n", "゛か゛", "a" * 300, " " * 300 + "x"]
    for _ in range(400):
        result.append("".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 24))))
    for _ in range(100):
        result.append("".join(rng.choice(WORDS + ALPHABET[:20]) for _ in range(rng.randint(1, 12))))
    return result


def engram_map(tokenizer):
    normalize = normalizers.Sequence([
        normalizers.NFKC(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(),
        normalizers.Replace(Regex("[ \t\r\n]+"), " "), normalizers.Replace(Regex("^ $"), "\ue000"), normalizers.Strip(),
        normalizers.Replace("\ue000", " ")])
    compressed = {}
    result = []
    for token_id in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        key = tokenizer.id_to_token(token_id) if "\ufffd" in text else normalize.normalize_str(text) or text
        result.append(compressed.setdefault(key, len(compressed)))
    return result, len(compressed)


def fnv1a64(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def main():
    golden = {"generator": "tools/oracle/text_goldens.py", "seed": SEED, "tokenizers": tokenizers.__version__,
              "python": sys.version.split()[0], "texts": texts()}
    for name, path in TOKENIZERS.items():
        tokenizer = tokenizers.Tokenizer.from_file(str(ROOT / path))
        # In the byte-level alphabet a character is a byte. Both files have the same pre-tokeniser.
        sizes = [[len(piece) for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] for text in golden["texts"]]
        assert golden.setdefault("piece_bytes", sizes) == sizes
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in golden["texts"]]
        compressed, count = engram_map(tokenizer)
        packed = struct.pack(f"<{len(compressed)}i", *compressed)
        digest = hashlib.sha256(packed).hexdigest()
        golden[name] = {"ids": ids, "engram": {"num_ids": len(compressed), "num_compressed_ids": count, "sha256": digest,
                                               "fnv1a64": f"{fnv1a64(packed):016x}"}}
        print(name, count, digest, compressed[:4])
    target = ROOT / "tests/golden/text/encodings.json"
    target.write_text(json.dumps(golden, ensure_ascii=True, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
