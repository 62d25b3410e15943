"""Trains DLRM, DeepFM, DSSM, DIN or DIEN from a file.

    python examples/recommenders/generate.py criteo /tmp/criteo.parquet
    python examples/recommenders/train.py dlrm --data /tmp/criteo.parquet --input smart_stage --steps 200
    python examples/recommenders/train.py deepfm --data flights

``--input`` says how batches come to the step (see inputs.py); it does not change a loss. With ``--checkpoint`` the state is
saved every ``--every`` steps and at the end; ``--resume`` goes on there, at the next batch. The rows behind those of the
training are for the test.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # so that it runs as a script and as a module

from recommenders import checkpoint, real, schema  # noqa: E402
from recommenders.inputs import WAYS, Feed, File  # noqa: E402
from recommenders.models import MODELS  # noqa: E402
from recommenders.reader import Sampling  # noqa: E402
from recommenders.progress import Progress  # noqa: E402
from recommenders.steps import STEPS, step_of  # noqa: E402
from recommenders.training import Trainer, auc  # noqa: E402


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="train.py", description=__doc__.partition("\n")[0])
    parser.add_argument("model", choices=list(MODELS))
    parser.add_argument("--data", required=True, help="a file that generate.py wrote, or 'flights'")
    parser.add_argument("--scale", type=float, default=0.01, help="as given to generate.py (default: 0.01)")
    parser.add_argument("--input", choices=WAYS, default="smart_stage")
    parser.add_argument("--workers", type=int, default=0, help="worker processes of --input dataloader")
    parser.add_argument("--step", choices=STEPS, default="eager", help="how the step runs")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1")
    parser.add_argument("--batch", type=int, help="rows of a batch (default: DeepRec's)")
    parser.add_argument("--rate", type=float, help="learning rate (default: DeepRec's)")
    parser.add_argument("--dense-gradients", action="store_true", help="gradients of whole tables")
    parser.add_argument("--steps", type=int, default=100, help="batches to train with (default: 100)")
    parser.add_argument("--test", type=int, default=10, help="batches behind them to test with (default: 10)")
    parser.add_argument("--keep", type=float, default=1.0, help="share of the rows without a click that are trained with")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, help="intra-op threads of PyTorch")
    parser.add_argument("--checkpoint", type=pathlib.Path)
    parser.add_argument("--every", type=int, default=1000, help="steps between checkpoints")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--explain", action="store_true", help="print what ran ahead, and why the rest did not")
    parser.add_argument(
        "--cache", type=pathlib.Path, default=pathlib.Path(".cache"), help="where the flights are kept"
    )
    args = parser.parse_args(given)
    if args.resume and not args.checkpoint:
        parser.error("--resume needs --checkpoint")
    if not 0 < args.keep <= 1:
        parser.error(f"--keep is {args.keep}; a share above 0 and up to 1 is expected")
    if args.rate is not None and not args.rate > 0:
        parser.error(f"--rate is {args.rate}; a number above 0 is expected")
    for name in ("batch", "every", "threads"):
        if (count := getattr(args, name)) is not None and count < 1:
            parser.error(f"--{name} is {count}; a count of 1 or more is expected")
    return args


def trained(args: argparse.Namespace) -> dict[str, object]:
    """Trains as the arguments say. Returns the losses of the steps that ran, the AUC, and what was counted."""
    kind = MODELS[args.model]
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    is_flights = args.data == "flights"
    data = schema.DATASETS["flights" if is_flights else kind.data](args.scale)
    path = real.flights(args.cache) if is_flights else pathlib.Path(args.data)
    batch, rate = args.batch or kind.batch, args.rate or kind.rate
    trainer = Trainer(kind.make(data, not args.dense_gradients), data, rate, args.device)
    about = {"model": args.model, "data": data.name, "batch": batch, "scale": args.scale, "keep": args.keep, "seed": args.seed,
             "rate": rate, "gradients": "dense" if args.dense_gradients else "sparse"}  # fmt: skip
    sampling = Sampling(args.keep, args.seed)
    start = checkpoint.load(args.checkpoint, trainer, about) if args.resume else 0
    progress = Progress(args.model, start, args.steps, batch)
    feed = Feed(args.input, trainer, File(path, data, batch, start, args.steps, sampling), progress.told, args.workers,
                step_of(args.step, trainer))  # fmt: skip
    losses, position = [], start
    for loss in feed:
        losses.append(loss)
        position += 1
        progress.stepped(loss)
        if args.checkpoint and position % args.every == 0:
            checkpoint.save(args.checkpoint, trainer, position, about)
    progress.end()
    if args.checkpoint:
        checkpoint.save(args.checkpoint, trainer, position, about)
    if args.explain:
        print(feed.explain(), end="")
    scores, labels = [], []
    for tested in File(path, data, batch, position, position + args.test, sampling):
        scores.append(trainer.scores(tested))
        labels.append(tested.label)
    quality = auc(torch.cat(scores), torch.cat(labels)) if scores else float("nan")
    return {"losses": [float(loss) for loss in losses], "auc": quality, "malformed": progress.malformed,
            "unknown": progress.unknown, "seconds": progress.seconds, "position": position}  # fmt: skip


def main(given: list[str] | None = None) -> int:
    args = arguments(given)
    begin = time.perf_counter()
    try:
        told = trained(args)
    except ValueError as error:  # a file without a column, a checkpoint of another training, a device that is not here
        print(f"train.py: {error}", file=sys.stderr)
        return 2
    losses = told["losses"]
    assert isinstance(losses, list)
    last = losses[-20:]
    print(f"{args.model}: {len(losses)} steps, loss {sum(last) / max(1, len(last)):.4f}, test AUC {told['auc']:.4f}; "
          f"{told['malformed']} malformed rows left out, {told['unknown']} unknown values; "
          f"{len(losses) / max(1e-9, float(str(told['seconds']))):.1f} steps/s, {time.perf_counter() - begin:.1f} s in all")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
