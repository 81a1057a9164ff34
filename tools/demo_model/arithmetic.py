"""Arithmetic questions with worked steps: every step is one table fact or one column, and copies at most three digits.

A product is written as school multiplication without shifts: 17 * 23 = 391 is
    17 * 3 = 51. 17 * 2 = 34. 34 + 5: ones 4 + 5 = 9, tens 3 + 0 = 3, so 39. 39 and 1: 391.
The ones of the first partial product are the ones of the answer; its tens are added to the second partial product.
"""

import words as W

COLUMNS = ["ones", "tens", "hundreds", "thousands"]


def held_out(a, b):
    """Pairs that never occur in training (about one in ten, and the well-known 17 * 23)."""
    a, b = min(a, b), max(a, b)
    return (a * 131 + b * 977) % 10 == 0 or (a, b) == (17, 23)


def add_columns(a, b):
    """'ones 8 + 5 = 13 carry 1, tens 2 + 0 + 1 = 3, so 33'; the shorter number is filled with zeros."""
    out, carry = [], 0
    for i in range(max(len(str(a)), len(str(b)))):
        x, y = a // 10**i % 10, b // 10**i % 10
        s = x + y + carry
        text = f"{COLUMNS[i]} {x} + {y}" + (" + 1" if carry else "") + f" = {s}"
        carry = s // 10
        out.append(text + (" carry 1" if carry else ""))
    return ", ".join(out) + f", so {a + b}"


def sub_columns(a, b):
    """'ones 13 - 8 = 5 borrow 1, tens 4 - 1 - 1 = 2, so 25'; a column that borrows is written with its ten."""
    out, borrow = [], 0
    for i in range(len(str(a))):
        x, y = a // 10**i % 10, b // 10**i % 10
        s = x - y - borrow
        text = f"{COLUMNS[i]} {x + 10 if s < 0 else x} - {y}" + (" - 1" if borrow else "")
        borrow = 1 if s < 0 else 0
        out.append(text + f" = {s % 10}" + (" borrow 1" if borrow else ""))
    return ", ".join(out) + f", so {a - b}"


def product_steps(a, b):
    if min(a, b) < 10:
        return f"{a} * {b} = {a * b}."
    t, u = b // 10, b % 10
    if u == 0:
        return f"{a} * {t} = {a * t}. {a * t} and 0: {a * b}."
    low, high = a * u, a * t
    tens, ones = low // 10, low % 10
    if tens == 0:
        return f"{a} * {u} = {low}. {a} * {t} = {high}. {high} and {ones}: {a * b}."
    return f"{a} * {u} = {low}. {a} * {t} = {high}. {high} + {tens}: {add_columns(high, tens)}. {high + tens} and {ones}: {a * b}."


def steps(a, b, sym):
    if sym == "*":
        return product_steps(a, b)
    return f"{a} {sym} {b}: {(add_columns if sym == '+' else sub_columns)(a, b)}."


ONLY = (" Reply with only the number.| Reply with only the number.| Only the number, please.| Answer with just the number."
        "| Give only the result.| Just the number.| Answer with the number only.")


def numbers(rng, kind, split):
    if kind == "mul":
        while True:
            a, b = rng.randint(10, 99), rng.randint(10, 99)
            if held_out(a, b) == (split == "test"):
                return a, b
    if kind == "mul1":
        a, b = rng.randint(2, 9 if rng.random() < 0.4 else 99), rng.randint(2, 9)
        return (b, a) if rng.random() < 0.5 else (a, b)
    hi = 20 if kind.endswith("1") else rng.choice([20, 100, 1000, 1000])
    a, b = rng.randint(1, hi), rng.randint(1, hi)
    return (max(a, b), min(a, b)) if kind.startswith("sub") else (a, b)


def question(rng, a, b, sym):
    pick = lambda s: rng.choice(s.split("|"))
    shown = {"*": ["*", "*", "*", "x", "×", "times"], "+": ["+", "+", "plus"], "-": ["-", "-", "minus"]}[sym]
    e = f"{a} {rng.choice(shown)} {b}"
    if sym == "*" and rng.random() < 0.15:
        return pick(f"What is the product of {a} and {b}?|Multiply {a} by {b}.|A box holds {a} pens. How many pens are in {b} boxes?"
                    f"|One ticket costs {a} euros. How much do {b} tickets cost?|Multiply {a} and {b}.|Find the product of {a} and {b}.")
    n, o = W.person(rng), W.PLURAL(rng.choice(W.OBJECTS))
    if sym == "+" and rng.random() < 0.2:
        return f"{n} has {a} {o} and gets {b} more. How many {o} does {n} have now?"
    if sym == "-" and rng.random() < 0.2:
        return f"{n} has {a} {o} and gives away {b}. How many {o} are left?"
    return pick(f"What is {e}?|What is {e}?|How much is {e}?|Calculate {e}.|{e}|{e} = ?|Compute {e}.|What's {e}?|Please calculate {e}."
                f"|{e}?|Work out {e}.|Can you calculate {e}?|Tell me {e}.")


def math_turn(rng, split="train", thinking=True, kind=None):
    """(question, reasoning, answer). Without thinking, the steps stand in the answer unless the result is in the tables.
    kind: "mul" two digits by two, "mul1" by one digit, "add" and "sub" up to 1,000, "add1" and "sub1" up to 20."""
    pick = lambda s: rng.choice(s.split("|"))
    kinds = ["mul"] * 6 + ["mul1"] * 2 if thinking else ["mul"] * 3 + ["mul1"] * 5      # without steps, tables need practice
    kind = kind or rng.choice(kinds + ["add", "add", "sub", "sub"])
    a, b = numbers(rng, kind, split)
    sym = {"mul": "*", "add": "+", "sub": "-"}[kind[:3]]
    r = {"*": a * b, "+": a + b, "-": a - b}[sym]
    work, q = steps(a, b, sym), question(rng, a, b, sym)
    easy = kind == "mul1" or sym != "*" and max(a, b) <= 20
    only = rng.random() < 0.55
    if not thinking:
        if only and easy:
            return q + pick(ONLY), "", str(r)
        return q, "", f"{a} {sym} {b} = {r}" if easy else f"{work}\nThe answer is {r}."
    if only:
        return q + pick(ONLY), work, str(r)
    return q, work, pick(f"{a} {sym} {b} = {r}|The answer is {r}.|{r}|{r}")
