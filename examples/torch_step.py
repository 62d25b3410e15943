#!/usr/bin/env python3
"""Trains a ranking model with many tables, its steps as plans of the engine, and compares with eager steps.

    torch_step.py [--tables N] [--batch N] [--steps N]

Needs torch and, to be fast, a C++ compiler. Prints what engine.torch.explain says, the time of a step either way, and whether
the losses are equal."""

import argparse
import copy
import time

import torch
from torch import nn

import engine.torch


class Ranker(nn.Module):
    """An embedding and a small tower for each feature, and a net on top of them."""

    def __init__(self, tables: int, rows: int = 10_000, width: int = 16):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width)) for _ in range(tables))
        self.top = nn.Sequential(nn.Linear(width * tables, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids):
        found = [tower(table(column)) for tower, table, column in zip(self.towers, self.tables, ids)]
        return self.top(torch.cat(found, 1)).squeeze(1)


def training(model: nn.Module):
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)

    def step(ids, clicked):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids), clicked)
        loss.backward()
        optimizer.step()
        return loss

    return step


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", type=int, default=26)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Ranker(args.tables)
    eager, ours = training(copy.deepcopy(model)), engine.torch.compile_step(training(model))
    taken = {}
    losses = {}
    for name, step in (("eager", eager), ("ours", ours)):
        torch.manual_seed(1)
        losses[name], times = [], []
        for _ in range(args.steps):
            ids, clicked = torch.randint(0, 10_000, (args.tables, args.batch)), torch.randint(0, 2, (args.batch,)).float()
            begin = time.perf_counter()
            losses[name].append(step(ids, clicked).item())
            times.append(time.perf_counter() - begin)
        taken[name] = sorted(times[-args.steps // 3 :])[len(times[-args.steps // 3 :]) // 2]
    print(*engine.torch.explain(ours))
    print(f"a step takes {taken['eager'] * 1e3:.2f} ms eagerly and {taken['ours'] * 1e3:.2f} ms here; "
          f"the losses are {'equal' if losses['eager'] == losses['ours'] else 'different'}")  # fmt: skip
    return losses["eager"] != losses["ours"]


if __name__ == "__main__":
    raise SystemExit(main())
