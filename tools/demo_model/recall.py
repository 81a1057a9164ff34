"""Long texts with planted facts and questions about them."""

import stories as ST
import words as W

PLACES = """vault safe archive laboratory tower cellar warehouse office library museum garage harbor server elevator greenhouse
garden bank castle attic cabin studio hotel school kitchen bunker observatory workshop chapel stable mill""".split()
STYLES = 5
CODE_NOUNS = ["access code", "access code", "code", "password", "secret number", "door code", "key number", "passphrase"]


def filler(rng, style=None):
    """An endless generator of filler sentences of one style."""
    style = rng.randrange(STYLES) if style is None else style
    if style == 0:
        w = [W.fill(rng, x) for x in ("{archive|log|ledger|record|register}", "{shipment|parcel|crate|container|box}",
                                      "{dock|gate|bay|hall|pier}", "{on schedule|late|early|in good order|without delay}")]
        a, m, b = rng.randint(2, 60), rng.choice([97, 997, 499, 1009]), rng.randint(5, 30)
        i = 0
        while True:
            yield f"Line {i}: the {w[0]} notes that {w[1]} {a * i % m} left {w[2]} {i % b} {w[3]}."
            i += 1
    if style == 1:
        while True:
            yield W.fill(rng, "{The|An old|A young|Another} {man|woman|farmer|teacher|guard|merchant} {walked|went|rode|drove} to "
                         "{the market|the river|the station|the harbor|%c} and {bought|sold|found|lost} {a|the|one} %o."
                         ).replace("%c", W.city(rng)).replace("%o", rng.choice(W.OBJECTS))
    if style == 2:
        while True:
            yield f"{rng.choice(W.WEEK)}: " + W.fill(
                rng, "{nothing happened|the weather was good|it rained all day|the team met at noon|the report was sent|a guest came "
                "from %c|the price went up|we cleaned the hall|the train was late}.").replace("%c", W.city(rng))
    if style == 3:
        while True:
            yield (f"Item {rng.randint(1, 999)}: {rng.randint(1, 50)} {W.PLURAL(rng.choice(W.OBJECTS))} from {W.city(rng)}, "
                   f"color {rng.choice(W.COLORS)}.")
    theme = rng.choice(ST.THEMES)
    while True:
        text, _ = ST.story(rng, theme, 300)
        for s in text.replace("\n\n", " ").split(". "):
            yield s.rstrip(".") + "."


def place(rng):
    return rng.choice(PLACES) if rng.random() < 0.7 else W.fake(rng) + " " + rng.choice(PLACES)


def code_needle(rng, value=None):
    """(key, sentence, question, value, full answer) about a code."""
    pick = lambda s: rng.choice(s.split("|"))
    p, noun = place(rng), rng.choice(CODE_NOUNS)
    v = value or ("".join(rng.choice("0123456789") for _ in range(5)) if rng.random() < 0.4 else W.code(rng))
    s = pick(f"The {noun} for the {p} is {v}.|The {noun} for the {p} is {v}.|The {noun} of the {p} is {v}.|Remember: the {noun} for the "
             f"{p} is {v}.|Note that the {noun} for the {p} is {v}.|To open the {p}, use the {noun} {v}.")
    q = pick(f"What is the {noun} for the {p}?|What is the {noun} for the {p}?|What is the {noun} of the {p}?|Which {noun} opens the {p}?"
             f"|Tell me the {noun} for the {p}.|I need the {noun} for the {p}. What is it?")
    return p, s, q, v, f"The {noun} for the {p} is {v}."


def needle(rng):
    """(key, sentence, question, value, full answer): half of them codes, else a name, a birthplace or a hiding place."""
    pick = lambda s: rng.choice(s.split("|"))
    k = rng.randrange(6)
    if k <= 2:
        return code_needle(rng)
    p = place(rng)
    if k == 3:
        v, role = W.full_name(rng), rng.choice(["captain", "owner", "director", "guard", "manager", "builder", "inspector"])
        return (p, f"The {role} of the {p} is {v}.",
                pick(f"What is the name of the {role} of the {p}?|Who is the {role} of the {p}?"), v, f"The {role} of the {p} is {v}.")
    if k == 4:
        n, v = W.person(rng), W.city(rng)
        return (n, pick(f"{n} was born in {v}.|The birthplace of {n} is {v}."), pick(f"Where was {n} born?|In which city was {n} born?"),
                v, f"{n} was born in {v}.")
    n, o, v = W.person(rng), rng.choice(W.OBJECTS), f"the {rng.choice(PLACES)}"
    return n, f"{n} hid the {o} in {v}.", pick(f"Where did {n} hide the {o}?|Where is the {o} of {n}?"), v, f"{n} hid the {o} in {v}."


def needles(rng, count):
    out = {}
    while len(out) < count:
        nd = needle(rng)
        out.setdefault(nd[0], nd)
    return list(out.values())


def plant(rng, lines, planted, where=None):
    """Inserts the sentences; `where` (share of the text) places the first of them."""
    for i, nd in enumerate(planted):
        at = len(lines) if rng.random() < 0.08 else rng.randint(0, len(lines))
        if i == 0 and where is not None:
            at = round(where * len(lines))
        lines.insert(at, nd[1] + rng.choice(["", "", "", " Anything else is routine.", " This is important.", " Do not forget it."]))


def filler_lines(rng, tokens, style=None):
    """About `tokens` tokens of filler, as sentences."""
    gen, lines, size = filler(rng, style), [], 0.0
    while size < tokens * 0.78:
        s = next(gen)
        lines.append(s)
        size += len(s.split()) + sum(ch.isdigit() for ch in s) * 0.7 + 1
    return lines


def only_suffix(rng, q, v):
    kind = "name" if v[0].isupper() and " " in v else "code" if "code" in q else "answer"
    return q + rng.choice([f" Reply with only the {kind}.", f" Reply with only the {kind}.", f" Answer with just the {kind}.",
                           " Give only the answer.", f" Only the {kind}, please."])


def turn(user, think, answer):
    return [{"role": "user", "content": user}, {"role": "assistant", "reasoning": think, "content": answer}]


def recall(rng, budget, dense=0.7):
    """A text of about `budget` tokens with planted facts and questions about many of them. The share `dense` of the texts
    holds a fact for every 50 tokens or so: many answers for the price of one long row. Returns (messages, value)."""
    x = rng.random()
    count = 1 if x < 0.2 else rng.randint(2, 4) if x < 1 - dense else rng.randint(2, max(3, min(64, budget // 45)))
    planted = needles(rng, count)
    asked = rng.sample(planted, min(count, rng.randint(1, 48)))
    lines = filler_lines(rng, max(20, budget - 14 * count - 26 * len(asked)))
    plant(rng, lines, planted)
    text = rng.choice([" ", " ", "\n"]).join(lines)
    out = []
    for i, (_, s, q, v, full) in enumerate(asked):
        only = rng.random() < 0.6
        ask = only_suffix(rng, q, v) if only else q
        if i == 0 and rng.random() < 0.2:
            ask, only = q + " Here is the text:\n\n" + text, False
        elif i == 0:
            ask = text + "\n\n" + ask
        out += turn(ask, f"The text says: {s}", v if only else full)
    return out, asked[-1][3]


def probe(rng, tokens, where, style=None):
    """A text of about `tokens` tokens with one five-digit code planted at `where` (a share), in half of the cases among
    one to three other facts, and one question. Returns (question text, value)."""
    code = str(rng.randint(10000, 99999))
    nd = code_needle(rng, code)
    others = [n for n in needles(rng, rng.choice([0, 0, 1, 3])) if n[0] != nd[0]]
    lines = filler_lines(rng, max(20, tokens - 60 - 14 * len(others)), style)
    plant(rng, lines, [nd, *others], where)
    return " ".join(lines) + "\n\n" + only_suffix(rng, nd[2], code), code
