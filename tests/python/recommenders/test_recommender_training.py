"""The models learn; the ways to feed them do not change a loss; checkpoints resume at an exact batch."""

# First: it skips the file where a package is missing.
from small_files import SCALE, files, one_thread  # noqa: F401

import math

import pytest
import torch

from recommenders import schema, train
from recommenders.inputs import Feed, File
from recommenders.models import MODELS
from recommenders.training import Trainer, auc

ROWS = {"dlrm": 64, "deepfm": 64, "dssm": 64, "din": 48, "dien": 32}
WAYS = [("staged", {}), ("staged", {"num_threads": 2}), ("smart_stage", {}),
        ("smart_stage", {"profile_steps": 0, "guard_steps": 0}), ("smart_stage", {"profile_steps": 2, "guard_steps": 2}),
        ("on_cpu", {"profile_steps": 0, "guard_steps": 0}), ("dataloader", {"workers": 0})]  # fmt: skip


def losses(model, files, way="plain", steps=12, suffix="parquet", **options):
    kind = MODELS[model]
    data = schema.DATASETS[kind.data](SCALE)
    torch.manual_seed(3)
    trainer = Trainer(kind.make(data), data, kind.rate)
    feed = Feed(way, trainer, File(files[kind.data, suffix], data, ROWS[model], 0, steps), **options)
    return [float(loss) for loss in feed], feed, trainer


@pytest.mark.parametrize("model", list(MODELS))
def test_every_model_learns_and_no_way_to_feed_it_changes_a_loss(files, model):
    expected, _, _ = losses(model, files)
    assert len(expected) >= 12 and all(math.isfinite(loss) for loss in expected)
    for way, options in WAYS:
        assert losses(model, files, way, **options)[0] == expected, (way, options)


@pytest.mark.parametrize("model", list(MODELS))
def test_every_model_fits_its_rows(files, model):
    kind = MODELS[model]
    data = schema.DATASETS[kind.data](SCALE)
    torch.manual_seed(3)
    trainer = Trainer(kind.make(data), data, kind.rate)
    batches = list(File(files[kind.data, "parquet"], data, 128, 0, 4))
    first = [float(trainer.step(batch)) for batch in batches]
    for _ in range(12):
        last = [float(trainer.step(batch)) for batch in batches]
    assert sum(last) < 0.9 * sum(first)
    scores = torch.cat([trainer.scores(batch) for batch in batches])
    assert auc(scores, torch.cat([batch.label for batch in batches])) > 0.75


def test_worker_processes_give_the_same_losses(files):
    expected, _, _ = losses("deepfm", files, steps=6)
    for workers in (1, 2):
        assert losses("deepfm", files, "dataloader", 6, workers=workers)[0] == expected


def test_the_stage_finds_what_depends_on_the_batch_alone(files):
    _, feed, _ = losses("din", files, "smart_stage", profile_steps=0, guard_steps=0)
    text = feed.explain()
    ahead = next(line for line in text.splitlines() if line.startswith("ahead of the step: "))
    for call in ("log1p", "where", "unbind", "ne", "unsqueeze"):  # DIN's mask too, which the model makes
        assert f" {call}" in ahead, text
    assert "in the step embedding: takes a tensor with a gradient" in text


@pytest.mark.parametrize("dot", [False, True])
def test_dlrm_learns_with_both_interactions(files, dot):
    from recommenders.dlrm import DLRM

    data = schema.criteo(SCALE)
    torch.manual_seed(3)
    trainer = Trainer(DLRM(data, dot=dot), data, 0.01)
    batches = list(File(files["criteo", "parquet"], data, 128, 0, 6))
    first = [float(trainer.step(batch)) for batch in batches]
    for _ in range(4):
        last = [float(trainer.step(batch)) for batch in batches]
    assert sum(last) < 0.8 * sum(first)
    scores = torch.cat([trainer.scores(batch) for batch in batches])
    assert auc(scores, torch.cat([batch.label for batch in batches])) > 0.8


def test_gradients_of_tables_are_sparse_and_equal_the_dense_ones(files):
    kind = MODELS["dssm"]
    data = schema.taobao(SCALE)
    grads = []
    for sparse in (True, False):
        torch.manual_seed(3)
        trainer = Trainer(kind.make(data, sparse), data, 0.01, sgd=True)
        batch = next(iter(File(files["taobao", "parquet"], data, 64)))
        trainer.step(batch)
        found = trainer.model.tables.tables["user_id"].weight.grad
        assert found.is_sparse == sparse
        grads.append(found.to_dense() if sparse else found)
    assert torch.allclose(*grads, atol=1e-7)


@pytest.mark.parametrize("way", ["plain", "smart_stage"])
def test_a_step_compiled_for_the_engine_has_the_losses_of_the_eager_one(files, way):
    from recommenders.steps import step_of

    kind, data = MODELS["deepfm"], schema.criteo(SCALE)
    found = []
    for step in ("eager", "engine"):
        torch.manual_seed(3)
        trainer = Trainer(kind.make(data, False), data, kind.rate)
        feed = Feed(way, trainer, File(files["criteo", "parquet"], data, 64, 0, 10), step=step_of(step, trainer))
        found.append([float(loss) for loss in feed])
    assert found[1] == pytest.approx(found[0], rel=1e-4)


def test_auc_counts_pairs_and_a_half_for_equal_scores():
    scores, labels = torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0.0, 1.0, 0.0, 1.0])
    assert auc(scores, labels) == pytest.approx(3.5 / 4)
    assert math.isnan(auc(scores, torch.ones(4)))


def test_a_checkpoint_of_an_older_version_or_another_share_is_refused(files, tmp_path):
    def run(*more):
        return train.trained(train.arguments(
            ["din", "--data", str(files["amazon", "csv"]), "--scale", str(SCALE), "--batch", "20", "--threads", "1",
             "--test", "1", *more]))  # fmt: skip

    path = tmp_path / "din.pt"
    whole = run("--steps", "6", "--keep", "0.5")
    first = run("--steps", "3", "--keep", "0.5", "--checkpoint", str(path))
    rest = run("--steps", "6", "--keep", "0.5", "--checkpoint", str(path), "--resume")
    assert first["losses"] + rest["losses"] == whole["losses"]
    with pytest.raises(ValueError, match="of a training with keep 0.5; this one has 1.0"):
        run("--steps", "6", "--checkpoint", str(path), "--resume")
    for other, is_not in (("--dense-gradients", "gradients 'sparse'; this one has 'dense'"), ("--rate=0.5", "rate .*; this one has 0.5")):
        with pytest.raises(ValueError, match=f"of a training with {is_not}"):
            run("--steps", "6", "--keep", "0.5", "--checkpoint", str(path), "--resume", other)
    old = torch.load(path, weights_only=True)
    del old["about"]["keep"]
    torch.save(old, path)
    with pytest.raises(ValueError, match="does not say its keep: an older version wrote it, and no training goes on from it"):
        run("--steps", "6", "--keep", "0.5", "--checkpoint", str(path), "--resume")


@pytest.mark.parametrize("option", ["keep", "rate", "batch", "every", "threads"])
def test_options_that_are_zero_are_refused_by_name(option, capsys):
    with pytest.raises(SystemExit):
        train.arguments(["din", "--data", "x", f"--{option}", "0"])
    assert f"--{option} is 0" in capsys.readouterr().err


@pytest.mark.parametrize("way", ["plain", "smart_stage", "dataloader"])
def test_training_resumes_at_an_exact_batch_with_the_same_losses(files, tmp_path, way):
    def run(*more):
        return train.trained(train.arguments(
            ["deepfm", "--data", str(files["criteo", "parquet"]), "--scale", str(SCALE), "--batch", "50", "--threads", "1",
             "--input", way, "--test", "2", *more]))  # fmt: skip

    whole = run("--steps", "12")
    path = str(tmp_path / "deepfm.pt")
    first = run("--steps", "5", "--checkpoint", path)
    rest = run("--steps", "12", "--checkpoint", path, "--resume")
    assert first["losses"] + rest["losses"] == whole["losses"]
    assert rest["position"] == 12 and rest["auc"] == whole["auc"]
    with pytest.raises(ValueError, match="of a training with batch 50; this one has 60"):
        run("--steps", "12", "--checkpoint", path, "--resume", "--batch", "60")


def test_a_checkpoint_of_a_gpu_goes_on_where_there_is_none(files, tmp_path, monkeypatch):
    def run(*more):
        return train.trained(train.arguments(
            ["din", "--data", str(files["amazon", "csv"]), "--scale", str(SCALE), "--batch", "20", "--threads", "1",
             "--test", "1", *more]))  # fmt: skip

    path = tmp_path / "din.pt"
    whole = run("--steps", "6")
    with monkeypatch.context() as patched:  # the file says of all tensors that they were on a GPU
        patched.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        first = run("--steps", "3", "--checkpoint", str(path))
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="on a CUDA device"):
            torch.load(path, weights_only=True)
    rest = run("--steps", "6", "--checkpoint", str(path), "--resume")
    assert first["losses"] + rest["losses"] == whole["losses"]


def test_a_device_that_is_not_here_is_named(files, capsys):
    for device in ("cuda:99", "no such device"):
        assert train.main(["din", "--data", str(files["amazon", "csv"]), "--scale", str(SCALE), "--device", device]) == 2
        assert f"train.py: there is no device '{device}' here: " in capsys.readouterr().err


def test_the_script_prints_what_came_of_it(files, capsys):
    assert train.main(["dlrm", "--data", str(files["criteo", "csv"]), "--scale", str(SCALE), "--batch", "64", "--steps", "8",
                       "--test", "3", "--explain"]) == 0  # fmt: skip
    told = capsys.readouterr().out
    assert (
        "dlrm: 8 steps, loss 0." in told
        and "malformed rows left out" in told
        and "ahead of the step: nan_to_num" in told
    )
    assert train.main(["dssm", "--data", str(files["criteo", "csv"]), "--scale", str(SCALE)]) == 2
