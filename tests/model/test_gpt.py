"""MiniGPT: shapes, causality, the loss by hand, and its size."""

import math

import pytest
import torch
from samples_of_text import batch_of
from tiny import tiny_params
from torch import nn

from minitrain.model.gpt import Block, MiniGPT, mini_gpt

ROWS = [[5, 3, 9, 1, 0, 2], [7, 7, 4]]
# float64 rounds at 1e-16; sums of a few hundred terms lose some digits
ROUNDING = 1e-12


@pytest.fixture
def model() -> MiniGPT:
    """Two layers, two heads, ten tokens, blocks of six."""
    torch.manual_seed(0)
    return MiniGPT(vocab_size=10, block_size=6, n_layer=2, n_head=2, n_embd=8)


def naive_gpt(
    state: dict[str, torch.Tensor], ids: torch.Tensor, labels: torch.Tensor, heads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and logits by the textbook: one sequence, one head, one query at a time.

    Uses tensors and their arithmetic, nothing of ``torch.nn``.
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
    # the variance of all elements, not of a sample of them
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


def differs_from_naive(model: MiniGPT) -> list[str]:
    """What of loss, logits and gradients a naive model with the same state has not."""
    model = model.double()
    with torch.no_grad():
        # biases start at 0 and norms at 1: nobody would see that they are left out
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
    return [name for name, pair in pairs.items() if far_apart(*pair)]


def far_apart(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).abs().max() > ROUNDING * b.abs().max())


def logits_of(model: MiniGPT, ids: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids, labels=ids).logits


def test_shapes(model: MiniGPT) -> None:
    batch = batch_of(ROWS, 6)
    output = model(**batch.inputs)
    assert output.logits.shape == (2, 6, 10)
    assert output.loss.shape == ()


def test_against_an_independent_implementation(model: MiniGPT) -> None:
    assert differs_from_naive(model) == []


def without_residual(self: Block, x: torch.Tensor) -> torch.Tensor:
    x = self.attention(self.norm1(x))
    return x + self.mlp(self.norm2(x))


def norm_after(self: Block, x: torch.Tensor) -> torch.Tensor:
    x = self.norm1(x + self.attention(x))
    return self.norm2(x + self.mlp(x))


@pytest.mark.parametrize("forward", [without_residual, norm_after])
def test_another_block_is_seen(
    model: MiniGPT, monkeypatch: pytest.MonkeyPatch, forward
) -> None:
    monkeypatch.setattr(Block, "forward", forward)
    found = differs_from_naive(model)
    assert {"loss", "logits", "blocks.0.attention.qkv.weight"} <= {*found}


def test_one_gradient_is_seen(model: MiniGPT) -> None:
    """One that leaves loss and logits as they are."""
    model.blocks[1].mlp[0].weight.register_hook(lambda gradient: 1.001 * gradient)
    assert differs_from_naive(model) == ["blocks.1.mlp.0.weight"]


def test_shorter_sequences_than_the_block(model: MiniGPT) -> None:
    assert logits_of(model, torch.tensor([[1, 2, 3]])).shape == (1, 3, 10)


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


def test_queries_keys_and_values_have_no_bias(model: MiniGPT) -> None:
    biases = {name for name, _ in model.named_parameters() if name.endswith("bias")}
    assert biases
    assert not [name for name in biases if "qkv" in name]


def test_weights_start_as_in_gpt2() -> None:
    torch.manual_seed(0)
    model = MiniGPT(vocab_size=256, block_size=64, n_layer=1, n_head=4, n_embd=128)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            # at least 8192 draws: the sample's deviation is within 5 % of 0.02
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.05)
        if isinstance(module, nn.Linear) and module.bias is not None:
            assert not module.bias.any()


@pytest.mark.parametrize("place", range(1, 6))
def test_later_token_does_not_change_earlier_logits(model: MiniGPT, place: int) -> None:
    ids = torch.tensor([ROWS[0]])
    other = ids.clone()
    other[0, place] = 8
    before, after = logits_of(model, ids), logits_of(model, other)
    torch.testing.assert_close(after[:, :place], before[:, :place])
    # and the test could see it: the logits from there on do change
    assert ((after - before).abs().amax(dim=2)[0, place:] > 1e-6).all()


def test_heads_of_attention_by_hand(model: MiniGPT) -> None:
    """The fused projection against softmax(q k / sqrt(d)) v, head by head."""
    attention = model.blocks[0].attention
    x = torch.randn(1, 6, 8)
    q, k, v = attention.qkv(x)[0].split(8, dim=1)
    heads = []
    for head in (slice(0, 4), slice(4, 8)):
        scores = q[:, head] @ k[:, head].T / math.sqrt(4)
        mask = torch.ones(6, 6, dtype=torch.bool).triu(1)
        heads.append(scores.masked_fill(mask, -math.inf).softmax(dim=1) @ v[:, head])
    expected = attention.proj(torch.cat(heads, dim=1))
    torch.testing.assert_close(attention(x)[0], expected)


def test_loss_is_the_mean_over_real_targets(model: MiniGPT) -> None:
    batch = batch_of(ROWS, 6)
    output = model(**batch.inputs)
    total, count = 0.0, 0
    for row, tokens in enumerate(ROWS):
        for place, target in enumerate(tokens[1:]):
            scores = output.logits[row, place].tolist()
            log_of_sum = math.log(sum(math.exp(score) for score in scores))
            total += log_of_sum - scores[target]
            count += 1
    # five targets in the first row, two in the second; not 2 x 5 positions
    assert count == batch.num_targets == 7
    assert output.loss.item() == pytest.approx(total / 7, rel=1e-6)


def test_padding_does_not_count(model: MiniGPT) -> None:
    batch = batch_of(ROWS, 6)
    other = batch.inputs["input_ids"].clone()
    other[1, 3:] = 6
    losses = [
        model(input_ids=i, labels=batch.inputs["labels"]).loss
        for i in (batch.inputs["input_ids"], other)
    ]
    torch.testing.assert_close(losses[0], losses[1])


def test_start_is_near_an_even_guess(model: MiniGPT) -> None:
    batch = batch_of(ROWS, 6)
    loss = model(**batch.inputs).loss
    # small weights give almost equal scores to all ten tokens
    assert loss.item() == pytest.approx(math.log(10), abs=0.05)


def test_every_parameter_gets_a_gradient(model: MiniGPT) -> None:
    batch = batch_of(ROWS, 6)
    model(**batch.inputs).loss.backward()
    idle = [
        n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()
    ]
    assert idle == []
