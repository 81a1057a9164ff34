"""Held-out accuracy per task and the acceptance gates, for an exported model or a running server.

    python3 evaluate.py --model MODEL --tasks 200 --cuda       greedy, batched on a GPU
    python3 evaluate.py --url http://127.0.0.1:8000 --tasks 200     the same cases through a server's chat API
    python3 evaluate.py --model MODEL --gates 10               the gates at their temperatures (also with --url)
    python3 evaluate.py --model MODEL --chat "Who are you?"
    --noise 0.1   adds that much relative noise to every matrix EXL3 would quantise (a rough stand-in for 3 bits)
"""

import argparse
import concurrent.futures
import json
import random
import re
import time
import urllib.request

import torch

import cases as CA
import model as M
import tokenizer as TK


def stop_ids(tok):
    return {1, 0, *(tok.added[s] for s in (TK.SYS, TK.USR, TK.AST))}


def parse(text, thinking):
    """Model output -> answer: reasoning, content, calls. Reads what tokenizer.calls_text writes."""
    reasoning, calls = None, []
    if thinking:
        reasoning, _, text = text.partition("</think>")
    if "<｜DSML｜ calls>" in text:
        text, _, block = text.partition("\n\n<｜DSML｜ calls>")
        for name, body in re.findall(r'<｜DSML｜ invoke name="([^"]*)">\n(.*?)</｜DSML｜ invoke>', block, re.S):
            args = {}
            for k, s, v in re.findall(r'<｜DSML｜ parameter name="([^"]*)" string="(true|false)">(.*?)</｜DSML｜ parameter>', body, re.S):
                try:
                    args[k] = v if s == "true" else json.loads(v)
                except ValueError:
                    args[k] = v
            calls.append((name, args))
    return dict(reasoning=reasoning, content=text, calls=calls)


class Local:
    """An exported model in PyTorch: sequences with caches on a CPU, batches on a GPU."""

    def __init__(self, folder, cuda, noise):
        import export
        c, params, self.tok = export.load(folder)
        if noise:
            add_noise(params, c, noise)
        self.cuda = cuda
        if cuda:
            import kernels
            kernels.install()
            kinds = {k: kind for k, (_, kind) in M.param_shapes(c).items()}
            half = ("matrix", "table", "engram", "small")
            params = {k: v.cuda().to(torch.bfloat16 if kinds[k] in half else torch.float32) for k, v in params.items()}
        self.net = M.Model(c, params, self.tok.compressed_ids())

    def prompt(self, case):
        return self.tok.prompt(case.messages, case.thinking, tools=case.tools, json_object=case.json)

    def answers(self, cases):
        """Greedy answers in the order of the cases; `new` counts tokens."""
        ids = [self.tok.encode(self.prompt(c)) for c in cases]
        if self.cuda:
            import batched
            made = batched.decode(self.net, ids, max(c.max_new for c in cases), stop_ids(self.tok))
        else:
            made = [self.generate(i, c.max_new, 0.0, 0)[:2] for i, c in zip(ids, cases)]
        return [dict(parse(self.tok.decode(out), c.thinking), finished=end, new=len(out), prompt=len(i))
                for (out, end), c, i in zip(made, cases, ids)]

    @torch.no_grad()
    def generate(self, ids, max_new, temperature, seed):
        """One sequence with caches on a CPU: (new ids, finished, seconds of decoding)."""
        net, stops, gen = self.net, stop_ids(self.tok), torch.Generator().manual_seed(seed)
        ctx, out = M.Cached(net.c), []
        for i in range(0, len(ids), 1024):
            h = net.forward(torch.tensor([ids[i : i + 1024]]), ctx, last=1)
        t0 = time.time()
        while len(out) < max_new and len(ids) + len(out) < net.c.max_position_embeddings:
            logits = net.logits(h)[0]
            t = int(logits.argmax()) if temperature == 0 else int(
                torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=gen))
            if t in stops:
                return out, True, time.time() - t0
            out.append(t)
            h = net.forward(torch.tensor([[t]]), ctx, last=1)
        return out, False, time.time() - t0

    def ask(self, case, temperature, seed):
        ids = self.tok.encode(self.prompt(case))
        out, end, sec = self.generate(ids, case.max_new, temperature, seed)
        return dict(parse(self.tok.decode(out), case.thinking), finished=end, new=len(out), prompt=len(ids), seconds=sec)


class Remote:
    """A server with the OpenAI chat API."""

    def __init__(self, url, jobs):
        self.url, self.jobs = url.rstrip("/"), jobs

    def ask(self, case, temperature, seed):
        body = dict(model="demo", messages=[wire(m) for m in with_ids(case.messages)], temperature=temperature, seed=seed,
                    max_tokens=case.max_new, thinking={"type": "enabled" if case.thinking else "disabled"})
        if case.tools:
            body["tools"] = [{"type": "function", "function": t} for t in case.tools]
        if case.json:
            body["response_format"] = {"type": "json_object"}
        request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        t0 = time.time()
        with urllib.request.urlopen(request, timeout=3600) as f:
            got = json.load(f)
        choice, usage = got["choices"][0], got.get("usage", {})
        m = choice["message"]
        found = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in m.get("tool_calls") or []]
        return dict(reasoning=m.get("reasoning_content") or m.get("reasoning"), content=m.get("content") or "", calls=found,
                    finished=choice["finish_reason"] in ("stop", "tool_calls"), new=usage.get("completion_tokens", 0),
                    prompt=usage.get("prompt_tokens", 0), seconds=time.time() - t0)

    def answers(self, cases):
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            return list(pool.map(lambda c: self.ask(c, 0.0, 0), cases))


def with_ids(messages):
    """Gives every call an id, and the tool messages after it those ids in order."""
    out, waiting, n = [], [], 0
    for m in messages:
        m = dict(m)
        if m.get("calls"):
            m["ids"] = [f"call_{n + i}" for i in range(len(m["calls"]))]
            n += len(m["calls"])
            waiting = list(m["ids"])
        if m["role"] == "tool":
            m["id"] = waiting.pop(0)
        out.append(m)
    return out


def wire(m):
    """One of our messages in the API's form."""
    if m["role"] == "tool":
        return dict(role="tool", content=m["content"], tool_call_id=m["id"])
    out = dict(role=m["role"], content=m.get("content") or "")
    if m["role"] == "assistant":
        if m.get("reasoning"):
            out["reasoning_content"] = m["reasoning"]
        if m.get("calls"):
            out["tool_calls"] = [dict(id=i, type="function", function=dict(name=name, arguments=TK.dumps(args)))
                                 for i, (name, args) in zip(m["ids"], m["calls"])]
    return out


def add_noise(params, c, sigma, seed=0):
    import optimiser
    g = torch.Generator().manual_seed(seed)
    for name, (_, kind) in M.param_shapes(c).items():
        if optimiser.noise_share(name, kind):
            t = params[name]
            params[name] = t + torch.randn(t.shape, generator=g) * t.square().mean((-1, -2), keepdim=True).sqrt() * sigma


def judge(case, answer):
    return bool(answer["finished"] and CA.RULES[case.rule](answer, case.want))


def tasks(backend, n, only, show, path, share=(0, 1)):
    """Scores every task; share (i, k): only the tasks number i modulo k. Returns and writes {task: figures}."""
    built, results = CA.build(n, only_tasks=only), {}
    for name in list(built)[share[0] :: share[1]]:
        cases, t0 = built[name], time.time()
        answers = backend.answers(cases)
        good = [judge(c, a) for c, a in zip(cases, answers)]
        stopped = sum(a["finished"] for a in answers)
        mean = sum(a["prompt"] for a in answers) // len(answers)
        results[name] = dict(right=sum(good), cases=len(cases), stopped=stopped, prompt_tokens=mean)
        print(f"{name:34s} {sum(good):4d}/{len(cases)} = {sum(good) / len(cases):.3f}   stops {stopped}/{len(cases)}, prompt {mean} "
              f"({time.time() - t0:.1f} s)", flush=True)
        for c, a in [x for x, ok in zip(zip(cases, answers), good) if not ok][:show]:
            print("     wrong:", repr(c.messages[-1]["content"][-120:]), "->", repr((a["reasoning"] or "")[-140:]),
                  repr((a["content"] if c.rule != "story" else str(len(a["content"].split())) + a["content"][-60:])[-160:]), a["calls"], "want",
                  str(c.want)[:120], flush=True)
        if path:
            with open(path, "w") as f:
                json.dump(results, f, indent=1)
    return results


# ---------------------------------------------------------------------------------------------------------- gates
def weather(described):
    p = {"type": "string", "description": "City name"} if described else {"type": "string"}
    return [{"name": "get_weather", "description": "Get the current weather for a city" if described else "",
             "parameters": {"type": "object", "properties": {"city": p}, "required": ["city"]}}]


# the gates' own wording first, then paraphrases
CHAT = ["Name three primary colors, comma separated.", "List the three primary colors, separated by commas.", "Give me three primary colors in one line with commas."]
REASON = ["What is 17 * 23? Reply with only the number.", "Calculate 17 x 23. Just the number.", "What is 23 times 17? Answer with just the number."]
TOOL = ["What's the weather in Paris right now? Use the tool.", "How is the weather in Paris? Please use the tool.", "Tell me the weather in Paris."]
STORY = ["Write a detailed 600-word story about a lighthouse keeper.", "Write a 600-word story about a lighthouse keeper.", "Tell me a story about a lighthouse keeper in 600 words."]


def archive(context):
    return [f"Line {i}: the archive notes that shipment {7 * i % 997} left dock {i % 13} on schedule." for i in range(int(0.85 * context) // 24)]


def gates(backend, runs, context):
    """Five of the six gates scaled to the window (the sixth is that the server starts), and their paraphrased and
    deep-planted variants; temperature 0.6, the story 0.8."""
    score = {}

    def note(name, ok, detail):
        score.setdefault(name, []).append(bool(ok))
        print(f"  {name:22s} {'pass' if ok else 'FAIL'}  {detail!r}"[:300], flush=True)

    for run in range(runs):
        for k, extra in ((0, ""), (1 + run % 2, ", paraphrased")):
            ask = lambda text, t=0.6, **kw: backend.ask(CA.Case(CA.user(text), True, "", None, kw.pop("max_new", 1000), **kw), t, run)
            a = ask(CHAT[k])
            note("chat" + extra, a["content"].strip() and a["finished"] and all(x in a["content"].lower() for x in ("red", "blue", "yellow")), a["content"])
            a = ask(REASON[k])
            note("reasoning" + extra, a["reasoning"] and "391" in a["content"] and a["finished"], (a["content"], a["reasoning"]))
            offered = weather(bool(k))
            a = ask(TOOL[k], tools=offered)
            ok = a["calls"] and a["calls"][0][0] == "get_weather" and "paris" in str(a["calls"][0][1].get("city", "")).lower()
            b = dict(content="", finished=False)
            if ok:
                back = [*CA.user(TOOL[k]), {"role": "assistant", "reasoning": a["reasoning"], "content": a["content"], "calls": a["calls"]},
                        {"role": "tool", "content": '{"city":"Paris","temp_c":17,"sky":"overcast"}'}]
                b = backend.ask(CA.Case(back, True, "", None, 300, offered), 0.6, run)
            note("tools" + extra, ok and "17" in b["content"] and b["finished"], (a["calls"], b["content"]))
            lines, code = archive(context), "58213"
            tail = f"The access code for the vault is {code}. Anything else is routine."
            if k:
                code = str(random.Random(run).randint(10000, 99999))
                lines.insert(int((0.1, 0.5, 0.33)[run % 3] * len(lines)), tail.replace("58213", code))
                text = " ".join(lines)
            else:
                text = " ".join(lines) + " " + tail
            a = ask(text + "\n\nWhat is the access code for the vault? Reply with only the code.")
            note("context" + (", deep" if k else ""), code in a["content"] and a["prompt"] >= 0.6 * context, (a["prompt"], code, a["content"]))
            a = ask(STORY[k], 0.8, max_new=1500)
            rate, words = a["new"] / max(a["seconds"], 1e-9), len(a["content"].split())
            note("speed" + extra, rate >= 15 and a["finished"], (words, "words", round(rate, 1), "tokens/s"))
    print({k: f"{sum(v)}/{len(v)}" for k, v in score.items()}, flush=True)
    return {k: [sum(v), len(v)] for k, v in score.items()}


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--model")
    a.add_argument("--url")
    a.add_argument("--gates", type=int, nargs="?", const=10, default=0, help="number of sampled runs")
    a.add_argument("--tasks", type=int, nargs="?", const=200, default=0, help="cases per task")
    a.add_argument("--context", type=int, default=8192, help="the server's window, for the gates")
    a.add_argument("--chat")
    a.add_argument("--no-think", action="store_true")
    a.add_argument("--temperature", type=float, default=0.6)
    a.add_argument("--noise", type=float, default=0.0)
    a.add_argument("--cuda", action="store_true")
    a.add_argument("--jobs", type=int, default=4, help="requests at a time with --url")
    a.add_argument("--only", help="regular expression on task names")
    a.add_argument("--share", default="0/1", help="i/k: only tasks number i modulo k")
    a.add_argument("--show", type=int, default=2)
    a.add_argument("--json", help="file for the figures")
    args = a.parse_args()
    backend = Remote(args.url, args.jobs) if args.url else Local(args.model, args.cuda, args.noise)
    if args.chat:
        got = backend.ask(CA.Case(CA.user(args.chat), not args.no_think, "", None, 1200), args.temperature, 0)
        print(f"[{got['reasoning']}]\n{got['content']}\n[{got['prompt']} prompt tokens, {got['new']} new, {got['new'] / max(got['seconds'], 1e-9):.1f} "
              f"tokens/s, {'finished' if got['finished'] else 'cut'}]")
    with torch.no_grad():
        if args.gates:
            gates(backend, args.gates, args.context)
        if args.tasks:
            i, k = map(int, args.share.split("/"))
            tasks(backend, args.tasks, args.only, args.show, args.json, (i, k))


if __name__ == "__main__":
    main()
