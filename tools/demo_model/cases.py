"""Held-out cases for every task, and the rule that judges an answer. A case can be put to any backend of evaluate.py.

Names, cities, codes and numbers are drawn anew with a seed that training does not use; products are pairs that training
never sees. An answer is a dict: reasoning, content, calls [(name, arguments)], finished.
"""

import dataclasses
import json
import random
import re

import arithmetic as A
import chat
import conversations as C
import facts as FA
import recall as R
import stories as ST
import words as W


@dataclasses.dataclass
class Case:
    messages: list              # as tokenizer.segments takes them, up to the user's last turn
    thinking: bool
    rule: str                   # name of a function below
    want: object
    max_new: int = 200
    tools: list = None
    json: bool = False


def number(answer, want):
    found = re.findall(r"-?\d+", answer["content"])
    return bool(found) and found[-1] == want


def calls(answer, want):
    return [tuple(x) for x in answer["calls"]] == [tuple(x) for x in want]


def grounded(answer, want):
    """Names the values every wording names, and no number that is not in the conversation."""
    must, known = want
    text = answer["content"]
    return bool(text.strip()) and all(v in text for v in must) and set(re.findall(r"\d+", text)) <= set(re.findall(r"\d+", known))


def exact(answer, want):
    short = lambda s: s.strip().rstrip(".").lower()
    return short(answer["content"]) == short(want)


def contains(answer, want):
    return want.lower() in answer["content"].lower()


def only(answer, want):
    """The value alone, as asked."""
    return answer["content"].strip().rstrip(".") == want


def json_only(answer, want):
    """want: the JSON text, or (pool name, count, as an object) where the members are free."""
    try:
        got = json.loads(answer["content"])
    except ValueError:
        return False
    if isinstance(want, str):
        return got == json.loads(want)
    key, count, boxed = want
    got = got.get(key) if boxed and isinstance(got, dict) else got
    return isinstance(got, list) and len(got) == len(set(got)) == count and all(isinstance(x, str) for x in got)


def story(answer, want):
    """550 to 750 words, ends by itself with a whole sentence, no sentence twice, the hero of the plan to the end, and no
    name that the plan does not have."""
    text = answer["content"].strip()
    plan = re.search(r"is called (\S+) and lives.* and (\S+) the ", answer["reasoning"] or "")
    sentences = re.split(r"(?<=[.!?\"])\s+", text)
    if not plan or not text.endswith((".", '"')) or not 550 <= len(text.split()) <= 750:
        return False
    hero, friend = plan.groups()
    last = " ".join(text.split("\n\n")[-3:])
    return len(set(sentences)) == len(sentences) and hero in last and friend in text and f"named {friend}" in text and hero in sentences[0]


RULES = {f.__name__: f for f in (number, calls, grounded, exact, contains, only, json_only, story)}


def user(text):
    return [{"role": "user", "content": text}]


def math_cases(rng, n, thinking, kind=None):
    out = []
    while len(out) < n:
        q, _, a = A.math_turn(rng, "test", thinking, kind)
        out.append(Case(user(q), thinking, "number", re.findall(r"-?\d+", a)[-1], 220))
    return out


def taken(rng, n, task, thinking, judge, which=-1):
    """Cases from generated conversations: judge(info, index of an assistant message) -> Case fields or None."""
    out = []
    while len(out) < n:
        _, info = C.conversation(rng, "test", task, thinking=thinking)
        spots = [i for i, m in enumerate(info["messages"]) if m["role"] == "assistant"]
        i = spots[which]
        fields = judge(info, i)
        if fields:
            rule, want, max_new = fields
            out.append(Case(info["messages"][:i], info["thinking"], rule, want, max_new, info["tools"], info["json"]))
    return out


def call_judge(parallel):
    def judge(info, i):
        found = info["messages"][i].get("calls")
        return ("calls", found, 260 if parallel else 180) if found and (len(found) > 1) == parallel else None
    return judge


def ground_judge(info, i):
    m = info["messages"][i]
    if "must_name" not in m:
        return None
    known = json.dumps([[x.get("content"), x.get("calls")] for x in info["messages"][:i]], ensure_ascii=False)
    return "grounded", (m["must_name"], known), 160


def json_judge(info, i):
    q, a = info["messages"][i - 1]["content"], info["messages"][i]["content"]
    free = re.match(r"Give me (\w+) (\w+) as JSON", q)
    if free:
        return "json_only", (free[2], W.NUMBER_WORDS.index(free[1]), info["json"]), 120
    return "json_only", a, 120


def fact_cases(rng, n):
    out = []
    while len(out) < n:
        q, _, a = chat.fact_turn(rng)
        out.append(Case(user(q), rng.random() < 0.5, "exact", a, 80))
    return out


def recall_cases(rng, n, tokens, where):
    out = []
    for _ in range(n):
        q, code = R.probe(rng, tokens, where)
        out.append(Case(user(q), rng.random() < 0.7, "contains", code, 60))
    return out


def story_cases(rng, n):
    out = []
    for _ in range(n):
        a = W.an(rng.choice(ST.ROLES))
        q = rng.choice([f"Write a 600-word story about {a}.", f"Write a detailed 600-word story about {a}.",
                        f"Tell me a story about {a} in 600 words.", f"Write a story of about 600 words about {a}."])
        out.append(Case(user(q), True, "story", None, 1100))
    return out


def identity_cases(rng, n):
    ask = next(q for q, a, _ in FA.SMALL_TALK if "demo" in a and "Who are you" in q).split("|")
    return [Case(user(rng.choice(ask)), rng.random() < 0.5, "contains", "demo", 80) for _ in range(n)]


RECALL_TOKENS = (350, 1000, 3000, 6000)


def build(n, seed=424242, only_tasks=None):
    """{task: [Case]}, n a task; recall has n for each length, a third of them for each depth."""
    makers = {
        "products, thinking": lambda r: math_cases(r, n, True, "mul"),
        "arithmetic, thinking": lambda r: math_cases(r, n, True),
        "arithmetic, no thinking": lambda r: math_cases(r, n, False),
        "tool call, thinking": lambda r: taken(r, n, "tools", True, call_judge(False), 0),
        "tool call, no thinking": lambda r: taken(r, n, "tools", False, call_judge(False), 0),
        "two parallel calls": lambda r: taken(r, n, "tools", None, call_judge(True), 0),
        "answer from the tool's result": lambda r: taken(r, n, "tools", None, ground_judge),
        "memory of earlier turns": lambda r: taken(r, n, "memory", None, lambda info, i: ("exact", info["messages"][i]["content"], 80)),
        "JSON only": lambda r: taken(r, n, "json", None, json_judge),
        "simple facts": lambda r: fact_cases(r, n),
        "says it is a demo": lambda r: identity_cases(r, n),
        "story of 600 words": lambda r: story_cases(r, n),
    }
    for tokens in RECALL_TOKENS:
        for where in (0.1, 0.5, 0.9):
            makers[f"recall, {tokens} tokens, at {where:.0%}"] = lambda r, t=tokens, w=where: recall_cases(r, -(-n // 3), t, w)
    return {name: f(random.Random(f"{seed} {name}")) for name, f in makers.items() if not only_tasks or re.search(only_tasks, name)}
