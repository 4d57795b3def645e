"""MiniGPT: shapes, causality, the loss by hand, and its size."""

import math

import pytest
import torch
from samples_of_text import batch_of
from tiny import tiny_params
from torch import nn

from minitrain.model.gpt import MiniGPT, mini_gpt

ROWS = [[5, 3, 9, 1, 0, 2], [7, 7, 4]]
# float64 rounds at 1e-16; sums of a few hundred terms lose some digits
ROUNDING = 1e-12


@pytest.fixture
def model() -> MiniGPT:
    """Build a model with two layers, two heads, ten tokens, blocks of six."""
    torch.manual_seed(0)
    return MiniGPT(vocab_size=10, block_size=6, n_layer=2, n_head=2, n_embd=8)


def naive_gpt(
    state: dict[str, torch.Tensor], ids: torch.Tensor, labels: torch.Tensor, heads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return loss and logits computed naively: one sequence, one head, one query at a
    time. Uses tensor arithmetic, and nothing of ``torch.nn``.
    """
    layers = 1 + max(int(n.split(".")[1]) for n in state if n.startswith("blocks."))
    everyone = []
    for row in ids:
        x = state["token_embedding.weight"][row]
        x = x + state["position_embedding.weight"][: len(row)]
        for layer in range(layers):
            own = {
                name.removeprefix(f"blocks.{layer}."): value
                for name, value in state.items()
            }
            x = x + naive_attention(own, naive_norm(own, "norm1", x), heads)
            x = x + naive_feed_forward(own, naive_norm(own, "norm2", x))
        everyone.append(naive_norm(state, "norm", x) @ state["head.weight"].T)
    logits = torch.stack(everyone)
    losses = []
    for row, scores in zip(labels, logits, strict=True):
        for place, target in enumerate(row[1:].tolist()):
            if target != -100:
                exps = torch.exp(scores[place])
                losses.append(-torch.log(exps[target] / exps.sum()))
    return sum(losses, torch.zeros(())) / len(losses), logits


def naive_norm(
    state: dict[str, torch.Tensor], name: str, x: torch.Tensor
) -> torch.Tensor:
    mean = x.mean(dim=1, keepdim=True)
    # population variance
    variance = ((x - mean) ** 2).mean(dim=1, keepdim=True)
    scaled = (x - mean) / torch.sqrt(variance + 1e-5)
    return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]


def naive_attention(
    state: dict[str, torch.Tensor], x: torch.Tensor, heads: int
) -> torch.Tensor:
    width = x.shape[1]
    size = width // heads
    weight = state["attention.qkv.weight"]
    query, key, value = (x @ weight[i * width : (i + 1) * width].T for i in range(3))
    rows = []
    for place in range(len(x)):
        found = []
        for head in range(heads):
            cut = slice(head * size, (head + 1) * size)
            scores = [
                (query[place, cut] * key[before, cut]).sum() / math.sqrt(size)
                for before in range(place + 1)
            ]
            exps = [torch.exp(score) for score in scores]
            weighted = [e * value[i, cut] for i, e in enumerate(exps)]
            found.append(sum(weighted) / sum(exps))
        rows.append(torch.cat(found))
    out = torch.stack(rows)
    return out @ state["attention.proj.weight"].T + state["attention.proj.bias"]


def naive_feed_forward(state: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    hidden = x @ state["mlp.0.weight"].T + state["mlp.0.bias"]
    hidden = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
    return hidden @ state["mlp.2.weight"].T + state["mlp.2.bias"]


def test_against_an_independent_implementation(model: MiniGPT) -> None:
    """Loss, logits and gradients, with the same state."""
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


def test_default_size() -> None:
    # embeddings: 256 x 128 tokens + 64 x 128 positions               =  40,960
    # layer: norms 2 x 256, qkv 128 x 384, projection 128 x 128 + 128,
    #        feed-forward 128 x 512 + 512 and 512 x 128 + 128         = 197,888, x 4
    # last norm 256, head 128 x 256                                   =  33,024
    model = MiniGPT(vocab_size=256, block_size=64, n_layer=4, n_head=4, n_embd=128)
    assert sum(p.numel() for p in model.parameters()) == 40_960 + 4 * 197_888 + 33_024


def test_factory_builds_what_the_parameters_say() -> None:
    params = tiny_params().model
    model = mini_gpt(params, 256)
    assert len(model.blocks) == params.n_layer
    assert model.blocks[0].attention.n_head == params.n_head
    assert model.token_embedding.weight.shape == (256, params.n_embd)
    assert model.position_embedding.weight.shape == (params.block_size, params.n_embd)


def test_weights_start_as_in_gpt2() -> None:
    torch.manual_seed(0)
    model = MiniGPT(vocab_size=256, block_size=64, n_layer=1, n_head=4, n_embd=128)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            # at least 8192 draws: the sample's deviation is within 5 % of 0.02
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.05)
        if isinstance(module, nn.Linear) and module.bias is not None:
            assert not module.bias.any()
