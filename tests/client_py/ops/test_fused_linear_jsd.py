"""fuseboard::fused_linear_jsd against float64 and its own parts."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client_py.ops.conftest import load
from tests.client_py.ops.linear_jsd import call_linear_jsd, linear_jsd, problem
from tests.client_py.ops.reference import assert_near, examples
from tests.client_py.ops.row_losses import DTYPES, IGNORED

BETAS = [0.0, 0.3, 0.5, 1.0]


def leaves(tensors):
    return [t for t in tensors if t is not None and t.requires_grad]


def compare(
    student, teacher, label, kernel, chunk_bytes=0, dweight_dtype=0, tolerance=None, **options
):  # fmt: skip
    """Loss and gradients against float64, scaled so that f16's are normal numbers."""
    loss = call_linear_jsd(
        student,
        teacher,
        label,
        kernel=kernel,
        chunk_bytes=chunk_bytes,
        dweight_dtype=dweight_dtype,
        **options,
    )
    student64 = [
        t if t is None else t.detach().double().requires_grad_(t.requires_grad) for t in student
    ]
    teacher64 = [t if t is None else t.double() for t in teacher]
    loss64 = linear_jsd(student64, teacher64, label, **options)
    dtype = student[0].dtype
    assert loss.dtype == torch.float32 and loss.shape == ()
    assert_near(loss, loss64, tolerance or dtype)
    upstream = 1.7 * max(1, student[0].shape[0])
    if not leaves(student):
        assert not loss.requires_grad
        return
    got = torch.autograd.grad(loss * upstream, leaves(student))
    want = torch.autograd.grad(loss64 * upstream, leaves(student64))
    for a, b in zip(got, want, strict=True):
        assert a.dtype == dtype
        assert_near(a, b, tolerance)
    if label is not None and student[0].requires_grad:
        assert (got[0][label == options.get("ignore_index", IGNORED)] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("ignored", [None, 0.0, 0.4, 1.1])
def test_loss_and_gradients_equal_float64(handle_of, device, dtype, beta, ignored):
    student, teacher, label = problem(37, 24, 129, dtype, device, ignored=ignored or 0.0)
    compare(
        student,
        teacher,
        None if ignored is None else label,
        handle_of("jsd"),
        chunk_bytes=16384,
        beta=beta,
        temperature=0.8,
    )


@settings(max_examples=examples(100), deadline=None)
@given(
    rows=st.integers(0, 12),
    vocab=st.integers(1, 70),
    bias=st.booleans(),
    frozen=st.sets(st.integers(0, 2)),
    beta=st.sampled_from(BETAS),
    temperature=st.sampled_from([1.0, 0.6, 2.0]),
    chunk_bytes=st.sampled_from([0, 1, 512, 2048]),
    dweight_dtype=st.sampled_from([0, 1, 2]),
    labelled=st.booleans(),
    ignored=st.sampled_from([0.0, 0.5, 1.1]),
    ignore_index=st.sampled_from([IGNORED, 0]),
    use_kernel=st.booleans(),
)
def test_any_combination_of_options_equals_float64(
    rows, vocab, bias, frozen, beta, temperature, chunk_bytes, dweight_dtype, labelled, ignored,
    ignore_index, use_kernel,
):  # fmt: skip
    student, teacher, label = problem(rows, 6, vocab, bias=bias, ignored=ignored)
    label[label == IGNORED] = ignore_index
    for index in frozen:
        if student[index] is not None:
            student[index] = student[index].detach()
    compare(
        student,
        teacher,
        label if labelled else None,
        load("jsd") if use_kernel else -1,
        chunk_bytes,
        dweight_dtype,
        beta=beta,
        ignore_index=ignore_index,
        temperature=temperature,
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_ignored_and_no_rows_give_exact_zeros(handle_of, device, dtype):
    for rows, labelled in ((4, True), (0, True), (0, False)):
        student, teacher, label = problem(rows, 8, 16, dtype, device, ignored=1.1)
        loss = call_linear_jsd(
            student, teacher, label if labelled else None, kernel=handle_of("jsd")
        )
        assert loss == 0
        for tensor, gradient in zip(student, torch.autograd.grad(loss, student), strict=True):
            assert gradient.shape == tensor.shape and (gradient == 0).all()


def test_a_student_that_is_its_teacher_has_no_loss(handle_of, device):
    student, _, label = problem(20, 8, 33, device=device)
    loss = call_linear_jsd(
        student, [t.detach() for t in student], label, beta=0.3, kernel=handle_of("jsd")
    )
    assert loss.abs() < 1e-6


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("of_student", [False, True])
def test_what_is_not_finite_is_as_in_plain_torch(handle_of, device, value, of_student):
    student, teacher, _ = problem(6, 8, 33, torch.bfloat16, device, bias=False)
    with torch.no_grad():
        (student if of_student else teacher)[0][2, 3] = value
    loss = call_linear_jsd(student, teacher, None, kernel=handle_of("jsd"))
    gradient = torch.autograd.grad(loss, student[0])[0]
    want = linear_jsd(student, teacher, None)
    want_gradient = torch.autograd.grad(want, student[0])[0]
    assert loss.isnan() and want.isnan()
    assert torch.equal(gradient.isnan(), want_gradient.isnan())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_library_gives_what_the_composite_gives(handle_of, device, dtype):
    student, teacher, label = problem(40, 16, 1001, dtype, device, ignored=0.3)
    results = []
    for kernel in (handle_of("jsd"), -1):
        loss = call_linear_jsd(student, teacher, label, temperature=0.7, kernel=kernel)
        results.append((loss, *torch.autograd.grad(loss * 40, student)))
    for a, b in zip(*results, strict=True):
        assert_near(a, b.double(), dtype)


def test_a_teacher_of_another_dtype(handle_of, device):
    student, teacher, label = problem(20, 8, 33, device=device)
    teacher = [t if t is None else t.bfloat16() for t in teacher]
    compare(student, teacher, label, handle_of("jsd"), tolerance=torch.bfloat16)


def test_classes_that_both_heads_exclude_add_nothing(handle_of, device):
    student, teacher, label = problem(20, 8, 33, device=device)
    teacher[2] = torch.zeros(33, device=device)
    with torch.no_grad():
        student[2][30:] = float("-inf")
        teacher[2][30:] = float("-inf")
    loss = call_linear_jsd(student, teacher, label, kernel=handle_of("jsd"))

    def first(tensors):
        return [tensors[0], tensors[1][:30], tensors[2][:30]]

    want = linear_jsd(first(student), first(teacher), label)
    torch.testing.assert_close(loss, want, rtol=1e-5, atol=1e-6)
    gradients = torch.autograd.grad(loss, student)
    assert all(g.isfinite().all() for g in gradients)
    assert (gradients[1][30:] == 0).all() and (gradients[2][30:] == 0).all()


def test_blocks_within_a_chunk_change_nothing(handle_of, device):
    # Four rows of 2^22 classes are a block in fp32: chunks of one row, or one of five in two blocks.
    student, teacher, _ = problem(5, 1, 1 << 22, device=device, bias=False)
    kernel = handle_of("jsd")
    results = []
    for chunk_bytes in (1, 1 << 40):
        loss = call_linear_jsd(student, teacher, None, chunk_bytes=chunk_bytes, kernel=kernel)
        # Not dhidden, whose sums over all classes depend on the GEMM.
        results.append((loss, *torch.autograd.grad(loss, student[1])))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a / b.abs().max(), b / b.abs().max(), rtol=1e-4, atol=1e-4)


def test_two_runs_have_the_same_bits(handle_of, device):
    student, teacher, label = problem(300, 32, 129, torch.bfloat16, device)
    runs = []
    for _ in range(2):
        loss = call_linear_jsd(student, teacher, label, chunk_bytes=32768, kernel=handle_of("jsd"))
        runs.append((loss, *torch.autograd.grad(loss * 2, student)))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("beta", BETAS)
def test_float64_passes_gradcheck(handle_of, beta):
    student, teacher, label = problem(5, 4, 7, torch.float64)

    def loss(*inputs):
        return call_linear_jsd(
            inputs, teacher, label, beta=beta, temperature=0.8, chunk_bytes=1024,
            kernel=handle_of("jsd"),
        )  # fmt: skip

    assert torch.autograd.gradcheck(loss, student)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_kept_graph_gives_the_same_gradients_twice_and_a_freed_one_raises(device, dtype):
    student, teacher, label = problem(6, 8, 16, dtype, device)
    loss = call_linear_jsd(student, teacher, label) * 3
    first = torch.autograd.grad(loss, student, retain_graph=True)
    second = torch.autograd.grad(loss, student)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, student)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_second_derivative_raises_with_the_operators_name(dtype):
    student, teacher, label = problem(6, 8, 16, dtype)
    loss = call_linear_jsd(student, teacher, label)
    (dhidden,) = torch.autograd.grad(loss, student[0], create_graph=True)
    with pytest.raises(RuntimeError, match="fused_linear_jsd_backward"):
        dhidden.square().sum().backward()


@pytest.mark.parametrize("frozen", [False, True])
def test_autocast_casts_as_linear_does(handle_of, device, frozen):
    student, teacher, label = problem(12, 16, 33, device=device)
    leaves = student[:1] if frozen else student
    student = [t if any(t is leaf for leaf in leaves) else t.detach() for t in student]
    kernel = handle_of("jsd")
    with torch.autocast(device, torch.bfloat16):
        loss = call_linear_jsd(student, teacher, label, kernel=kernel)
    cast = [
        [t if t is None else t.detach().bfloat16() for t in tensors]
        for tensors in (student, teacher)
    ]
    assert loss.dtype == torch.float32
    assert torch.equal(loss.detach(), call_linear_jsd(*cast, label, kernel=kernel))
    for tensor, gradient in zip(leaves, torch.autograd.grad(loss, leaves), strict=True):
        assert gradient.dtype == tensor.dtype == torch.float32
        assert gradient.any()


def test_its_calls_are_counted_under_its_name():
    def counts():
        counters = json.loads(torch.ops.fuseboard.counters())
        return counters["fused_linear_jsd"]["fused"], counters["jsd"]["fused"]

    student, teacher, label = problem(8, 8, 16)
    before = counts()
    call_linear_jsd(student, teacher, label, chunk_bytes=1, kernel=load("jsd")).backward()
    assert counts() == (before[0] + 1, before[1])


def test_errors_name_the_field_and_both_values():
    student, teacher, label = problem(4, 8, 16)
    with pytest.raises(
        RuntimeError, match=r"student_weight.size\(1\) is 7 but student_hidden.size\(1\) is 8"
    ):
        call_linear_jsd([student[0], student[1][:, :7], None], teacher, label)
    with pytest.raises(
        RuntimeError, match=r"teacher_weight.size\(0\) is 15 but student_weight.size\(0\) is 16"
    ):
        call_linear_jsd(student, [teacher[0], teacher[1][:15], None], label)
    with pytest.raises(
        RuntimeError, match=r"teacher_hidden.size\(0\) is 3 but student_hidden.size\(0\) is 4"
    ):
        call_linear_jsd(student, [teacher[0][:3], *teacher[1:]], label)
    with pytest.raises(RuntimeError, match="beta is 1.5"):
        call_linear_jsd(student, teacher, label, beta=1.5)
    with pytest.raises(RuntimeError, match="temperature is 0, want more than 0"):
        call_linear_jsd(student, teacher, label, temperature=0.0)
    with pytest.raises(RuntimeError, match="label has dtype Float, want Long or Int"):
        call_linear_jsd(student, teacher, label.float())
    with pytest.raises(RuntimeError, match="teacher_weight requires grad"):
        call_linear_jsd(student, [teacher[0], teacher[1].requires_grad_(), None], label)
