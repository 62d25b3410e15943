"""compile_step: what a step handles with `try` or `with` it handles as eagerly: then it runs eagerly, and says why."""

import contextlib

import pytest
import torch
from kinds import with_changes
from torch import nn
from torch.optim import SGD

nothing = lambda i: None  # noqa: E731
LinAlgError = torch.linalg.LinAlgError
HANDLED = "and in a run of its plan nothing would"


def training(loss):
    def make():
        model = nn.Linear(8, 4)
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x, *besides):
            optimizer.zero_grad()
            made = loss(model, x, *besides)
            made.backward()
            optimizer.step()
            return made

        return model, step, nothing

    return make


def matrix(i):
    """One that has no Cholesky factor in two of the calls."""
    return torch.eye(4) * (-1.0 if i in (3, 5) else 1.0)


def total(factor, model, x):
    return (model(x) @ factor).square().mean()


def by_a_try(model, x, a):
    try:
        factor = torch.linalg.cholesky(a)
    except LinAlgError:
        factor = torch.linalg.cholesky(a + 2 * torch.eye(4))
    return total(factor, model, x)


def by_retries(model, x, a):
    for i in range(4):
        try:
            return total(torch.linalg.cholesky(a + i * torch.eye(4)), model, x)
        except (ValueError, torch.linalg.LinAlgError):
            continue
    raise AssertionError


def by_a_class_above(model, x, a):
    try:
        return by_a_function(model, x, a)
    except ValueError:
        return None
    except RuntimeError as error:
        assert "cholesky" in str(error)
        return model(x).sum()


def by_a_function(model, x, a):
    try:
        return total(torch.linalg.inv(torch.linalg.cholesky(a)), model, x)
    finally:
        a = None


def by_any(model, x, a):
    try:
        with torch.no_grad():
            factor = torch.linalg.cholesky(a)
    except:  # noqa: E722
        factor = a
    return total(factor, model, x)


def by_an_outer_try(model, x, a):
    try:
        try:
            factor = torch.linalg.cholesky(a)
        except KeyError:
            factor = a
    except Exception:
        factor = a * 2
    return total(factor, model, x)


def by_suppress(model, x, a):
    with contextlib.suppress(LinAlgError):
        a = torch.linalg.cholesky(a)
    return total(a, model, x)


@contextlib.contextmanager
def calm():
    try:
        yield
    except LinAlgError:
        pass


class Calm:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        return kind is not None and issubclass(kind, LinAlgError)


def by_a_manager(model, x, a):
    with calm():
        a = torch.linalg.cholesky(a)
    return total(a, model, x)


def by_a_class(model, x, a):
    with Calm():
        a = torch.linalg.cholesky(a)
    return total(a, model, x)


HANDLES = [by_a_try, by_retries, by_a_class_above, by_any, by_an_outer_try, by_suppress, by_a_manager, by_a_class]


@pytest.mark.parametrize("loss", HANDLES)
def test_an_operator_whose_failure_the_step_handles_makes_it_run_eagerly(loss):
    assert HANDLED in with_changes(training(loss), lambda i: (torch.randn(6, 8), matrix(i)), steps=8).why_eager


FACTORS = {
    "cholesky": torch.linalg.cholesky,
    "inv": torch.linalg.inv,
    "eigh": lambda a: torch.linalg.eigh(a)[1],
    "eigvalsh": lambda a: torch.linalg.eigvalsh(a).diag(),
    "svd": lambda a: torch.linalg.svd(a)[0],
    "solve": lambda a: torch.linalg.solve(a, torch.ones(4, 4)),
    "lu_factor": lambda a: torch.linalg.lu_factor(a)[0],
    "torch.cholesky": torch.cholesky,
    "torch.inverse": torch.inverse,
    "pinv": torch.linalg.pinv,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FACTORS)
def test_factors_of_matrices_are_known_to_fail(name):
    def loss(model, x, a):
        try:
            a = FACTORS[name](a)
        except RuntimeError:
            a = a + 1
        return total(a, model, x)

    bad = {3: torch.zeros(4, 4), 5: torch.zeros(4, 4)} if name not in ("eigh", "eigvalsh", "svd", "pinv") else {}
    assert HANDLED in with_changes(training(loss), lambda i: (torch.randn(6, 8), bad.get(i, torch.eye(4))), steps=8).why_eager


def by_index(model, x, ids, rows):
    try:
        rows = nn.functional.embedding(ids, rows)
    except IndexError:
        rows = rows[:2]
    return total(rows.sum(0, keepdim=True).T.expand(4, 4), model, x)


def by_an_index(model, x, ids, rows):
    try:
        rows = rows[ids]
    except IndexError:
        rows = rows[:2]
    return total(rows.sum(0, keepdim=True).T.expand(4, 4), model, x)


def by_gather(model, x, ids, rows):
    try:
        rows = rows.gather(0, ids[:, None])
    except RuntimeError:
        rows = rows[:2, :1]
    return model(x).square().mean() * rows.sum()


def by_target(model, x, ids, rows):
    try:
        return nn.functional.cross_entropy(model(x)[:2], ids)
    except IndexError:
        return model(x).sum()


def by_classes(model, x, ids, rows):
    try:
        rows = nn.functional.one_hot(ids, 4).float()
    except RuntimeError:
        rows = rows * 2
    return model(x).square().mean() + rows.sum()


@pytest.mark.parametrize("loss", [by_index, by_an_index, by_gather, by_target, by_classes])
def test_indices_out_of_range_that_the_step_handles_make_it_run_eagerly(loss):
    given = lambda i: (torch.randn(6, 8), torch.tensor([1, 9 if i in (3, 5) else 2]), torch.ones(4, 4))  # noqa: E731
    assert HANDLED in with_changes(training(loss), given, steps=8).why_eager


def of_other_kinds(model, x, a):
    try:
        return total(torch.linalg.cholesky(a), model, x)
    except (KeyError, torch.OutOfMemoryError):
        return None


def out_of_memory(model, x, a):
    try:
        return total(nn.functional.embedding(torch.tensor([0, 1, 2, 3]), a), model, x)
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        return None


def beside_it(model, x, a):
    factor = torch.linalg.cholesky(a)
    try:
        return total(factor, model, x)
    except RuntimeError:
        return None


def at_last(model, x, a):
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            factor = torch.linalg.cholesky(a)
    finally:
        x = x * 2
    return total(factor, model, x)


@pytest.mark.parametrize("loss", [of_other_kinds, out_of_memory, beside_it, at_last])
def test_what_handles_no_failure_of_an_operator_is_captured(forced, loss):
    forced("in turn")
    assert not with_changes(training(loss), lambda i: (torch.randn(6, 8), torch.eye(4))).why_eager


def a_number(loss):
    return float(f"{loss.item():.1f}")


def a_text(loss):
    return float(str(loss.detach())[7:-1])


def a_draw(loss):
    torch.manual_seed(3)
    return 2.0


def an_address(loss):
    return float(loss.data_ptr() > 0) + 1


@pytest.mark.parametrize("read", [a_number, a_text, a_draw, an_address])
def test_a_refusal_that_the_step_handles_as_an_error_is_no_capture(read):
    def loss(model, x):
        made = model(x).square().mean()
        try:
            scale = read(made)
        except Exception:
            scale = 100.0
        return made * scale

    assert with_changes(training(loss)).why_eager
