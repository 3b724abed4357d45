"""What holds for every operation, whatever it computes."""

import random
import shutil
import threading

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from tests.client_py.ops.catalogue import OPERATIONS, name_of
from tests.client_py.ops.conftest import kernel_path, load
from tests.client_py.ops.problems import DTYPES, Source, outputs_of

each_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=name_of)
# Each seed draws other options and layouts.
SEEDS = range(6)
LENGTH = 7


def sources(device, dtypes=(None,), seeds=SEEDS, **options):
    """A source for each seed and dtype."""
    return [Source(random.Random(s), device, d, **options) for s in seeds for d in dtypes]


def run(problem, tensors, kernel, seed=3):
    """Outputs and gradients, for upstream gradients that the seed makes."""
    outputs = outputs_of(problem.call(tensors, kernel))
    leaves = [t for t in tensors if t is not None and t.requires_grad]
    g = torch.Generator(outputs[0].device).manual_seed(seed)
    upstream = [torch.randn(y.shape, generator=g, device=y.device).to(y.dtype) for y in outputs]
    wanted = [(y, dy) for y, dy in zip(outputs, upstream, strict=True) if y.requires_grad]
    results, given = zip(*wanted, strict=True)
    return [y.detach() for y in outputs], list(torch.autograd.grad(results, leaves, given))


def operator_of(operation):
    """The operator's name, which errors begin with."""
    return operation.name.split(",")[0].split(" ")[0]


def flat(results):
    """Outputs and gradients in one list."""
    outputs, gradients = results
    return [*outputs, *gradients]


def equal(a, b):
    """Bit for bit; NaN counts as itself."""
    return len(a) == len(b) and all(
        torch.equal(x.nan_to_num(12345.0), y.nan_to_num(12345.0)) for x, y in zip(a, b, strict=True)
    )


@each_operation
def test_two_runs_have_the_same_bits_and_the_inputs_stay(operation, handle_of, device):
    kernel = handle_of(operation.library)
    for source in sources(device, width=129):
        problem = operation.make(source, 33)
        before = [None if t is None else t.detach().clone() for t in problem.tensors]
        versions = [None if t is None else t._version for t in problem.tensors]
        first, second = (flat(run(problem, problem.tensors, kernel)) for _ in range(2))
        assert equal(first, second)
        for t, was, version in zip(problem.tensors, before, versions, strict=True):
            assert t is None or (torch.equal(t.detach(), was) and t._version == version)


@each_operation
def test_results_do_not_depend_on_the_number_of_threads(operation):
    kernel = load(operation.library)
    threads = torch.get_num_threads()
    for source in sources("cpu", width=129, seeds=range(2)):
        problem = operation.make(source, 65)
        results = []
        try:
            for number in (1, 3):
                torch.set_num_threads(number)
                results.append(flat(run(problem, problem.tensors, kernel)))
        finally:
            torch.set_num_threads(threads)
        if "linear" in operation.name or operation.name == "selected_log_probs":
            # Their products of matrices are torch's.
            torch.testing.assert_close(*results, rtol=2e-2, atol=2e-3)
        else:
            assert equal(*results)


@each_operation
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_layout_gives_what_contiguous_tensors_give(operation, handle_of, device, dtype):
    kernel = handle_of(operation.library)
    # Sums may be added in another order.
    rtol, atol = (2e-6, 2e-6) if dtype == torch.float32 else (2e-2, 2e-3)
    for source in sources(device, [dtype]):
        problem = operation.make(source, LENGTH)
        got = flat(run(problem, problem.tensors, kernel))
        want = flat(run(problem, problem.copy(), kernel))
        for a, b in zip(got, want, strict=True):
            scale = max(1.0, b.abs().nan_to_num().max().item() if b.numel() else 1.0)
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol * scale, equal_nan=True)


@each_operation
def test_expanded_upstream_gradients_give_what_dense_ones_give(operation, handle_of, device):
    kernel = handle_of(operation.library)
    for source in sources(device, [torch.float32], layouts=False):
        problem = operation.make(source, LENGTH)
        outputs = outputs_of(problem.call(problem.tensors, kernel))
        ones = [torch.ones((), device=device).expand_as(y) for y in outputs]
        got, want = (
            torch.autograd.grad(outputs, problem.leaves(), dy, retain_graph=True)
            for dy in (ones, [dy.contiguous() for dy in ones])
        )
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
        assert all(dy.eq(1).all() for dy in ones)


@each_operation
def test_values_do_not_depend_on_what_wants_a_gradient(operation, handle_of, device):
    kernel = handle_of(operation.library)
    for source in sources(device):
        problem = operation.make(source, LENGTH)
        want = [y.detach() for y in outputs_of(problem.call(problem.tensors, kernel))]
        detached = [None if t is None else t.detach() for t in problem.tensors]
        assert equal(outputs_of(problem.call(detached, kernel)), want)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                assert equal(outputs_of(problem.call(problem.tensors, kernel)), want)


# On a GPU the gradient of a cross entropy of wide rows comes with another kernel, which adds up in another order
# (docs/kernels/cross_entropy.md).
OF_OTHER_KERNELS = ("cross_entropy", "fused_linear_cross_entropy")


# Rows of several tiles or blocks.
@pytest.mark.parametrize("width", [4097, 40001, 131072])
@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o.is_loss], ids=name_of)
def test_losses_of_wide_rows_do_not_depend_on_what_wants_a_gradient(operation, device, width):
    kernel = load(operation.library)
    for source in sources(device, seeds=range(4), width=width):
        problem = operation.make(source, LENGTH)
        want = [y.detach() for y in outputs_of(problem.call(problem.tensors, kernel))]
        with torch.no_grad():
            got = outputs_of(problem.call(problem.tensors, kernel))
        if device == "cuda" and operation.name in OF_OTHER_KERNELS:
            torch.testing.assert_close(got, tuple(want), rtol=2e-6, atol=1e-6, equal_nan=True)
        else:
            assert equal(got, want)


@each_operation
def test_a_gradient_is_the_same_whichever_others_are_asked_for(operation, handle_of, device):
    kernel = handle_of(operation.library)
    for source in sources(device, [torch.float32], seeds=range(3)):
        problem = operation.make(source, LENGTH)
        every = run(problem, problem.tensors, kernel)[1]
        wanted = [i for i, t in enumerate(problem.tensors) if t is not None and t.requires_grad]
        for index, gradient in zip(wanted, every, strict=True):
            alone = [
                t if t is None or i == index else t.detach() for i, t in enumerate(problem.tensors)
            ]
            (got,) = run(problem, alone, kernel)[1]
            torch.testing.assert_close(got, gradient, rtol=1e-5, atol=1e-6, equal_nan=True)


@each_operation
def test_no_rows_give_no_rows_and_gradients_of_zero(operation, handle_of, device):
    kernel = handle_of(operation.library)
    for source in sources(device, width=16):
        problem = operation.make(source, 0)
        outputs, gradients = run(problem, problem.tensors, kernel)
        for gradient, leaf in zip(gradients, problem.leaves(), strict=True):
            assert gradient.shape == leaf.shape
            if not any(t is not None and t.numel() for t in problem.tensors[:1]):
                assert not gradient.nan_to_num().any()
        assert all(y.dim() == 0 or not y.numel() or problem.tensors[0].numel() for y in outputs)


@each_operation
def test_a_second_derivative_raises_with_the_operators_name(operation):
    kernel = load(operation.library)
    source = Source(random.Random(1), dtype=torch.float32, layouts=False, width=16)
    problem = operation.make(source, LENGTH)
    outputs = outputs_of(problem.call(problem.tensors, kernel))
    total = sum((y * y).sum() for y in outputs)
    with pytest.raises(RuntimeError, match=operator_of(operation)):
        gradients = torch.autograd.grad(total, problem.leaves(), create_graph=True)
        torch.autograd.grad(sum(g.sum() for g in gradients), problem.leaves())


@each_operation
def test_under_autocast_gradients_have_the_dtypes_of_their_tensors(operation, handle_of, device):
    kernel = handle_of(operation.library)
    for source in sources(device, [torch.float32, torch.bfloat16], seeds=range(3)):
        problem = operation.make(source, LENGTH)
        with torch.autocast(device, torch.bfloat16):
            outputs = outputs_of(problem.call(problem.tensors, kernel))
        leaves = problem.leaves()
        gradients = torch.autograd.grad(sum(y.float().sum() for y in outputs), leaves)
        assert [g.dtype for g in gradients] == [t.dtype for t in leaves]
        if operation.is_loss:
            assert all(y.dtype == torch.float32 for y in outputs)


# Where there is one device: meta, which has no memory and so no accident where a check is missing.
ELSEWHERE = {"cpu": "meta", "cuda": "cpu"}


@each_operation
def test_tensors_on_two_devices_raise_with_the_names_of_both(operation, handle_of, device):
    kernel, other = handle_of(operation.library), ELSEWHERE[device]
    places = "|".join((f"on {device}.* on {other}", f"on {other}.* on {device}"))
    moved = set()
    for source in sources(device, [torch.float32], layouts=False, width=16):
        problem = operation.make(source, LENGTH)
        for index, t in enumerate(problem.tensors):
            if index == 0 or t is None:
                continue
            mixed = list(problem.tensors)
            mixed[index] = t.detach().to(other).requires_grad_(t.requires_grad)
            with pytest.raises(RuntimeError, match=rf"{operator_of(operation)}: .* ({places})"):
                problem.call(mixed, kernel)
            moved.add(index)
    assert moved == set(range(1, len(problem.tensors)))


@pytest.fixture(scope="module")
def fresh_handle(tmp_path_factory):
    """A function from an operation to the handle of a library that nobody has called yet: a copy's."""
    folder = tmp_path_factory.mktemp("kernels")
    count = iter(range(10**6))

    def load_copy(operation):
        path = folder / f"{operation}-{next(count)}.so"
        shutil.copy(kernel_path(operation), path)
        handle = torch.ops.fuseboard.load_kernel(str(path))
        path.unlink()  # It stays mapped.
        return handle

    return load_copy


@each_operation
def test_the_first_caller_may_be_a_new_thread(operation, fresh_handle, device):
    kernel, results, errors = fresh_handle(operation.library), [], []
    problems = [operation.make(s, LENGTH) for s in sources(device, seeds=range(2), layouts=False)]

    def call():
        try:
            results.extend(flat(run(p, p.tensors, kernel)) for p in problems)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert not errors
    for problem, got in zip(problems, results, strict=True):
        assert equal(got, flat(run(problem, problem.tensors, kernel)))


# ---- torch.compile ----

# Two lengths that are seen first, then others: once the length is dynamic nothing is compiled again.
LENGTHS = (5, 9, 12, 31, 8)


# Sizes that vary become dynamic at the second length; opcheck makes all of them so, and so does a
# graph that is dynamic from the start, of which these are examples.
@pytest.mark.parametrize(
    "operation, dynamic",
    [(o, None) for o in OPERATIONS] + [(o, True) for o in OPERATIONS[::4]],
    ids=lambda value: name_of(value) if hasattr(value, "name") else str(value),
)
def test_compiles_once_for_all_lengths(operation, device, dynamic):
    torch._dynamo.reset()
    kernel = load(operation.library)
    counter = CompileCounterWithBackend("aot_eager")
    compiled, problem, counts = None, None, []

    def call(*tensors):
        return problem.call(list(tensors), kernel)

    for length in LENGTHS:
        source = Source(random.Random(4), device, torch.float32, layouts=False, width=64)
        made = operation.make(source, length)
        if compiled is None:  # Options are the same for all lengths; dynamo guards on them.
            problem = made
            compiled = torch.compile(call, fullgraph=True, backend=counter, dynamic=dynamic)
        got = outputs_of(compiled(*made.tensors))
        want = outputs_of(call(*made.tensors))
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
        upstream = [torch.randn_like(y) for y in want]
        gradients = (torch.autograd.grad(y, made.leaves(), upstream) for y in (got, want))
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
        counts.append(counter.frame_count)
    # One static and one dynamic, or one that starts again where it finds a number that does not vary.
    assert counts[-1] == counts[1] <= 2
