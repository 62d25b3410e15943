"""Public definitions of transformers, in tiny configurations and while they train with dropout, do what they do eagerly."""

import copy

import pytest
import torch
from support import MODES, OPTIONS, check, compiled, same, training
from torch import nn
from torch.optim import AdamW

import engine.torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


class Called(nn.Module):
    """A model with what one of its results a step takes."""

    def __init__(self, model, call):
        super().__init__()
        self.model, self.call = model, call

    def forward(self, given):
        return self.call(self.model, given)


def ids():
    return torch.randint(2, 99, (2, 12))


def bert(layers=2):
    config = transformers.BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=layers, num_attention_heads=2,
                                     intermediate_size=64, max_position_embeddings=32)  # fmt: skip
    return transformers.BertModel(config), lambda model, given: model(input_ids=given).last_hidden_state, ids


def gpt2(layers=2):
    config = transformers.GPT2Config(vocab_size=99, n_embd=32, n_layer=layers, n_head=2, n_positions=32, bos_token_id=0,
                                     eos_token_id=0, use_cache=False)  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # else it warns that it takes this, where Dynamo breaks the graph and traces six functions again
    return model, lambda model, given: model(input_ids=given, labels=given).loss, ids


def t5(layers=2):
    config = transformers.T5Config(vocab_size=99, d_model=32, d_kv=16, d_ff=64, num_layers=layers, num_heads=2,
                                   decoder_start_token_id=0, use_cache=False)  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    return model, lambda model, given: model(input_ids=given, labels=given).loss, ids


def vit(layers=2):
    config = transformers.ViTConfig(hidden_size=32, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=64, image_size=32,
                                    patch_size=8, num_labels=5, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)  # fmt: skip
    return transformers.ViTForImageClassification(config), lambda model, given: model(pixel_values=given).logits, lambda: torch.randn(2, 3, 32, 32)


def llama(keys):
    config = transformers.LlamaConfig(vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=keys, max_position_embeddings=32)  # fmt: skip
    return transformers.LlamaForCausalLM(config), lambda model, given: model(input_ids=given, labels=given, use_cache=False).loss, ids


MODELS = pytest.mark.parametrize("make", [bert, gpt2, t5, vit])


@pytest.fixture(autouse=True, scope="module")
def silent():
    transformers.logging.set_verbosity_error()


@MODELS
def test_outputs_gradients_and_random_numbers_are_eagers(forced, make):
    model, call, inputs = make()
    check(Called(model.train(), call), inputs(), steps=3 * len(MODES), before=lambda step: forced(MODES[step // 3]))


@MODELS
def test_whole_steps_are_eagers(forced, make):
    model, call, inputs = make()
    pairs = [Called(m.train(), call) for m in (model, copy.deepcopy(model))]
    ours, theirs = (training(m, AdamW(m.parameters(), lr=1e-3)) for m in pairs)
    ours = engine.torch.compile_step(ours, options=OPTIONS)
    for i in range(4 * len(MODES)):
        forced(MODES[i // 4])
        given, losses = inputs(), []
        for step in (ours, theirs):
            torch.manual_seed(i)
            losses.append(step(given).detach())
        same(*losses)
    same(*(dict(m.state_dict()) for m in pairs))
    assert not ours.why_eager


@pytest.mark.parametrize("keys, equal", [(4, same), (2, torch.testing.assert_close)])
def test_where_a_model_asks_for_stand_ins_only_the_last_bits_differ(forced, keys, equal):
    """With fewer heads of keys than of queries, transformers calls attention in another way where it sees what stands for a tensor."""
    forced("in turn")
    model, call, inputs = llama(keys)
    pairs = [Called(m.train(), call) for m in (model, copy.deepcopy(model))]
    ours, theirs = (training(m, AdamW(m.parameters(), lr=1e-3)) for m in pairs)
    ours = engine.torch.compile_step(ours, options=OPTIONS)
    for _ in range(4):
        given = inputs()
        equal(ours(given).detach(), theirs(given).detach())
    assert not ours.why_eager


def trained(run, model, batches):
    """What the model gives for each batch, its gradients, and the state of the random numbers."""
    found = []
    for i, given in enumerate(batches):
        torch.manual_seed(i)
        out = run(given)
        out.float().sum().backward()
        found.append([out.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None], torch.get_rng_state()])
    return found


@MODELS
def test_autocast_casts_as_torchs_own_graphs_do(forced, make):
    """Outputs are eager's. Gradients are those of AOTAutograd, which adds up in other types than eager does."""
    forced("workers")
    model, call, inputs = make(layers=1)

    def under(model, given):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return call(model, given)

    ours, graphs, eager = (Called(copy.deepcopy(model).train(), under) for _ in range(3))
    batches = [inputs() for _ in range(3)]
    found = trained(compiled(ours), ours, batches)
    same(found, trained(torch.compile(graphs, backend="aot_eager"), graphs, batches))
    same([[out, state] for out, _, state in found], [[out, state] for out, _, state in trained(eager, eager, batches)])


@MODELS
def test_batches_of_other_sizes_need_no_more_graphs_than_torch_makes(forced, make):
    forced("workers")
    model, call, inputs = make(layers=1)  # each layer is traced anew for each size
    ours, eager, graphs = (Called(copy.deepcopy(model).train(), call) for _ in range(3))
    batches = [torch.cat([inputs() for _ in range(sizes)]) for sizes in (1, 2, 3, 2)]

    def counted(run, model):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        return trained(run, model, batches), torch._dynamo.utils.counters["stats"]["unique_graphs"]

    found, made = counted(compiled(ours), ours)
    same(found, trained(eager, eager, batches))
    if made != 2:  # one for the first size and one for all others are the fewest, so torch's, which take as long, need not be made
        assert made == counted(torch.compile(graphs, backend="aot_eager"), graphs)[1] > 0
