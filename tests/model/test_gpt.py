import math

import pytest
import torch
from samples_of_text import batch_of
from tiny import tiny_params
from torch import Tensor, nn

from minitrain.model.gpt import MiniGPT, mini_gpt

ROWS = [[5, 3, 9, 1, 0, 2], [7, 7, 4]]
# float64 rounds at 1e-16; sums of a few hundred terms lose some digits
ROUNDING = 1e-12


@pytest.fixture
def model() -> MiniGPT:
    torch.manual_seed(0)
    return MiniGPT(vocab_size=10, block_size=6, n_layer=2, n_head=2, n_embd=8)


State = dict[str, Tensor]


def naive_gpt(
    state: State, ids: Tensor, labels: Tensor, heads: int
) -> tuple[Tensor, Tensor]:
    """Return loss and logits, one sequence and one head at a time, by tensor arithmetic
    and nothing of ``torch.nn``.
    """
    layers = 1 + max(int(n.split(".")[1]) for n in state if n.startswith("blocks."))
    rows = []
    for row in ids:
        x = state["token_embedding.weight"][row]
        x = x + state["position_embedding.weight"][: len(row)]
        for layer in range(layers):
            start = f"blocks.{layer}."
            own = {n.removeprefix(start): t for n, t in state.items()}
            x = x + naive_attention(own, naive_norm(own, "norm1", x), heads)
            hidden = naive_linear(own, "mlp.0", naive_norm(own, "norm2", x))
            gelu = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
            x = x + naive_linear(own, "mlp.2", gelu)
        rows.append(naive_norm(state, "norm", x) @ state["head.weight"].T)
    logits = torch.stack(rows)
    losses = [
        -torch.log(scores[place].exp()[target] / scores[place].exp().sum())
        for row, scores in zip(labels, logits, strict=True)
        for place, target in enumerate(row[1:].tolist())
        if target != -100
    ]
    return torch.stack(losses).mean(), logits


def naive_linear(state: State, name: str, x: Tensor) -> Tensor:
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def naive_norm(state: State, name: str, x: Tensor) -> Tensor:
    mean = x.mean(dim=1, keepdim=True)
    # population variance
    variance = ((x - mean) ** 2).mean(dim=1, keepdim=True)
    scaled = (x - mean) / torch.sqrt(variance + 1e-5)
    return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]


def naive_attention(state: State, x: Tensor, heads: int) -> Tensor:
    size = x.shape[1] // heads
    found = []
    for head in range(heads):
        cut = slice(head * size, (head + 1) * size)
        weights = state["attention.qkv.weight"].chunk(3)
        query, key, value = (x @ weight[cut].T for weight in weights)
        # a query sees its own place and those before it
        seen = torch.ones(len(x), len(x)).tril()
        exps = (query @ key.T / math.sqrt(size)).exp() * seen
        found.append(exps @ value / exps.sum(dim=1, keepdim=True))
    return naive_linear(state, "attention.proj", torch.cat(found, 1))


def test_against_an_independent_implementation(model: MiniGPT) -> None:
    model = model.double()
    with torch.no_grad():
        # biases start at 0 and norms at 1, which would hide their omission
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    inputs = batch_of(ROWS, 6).inputs
    state = {
        name: value.clone().requires_grad_()
        for name, value in model.state_dict().items()
    }
    loss, logits = naive_gpt(state, inputs["input_ids"], inputs["labels"], heads=2)
    output = model(**inputs)
    loss.backward()
    output.loss.backward()
    pairs = {"loss": (output.loss, loss), "logits": (output.logits, logits)}
    for name, parameter in model.named_parameters():
        pairs[name] = parameter.grad, state[name].grad
    for name, (found, right) in pairs.items():
        assert (found - right).abs().max() <= ROUNDING * right.abs().max(), name


def test_factory_builds_a_model_of_the_size_in_params() -> None:
    # embeddings: 256 x 128 tokens + 64 x 128 positions               =  40,960
    # layer: norms 2 x 256, qkv 128 x 384, projection 128 x 128 + 128,
    #        feed-forward 128 x 512 + 512 and 512 x 128 + 128         = 197,888, x 4
    # last norm 256, head 128 x 256                                   =  33,024
    sizes = {"block_size": 64, "n_layer": 4, "n_head": 2, "n_embd": 128}
    model = mini_gpt(tiny_params().model.model_copy(update=sizes), 256)
    assert model.blocks[0].attention.n_head == 2
    assert sum(p.numel() for p in model.parameters()) == 40_960 + 4 * 197_888 + 33_024


def test_weights_start_as_in_gpt2() -> None:
    torch.manual_seed(0)
    model = MiniGPT(vocab_size=256, block_size=64, n_layer=1, n_head=4, n_embd=128)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            # at least 8192 draws: the sample's deviation is within 5 % of 0.02
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.05)
        if isinstance(module, nn.Linear) and module.bias is not None:
            assert not module.bias.any()
