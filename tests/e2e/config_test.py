"""onecard config, --help, and docs/config.md: what the program says of its settings, held to what it does with them."""

import json
import pathlib
import re
import subprocess
import unittest

import harness

DOC = pathlib.Path(__file__).parents[2] / "docs/config.md"
COMMANDS = ["serve", "chat", "gates", "config", "inspect", "quantize", "compare", "precision", "logits", "render", "parse", "engram-map",
            "bench"]


def onecard(*arguments, **environment):
    return subprocess.run([harness.args.program, *arguments], capture_output=True, text=True, timeout=harness.PATIENCE,
                          stdin=subprocess.DEVNULL, env={"PATH": "/usr/bin:/bin", **environment})


def settings(*arguments, **environment):
    """{flag: (value, source)} of the effective settings."""
    done = onecard("config", "--json", "--model", harness.args.model, *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return {s["flag"].split(",")[0]: (s["value"], s["source"]) for s in json.loads(done.stdout)["settings"]}


class Config(unittest.TestCase):
    def test_each_value_has_its_source(self):
        found = settings("--max-num-seqs", "8", "--port=9001", "--no-thinking", ONECARD_PORT="9000", ONECARD_HOST="0.0.0.0",
                         ONECARD_CORS="false", ONECARD_MAX_QUEUED_REQUESTS="")
        self.assertEqual(found["--max-num-seqs"], ("8", "flag"))
        self.assertEqual(found["--port"], ("9001", "flag"))  # although the variable is set
        self.assertEqual(found["--thinking"], ("off", "flag"))
        self.assertEqual(found["--host"], ("0.0.0.0", "environment"))
        self.assertEqual(found["--cors"], ("off", "environment"))
        self.assertEqual(found["--max-queued-requests"], ("64", "default"))  # an empty variable says nothing
        self.assertEqual(found["--effort-names"], ("50,75,100", "default"))
        self.assertEqual(found["--client-markup"], ("off", "default"))
        self.assertEqual(settings()["--cors"], ("on", "default"))
        self.assertEqual(settings()["--thinking"], ("on", "default"))
        self.assertEqual(found["--model"], (harness.args.model, "flag"))

    def test_what_is_left_open_is_planned(self):
        found = settings()
        context = json.loads((pathlib.Path(harness.args.model) / "config.json").read_text())
        context = context.get("text_config", context)["max_position_embeddings"]
        self.assertEqual(found["--max-model-len"], (str(context), "plan"))
        self.assertEqual(found["--served-model-name"], (pathlib.Path(harness.args.model).name, "plan"))
        self.assertEqual(found["--device"], ("cpu", "plan"))
        self.assertIn(found["--isa"][0], ("plain", "avx2", "avx512-vnni", "avx512-vbmi"))
        self.assertGreater(int(found["--threads"][0]), 0)
        self.assertEqual(settings("--threads", "3", "--isa", "plain", "--max-model-len", "512")["--threads"], ("3", "flag"))

    def test_the_same_flag_and_variable_with_one_value_is_the_flag(self):
        self.assertEqual(settings("--port", "9000", ONECARD_PORT="9000")["--port"], ("9000", "flag"))

    def test_keys_are_not_shown(self):
        done = onecard("config", "--model", harness.args.model, "--api-key", "secret-one", ONECARD_API_KEY="secret-two")
        self.assertEqual(done.returncode, 0)
        self.assertNotIn("secret-", done.stdout + done.stderr)

    def test_a_server_runs_with_what_config_shows(self):
        flags = ("--max-model-len", "512", "--threads", "1", "--max-num-seqs", "2")
        shown = settings(*flags)
        server = harness.Server(*flags)
        self.addCleanup(server.close)
        for key, flag in (("max_model_len", "--max-model-len"), ("threads", "--threads"), ("isa", "--isa"), ("max_num_seqs", "--max-num-seqs")):
            self.assertIn(f" {key}={shown[flag][0]}", server.log())
        if shown["--isa"][0] != "plain":
            timing = re.search(r"event=expert_timing .*", server.log()).group()
            self.assertRegex(timing, r' kernel="?\w.* prefetch_bytes=(0|3072) threads=1 threads_timed=1 .* GB_per_s=\d+\.\d+ '
                                     r'read_GB_per_s=\d+\.\d+ weights_from=')

    def test_int8_experts_need_a_record_that_allows_them(self):
        if settings()["--isa"][0] == "plain":
            self.skipTest("the plain path is exact")
        self.assertRegex(harness.refusal("--expert-precision", "int8"), r"--expert-precision int8: .* within 0\.0001 nats .* on average: ")

    def test_what_a_server_would_refuse_is_refused(self):
        for flags, part in ((["--max-model-len", "999999999"], "--max-model-len"), (["--model", "/no/such"], "/no/such"),
                            (["--port", "x"], "--port"), (["--nonsense"], "--nonsense"), (["--effort", "0"], "--effort")):
            done = onecard("config", "--model", harness.args.model, *flags) if "--model" not in flags else onecard("config", *flags)
            self.assertEqual((done.returncode, done.stdout), (2, ""), flags)
            self.assertIn(part, done.stderr)
        done = onecard("config", "--model", harness.args.model, ONECARD_EFFORT="0")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("ffort", done.stderr)


class Help(unittest.TestCase):
    def test_every_command_is_listed_and_explains_itself(self):
        top = onecard("--help")
        self.assertEqual(re.findall(r"(?m)^  ([a-z-]+) +[A-Z][a-z]", top.stdout), COMMANDS)
        for command in [*COMMANDS, "bench kernels"]:
            done = onecard(*command.split(), "--help")
            self.assertEqual((done.returncode, done.stderr), (0, ""), command)
            self.assertIn(f"Usage: onecard {command}", done.stdout)
            for line in done.stdout.splitlines():
                self.assertLessEqual(len(line), 120, line)

    def test_help_names_every_variable(self):
        wanted = set(re.findall(r"`(ONECARD_[A-Z_]+)`", DOC.read_text()))
        self.assertGreater(len(wanted), 20)
        found = set(re.findall(r"\$(ONECARD_[A-Z_]+)", "".join(onecard(command, "--help").stdout for command in COMMANDS)))
        self.assertEqual(found, wanted)

    def test_without_a_command_help_is_offered(self):
        done = onecard()
        self.assertEqual(done.returncode, 2)
        self.assertIn("--help", done.stderr)


class Documentation(unittest.TestCase):
    def test_the_tables_are_the_programs(self):
        text = DOC.read_text()
        begin = text.index("<!-- the program's own tables: onecard config --markdown -->\n")
        tables = text[text.index("\n", begin) + 1 : text.index("<!-- end of the program's own tables -->")]
        self.assertEqual(tables.strip(), onecard("config", "--markdown").stdout.strip(),
                         "docs/config.md is not what the program says: put the output of onecard config --markdown there")

    def test_no_variable_is_read_that_the_tables_do_not_name(self):
        named = set(re.findall(r"`(ONECARD_[A-Z_]+)`", DOC.read_text()))
        source = DOC.parents[1] / "src"
        read = set()
        for path in [*source.rglob("*.cpp"), *source.rglob("*.h")]:
            read |= set(re.findall(r'"(ONECARD_[A-Z_]+)"', path.read_text()))
        self.assertEqual(read - named, set())


if __name__ == "__main__":
    harness.parse_arguments()
    harness.main(globals())
