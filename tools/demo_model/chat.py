"""Short conversations: facts, small talk, lists, sequences, things it does not know, memory of earlier turns, JSON."""

import facts as FA
import tokenizer as TK
import words as W


def turn(user, think, answer, train=True):
    """A user message and the assistant's answer; train=False: the answer is context only."""
    return [{"role": "user", "content": user}, {"role": "assistant", "reasoning": think, "content": answer, "train": train}]


def ask(rng, q):
    """Harmless variation of a question."""
    x = rng.random()
    if x < 0.6:
        return q
    if x < 0.7:
        return q.rstrip("?.") if rng.random() < 0.5 else q[0].lower() + q[1:]
    low = q if q.startswith("I ") else q[0].lower() + q[1:]
    return rng.choice(["Please tell me: ", "Quick question: ", "I have a question: ", "Can you tell me: ", "Hey, ", "One question: ", "Hello! "]) + low


def pick(rng, s):
    return rng.choice(s.split("|"))


def fact_turn(rng):
    x = rng.random()
    if x < 0.4:
        country, cap = rng.choice(list(FA.CAPITALS.items()))
        if rng.random() < 0.8:
            q = pick(rng, "What is the capital of %s?|What is the capital city of %s?|Which city is the capital of %s?|Tell me the capital of %s.|Name the capital of %s.") % country
            short, full = cap, f"The capital of {country} is {cap}."
        else:
            q = pick(rng, "%s is the capital of which country?|Which country has the capital %s?") % cap
            short, full = W.cap(country), f"{cap} is the capital of {country}."
    elif x < 0.9:
        q, short, full = rng.choice(FA.FACTS)
    else:
        seq, i, k = rng.choice([W.WEEK, W.MONTHS]), rng.randrange(12), rng.choice([1, 1, 1, -1])
        n = len(seq)
        unit = "day" if n == 7 else "month"
        a, b = seq[i % n], seq[(i + k) % n]
        word = "after" if k > 0 else "before"
        q = pick(rng, f"What {unit} comes {word} {a}?|Which {unit} is {word} {a}?")
        short, full = b, f"{b} comes {word} {a}."
    if rng.random() < 0.2:
        q = q + pick(rng, " Answer with one word.| Just the answer.| Short answer please.| Reply with only the answer.")
        return ask(rng, q), f"The user wants a short answer. {full}", short
    return ask(rng, q), pick(rng, f"This is a simple question. {full}|The user asks a question. {full}|I know this. {full}"), full


def small_turn(rng):
    q, a, think = rng.choice(FA.SMALL_TALK)
    q = pick(rng, q)
    if rng.random() < 0.2 and not q.lower().startswith(("h", "good", "bye")):
        q = pick(rng, "Hello! |Hi! |Hello, |Hey, |Good morning. |Hi there. ") + q
    return q, think, pick(rng, a)


def list_turn(rng):
    pools = [("colors", W.COLORS[:9]), ("animals", W.ANIMALS), ("fruits", W.FRUITS), ("days of the week", W.WEEK), ("months", W.MONTHS), ("European capitals", list(FA.CAPITALS.values())[:29]),
             ("jobs", W.JOBS), ("hobbies", W.HOBBIES), ("foods", W.FOODS)] + FA.LISTS + FA.LISTS
    name, items = rng.choice(pools)
    n = rng.randint(2, min(6, len(items)))
    if rng.random() < 0.3 and name in ("primary colors", "seasons"):
        n = len(items)
    got = items[:n] if name in ("days of the week", "months", "primary colors", "seasons") else rng.sample(items, n)
    word = W.NUMBER_WORDS[n] if rng.random() < 0.75 else str(n)
    style = rng.randrange(4)
    q = pick(rng, f"Name {word} {name}|List {word} {name}|Give me {word} {name}|Tell me {word} {name}")
    if style == 0:
        q, a = q + pick(rng, ", comma separated.|, separated by commas.| in one line with commas."), W.cap(", ".join(got))
    elif style == 1:
        q, a = q + pick(rng, ", one per line.| as a list.| as bullet points."), "\n".join("- " + g for g in got)
    elif style == 2:
        q, a = q + pick(rng, ".|, please."), W.cap(", ".join(got[:-1]) + " and " + got[-1]) + "."
    else:
        q, a = q + pick(rng, " as a numbered list.|, numbered."), "\n".join(f"{i + 1}. {g}" for i, g in enumerate(got))
    return q, f"The user wants {word} {name}: {', '.join(got)}.", a


def sequence_turn(rng):
    k = rng.randrange(7)
    if k == 0:
        a, n = rng.randint(0, 90), rng.randint(3, 10)
        return (pick(rng, f"Count from {a} to {a + n}.|Please count from {a} to {a + n}."), f"I will count from {a} to {a + n}.", ", ".join(str(i) for i in range(a, a + n + 1)))
    if k == 1:
        ws = W.word_list(rng, rng.randint(3, 6))
        i = rng.randrange(len(ws))
        o = ["first", "second", "third", "fourth", "fifth", "sixth"]
        which = "last" if i == len(ws) - 1 and rng.random() < 0.7 else o[i]
        return (pick(rng, f"What is the {which} word in this list: {', '.join(ws)}?|In the list {', '.join(ws)}, what is the {which} item?"), f"The {which} item is {ws[i]}.", ws[i])
    if k == 2:
        ws = W.word_list(rng, rng.randint(3, 5))
        return (pick(rng, f"Reverse this list: {', '.join(ws)}.|Say these words in reverse order: {', '.join(ws)}."), "I will write the words from the last to the first.", ", ".join(ws[::-1]))
    if k == 3:
        s = W.fill(rng, "{The|My|Our|This} {old|small|red|new|quiet} %s {is|was} {here|gone|in the garden|on the table|from %s}").replace("%s", rng.choice(W.OBJECTS), 1).replace("%s", W.city(rng))
        s = s if rng.random() < 0.6 else " ".join(W.fake(rng).lower() for _ in range(rng.randint(1, 4)))
        return (pick(rng, f"Repeat after me: {s}|Say exactly this: {s}|Please repeat: {s}"), "I will repeat the text.", s)
    if k == 4:
        ns = rng.sample(range(2, 100), rng.randint(2, 4))
        big = rng.random() < 0.5
        r = max(ns) if big else min(ns)
        w = "largest" if big else "smallest"
        return (pick(rng, f"Which number is the {w}: {', '.join(map(str, ns))}?|What is the {w} of {', '.join(map(str, ns))}?"), f"The {w} of these numbers is {r}.", str(r))
    if k == 5:
        n = rng.randint(1, 999)
        e = "even" if n % 2 == 0 else "odd"
        return f"Is {n} even or odd?", f"The last digit is {n % 10}, so {n} is {e}.", f"{n} is {e}."
    lang = rng.choice(list(FA.TRANSLATE))
    w, t = rng.choice(list(FA.TRANSLATE[lang].items()))
    return (pick(rng, f"How do you say {w} in {lang}?|Translate {w} into {lang}.|What is the {lang} word for {w}?"), f"The {lang} word for {w} is {t}.", pick(rng, f"In {lang}, {w} is \"{t}\".|{W.cap(t)}"))


def unknown_turn(rng):
    t = rng.choice(FA.TOPICS) if rng.random() < 0.6 else pick(rng, "the city of %s|the book by %s|the theory of %s|the life of %s") % W.full_name(rng)
    return rng.choice(FA.UNKNOWN).format(topic=t), f"The user asks about {t}. I do not know enough about it.", rng.choice(FA.UNKNOWN_ANSWERS).format(topic=t)


def no_tool_turn(rng):
    c = W.city(rng)
    q = pick(rng, f"What's the weather in {c}?|What time is it in {c}?|What is the news from {c}?|How warm is it in {c} now?|Is it raining in {c}?")
    return q, "I have no tool for this, so I cannot know it.", "I cannot look that up, because I have no tool for it."



def memory_turns(rng):
    n, c, h, j = W.person(rng), W.city(rng), rng.choice(W.HOBBIES), rng.choice(W.JOBS)
    pet, pn = rng.choice(W.ANIMALS[:8]), W.person(rng)
    col = rng.choice(W.COLORS)
    items = [(f"My name is {n}.|I am {n}.|Hi, I'm {n}.|Call me {n}.", "What is my name?|Do you remember my name?|Who am I?|What's my name?", n, f"Your name is {n}."),
             (f"I live in {c}.|My home is {c}.|I come from {c}.", "Where do I live?|Which city do I live in?|Where am I from?", c, f"You live in {c}."),
             (f"I like {h}.|My hobby is {h}.|I love {h}.", "What is my hobby?|What do I like?|Which hobby do I have?", h, f"You like {h}."),
             (f"I work as {W.an(j)}.|I am {W.an(j)} by trade.|My job is {j}.", "What is my job?|What do I do for work?|What do I work as?", j, f"You work as {W.an(j)}."),
             (f"My {pet} is called {pn}.|I have {W.an(pet)} named {pn}.", f"What is my {pet} called?|What is the name of my {pet}?", pn, f"Your {pet} is called {pn}."),
             (f"My favorite color is {col}.|I like the color {col} most.", "What is my favorite color?|Which color do I like?", col, f"Your favorite color is {col}.")]
    chosen = rng.sample(items, rng.randint(1, 4))
    turns, told = [], []
    said = " ".join(pick(rng, s) for s, *_ in chosen[:2])
    name = next((v for s, q, v, a in chosen[:2] if a.startswith("Your name")), None)
    hello = f"Nice to meet you, {name}!" if name else pick(rng, "Thank you for telling me!|Good to know!|I will remember that.")
    turns += [(said, "The user tells me something about themselves. I will remember it.", hello)]
    told += chosen[:2]
    for s, q, v, a in chosen[2:]:
        turns.append((pick(rng, s), "The user tells me more. I will remember it.", pick(rng, "Good to know!|I will remember that.|Thank you for telling me!")))
        told.append((s, q, v, a))
    for _ in range(rng.choice([0, 0, 1, 2])):
        turns.append(rng.choice([fact_turn, small_turn, list_turn])(rng))
    for s, q, v, a in rng.sample(told, rng.randint(1, len(told))):
        turns.append((pick(rng, q), f"The user told me this before. {a}", a))
    return turns


def json_turn(rng, flag):
    k = rng.randrange(4)
    d = TK.dumps
    if k == 0:
        keys = {"name": W.person(rng), "age": rng.randint(1, 99), "city": W.city(rng), "job": rng.choice(W.JOBS), "color": rng.choice(W.COLORS), "pet": rng.choice(W.ANIMALS), "hobby": rng.choice(W.HOBBIES), "id": rng.randint(1, 9999)}
        ks = rng.sample(list(keys), rng.randint(2, 4))
        obj = {x: keys[x] for x in ks}
        parts = [f"{x} {keys[x]}" for x in ks]
        return (pick(rng, "Give me a JSON object with |Write a JSON object with |Make JSON with |Return JSON with ") + ", ".join(parts[:-1]) + " and " + parts[-1] + ".",
                "The user wants a JSON object with the keys " + ", ".join(ks) + ".", d(obj))
    if k == 1:
        n, a, c, j = W.person(rng), rng.randint(1, 99), W.city(rng), rng.choice(W.JOBS)
        ks = rng.sample(["name", "age", "city", "job"], rng.randint(2, 4))
        v = {"name": n, "age": a, "city": c, "job": j}
        text = pick(rng, f"{n} is {a} years old, lives in {c} and works as {W.an(j)}.|{n}, {a}, is {W.an(j)} from {c}.|In {c} lives {n}, {W.an(j)} of {a} years.")
        return (pick(rng, "Extract |Return ") + ", ".join(ks[:-1]) + " and " + ks[-1] + " as JSON: " + text, "I read the text and write the keys " + ", ".join(ks) + ".", d({x: v[x] for x in ks}))
    if k == 2:
        country, cap = rng.choice(list(FA.CAPITALS.items()))
        key = rng.choice(["capital", "answer", "city"])
        return (f"What is the capital of {country}? " + pick(rng, f"Answer in JSON with the key {key}.|Reply as JSON with the key \"{key}\".|Use JSON and the key {key}."), f"The capital of {country} is {cap}.", d({key: cap}))
    name, pool = rng.choice([("colors", W.COLORS[:9]), ("animals", W.ANIMALS), ("fruits", W.FRUITS), ("jobs", W.JOBS)])
    got = rng.sample(pool, rng.randint(2, 5))
    if rng.random() < 0.4:
        return (f"Put these {name} into a JSON {'object with the key ' + name if flag else 'array'}: {', '.join(got)}.", "I will write JSON.", d({name: got} if flag else got))
    n, first = len(got), rng.randrange(len(pool))
    got = [pool[(first + i) % len(pool)] for i in range(n)]      # neighbours of the list: the likeliest next one never repeats
    return (f"Give me {W.NUMBER_WORDS[n]} {name} as JSON" + (f" with the key {name}." if flag else " array."), f"The user wants {n} {name} in JSON.", d({name: got} if flag else got))
