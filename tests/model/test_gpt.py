import pytest
import torch
from samples_of_text import batch_of
from tiny import tiny_params
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from minitrain.model.gpt import MiniGPT, mini_gpt

ROWS = [[5, 3, 9, 1, 0, 2], [7, 7, 4]]
# float64 rounds at 1e-16; sums of a few hundred terms lose some digits
ROUNDING = 1e-12


@pytest.fixture
def model() -> MiniGPT:
    torch.manual_seed(0)
    return MiniGPT(vocab_size=10, block_size=6, n_layer=2, n_head=2, n_embd=8)


# what torch's own layer calls the parts of a block
OF_TORCH = {
    "attention.qkv.weight": "self_attn.in_proj_weight",
    "attention.proj": "self_attn.out_proj",
    "mlp.0": "linear1",
    "mlp.2": "linear2",
}


def gpt_of_torch(
    state: dict[str, Tensor], ids: Tensor, labels: Tensor, heads: int
) -> tuple[Tensor, Tensor]:
    """Return loss and logits of two layers as torch makes them."""
    x = state["token_embedding.weight"][ids] + state["position_embedding.weight"]
    size = x.shape[2]
    options = {"norm_first": True, "batch_first": True, "dtype": x.dtype}
    layer = nn.TransformerEncoderLayer(size, heads, 4 * size, 0.0, "gelu", **options)
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    for number in range(2):
        own = {"self_attn.in_proj_bias": torch.zeros(3 * size, dtype=x.dtype)}
        for name, tensor in state.items():
            if name.startswith(start := f"blocks.{number}."):
                name = name.removeprefix(start)
                for ours, theirs in OF_TORCH.items():
                    name = name.replace(ours, theirs)
                own[name] = tensor
        x = functional_call(layer, own, (x, later), strict=True)
    last = state["norm.weight"], state["norm.bias"]
    logits = F.layer_norm(x, (size,), *last) @ state["head.weight"].T
    targets = labels[:, 1:].flatten()
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), targets), logits


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
    loss, logits = gpt_of_torch(state, inputs["input_ids"], inputs["labels"], heads=2)
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
