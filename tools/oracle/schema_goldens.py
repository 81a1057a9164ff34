#!/usr/bin/env python3
"""Writes tests/golden/text/schemas.json: what the Python package jsonschema says of values near the border of a schema.

    python3 -m pip install "jsonschema[format]==4.26.0"
    tools/oracle/schema_goldens.py

A value is kept as its JSON text. Texts are mutations of valid ones, so that most of them are nearly valid. Left out is what
two dialects differ in: Python's \\d and \\w know all of Unicode, its $ allows a line break behind it. Durations and mail
addresses are left out as well, since the package takes much for one that is none, and so are host names with a dot at
their end.
"""
import decimal
import importlib.metadata
import json
import pathlib
import random
import re

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SEED = 20261130
NUM_MUTATIONS = 120

# A schema, and instances to begin with.
STRINGS = [
    ({"pattern": "^[a-z]{2,4}-\\d+$"}, ["ab-1", "abcd-12345", "abc-0"]),
    ({"pattern": "b+c"}, ["bc", "abbcd", "xbcx", "b<c bc"]),
    ({"pattern": "^(?:red|green|blue)?$"}, ["", "red", "green", "blue"]),
    ({"pattern": "^(a|ab)(c|bcd)*$"}, ["a", "ab", "ac", "abcd", "abbcd", "abcdbcdc"]),
    ({"pattern": "^a|b$"}, ["a", "b", "axx", "xxb", "ab"]),
    ({"pattern": "^[^<>&\"\\\\]+$"}, ["plain", "it's", "a/b", "中é😀"]),
    ({"pattern": "^\\$[0-9]{1,3}(,[0-9]{3})*(\\.[0-9]{2})?$"}, ["$1", "$12.50", "$1,234,567.00"]),
    ({"pattern": "^[\\w.+-]+@[\\w-]+\\.[a-z]+$"}, ["a.b+c@d-e.org", "x@y.z"]),
    ({"pattern": "^[\\u4e00-\\u9fff]{1,3}$"}, ["中", "文字", "一龥中"]),
    ({"pattern": "^(.*),(.*)$"}, ["a,b", ",", "x/</,</think"]),
    ({"pattern": "^([ab]{2}){1,2}c{0}$"}, ["ab", "abba", "bb"]),
    ({"pattern": "^x*$", "minLength": 2, "maxLength": 5}, ["xx", "xxxxx", "xxx"]),
    ({"pattern": "^(abc)*$", "minLength": 4, "maxLength": 11}, ["abcabc", "abcabcabc"]),
    ({"pattern": "a", "minLength": 3}, ["abc", "xxa", "xaxx"]),
    ({"pattern": "a", "maxLength": 4}, ["a", "xxxa", "axxx", "x<a"]),
    ({"minLength": 2, "maxLength": 3}, ["ab", "abc", "<<", "</t", "é中", "😀😀", "\n\t", "\"\\"]),
    ({"maxLength": 4}, ["", "<", "a<b", "</th", "中<｜a"]),
    ({"minLength": 3}, ["abc", "a<</b", "longer than that"]),
    ({"format": "date"}, ["2024-02-29", "2000-02-29", "1999-12-31", "2023-04-30", "0400-02-29", "2023-02-28"]),
    ({"format": "time"}, ["23:59:59Z", "00:00:00.123+05:30", "12:30:01-11:00"]),
    ({"format": "date-time"}, ["2024-02-29T23:59:59Z", "1985-04-12T23:20:50.52Z", "1996-12-19t16:39:57-08:00"]),
    ({"format": "hostname"}, ["example.org", "a-b.c1.de", "localhost", "x" * 63 + ".com", ".".join(["abcdefghi"] * 25)]),
    ({"format": "ipv4"}, ["0.0.0.0", "255.255.255.255", "192.168.1.20", "10.99.100.249"]),
    ({"format": "ipv6"}, ["::", "::1", "fe80::1:2", "1:2:3:4:5:6:7:8", "1::8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "::ffff:1.2.3.4",
                          "1:2:3:4:5:6:1.2.3.4", "1:2::4:5:6:7:8", "64:ff9b::192.0.2.33"]),
    ({"format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000", "00000000-0000-0000-0000-00000000000F"]),
    ({"format": "date", "pattern": "^2024-", "maxLength": 10}, ["2024-02-29", "2024-12-31"]),
]
NUMBERS = [
    ({"type": "number", "minimum": 0.5}, ["0.5", "0.51", "1", "12", "0.499", "-1"]),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, ["0.001", "1", "1.0", "0.0", "0", "1.01"]),
    ({"type": "number", "minimum": -2.75, "exclusiveMaximum": 3.125}, ["-2.75", "-2.751", "3.1249", "3.125", "0", "-0.5", "3"]),
    ({"type": "number", "exclusiveMinimum": -0.1, "exclusiveMaximum": 0.1}, ["0", "-0.05", "0.0999", "0.1", "-0.1"]),
    ({"type": "number", "exclusiveMaximum": 0}, ["-1", "-0.0001", "0", "-0.0", "3"]),
    ({"type": "number", "minimum": 99.5, "maximum": 1000.25}, ["99.5", "100", "999.99", "1000.25", "1000.3", "99.49", "1001"]),
    ({"type": "number", "minimum": 1e3, "maximum": 1.5e3}, ["1000", "1499.9", "1500", "1500.1", "999"]),
    ({"type": "integer", "minimum": -3.5, "maximum": 17.5}, ["-3", "-4", "17", "18", "0", "5"]),
    ({"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 101}, ["10", "9", "100", "101", "55"]),
    ({"type": "integer", "minimum": 123456789012345678901234}, ["123456789012345678901234", "123456789012345678901233", "999999999999999999999999"]),
    ({"type": "integer", "multipleOf": 7}, ["0", "7", "14", "-21", "700", "7000000007", "8"]),
    ({"type": "integer", "multipleOf": 1000}, ["0", "1000", "-25000", "1500", "100"]),
    ({"type": "number", "multipleOf": 0.25}, ["0.25", "1.5", "-3.75", "2", "0.3", "0.125"]),
    ({"type": "number", "multipleOf": 0.01}, ["0.01", "19.99", "5", "5.5", "0.001", "-3.14"]),
    ({"type": "number", "multipleOf": 2.5}, ["2.5", "5", "7.5", "10", "-12.5", "3", "2.6"]),
    ({"type": "number", "multipleOf": 6, "minimum": 10, "maximum": 100}, ["12", "18", "96", "6", "102", "13", "24.0"]),
    ({"type": "integer", "multipleOf": 1.5}, ["3", "0", "-6", "1", "2"]),
    ({"type": "number", "multipleOf": 0.05, "exclusiveMinimum": 0, "exclusiveMaximum": 1}, ["0.05", "0.95", "1", "0", "0.5", "0.07"]),
]


def mutate_text(text, rng, alphabet):
    characters = list(text)
    for _ in range(rng.randint(1, 2)):
        place = rng.randint(0, len(characters))
        kind = rng.randint(0, 3)
        if kind == 0:
            characters.insert(place, rng.choice(alphabet))
        elif kind == 1 and place < len(characters):
            characters[place] = rng.choice(alphabet)
        elif kind == 2 and place < len(characters):
            del characters[place]
        elif place + 1 < len(characters):
            characters[place], characters[place + 1] = characters[place + 1], characters[place]
    return "".join(characters)


def mutate_number(text, rng):
    while True:
        mutated = mutate_text(text, rng, "0123456789.-")
        # As a float is printed: no zero at the end, but for a lone one.
        if mutated != "-0" and re.fullmatch(r"-?(?:0|[1-9]\d{0,25})(?:\.(?:0|\d{0,19}[1-9]))?", mutated):
            return mutated


def kept_out(text):
    return "</think>" in text or "<｜DSML｜" in text or "</｜DSML｜" in text or text.endswith(("\n", "."))


def main():
    rng = random.Random(SEED)
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    parse = lambda text: json.loads(text, parse_float=decimal.Decimal)
    cases = []

    def add(schema, texts):
        validator = jsonschema.Draft202012Validator(parse(json.dumps(schema)), format_checker=checker)
        valid, invalid = [], []
        for text in sorted(set(texts)):
            (valid if validator.is_valid(parse(text)) else invalid).append(text)
        assert valid and invalid, schema
        cases.append({"schema": schema, "valid": valid, "invalid": invalid})

    for schema, instances in STRINGS:
        alphabet = sorted(set("".join(instances)) | set("aZ09-.:/ <"))
        texts = list(instances)
        texts += [mutate_text(rng.choice(instances), rng, alphabet) for _ in range(NUM_MUTATIONS)]
        add({"type": "string", **schema}, [json.dumps(t, ensure_ascii=False) for t in texts if not kept_out(t)])
    for schema, instances in NUMBERS:
        add(schema, instances + [mutate_number(rng.choice(instances), rng) for _ in range(NUM_MUTATIONS)])
    golden = {"generator": "tools/oracle/schema_goldens.py", "seed": SEED, "jsonschema": importlib.metadata.version("jsonschema"), "cases": cases}
    target = ROOT / "tests/golden/text/schemas.json"
    target.write_text(json.dumps(golden, ensure_ascii=True, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
