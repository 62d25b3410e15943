#!/usr/bin/env python3
"""The kit, installed from a build tree, with the models in place of CUDA and NCCL: what it does where nothing is as it should be.

    kit_test.py --build BUILD [unittest's arguments]"""

import argparse
import fcntl
import importlib.util
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
QUICK = ["--quick", "--rounds", "1"]


def install(into: Path) -> None:
    subprocess.run(["cmake", "--install", str(BUILD), "--component", "kit", "--prefix", str(into), "--strip"], check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    for model in ("libcudart.so.13", "libnccl.so.2"):
        shutil.copy(BUILD / "cuda_model" / model, into / "lib" / model)


class Kit(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory(prefix="kit")
        cls.installed = Path(cls.scratch.name) / "installed"
        install(cls.installed)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def setUp(self):
        self.kit = Path(tempfile.mkdtemp(dir=self.scratch.name)) / "build-kit"
        shutil.copytree(self.installed, self.kit, symlinks=True)
        self.env = {k: v for k, v in os.environ.items() if k not in ("OUT", "LD_PRELOAD", "LD_LIBRARY_PATH")}

    def command(self, *arguments):
        return [str(self.kit / "go"), *arguments]

    def go(self, *arguments, status=0, env={}, **options):
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, env=self.env | env, **options)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def results(self):
        return json.loads((self.kit / "results" / "results.json").read_text())

    def statuses(self):
        return {p["name"]: p["status"] for p in self.results()["parts"]}

    def locked(self):
        try:
            with open(self.kit / "results" / "lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def test_every_part_runs_and_the_page_and_the_results_say_so(self):
        out = self.kit.parent / "out"
        done = self.go(*QUICK, env={"OUT": str(out), "CUDA_MODEL_DEVICES": "2"})
        result = self.results()
        named = [line.split()[0] for line in self.go("--list").stdout.splitlines()]
        self.assertEqual([p["name"] for p in result["parts"]], named)
        for part in result["parts"]:
            # As this machine has them, or not.
            allowed = ("passed", "absent") if part["name"] in ("memcheck", "racecheck", "python", "recommenders", "stf") else ("passed",)
            self.assertIn(part["status"], allowed, part)
        self.assertEqual({r["row"] for r in result["rows"]} - {20}, {*range(1, 4), *range(6, 20), 21})
        self.assertTrue(all(c["verdict"] == "exact" for c in result["counters"]) and result["counters"])
        page = (self.kit / "results" / "page.md").read_text()
        for text in ("model of CUDA", "1,000 tiny dependent ops", "## Rows", "## Calibration", "A model, not a GPU"):
            self.assertIn(text, page)
        for name in ("results.json", "page.md"):  # $OUT has them, too
            self.assertEqual((out / name).read_text(), (self.kit / "results" / name).read_text())
        self.assertIn("0 not begun", done.stdout)
        compared = subprocess.run([sys.executable, str(ROOT / "perf/gpu/suite.py"), "--compare", *[str(self.kit / "results/results.json")] * 2],
                                  capture_output=True, text=True)  # fmt: skip
        self.assertEqual(compared.returncode, 0, compared.stdout + compared.stderr)
        again = self.go(*QUICK, env={"CUDA_MODEL_DEVICES": "2"}).stdout
        self.assertNotIn("   passed", again, "what has a result is not run again")

    def test_without_a_gpu_one_line_and_status_3(self):
        done = self.go(status=3, env={"CUDA_MODEL_DEVICES": "0"})
        self.assertRegex(done.stderr, r"\Ago: no GPU: .*\n\Z")
        self.assertEqual(done.stdout, "")
        self.assertFalse((self.kit / "results").exists())

    def test_a_driver_that_is_too_old_is_named(self):
        done = self.go(status=3, env={"CUDA_MODEL_DRIVER": "12040"})
        self.assertRegex(done.stderr, r"\Ago: the driver is too old: it is for CUDA 12\.4, the kit needs \d+\.\d+\n\Z")

    def test_programs_that_do_not_run_here_are_said_in_one_line(self):
        (self.kit / "lib" / "libtbb.so.12").unlink()
        (self.kit / "bin" / "gpu_suite").write_bytes(b"no program")
        self.assertRegex(self.go(status=3).stderr, r"\Ago: the kit's programs do not run here: .*\n\Z")

    def test_without_nccl_its_parts_are_left_out_and_the_others_run(self):
        (self.kit / "lib" / "libnccl.so.2").unlink()
        done = self.go(*QUICK, "--only", "communicators", "row-13", "row-1")
        self.assertEqual(self.statuses(), {"row-1": "passed", "row-13": "absent", "communicators": "absent"})
        self.assertIn("NCCL", done.stdout)
        self.assertIn("libnccl.so.2", next(a["why"] for a in self.results()["absent"]))

    def sanitizer(self, then):
        """A compute-sanitizer that takes the options of its manual, and no others, and notes them."""
        fake, log = self.kit.parent / "bin" / "compute-sanitizer", self.kit.parent / "log"
        fake.parent.mkdir()
        fake.write_text(f"""#!/bin/bash
while true; do
  case $1 in
    --tool) [[ $2 == memcheck || $2 == racecheck ]] || exit 1; echo $2 >>{log}; shift 2 ;;
    --error-exitcode) status=$2; shift 2 ;;
    --report-api-errors) [[ $2 == all || $2 == explicit || $2 == no ]] || exit 1; shift 2 ;;
    -*) exit 1 ;;
    *) break ;;
  esac
done
"$@" || exit
{then}
""")
        fake.chmod(0o755)
        return {"PATH": f"{fake.parent}:{os.environ['PATH']}"}, log

    def test_the_sanitizer_runs_conformance_by_its_manuals_options(self):
        env, log = self.sanitizer("echo ========= ERROR SUMMARY: 0 errors")
        self.go(*QUICK, "--only", "memcheck", "racecheck", env=env)
        self.assertEqual(self.statuses(), {"memcheck": "passed", "racecheck": "passed"})
        self.assertRegex(self.results()["parts"][0]["why"], r"\A\d\d+ tests\Z")
        self.assertEqual(log.read_text().split(), ["memcheck", "racecheck"])

    def test_what_the_sanitizer_finds_fails_its_part(self):
        env, _ = self.sanitizer("echo ========= Invalid __global__ write of size 4 bytes; exit $status")
        self.go(*QUICK, "--only", "memcheck", env=env, status=1)
        self.assertEqual(self.results()["parts"][0]["why"], "ended with status 9")
        self.assertIn("Invalid __global__ write", (self.kit / "results" / "page.md").read_text())

    def test_launches_do_not_block_though_the_shell_says_so(self):
        self.go(*QUICK, "--only", "conformance", env={"CUDA_LAUNCH_BLOCKING": "1"})
        self.assertEqual(self.statuses(), {"conformance": "passed"})

    def test_a_launcher_without_its_python_is_no_python(self):
        made = json.loads((self.kit / "kit.json").read_text())
        (self.kit / "kit.json").write_text(json.dumps(made | {"python": "3.99"}))
        launcher = self.kit.parent / "python3.99"
        launcher.write_text("#!/bin/sh\nexit 127\n")
        launcher.chmod(0o755)
        self.go(*QUICK, "--only", "python", env={"PATH": f"{self.kit.parent}:{os.environ['PATH']}"})
        self.assertEqual(self.statuses(), {"python": "absent"})

    def test_without_pytorch_for_cuda_the_recommenders_are_left_out(self):
        about = self.kit / "python" / "torch-2.0+cpu.dist-info" / "METADATA"
        about.parent.mkdir()
        about.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.0+cpu\n")
        self.go(*QUICK, "--only", "recommenders", env={"PYTHONPATH": str(self.kit / "python")})
        self.assertEqual(self.statuses(), {"recommenders": "absent"})
        self.assertIn("PyTorch with CUDA", self.results()["parts"][0]["why"])

    def test_the_recommenders_find_their_files_in_the_kit(self):
        made = json.loads((self.kit / "kit.json").read_text())
        if made["python"] != "%d.%d" % sys.version_info[:2] or not all(map(importlib.util.find_spec, ("torch", "pyarrow"))):
            self.skipTest("the kit has no Python package of this version, or there is no PyTorch or pyarrow")
        contender = [sys.executable, "-B", str(self.kit / "perf/models/program.py"), "--variant", "feeds", "--threads", "1",
                     "--data", str(self.kit), "--rows", "2000", "--device", "cpu"]  # fmt: skip
        done = subprocess.run(contender, input="losses_deepfm_smart_stage 2\n", capture_output=True, text=True, cwd=self.kit,
                              env=self.env | {"PYTHONPATH": str(self.kit / "python")})  # fmt: skip
        self.assertEqual(len(json.loads(done.stdout.splitlines()[-1])["losses"]), 2, done.stdout + done.stderr)

    def test_a_full_disk_keeps_what_was_measured(self):
        self.go(*QUICK, "--only", "row-1")
        before = (self.kit / "results" / "results.json").read_bytes()
        small = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (256, 256))  # noqa: E731
        done = self.go(*QUICK, "--only", "row-2", status=4, preexec_fn=small)
        self.assertIn("NOT WRITTEN", done.stdout)
        printed = json.loads(done.stdout[done.stdout.index("\n{\n") : done.stdout.rindex("}\n") + 1])
        self.assertEqual({r["row"] for r in printed["rows"]}, {1, 2})
        self.assertEqual((self.kit / "results" / "results.json").read_bytes(), before)
        self.assertEqual([f.name for f in (self.kit / "results").iterdir() if f.name.endswith(".new")], [])

    def test_a_folder_that_cannot_be_written_is_said(self):
        self.assertIn("nothing can be written to /proc/results", self.go("--results", "/proc/results", status=4).stderr)

    def test_killed_at_any_second_it_keeps_what_had_ended_and_goes_on(self):
        seed = random.randrange(1 << 30)
        rng = random.Random(seed)
        known: dict[str, dict] = {}
        with self.subTest(seed=seed):
            for _ in range(4):
                running = subprocess.Popen(self.command(*QUICK), env=self.env, stdout=subprocess.DEVNULL)
                time.sleep(rng.uniform(0.1, 2.5))
                running.send_signal(signal.SIGKILL)
                running.wait()
                if not (self.kit / "results" / "results.json").exists():
                    continue
                found = {p["name"]: p for p in self.results()["parts"]}  # whole: it can be read
                self.assertLessEqual(known.keys(), found.keys())
                known = found
            self.go(*QUICK)
            self.assertEqual(len(self.results()["parts"]), len(self.go("--list").stdout.splitlines()))
            for name, part in known.items():
                if part["status"] == "passed":
                    self.assertIn(part, self.results()["parts"], f"{name} was run again")

    def test_what_had_no_time_is_begun_by_the_next_run(self):
        self.go(*QUICK, "--only", "row-1")
        self.assertIn("the time is over", self.go(*QUICK, "--seconds", "0.01").stdout)
        self.assertEqual(self.statuses(), {"row-1": "passed"})
        page = (self.kit / "results" / "page.md").read_text()
        self.assertIn("not begun", page)
        self.assertIn("`build-kit/go` goes on with them", page)
        self.assertRegex(self.go(*QUICK, "--seconds", "30").stdout, r"-- conformance")

    def test_a_part_that_is_cut_keeps_its_figures_and_is_run_again(self):
        real, slow = self.kit / "bin" / "real", self.kit / "bin" / "gpu_suite"
        slow.rename(real)
        row = {"type": "row", "row": 1, "case": "c", "metric": "time", "unit": "ns", "peer_name": "p", "ours": [1], "peer": [1],
               "limit": {"kind": "none", "value": 0}}  # fmt: skip
        slow.write_text(f"#!/bin/sh\ncase \"$*\" in *probe*) exec {real} --probe ;; esac\necho '{json.dumps(row)}'\nsleep 60\n")
        slow.chmod(0o755)
        self.go(*QUICK, "--only", "row-1", "--seconds", "8")
        (part,) = self.results()["parts"]
        self.assertEqual(part["status"], "cut")
        self.assertTrue(self.results()["rows"], "what it had printed")
        self.assertIn("are left", (self.kit / "results" / "page.md").read_text())
        real.rename(slow)
        self.go(*QUICK, "--only", "row-1")
        self.assertEqual(self.statuses(), {"row-1": "passed"})

    def test_a_part_that_crashes_costs_no_other(self):
        (self.kit / "bin" / "conformance_test").write_text("#!/bin/sh\necho before\nkill -ABRT $$\n")
        self.go(*QUICK, "--only", "conformance", "row-1", status=1)
        self.assertEqual(self.statuses(), {"conformance": "failed", "row-1": "passed"})
        page = (self.kit / "results" / "page.md").read_text()
        self.assertIn("ended by SIGABRT", page)
        self.assertIn("before", page)

    def test_a_program_of_tests_that_runs_none_has_failed(self):
        (self.kit / "bin" / "conformance_test").write_text("#!/bin/sh\nexit 0\n")
        self.go(*QUICK, "--only", "conformance", status=1)
        self.assertEqual(self.results()["parts"][0]["why"], "no test ran")

    def test_one_part_is_repeated_in_its_place(self):
        for _ in range(2):
            self.go(*QUICK, "--only", "row-1")
        result = self.results()
        self.assertEqual((len(result["parts"]), len(result["rows"])), (1, 1))
        self.assertIn("there are: conformance", self.go("--only", "row-99", status=2).stderr)

    def test_results_of_another_commit_are_put_aside(self):
        self.go(*QUICK, "--only", "row-1")
        made = json.loads((self.kit / "kit.json").read_text())
        (self.kit / "kit.json").write_text(json.dumps(made | {"version": made["version"] + "+other"}))
        self.assertIn("results-1.json", self.go(*QUICK, "--only", "row-1").stdout)
        self.assertTrue((self.kit / "results" / "results-1.json").exists())

    def test_results_that_are_not_whole_are_put_aside(self):
        (self.kit / "results").mkdir()
        (self.kit / "results" / "results.json").write_text('{"header": ')
        self.assertIn("is not whole", self.go(*QUICK, "--only", "row-1").stdout)

    def test_two_at_once_do_not_mix(self):
        first = subprocess.Popen(self.command(*QUICK, "--only", "models"), env=self.env, stdout=subprocess.DEVNULL)
        while not self.locked():
            time.sleep(0.01)
        first.kill()
        first.wait()
        self.go(*QUICK, "--only", "row-1")  # as soon as the first one's part has gone

    def test_perf_gpu_measures_with_the_kits_program_and_compares_with_its_results(self):
        suite, made = str(ROOT / "perf" / "gpu" / "suite.py"), self.kit.parent / "made.json"
        self.go(*QUICK, "--only", "row-1")
        for arguments in (["--program", str(self.kit / "bin" / "gpu_suite"), "--device", "cuda", *QUICK, "--rows", "1", "--json", str(made)],
                          ["--compare", str(self.kit / "results" / "results.json"), str(made)]):  # fmt: skip
            done = subprocess.run([sys.executable, suite, *arguments], capture_output=True, text=True, env=self.env)
            self.assertIn(done.returncode, (0, 1) if "--program" in arguments else (0,), done.stdout + done.stderr)
        self.assertTrue(json.loads(made.read_text())["rows"])

    def test_each_program_says_what_it_was_built_from(self):
        version = json.loads((self.kit / "kit.json").read_text())["version"]
        for program in (self.kit / "bin").iterdir():
            said = subprocess.run([program, "--version"], capture_output=True, text=True, env=self.env).stdout
            self.assertEqual(said, f"{version}, with libengine {version}\n", program)

    def test_it_loads_nothing_from_outside_but_the_systems_libraries(self):
        system = re.compile(r"linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so")
        for program in (self.kit / "bin").iterdir():
            for line in subprocess.run(["ldd", program], capture_output=True, text=True, env=self.env).stdout.splitlines():
                if not system.search(line):
                    self.assertIn(str(self.kit), line)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, default=BUILD)
    known, rest = parser.parse_known_args()
    BUILD = known.build.resolve()
    unittest.main(argv=[sys.argv[0], *rest])
