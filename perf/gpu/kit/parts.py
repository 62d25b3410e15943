"""The parts of the kit in order of value: what is run, for how long at most, and what it needs."""

from dataclasses import dataclass

# Rows of the suite, the claims that matter most first.
ROWS = {
    2: "1,000 tiny dependent ops: bulked, one by one, as a graph",
    14: "a plan replayed, against the same graph by hand",
    1: "an empty op",
    10: "one node's parameters change every run",
    3: "bulks against synchronizing after every op",
    12: "an MLP training step",
    15: "8 chains on 4 lanes",
    6: "4 chains on 4 lanes",
    7: "copy in and preprocess beside compute",
    16: "SmartStage: parse, copy, compute, against the same by hand",
    8: "how late a waiter is woken",
    11: "memory from lane to lane",
    13: "all-reduce against NCCL's own call",
    9: "what the retirement thread costs",
}


@dataclass(frozen=True)
class Part:
    name: str
    about: str
    command: tuple[str, ...]  # {bin}, {python}, {kit}, {sanitizer} stand for where these are
    seconds: int  # at most
    needs: str = ""  # a key of what machine.find returns that must not be empty
    suite: bool = False  # prints lines of JSON as gpu_suite does


def _suite(*arguments: str) -> tuple[str, ...]:
    return ("{bin}/gpu_suite", "--device", "cuda", *arguments)


_CONFORMANCE = ("{bin}/conformance_test", "--gtest_filter=*/cuda:CudaDevice.*", "--gtest_brief=1")


def parts(rounds: int, quick: bool) -> list[Part]:
    turns = ("--rounds", str(rounds), *(["--quick"] if quick else []))

    def row(number: int, name: str, about: str, seconds: int = 60) -> Part:
        return Part(name, about, _suite("--parts", "rows", "--rows", str(number), *turns), seconds, suite=True)

    sanitized = ("{sanitizer}", "--error-exitcode", "9", "--tool")
    return [
        Part("conformance", "the device backend keeps its contract", _CONFORMANCE, 120),
        Part("counters", "exact counts of calls", ("{bin}/gpu_counters_test", "--gtest_filter=*OnCuda*"), 60),
        Part("calibration", "what each call costs; every counter", _suite("--parts", "counters,calibration", *turns), 60,
             suite=True),
        *(row(number, f"row-{number}", about) for number, about in ROWS.items()),
        Part("communicators", "collectives on NCCL, one rank a card", ("{bin}/communicator_test", "--gtest_brief=1"), 120,
             needs="nccl"),
        row(17, "models", "DeepRec's five models with and without SmartStage", 150),
        Part("python", "the Python package on this card, beside PyTorch where it is there", ("{python}", "-B", "{kit}/kit/python_part.py"),
             90, needs="python", suite=True),
        Part("recommenders", "the five models in PyTorch: fed in turn, by a stage, by SmartStage and by DataLoaders",
             ("{python}", "-B", "{kit}/perf/models/suite.py", "--build", "{kit}", "--python", "{python}", "--device", "cuda",
              "--quick", "--only", "input", "--data-rows", "20000"), 300, needs="torch", suite=True),
        # The suite makes calls that fail, and looks at what they say: these are no errors of memory.
        Part("memcheck", "compute-sanitizer over conformance", (*sanitized, "memcheck", "--report-api-errors", "no", *_CONFORMANCE),
             180, needs="sanitizer"),
        Part("racecheck", "compute-sanitizer over conformance", (*sanitized, "racecheck", *_CONFORMANCE), 180, needs="sanitizer"),
        row(18, "capture-or-issue", "tuning.h: does a capture cost what issuing does?"),
        row(19, "looks-and-naps", "tuning.h: what does a look cost, and a nap?"),
        row(21, "graph-bytes", "tuning.h: what does a node of a graph take on the device?"),
        row(22, "stf", "tiny ops, a graph and 8 chains, beside CUDASTF"),
    ]  # fmt: skip
