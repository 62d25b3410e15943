"""The table of whole training steps of PyTorch models: a text that tables.py writes, from the newest perf/results/torch-DATE.json."""

from results import newest

CASES = {
    "tables26_b128": "26 tables, B=128",
    "towers26_b128": "the same with a tower a table",
    "tables26_b512": "26 tables, B=512",
    "tables26_b2048": "26 tables, B=2,048",
    "tables1000_b128": "1,000 tables, B=128",
    "branches128_b64": "8 branches, 128 wide, B=64",
    "branches256_b512": "8 branches, 256 wide, B=512",
    "bert_tiny": "BERT, tiny",
    "gpt2_tiny": "GPT-2, tiny",
    "mlp_b64": "MLP, B=64",
}
EAGER = ("eager 1", "eager 2")
PEERS = {"compile 2": "`torch.compile`", "inductor 2": "Inductor", "in turn": "our nodes in turn"}


def said(prefix: str) -> str:
    name, found = newest("torch")
    header = found["header"]
    return (f"commit {header['commit'][:7]}, {header['date'][:10]}, {header['cores']} cores of {header['cpu']}, PyTorch {header['torch']}, "
            f"{header['rounds']} rounds, [rows]({prefix}perf/results/{name})")  # fmt: skip


def heads() -> list[str]:
    return ["step", "ms", "way", "of eager", "at most, of eager", *(f"of {name}" for name in PEERS.values()), "`torch.compile` of eager, gradients alone"]


def times(ratio: dict | None) -> str:
    return f"{ratio['ratio']:.2f} [{ratio['ci'][0]:.2f}, {ratio['ci'][1]:.2f}]" if ratio else "not measured"


def lines() -> list[list[str]]:
    rows = {row["case"]: row for row in newest("torch")[1]["rows"]}
    made = []
    for case, name in CASES.items():
        row = rows.get(case)
        if row is None:
            continue
        eager = min(EAGER, key=lambda way: row["ms"][way])
        most = f"{row['at_most'][eager]:.1f}" if "at_most" in row else "–"
        ratios = (times(row["ratios"].get(peer)) for peer in PEERS)
        made.append([name, f"{row['ms']['ours']:.2f}", row["mode"], times(row["ratios"][eager]), most, *ratios, times(row.get("gradients"))])
    return made
