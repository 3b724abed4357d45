"""Random problems: where tests of all operations take shapes, dtypes, layouts and options from.

A problem is made by a `random.Random`, so that hypothesis can shrink it and a seed can repeat it.
"""

import dataclasses
import typing

import torch

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Of models, and such that a row is no longer one block's: odd ones and powers of two.
WIDE = [2880, 3584, 4096, 4097, 5120, 8192, 16384, 16385, 32001, 65536, 65537, 131072]
WIDTHS = [1, 2, 3, 5, 8, 16, 37, 64, 72, 96, 127, 128, 129, 256, 257, 1000]


def wide(x):
    """`x` in the dtype that models compute in: float64 stays, what is narrower becomes fp32."""
    return x if x.dtype == torch.float64 else x.float()


def largest(*tensors):
    """The largest magnitude in them, at least 1."""
    return max(
        [1.0, *(t.detach().abs().max().item() for t in tensors if t is not None and t.numel())]
    )


def outputs_of(result):
    """What an operation returns, always as a tuple."""
    return result if isinstance(result, tuple) else (result,)


@dataclasses.dataclass
class Problem:
    """Arguments and two ways to compute.

    Attributes:
        tensors: Inputs; None where one is left out. Those that want a gradient are leaves.
        call: call(tensors, kernel) is the operator.
        formula: formula(tensors) in plain PyTorch: in float64 the truth, in the dtype of the
            inputs what a model does.
        rows: Which inputs have the problem's length as size(0), every row being independent of the
            others; none if its rows depend on each other.
        slack: How many times the roundings of one result its error may be.
        terms: terms(tensors) is about how large for an upstream gradient of 1 the terms are whose
            sum a gradient is: where they cancel, an error is relative to them.
    """

    tensors: list
    call: typing.Callable
    formula: typing.Callable
    rows: tuple = ()
    slack: float = 1.0
    terms: typing.Callable = lambda tensors: 0.0

    def leaves(self):
        """The inputs that want a gradient."""
        return [t for t in self.tensors if t is not None and t.requires_grad]

    def copy(self, dtype=None, contiguous=True):
        """The inputs as leaves of their own, floating ones in another dtype if one is given."""

        def one(t):
            if t is None:
                return None
            to = dtype if dtype is not None and t.is_floating_point() else t.dtype
            if not contiguous and to == t.dtype:
                return t.detach().requires_grad_(t.requires_grad)
            values = t.detach().to(to, copy=True, memory_format=torch.contiguous_format)
            return values.requires_grad_(t.requires_grad)

        return [one(t) for t in self.tensors]


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operator, or one form of it.

    Attributes:
        name: For people and test ids.
        library: Which kernel library it takes.
        make: make(source, length) is a Problem; what it draws does not depend on the length.
        is_loss: Whether its results are sums over rows or columns, in fp32.
        any_width: Whether a row may have any size.
    """

    name: str
    library: str
    make: typing.Callable
    is_loss: bool = False
    any_width: bool = True

    @property
    def has_head(self):
        """Whether it makes its logits itself, of hidden states and a weight."""
        return "linear" in self.name or "selected" in self.name


class Source:
    """Draws sizes, options and tensors.

    Args:
        rng: A random.Random, or hypothesis' stand-in for one.
        device: Where tensors lie.
        dtype: The main dtype; None: drawn.
        width: The size of a row; None: drawn.
        layouts: Whether tensors may be strided, expanded and unaligned.
        accurate: Only options that promise native's accuracy.
        hidden: The width of the rows that a linear layer of a loss is given; None: drawn.
    """

    def __init__(
        self, rng, device="cpu", dtype=None, width=None, layouts=True, accurate=False, hidden=None
    ):
        self.rng, self.device, self.layouts = rng, device, layouts
        self.accurate, self.hidden = accurate, hidden
        self.dtype = dtype or self.one_of(DTYPES)
        self._width = width
        self.generator = torch.Generator(device).manual_seed(rng.randrange(2**31))

    def one_of(self, values):
        """One of them."""
        return values[self.rng.randrange(len(values))]

    def maybe(self):
        """True or False."""
        return bool(self.rng.randrange(2))

    def width(self, values=WIDTHS):
        """The size of a row."""
        drawn = self.one_of(values)
        return self._width or drawn

    def other_dtype(self):
        """That of a parameter: mostly as the input's, else fp32."""
        return self.one_of([self.dtype, self.dtype, torch.float32])

    def randn(self, *shape):
        """Random numbers in fp32."""
        return torch.randn(*shape, generator=self.generator, device=self.device)

    def tensor(self, *shape, dtype=None, scale=1.0, mean=0.0, grad=True):
        """Random numbers in any layout."""
        values = (self.randn(*shape) * scale + mean).to(dtype or self.dtype)
        return self.laid_out(values).requires_grad_(grad)

    def labels(self, rows, classes, ignored=0.3, ignore_index=-100):
        """Labels of which some are ignored, in either integer dtype and with any stride."""
        target = torch.randint(classes, (rows,), generator=self.generator, device=self.device)
        share = self.one_of([0.0, ignored, ignored, 1.0])
        skipped = torch.rand(rows, generator=self.generator, device=self.device) < share
        target = torch.where(skipped, ignore_index, target)
        target = target.int() if self.maybe() else target
        return self.laid_out(target)

    def laid_out(self, values):
        """`values` as a view with other strides or an unaligned base, or as they are."""
        choice = self.rng.randrange(6)
        if not self.layouts or not values.dim():
            return values
        if choice == 1 and values.dim() > 1:
            return values.transpose(0, -1).contiguous().transpose(0, -1)
        if choice == 2:  # Rows of a wider matrix, from an odd element on.
            base = values.new_zeros(*values.shape[:-1], values.shape[-1] + 5)
            base[..., 3 : 3 + values.shape[-1]] = values
            return base[..., 3 : 3 + values.shape[-1]]
        if choice == 3:  # Every other element.
            base = values.new_zeros(*values.shape[:-1], 2 * values.shape[-1])
            base[..., ::2] = values
            return base[..., ::2]
        if choice == 4 and values.dim() > 1 and values.shape[0]:
            return values[:1].expand_as(values)
        if choice == 5:  # An unaligned base under contiguous strides.
            base = values.new_zeros(values.numel() + 1)
            return base[1:].view(values.shape).copy_(values)
        return values

    def upstream(self, result):
        """A gradient for `result`, in any layout."""
        values = torch.randn(result.shape, generator=self.generator, device=result.device)
        return self.laid_out(values.to(result.dtype))
