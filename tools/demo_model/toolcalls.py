"""Conversations that use tools: one call, several rounds, two calls at once, and questions no tool can answer."""

import tools as TO
from chat import fact_turn, pick, small_turn, turn

# families whose request can be named in a few words (tools.FAMILIES[..][4]), so that two of them fit one question
PARALLEL = ("get_weather", "search", "calculator", "get_time", "set_timer", "convert_currency", "get_stock_price",
            "get_distance", "convert_units", "get_user", "define_word", "get_news", "get_order", "read_file")
NOUN = {"get_weather": "the weather in", "get_time": "the time in", "get_stock_price": "the price of",
        "define_word": "the meaning of", "get_user": "the name of user", "get_news": "the news about",
        "get_order": "the status of order"}
PARALLEL_SHARE = 0.4


def tool_call_messages(rng, fam, name, keys, thinking):
    """(request, call, result and answer messages, arguments, result). The answer's "must_name": result values that every
    wording of this answer names."""
    args, result = fam[5](rng)
    request = TO.put(rng.choice(fam[3]), args, {})
    purpose = TO.put(fam[4], args, {})
    call = {"role": "assistant", "content": "", "calls": [(name, dict(zip(keys, args)))],
            "reasoning": pick(rng, f"The user wants {purpose}. I will call {name}.|I need {purpose}. The tool {name} can do this.|For {purpose} I use the tool {name}.")}
    body = TO.result_json(rng, fam, args, keys, result)
    facts = ", ".join(f"{k} {v}" for k, v in result.items())
    always = [str(v) for i, v in enumerate(result.values()) if all(f"<r{i}>" in a for a in fam[6])]
    final = {"role": "assistant", "content": TO.put(rng.choice(fam[6]), args, result), "must_name": always,
             "reasoning": pick(rng, f"The tool says: {facts}.|The result is {facts}. I can answer now.")}
    return request, call, {"role": "tool", "content": body}, final, args, result


def parallel_messages(rng, one, made, thinking):
    """Two calls at once: the same tool twice, or two tools. one, made: (family, schema, name, keys) of the tools offered."""
    partners = [m for m in made if m is not one and m[0][0][0] in PARALLEL]
    two = rng.choice(partners) if partners and rng.random() < 0.35 else one
    parts = [tool_call_messages(rng, f, name, keys, thinking) for f, _, name, keys in (one, two)]
    wants = [TO.put(m[0][4], p[4], {}) for m, p in zip((one, two), parts)]
    noun, (a, b) = NOUN.get(one[0][0][0]), (parts[0][4][0], parts[1][4][0])
    if one is two and noun and rng.random() < 0.6:
        prep = noun.split()[-1] if noun.endswith((" in", " of")) else "of"
        q = pick(rng, f"What is {noun} {a} and {prep} {b}?|I need {noun} {a} and {prep} {b}.|Compare {noun} {a} and {b}."
                 f"|What is {noun} {a} and {b}?|Tell me {noun} {a} and {b}.")
    else:
        q = pick(rng, f"I need {wants[0]} and {wants[1]}.|Please get {wants[0]} and {wants[1]}.|Give me {wants[0]} and also {wants[1]}."
                 f"|Two things: {wants[0]} and {wants[1]}.")
    how = f"call {one[2]} twice" if one is two else f"call {one[2]} and {two[2]}"
    call = {"role": "assistant", "content": "", "calls": parts[0][1]["calls"] + parts[1][1]["calls"],
            "reasoning": f"The user wants {wants[0]} and {wants[1]}. I will {how}."}
    found = [f"For {w}: " + ", ".join(f"{k} {v}" for k, v in p[5].items()) + "." for w, p in zip(wants, parts)]
    first, second = (p[3]["content"] for p in parts)
    final = {"role": "assistant", "content": first + (" " if first[-1] in ".!" else "\n") + second,
             "must_name": parts[0][3]["must_name"] + parts[1][3]["must_name"],
             "reasoning": "I have both results. " + " ".join(found)}
    return [{"role": "user", "content": q + rng.choice(TO.SUFFIX)}, call, parts[0][2], parts[1][2], final]


def tools_conversation(rng, thinking):
    """(messages, schemas of the tools offered)"""
    n = rng.choice([1, 1, 2, 2, 3, 4, 5])
    fams = rng.sample(TO.FAMILIES, n)
    made, names = [], set()
    for f in fams:
        while True:
            t = TO.make_tool(rng, f)
            if t[1] not in names:
                names.add(t[1])
                made.append((f, *t))
                break
    schemas = [m[1] for m in made]
    msgs, x = [], rng.random()
    if x < 0.06:
        q, th, a = rng.choice([small_turn, fact_turn])(rng)
        msgs += turn(q, th + " No tool is needed.", a)
        x = rng.random()
    elif x < 0.12:
        other = rng.choice([f for f in TO.FAMILIES if f not in fams])
        if other[0][0] not in ("calculator", "define_word", "translate", "create_note"):
            args, _ = other[5](rng)
            q = TO.put(rng.choice(other[3]), args, {}) + rng.choice(TO.SUFFIX)
            return turn(q, "None of my tools can do this.", "I cannot do that, because I have no tool for it."), schemas
    i = rng.randrange(n)
    f, schema, name, keys = made[i]
    if rng.random() < PARALLEL_SHARE and f[0][0] in PARALLEL:
        return parallel_messages(rng, made[i], made, thinking), schemas
    for k in range(rng.choice([1, 1, 1, 2, 2, 3])):
        if k and rng.random() < 0.4:
            f, schema, name, keys = rng.choice(made)
        req, call, res, final, args, _ = tool_call_messages(rng, f, name, keys, thinking)
        if k and len(args) == 1 and rng.random() < 0.3 and f is made[i][0]:
            req = pick(rng, f"And {args[0]}?|And what about {args[0]}?|Now for {args[0]}, please.|What about {args[0]}?")
        if k == 0 or rng.random() < 0.7:
            req += rng.choice(TO.SUFFIX)
        msgs += [{"role": "user", "content": req}, call, res, final]
    if rng.random() < 0.1:
        msgs += turn(*small_turn(rng))
    return msgs, schemas
