"""One synthetic conversation in the official chat format: which task, which switches, and the text the model must write.

split="test" draws multiplication pairs that training never sees; names, cities, codes and numbers are random in both.
"""

import facts as FA
import tokenizer as TK
from arithmetic import math_turn
from chat import (fact_turn, json_turn, list_turn, memory_turns, no_tool_turn, sequence_turn, small_turn, turn, unknown_turn)
from recall import recall
from stories import story_turn
from toolcalls import tools_conversation

TASKS = {"chat": 0.2, "math": 0.27, "tools": 0.24, "recall": 0.08, "story": 0.08, "memory": 0.05, "json": 0.08}
SHORT_BUDGETS = [60, 120, 200, 300, 400, 500, 650, 800]      # tokens of a text for recall in short rows


def chat_messages(rng):
    out = []
    for _ in range(rng.choice([1, 1, 1, 2, 3, 4])):
        f = rng.choice([fact_turn] * 6 + [small_turn] * 3 + [list_turn] * 3 + [sequence_turn] * 3 + [unknown_turn, no_tool_turn])
        out += turn(*f(rng))
    return out


def drill_messages(rng, split):
    """Many table facts in one conversation, answered without steps."""
    return [m for _ in range(rng.randint(4, 16))
            for m in turn(*math_turn(rng, split, False, rng.choice(["mul1", "mul1", "mul1", "add1", "sub1"])))]


def math_messages(rng, split, thinking):
    if not thinking and rng.random() < 0.5:
        return drill_messages(rng, split)
    out = []
    if rng.random() < 0.15:
        out += turn(*rng.choice([small_turn, fact_turn])(rng))
    out += turn(*math_turn(rng, split, thinking))
    if rng.random() < 0.15:
        out[-1]["train"] = not thinking      # an earlier turn's reasoning is not shown: do not train on the bare answer
        out += turn(*math_turn(rng, split, thinking))
    return out


def conversation(rng, split="train", task=None, budget=None, thinking=None):
    """(segments of tokenizer.segments, info). budget: tokens of a recall text."""
    task = task or rng.choices(list(TASKS), list(TASKS.values()))[0]
    thinking = rng.random() < 0.62 if thinking is None else thinking
    effort = 75 if rng.random() < 0.85 else rng.choice([50, 100, rng.randint(1, 100)])
    tools, flag, gold = None, False, None
    if task == "tools":
        msgs, tools = tools_conversation(rng, thinking)
    elif task == "recall":
        msgs, gold = recall(rng, budget or rng.choice(SHORT_BUDGETS))
    elif task == "json":
        flag = rng.random() < 0.5
        msgs = turn(*json_turn(rng, flag))
    elif task == "memory":
        msgs = [m for t in memory_turns(rng) for m in turn(*t)]
    elif task == "math":
        msgs = math_messages(rng, split, thinking)
    elif task == "story":
        msgs = turn(*story_turn(rng))
        if rng.random() < 0.1:
            msgs = turn(*small_turn(rng)) + msgs
    else:
        msgs = chat_messages(rng)
    if rng.random() < 0.3:
        msgs = [{"role": "system", "content": rng.choice(FA.SYSTEMS)}, *msgs]
    segs = TK.segments(msgs, thinking, tools, effort, flag, generate=False)
    return segs, {"task": task, "messages": msgs, "thinking": thinking, "tools": tools, "gold": gold, "json": flag}
