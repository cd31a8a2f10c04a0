"""Models: sizes, shapes, heads, memory formats, factories and what users get wrong."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrift.config import models
from fedrift.errors import InputError
from fedrift.models import NAMES, build_own, factory

MNIST, CIFAR, DIGITS = (1, 28, 28), (3, 32, 32), (1, 8, 8)


def size(text: str, shape: tuple[int, ...], classes: int) -> int:
    return sum(p.numel() for p in factory(text, shape, classes)().parameters())


def sample(shape: tuple[int, ...], n: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("text", "shape", "classes", "expected"),
    [
        ("logistic", MNIST, 10, 7_850),
        ("logistic", (60,), 10, 610),
        ("mlp", MNIST, 10, 199_210),
        ("mlp:hidden=64", (64,), 10, 8_970),
        ("cnn", MNIST, 10, 431_080),
        ("cnn-mcmahan", MNIST, 10, 1_663_370),
        ("cnn-mcmahan", MNIST, 62, 1_690_046),
        ("lenet", CIFAR, 10, 797_962),
        ("lenet", CIFAR, 100, 815_332),
        ("niid-cnn", CIFAR, 10, 62_006),
        ("niid-cnn", MNIST, 10, 44_426),
        ("resnet20", CIFAR, 10, 269_722),
        ("resnet20", CIFAR, 100, 275_572),
        ("resnet18", CIFAR, 10, 11_181_642),
        ("resnet18:stem=cifar", CIFAR, 10, 11_173_962),
        ("mobilenet-v2", CIFAR, 1000, 3_504_872),
        ("random-conv:filters=8", MNIST, 10, 8 * 37 + 10 * (8 * 16 + 1)),
    ],
)
def test_parameter_counts_are_the_papers(
    text: str, shape: tuple[int, ...], classes: int, expected: int
) -> None:
    assert size(text, shape, classes) == expected


SHAPES = (MNIST, CIFAR, (3, 24, 17), DIGITS, (5,))
OF_NUMBERS = [name for name in NAMES if name not in models.TEXT_DEFAULTS]


@pytest.mark.parametrize(
    ("name", "shape"), [(n, s) for n in OF_NUMBERS for s in SHAPES if models.fits(n, s)]
)
def test_output_head_and_memory_formats(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module = factory(name, shape, 7)().double()  # batch statistics blow up what rounding does
    x = sample(shape).double()
    caught: list[object] = []
    head = module.get_submodule(module.head)  # pyright: ignore[reportArgumentType]
    assert isinstance(head, nn.Linear)
    head.register_forward_hook(lambda _, args, out: caught.append(out))
    out = module(x)
    assert out.shape == (4, 7)
    assert caught[0] is out, "the head's output is the model's"
    assert out.std() > 1e-3
    if len(shape) == 3:
        last = x.to(memory_format=torch.channels_last)
        torch.testing.assert_close(module(last), out, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["cnn", "cnn-mcmahan", "lenet", "niid-cnn"])
def test_convolutional_nets_are_the_textbook_function(name: str) -> None:
    """ReLU before pooling, channels outermost in the flattened features, and the same gradient."""
    torch.manual_seed(1)
    net = factory(name, MNIST, 10)()
    x, y = sample(MNIST), torch.tensor([1, 2, 3, 4])
    layers = dict(net.named_children())
    h = F.max_pool2d(F.relu(layers["conv1"](x)), 2)
    h = F.max_pool2d(F.relu(layers["conv2"](h)), 2).contiguous().view(4, -1)
    for layer in [layers[n] for n in ("fc1", "fc2", "fc3") if n in layers][:-1]:
        h = F.relu(layer(h))
    expected = net.get_submodule(net.head)(h)  # pyright: ignore[reportArgumentType]
    given = net(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-5)
    grads = [
        torch.autograd.grad(F.cross_entropy(o, y), [*net.parameters()]) for o in (given, expected)
    ]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_resnet20_block_shortcut_is_option_a() -> None:
    """With the convolutions at zero a block returns ReLU of its shortcut."""
    net = factory("resnet20", CIFAR, 10)()
    block = net.get_submodule("stages.1.0")
    for name, parameter in block.named_parameters():
        if "norm2" in name:
            nn.init.zeros_(parameter)
    x = sample((16, 9, 9))
    out = block(x)
    assert out.shape == (4, 32, 5, 5)
    assert torch.equal(out[:, 8:24], F.relu(x[:, :, ::2, ::2]))
    assert not out[:, :8].any() and not out[:, 24:].any()


def test_residual_nets_have_no_buffers_and_two_groups() -> None:
    for name, norms in (("resnet20", 19), ("resnet18", 20)):
        net = factory(name, CIFAR, 10)()
        assert not [*net.buffers()]
        groups = [m.num_groups for m in net.modules() if isinstance(m, nn.GroupNorm)]
        assert groups == [2] * norms


def test_initialisation() -> None:
    torch.manual_seed(0)
    net = factory("resnet20", CIFAR, 10)()
    conv = net.get_submodule("stages.2.1.conv1")
    assert conv.weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.03)  # pyright: ignore
    torch.manual_seed(0)
    net = factory("resnet18", CIFAR, 10)()
    conv = net.get_submodule("stages.1.0.conv1")  # 64 → 128 channels: fan out
    assert conv.weight.std().item() == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.03)  # pyright: ignore
    torch.manual_seed(0)
    plain = nn.Linear(784, 10)
    torch.manual_seed(0)
    assert torch.equal(factory("logistic", MNIST, 10)().fc.weight, plain.weight)  # pyright: ignore


@pytest.mark.parametrize("name", NAMES)
def test_factories_survive_pickling(name: str) -> None:
    make = factory(name, MNIST if name in OF_NUMBERS else (9,), 10)
    again = pickle.loads(pickle.dumps(make))
    torch.manual_seed(3)
    expected = make().state_dict()
    torch.manual_seed(3)
    given = again().state_dict()
    assert [*given] == [*expected]
    assert all(torch.equal(given[key], expected[key]) for key in given)


def test_an_image_too_small_names_the_models_that_fit() -> None:
    with pytest.raises(InputError, match=r"'cnn' needs images.* at least 16×16 .*1×8×8") as caught:
        factory("cnn", DIGITS, 10)
    fitting = str(caught.value).split("models that fit: ")[1]
    assert fitting == "logistic, mlp, cnn-mcmahan, resnet20, resnet18, mobilenet-v2, random-conv"
    for name in fitting.split(", "):
        assert factory(name, DIGITS, 10)()(sample(DIGITS)).shape == (4, 10)
    assert factory("cnn", (1, 16, 16), 10)()(sample((1, 16, 16))).shape == (4, 10)
    with pytest.raises(InputError, match="at least 16×16"):
        factory("cnn", (1, 32, 15), 10)
    with pytest.raises(InputError, match=r"'resnet20' needs images.*shape is 60.*logistic, mlp$"):
        factory("resnet20", (60,), 10)
    with pytest.raises(InputError, match="at least one feature"):
        factory("mlp", (), 10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resnet2", "unknown model 'resnet2': did you mean 'resnet20'"),
        ("mlp:hiden=3", "unknown option of mlp 'hiden': did you mean 'hidden'"),
        (
            "mlp:hidden=0",
            "hidden of mlp must be a whole number of at least 1 and at most 20000, not '0'",
        ),
        ("mlp:hidden=2.5", "must be a whole number"),
        ("mlp:200", r"has the value '200'; write mlp\[:hidden=200,depth=2\]"),
        ("cnn:hidden=3", "cnn has no option 'hidden'"),
        ("resnet18:stem=small", "stem of resnet18 must be imagenet or cifar, not 'small'"),
        ("mlp(cnn)", "wraps nothing"),
        ("no.such.module:Net", "'no.such.module:Net' cannot be imported: there is no n"),
        ("torch.nn:Nothing", "module 'torch.nn' has no 'Nothing'"),
        ("math:pi", "'math:pi' is a float, not a class or function"),
        ("torch.nn:Linear", "needs an argument 'in_features'; give it a default"),
        ("torch.nn:Linear,width=3", "takes no options"),
    ],
)
def test_mistakes_in_the_text(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        factory(text, MNIST, 10)


def test_too_few_classes() -> None:
    with pytest.raises(InputError, match="at least 1 class, not 0"):
        factory("mlp", MNIST, 0)


OWN = """
from torch import nn
def plain(): return nn.Linear(3, 2)
def counted(classes): return nn.Linear(3, classes)
def numbered(width=3, *, num_classes): return nn.Linear(width, num_classes)
class Shaped(nn.Linear):
    def __init__(self, input_shape, classes): super().__init__(input_shape[0], classes)
built = nn.Linear(3, 9)
def number(): return 3
def empty(): return nn.ReLU()
def fails(): raise KeyError("lost")
def positional(classes, /): return nn.Linear(3, classes)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_models_for_a_test.py").write_text(OWN)
    (tmp_path / "own_broken_for_a_test.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("attribute", "outputs"),
    [("plain", 2), ("counted", 5), ("numbered", 5), ("Shaped", 5), ("built", 9)],
)
def test_own_models_are_called_with_what_they_accept(attribute: str, outputs: int) -> None:
    make = pickle.loads(pickle.dumps(factory(f"own_models_for_a_test:{attribute}", (3,), 5)))
    assert make()(torch.zeros(2, 3)).shape == (2, outputs)


@pytest.mark.usefixtures("own")
def test_a_built_own_model_is_copied() -> None:
    make = factory("own_models_for_a_test:built", (3,), 5)
    one, two = make(), make()
    assert one is not two
    assert torch.equal(one.weight, two.weight)  # pyright: ignore[reportArgumentType]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("number", "own_models_for_a_test:number' returned a int, not an nn.Module"),
        ("empty", "has no parameters"),
        ("fails", "raised KeyError: 'lost'"),
    ],
)
def test_own_models_that_are_none(attribute: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_own("own_models_for_a_test", attribute, (3,), 5)


@pytest.mark.usefixtures("own")
def test_own_modules_that_fail_to_import_or_to_accept() -> None:
    with pytest.raises(InputError, match="cannot be imported: ZeroDivisionError"):
        factory("own_broken_for_a_test:Net", (3,), 5)
    with pytest.raises(InputError, match="needs an argument 'classes'"):
        factory("own_models_for_a_test:positional", (3,), 5)


def test_tables_agree_and_names_need_no_torch() -> None:
    assert [*NAMES] == [*models.NAMES] == [*models.GRAMMAR]
    assert all(NAMES[name].about == about for name, about in models.NAMES.items())
    code = (
        "import sys; from fedrift.config.models import choose_model; "
        "choose_model('mlp:hidden=3', (1, 8, 8));"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
