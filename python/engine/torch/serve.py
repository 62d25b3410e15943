"""Serves a model: exported once, and then answered request by request without Python, guards or allocations in between."""

from __future__ import annotations

import inspect
import threading
import warnings
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import engine

from . import adapter
from .refusals import Unsupported
from .served_lower import Lowering

LEAST_TRACED = 2  # rows of the example that is exported: torch takes sizes of 0 and 1 for constants


class Server:
    """A model that answers requests: call it as the model. Made by ``serve``.

    Threads: any number may call it at once; each call runs on its own thread, with one thread inside, and without the GIL.
    Memory: a call makes its outputs; all else lies in memory that calls leave to later ones, one piece for each call at once.
    """

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], batch: Any, rows: tuple[int, int],
                 name: str) -> None:  # fmt: skip
        self.name, self.model = name, model
        self._lock = threading.RLock()
        self._form = _Form()
        args_form = self._form.of(args, "", _names(model, args))
        kwargs_form = self._form.dict(kwargs, "")
        leaves, form = tree_flatten((args, kwargs))
        dims = _dimensions(leaves, batch)
        exported = _exported(model, leaves, form, dims, rows)
        signature = exported.graph_signature
        if signature.buffers_to_mutate or signature.user_inputs_to_mutate or signature.parameters_to_mutate:
            changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
            raise Unsupported(f"the model changes {', '.join(map(str, changed)) or 'its parameters'} when it is called")
        if any(given.kind.name == "TOKEN" for given in signature.input_specs):
            raise Unsupported("the model calls an operator that must not be left out, such as a check for errors")
        self._places = {**signature.inputs_to_parameters, **signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
        self._kept = dict(exported.constants) | dict(exported.state_dict)
        self._sources = self._found()
        self._lowering = Lowering(exported.graph, self._sources, self._places, self._form.names)
        self._native = adapter.load_serving()
        served = self._served = self._lowering.run()
        out_spec = exported.call_spec.out_spec
        self._spec = None if out_spec.is_leaf() and served.returned == [0] else out_spec
        self._program = self._native.program((
            args_form, kwargs_form, served.inputs, served.storages, served.blocks, served.outputs, served.nodes, served.names,
            *rows, self._spec is None, served.calls, _updater(self)))  # fmt: skip
        self._run = self._native.run
        self._shapes = {name: (tuple(t.shape), t.dtype) for name, t in self._sources.items()}
        self._keep()
        if rows[0] == 1 and any(dim is not None for dim in dims):
            self._compare(*tree_unflatten([leaf if dim is None else leaf.detach().narrow(dim, 0, 1) for leaf, dim in zip(leaves, dims)], form))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns for these arguments. TypeError or ValueError, with the argument's name, for what the model
        was not exported for; IndexError for an index that is no row of a table. The server is usable afterwards."""
        made = self._run(self._program, args, kwargs)
        return made if self._spec is None else self._returned(made)

    def update(self) -> None:
        """Makes what was computed from the parameters again: weights in rows, batch norms within weights. It is called by
        itself where torch counts a change of a parameter, as of an optimizer or ``load_state_dict``. Call it after a
        change that torch does not count: through ``.data`` in place, by NumPy, or of a parameter under another object."""
        with self._lock, torch.no_grad():
            sources = self._found()
            for name, tensor in sources.items():
                if (tuple(tensor.shape), tensor.dtype) != self._shapes[name]:
                    shape, dtype = self._shapes[name]
                    raise RuntimeError(f"engine.torch.serve: '{self._places.get(name, name)}' is {tensor.dtype} of "
                                       f"{list(tensor.shape)} now, and was {dtype} of {list(shape)}; serve the model again")  # fmt: skip
            self._sources = self._lowering.sources = sources
            self._lowering.known.clear()
            self._keep()

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """The nodes of the program with the time that each takes with these arguments, the slowest first; without
        arguments only the nodes."""
        names = self._served.names
        if not args and not kwargs:
            return "\n".join([f"serve '{self.name}': {len(names)} nodes", *(f"  {name}" for name in names)]) + "\n"
        times = [t / 1e3 for t in self._native.times(self._program, args, kwargs, 200)]
        lines = [f"serve '{self.name}': {len(names)} nodes, {sum(times):.1f} us"]
        lines += [f"  {t:8.2f} us  {n}" for t, n in sorted(zip(times, names), key=lambda p: -p[0])]
        return "\n".join(lines) + "\n"

    def _compare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Unsupported if the answer to one row is not the model's: torch exports for two rows and more, and a model may treat one
        otherwise, as ``squeeze()`` does."""
        with torch.no_grad():
            expected, spec = tree_flatten(self.model(*args, **kwargs))
            got, made = tree_flatten(self(*args, **kwargs))
        if spec != made or not all(map(_alike, expected, got)):
            sizes = [[list(t.shape) for t in told if isinstance(t, torch.Tensor)] for told in (expected, got)]
            differs = f"tensors of {sizes[0]}, and not of {sizes[1]}" if sizes[0] != sizes[1] else "something else than what was exported"
            raise Unsupported(f"of a request of one row the model makes {differs}: it treats one row otherwise than two and more; "
                              "serve it with rows=(2, ...)")  # fmt: skip

    def _found(self) -> dict[str, torch.Tensor]:
        """Parameters, buffers and other tensors by placeholder, as the model has them now; those that are no attribute of a module as
        they were when it was exported."""
        own: dict[str, torch.Tensor] = dict(self.model.named_parameters(remove_duplicate=False))
        own |= dict(self.model.named_buffers(remove_duplicate=False))
        for path, module in self.model.named_modules(remove_duplicate=False):
            own |= {f"{path}.{name}".lstrip("."): held for name, held in vars(module).items() if isinstance(held, torch.Tensor)}
        return {place: own.get(name, self._kept.get(name)) for place, name in self._places.items()}  # type: ignore[misc]

    def _keep(self) -> None:
        # What torch counts is read before what is copied, so that a change meanwhile is found. Buffers: torch counts no change of a batch
        # norm's running statistics, but that of the number of batches, which comes with it.
        buffers = dict(self.model.named_buffers(remove_duplicate=False))
        noted = {id(t): (t.data_ptr(), -1 if t.is_inference() else t._version) for t in (*self._sources.values(), *buffers.values())}
        self._memory = [t.detach() for t in self._sources.values()]  # so that no other tensor gets its address
        tensors, folded = [], set()
        with torch.no_grad():
            for constant in self._lowering.constants:
                tensors.append(self._lowering.as_kept(constant))
                plain = constant.node.op == "placeholder" and tensors[-1].data_ptr() == self._sources[constant.node.name].data_ptr()
                if not plain:
                    folded |= _read(constant.node)
        self._lowering.known.clear()
        watched = [(tensor, noted[id(tensor)][0], noted[id(tensor)][1] if name in folded else -1) for name, tensor in self._sources.items()]
        norms = {self._places.get(name, "").removesuffix("running_mean") for name in folded if self._is_mean(name)}
        watched += [(buffers[b], *noted[id(buffers[b])]) for norm in sorted(norms) if (b := f"{norm}num_batches_tracked") in buffers]
        self._native.constants(self._program, tensors, watched)

    def _is_mean(self, name: str) -> bool:
        return self._places.get(name, "").rpartition(".")[2] == "running_mean"

    def _returned(self, made: list[Any]) -> Any:
        values = [made[r] if isinstance(r, int) else r[1] for r in self._served.returned]
        assert self._spec is not None
        return tree_unflatten(values, self._spec)


def _updater(server: Server) -> Any:
    """Calls update, and does not keep the server alive: the adapter's objects are unknown to Python's collector."""
    known = weakref.ref(server)

    def update() -> None:
        found = known()
        if found is not None:
            found.update()

    return update


def _read(node: torch.fx.Node) -> set[str]:
    """The placeholders that a constant is computed from."""
    if node.op == "placeholder":
        return {node.name}
    return set().union(*(_read(n) for n in node.all_input_nodes))


class _Form:
    """What the arguments look like, for the adapter."""

    def __init__(self) -> None:
        self.names: list[str] = []  # of the tensors

    def of(self, value: Any, name: str, parts: list[str] | None = None) -> tuple[Any, ...]:
        if isinstance(value, torch.Tensor):
            self.names.append(name)
            return ("t", name, len(self.names) - 1)
        if isinstance(value, (tuple, list)):
            if parts is None:
                parts = [f"{name}.{p}" for p in value._fields] if hasattr(value, "_fields") else [f"{name}[{i}]" for i in range(len(value))]
            return ("s", name, [self.of(item, part) for item, part in zip(value, parts)])
        if isinstance(value, dict):
            return self.dict(value, name)
        if value is None or isinstance(value, (bool, int, float, str)):
            return ("k", name, value)
        raise Unsupported(f"the argument {name} of type {type(value).__name__}; tensors, numbers, tuples, lists and dicts are allowed")

    def dict(self, value: dict[str, Any], name: str) -> tuple[Any, ...]:
        return ("d", name, [(key, self.of(item, f"{name}[{key!r}]" if name else str(key))) for key, item in value.items()])


def _names(model: nn.Module, args: tuple[Any, ...]) -> list[str]:
    names = list(inspect.signature(model.forward).parameters.values())
    plain = [p.name for p in names if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in names if p.kind == p.VAR_POSITIONAL), "args")
    return (plain + [f"{rest}[{i}]" for i in range(len(args))])[: len(args)]


def _traced(leaf: Any, dim: int | None) -> Any:
    """The example as it is exported: contiguous, and of several rows."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    leaf = leaf.detach()
    if dim is not None and leaf.shape[dim] < LEAST_TRACED:
        if leaf.shape[dim] == 0:
            raise Unsupported("an example without rows")
        leaf = torch.cat([leaf] * LEAST_TRACED, dim)
    return leaf.clone(memory_format=torch.contiguous_format)  # at the beginning of its memory


def _alike(expected: Any, got: Any) -> bool:
    """Whether a result is the same but for rounding."""
    if not isinstance(expected, torch.Tensor):
        return bool(expected == got)
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return False
    if not expected.is_floating_point() or not expected.numel():
        return True
    expected, got = expected.double(), got.double()
    return torch.allclose(expected, got, rtol=1e-2, atol=1e-2 * float(expected.nan_to_num(0.0, 0.0, 0.0).abs().max()), equal_nan=True)


def _dimensions(leaves: list[Any], batch: Any) -> list[int | None]:
    """Of each leaf of an example, the dimension that counts rows."""
    if isinstance(batch, int) or batch is None:
        dims = [batch if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
    else:
        dims = tree_leaves(batch, is_leaf=lambda x: x is None)
        if len(dims) != len(leaves):
            raise engine.errors.UsageError(f"engine.torch.serve: batch has {len(dims)} dimensions for {len(leaves)} arguments; "
                                           "one number, or one for each argument (None: it has no rows) is allowed")  # fmt: skip
    for leaf, dim in zip(leaves, dims):
        if dim is not None and not (isinstance(leaf, torch.Tensor) and -leaf.dim() <= dim < leaf.dim()):
            what = f"of size {list(leaf.shape)}" if isinstance(leaf, torch.Tensor) else "that is no tensor"
            raise engine.errors.UsageError(f"engine.torch.serve: batch is {dim} for an argument {what}")
    dims = [None if dim is None else dim % leaf.dim() for leaf, dim in zip(leaves, dims)]
    return dims


def _exported(model: nn.Module, leaves: list[Any], spec: Any, dims: list[int | None], rows: tuple[int, int]) -> Any:
    counts = {leaf.shape[dim] for leaf, dim in zip(leaves, dims) if dim is not None}
    if len(counts) > 1:
        raise engine.errors.UsageError(f"engine.torch.serve: the examples have {sorted(counts)} rows; "
                                       "as many for each argument are allowed")  # fmt: skip
    least, most = rows
    for count in counts:
        if not least <= (count if least == most else max(count, LEAST_TRACED)) <= most:
            raise engine.errors.UsageError(f"engine.torch.serve: the example has {count} rows; rows={rows} allows {least} to {most}")
    if least == most:  # a size like any other, which torch takes for a constant
        dims = [None] * len(dims)
    size = torch.export.Dim("rows", min=least, max=most) if least < most else None
    args, kwargs = tree_unflatten([_traced(leaf, dim) for leaf, dim in zip(leaves, dims)], spec)
    wanted = [({} if dim is None else {dim: size}) if isinstance(leaf, torch.Tensor) else None for leaf, dim in zip(leaves, dims)]
    shapes = tree_unflatten(wanted, spec)
    bound = inspect.signature(model.forward).bind(*shapes[0], **shapes[1]).arguments
    errors: list[str] = []
    for strict in (False, True):  # the second traces Python's own bytecode, which takes longer and can do more
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.export.export(model, args, kwargs, dynamic_shapes=dict(bound), strict=strict).run_decompositions()
        except Exception as error:
            errors.append(f"{type(error).__name__}: {str(error).strip() or 'no text'}")
    raise Unsupported("torch.export cannot export the model: " + errors[-1][:2000])


def serve(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None, *, batch: Any = 0,
          rows: tuple[int, int] = (1, 65_536), name: str = "") -> Server:  # fmt: skip
    """Makes a server of a model in evaluation mode: an object that is called as the model, from any thread.

    ``args``, ``kwargs``: an example of a request: tensors, or tuples, lists and dicts of such, on the CPU. ``batch``: which
    dimension of each tensor counts a request's rows: a number for all, or a structure like ``(args, kwargs)`` with a number
    or None for each. ``rows``: least and most of them in a request. All other sizes are those of the example.

    Weights are taken for fixed, as Server.update says. Results differ from the model's in the last bits.
    engine.errors.UsageError says why a model cannot be served."""
    told = name or type(model).__name__
    least, most = rows
    if not (isinstance(least, int) and isinstance(most, int) and 1 <= least <= most):
        raise engine.errors.UsageError(f"engine.torch.serve: rows is {rows!r}; (least, most) with 1 <= least <= most is allowed")
    if not isinstance(args, tuple):
        raise engine.errors.UsageError(f"engine.torch.serve: args is of type {type(args).__name__}; "
                                       "a tuple of the model's arguments is allowed")  # fmt: skip
    for path, module in model.named_modules():
        if module.training:
            which = repr(path) if path else told
            raise engine.errors.UsageError(f"engine.torch.serve: {which} is in training mode; call model.eval() before")
    try:
        return Server(model, args, dict(kwargs or {}), batch, rows, told)
    except Unsupported as error:
        raise engine.errors.UsageError(f"engine.torch.serve: {told} cannot be served: {error}") from None
    except (adapter.NoAdapter, OSError, ImportError) as error:
        raise engine.errors.UsageError(f"engine.torch.serve: {told} cannot be served, because {error}") from None
