"""weft.generation: filters and sampling against NumPy, decoding with and without a cache, refused arguments."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft import nn
from weft.generation import filter_top_k, filter_top_p, generate, sample

pytestmark = [pytest.mark.backend, pytest.mark.usefixtures("on_each_device")]

CRITICAL = {3: 21.1, 4: 23.5, 7: 29.9}  # of chi-square with that many degrees of freedom: exceeded once in 10,000 times


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """The statistic over what has a probability; what has none must not have been drawn."""
    drawn = probabilities > 0
    assert counts[~drawn].sum() == 0
    expected = probabilities[drawn] * counts.sum()
    return float(((counts[drawn] - expected) ** 2 / expected).sum())


def top_k_reference(row: np.ndarray, k: int) -> np.ndarray:
    return np.where(row >= np.sort(row)[::-1][min(k, len(row)) - 1], row, -np.inf)


def top_p_reference(row: np.ndarray, p: float) -> np.ndarray:
    order = np.argsort(-row, kind="stable")
    sums = np.cumsum(softmax(row.astype(np.float64))[order])
    kept = 1 + int(np.searchsorted(sums, p))  # as many as it takes for the sum to reach p
    least = row[order[min(kept, len(row)) - 1]]
    return np.where(row >= least, row, -np.inf)


class Decoder(nn.Module):
    """A small causal transformer with a cache for each of its layers."""

    def __init__(self, vocabulary=11, width=16, layers=2, dropout=0.0):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            [nn.SelfAttention(width, 4, dropout, num_kv_heads=2, rope_base=100.0) for _ in range(layers)]
        )
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(layers)])
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens, cache=None):
        x = self.embedding(tokens)
        for k, (norm, attention) in enumerate(zip(self.norms, self.layers, strict=True)):
            one = None if cache is None else cache[k]
            x = x + self.drop(attention(norm(x), is_causal=cache is None, cache=one))
        return self.head(x) * 4.0

    def make_cache(self, batch, max_len):
        return [attention.make_cache(batch, max_len) for attention in self.layers]


class Chain(nn.Module):
    """A Markov chain: the logits of the next token are the row of the last one."""

    def __init__(self, table: np.ndarray):
        super().__init__()
        self.table = nn.Parameter(weft.tensor(table))

    def forward(self, tokens):
        return nn.functional.embedding(tokens, self.table)


# ---- filters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("k", [1, 2, 5, 12, 100])
def test_top_k_is_numpys(dtype, k):
    x = weft.tensor(np.random.default_rng(k).normal(size=(3, 2, 12))).to(getattr(weft, dtype))
    got = filter_top_k(x, k)
    assert got.dtype is x.dtype
    expected = np.apply_along_axis(top_k_reference, -1, x.double().numpy(), k)
    np.testing.assert_array_equal(got.double().numpy(), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("p", [1e-9, 0.1, 0.5, 0.9, 0.99, 1.0])
def test_top_p_is_numpys(dtype, p):
    x = weft.tensor(np.random.default_rng(1).normal(size=(20, 12)) * 2).to(getattr(weft, dtype))
    expected = np.apply_along_axis(top_p_reference, -1, x.double().numpy(), p)
    np.testing.assert_array_equal(filter_top_p(x, p).double().numpy(), expected)


def test_ties_are_kept():
    x = weft.tensor([1.0, 2.0, 2.0, 0.0])
    assert filter_top_k(x, 1).tolist() == [-np.inf, 2.0, 2.0, -np.inf]
    assert filter_top_p(x, 0.1).tolist() == [-np.inf, 2.0, 2.0, -np.inf]


def test_one_is_always_kept():
    for row in ([-np.inf, 3.0, -np.inf], [0.0, 0.0, 0.0], [-1e4, 0.0, 1e4]):
        kept = filter_top_p(weft.tensor(row), 1e-6)
        assert kept.max().item() == max(row)
    assert filter_top_p(weft.tensor([2.0]), 0.5).tolist() == [2.0]


# ---- sampling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "freedom"),
    [
        ({}, 7),
        ({"temperature": 0.5}, 7),
        ({"temperature": 2.0, "top_k": 5}, 4),
        ({"top_p": 0.9}, None),
        ({"temperature": 1.5, "top_k": 5, "top_p": 0.8}, None),
    ],
)
def test_draws_follow_the_probabilities(options, freedom):
    """Chi-square over 20,000 draws against the probabilities that NumPy computes in float64."""
    logits = np.random.default_rng(3).normal(size=8)
    scaled = logits / options.get("temperature", 1.0)
    if "top_k" in options:
        scaled = top_k_reference(scaled, options["top_k"])
    if "top_p" in options:
        scaled = top_p_reference(scaled, options["top_p"])
    probabilities = softmax(scaled)
    freedom = int((probabilities > 0).sum()) - 1 if freedom is None else freedom
    assert (probabilities > 0).sum() == freedom + 1
    rows = weft.tensor(logits.astype(np.float32)).expand(20000, 8)
    draws = sample(rows, **options, generator=weft.Generator(5)).numpy()
    assert draws.dtype == np.int64 and draws.shape == (20000,)
    assert chi_square(np.bincount(draws, minlength=8), probabilities) < CRITICAL.get(freedom, 29.9)


def test_chi_square_notices_a_wrong_temperature():
    """The test above can fail: draws at temperature 1.05 are told from those at 1."""
    logits = np.random.default_rng(3).normal(size=8) * 2
    rows = weft.tensor(logits.astype(np.float32)).expand(20000, 8)
    counts = np.bincount(sample(rows, 1.1, generator=weft.Generator(5)).numpy(), minlength=8)
    assert chi_square(counts, softmax(logits)) > CRITICAL[7]


def test_compiled_draws_are_the_eager_ones():
    logits = weft.randn(50, 9)

    def draw():
        return sample(logits, 0.8, top_k=4, top_p=0.9, generator=stream)

    stream = weft.Generator(2)
    eager = [draw().tolist() for _ in range(3)]
    stream.manual_seed(2)
    compiled = weft.compile(draw)
    assert [compiled().tolist() for _ in range(3)] == eager
    assert eager[0] != eager[1]


def test_temperature_zero_takes_the_first_of_the_largest():
    assert sample(weft.tensor([[1.0, 3.0, 3.0], [2.0, 0.0, 1.0]]), temperature=0).tolist() == [1, 0]
    assert sample(weft.tensor([0.0, 1.0]), temperature=0).tolist() == 1
    assert sample(weft.zeros(2, 3, 5)).shape == (2, 3)


# ---- decoding -------------------------------------------------------------------------------------------------------


def test_greedy_decoding_is_a_loop_of_whole_calls():
    weft.manual_seed(0)
    model = Decoder().double()
    prompt = weft.randint(0, 11, (3, 4))
    expected = prompt
    for _ in range(5):
        expected = weft.cat([expected, model(expected)[:, -1:].argmax(-1)], 1)
    for cache in (None, False):
        assert generate(model, prompt, 5, temperature=0, cache=cache).tolist() == expected.tolist()
    one = generate(model, prompt[1].to(weft.int32), 5, temperature=0)
    assert one.dtype is weft.int64 and one.tolist() == expected[1].tolist()


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_k": 5}, {"temperature": 1.3, "top_p": 0.9}])
def test_numbers_are_the_same_with_and_without_a_cache(options):
    weft.manual_seed(1)
    model = Decoder().double()
    prompt = weft.randint(0, 11, (4, 3))
    runs = [generate(model, prompt, 20, cache=cache, generator=weft.Generator(9), **options) for cache in (None, False)]
    assert runs[0].tolist() == runs[1].tolist()
    assert runs[0].shape == (4, 23) and runs[0][:, :3].tolist() == prompt.tolist()
    other = generate(model, prompt, 20, generator=weft.Generator(10), **options)
    assert other.tolist() != runs[0].tolist()

    cache = model.make_cache(4, 22)
    with weft.no_grad():
        whole = model(runs[0][:, :-1]).numpy()
        parts = [model(runs[0][:, start:end], cache=cache).numpy() for start, end in ((0, 3), (3, 4), (4, 9), (9, 22))]
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, rtol=1e-12, atol=1e-12)


def test_transitions_follow_the_table():
    """Chi-square of the transitions of a Markov chain, temperature and top-k included."""
    table = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)
    prompt = weft.tensor(np.arange(300) % 6).unsqueeze(1)
    tokens = generate(Chain(table), prompt, 60, temperature=0.8, top_k=4, generator=weft.Generator(1)).numpy()
    for start in range(6):
        rows, columns = np.nonzero(tokens[:, :-1] == start)
        counts = np.bincount(tokens[rows, columns + 1], minlength=6)
        probabilities = softmax(top_k_reference(table[start].astype(np.float64) / np.float64(0.8), 4))
        assert counts.sum() > 500 and chi_square(counts, probabilities) < CRITICAL[3]


def test_a_cache_goes_on_where_it_stopped():
    weft.manual_seed(2)
    model = Decoder().double()
    prompt = weft.randint(0, 11, (2, 3))
    at_once = generate(model, prompt, 9, temperature=0)
    cache = model.make_cache(2, 40)
    first = generate(model, prompt, 4, temperature=0, cache=cache)
    assert cache[0].length.item() == 6  # the last token is in the result, and not in the cache
    second = generate(model, first[:, -1:], 5, temperature=0, cache=cache)
    assert weft.cat([first, second[:, 1:]], 1).tolist() == at_once.tolist()


def test_stop_tokens_end_rows():
    """0 -> 1 -> 2 -> 3 -> 4 -> 0 for sure; rows begin at different places."""

    def successor(tokens):
        return nn.functional.one_hot((tokens + 1) % 5, 5).float() * 100.0

    prompt = weft.tensor([[0], [2]])
    assert generate(successor, prompt, 6, stop=4).tolist() == [[0, 1, 2, 3, 4], [2, 3, 4, 4, 4]]
    assert generate(successor, prompt, 6, stop=[3, 1]).tolist() == [[0, 1], [2, 3]]
    assert generate(successor, prompt, 2, stop=4).tolist() == [[0, 1, 2], [2, 3, 4]]
    assert generate(successor, weft.tensor([4]), 3, stop=4).tolist() == [
        4,
        0,
        1,
        2,
    ]  # that of the prompt does not count
    before = weft.counters()["plans_run"]
    assert generate(successor, prompt, 500, temperature=0, stop=[4]).shape == (2, 5)
    assert weft.counters()["plans_run"] - before < 60  # it has ended long before


@pytest.mark.parametrize("cache", [None, False])
def test_a_token_costs_one_run_and_no_transfer(cache):
    """Two traces, of the prompt and of a token, serve all lengths; the host reads nothing between tokens."""
    model = Decoder()
    prompt = weft.randint(0, 11, (2, 3))
    weft.eval(prompt, *model.parameters())
    spent = []
    for new in (10, 10, 30):
        before = weft.counters()
        generate(model, prompt, new, temperature=0.9, top_k=3, cache=cache)
        after = weft.counters()
        spent.append({name: after[name] - before[name] for name in ("traces", "plans_run", "downloads")})
    assert spent[1]["traces"] == spent[2]["traces"] == 2
    assert spent[2]["downloads"] == spent[1]["downloads"] <= 1
    assert spent[2]["plans_run"] - spent[1]["plans_run"] == 20


def test_the_model_computes_in_evaluation_mode_and_keeps_its_own():
    weft.manual_seed(0)
    model = Decoder(dropout=0.5)
    model.norms.eval()
    modes = [module.training for module in model.modules()]
    prompt = weft.randint(0, 11, (2, 3))
    runs = [generate(model, prompt, 8, temperature=0).tolist() for _ in range(2)]
    assert runs[0] == runs[1]
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())


def test_no_new_tokens_is_the_prompt():
    assert generate(Decoder(), weft.tensor([[1, 2]]), 0).tolist() == [[1, 2]]


# ---- errors ---------------------------------------------------------------------------------------------------------

PROMPT = [[1, 2]]
REFUSED = [
    ({"temperature": -1.0}, "temperature=-1.0; expected 0, or a finite number above"),
    ({"temperature": float("nan")}, "temperature=nan"),
    ({"temperature": "hot"}, "temperature='hot'"),
    ({"top_k": 0}, "top_k=0; expected a whole number of at least 1"),
    ({"top_k": 2.5}, "top_k=2.5"),
    ({"top_p": 0.0}, "top_p=0.0; expected a number above 0 and up to 1"),
    ({"top_p": 1.5}, "top_p=1.5"),
    ({"max_new_tokens": -1}, "max_new_tokens=-1; expected a whole number from 0 on"),
    ({"max_new_tokens": True}, "max_new_tokens=True"),
    ({"stop": "end"}, "stop='end'; expected a token"),
    ({"stop": [1.5]}, r"stop=\[1.5\]"),
    ({"tokens": [1, 2]}, "tokens of type list; expected a tensor of whole numbers"),
    ({"tokens": (1.0, 2.0)}, "tokens of type float32"),
    ({"tokens": [[[1]]]}, "tokens of shape"),
    ({"tokens": [[]]}, "with a token at least"),
    ({"cache": "yes"}, "cache='yes'; expected None, False, or what"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[message[:24] for _, message in REFUSED])
def test_bad_arguments_are_refused(given, message):
    options = {"tokens": PROMPT, "max_new_tokens": 3, **given}
    tokens = options.pop("tokens")
    if tokens != [1, 2]:
        tokens = weft.tensor(tokens, dtype=weft.float32 if tokens == (1.0, 2.0) else weft.int64)
    with pytest.raises(weft.WeftError, match=message):
        generate(Decoder(), tokens, **options)


def test_bad_models_and_caches_are_refused():
    prompt = weft.tensor(PROMPT)
    with pytest.raises(weft.ShapeError, match=r"a model that returns a tensor of shape .*; expected logits of shape"):
        generate(lambda tokens: tokens.float(), prompt, 3)
    with pytest.raises(weft.ShapeError, match="a model that returns a tuple"):
        generate(lambda tokens: (tokens, None), prompt, 3)
    with pytest.raises(weft.RangeError, match=r"cache=True with a model of type function; .*make_cache"):
        generate(lambda tokens: tokens, prompt, 3, cache=True)
    model = Decoder()
    with pytest.raises(weft.RangeError, match="a cache of 3 positions; expected one of 4 at least"):
        generate(model, prompt, 3, cache=model.make_cache(1, 3))
    for value in (float("nan"), float("inf")):
        with pytest.raises(weft.RangeError, match="logits that are NaN or infinite"):
            generate(lambda tokens, value=value: weft.full((*tokens.shape, 4), value), prompt, 3)


def test_bad_logits_are_refused():
    for call in (lambda x: sample(x), lambda x: filter_top_k(x, 1), lambda x: filter_top_p(x, 0.5)):
        with pytest.raises(weft.DTypeError, match="logits of type int64; expected a tensor of floats"):
            call(weft.tensor([1, 2]))
        with pytest.raises(weft.ShapeError, match="at least one logit in a row"):
            call(weft.zeros(2, 0))
        with pytest.raises(weft.ShapeError, match=r"logits of shape \(\)"):
            call(weft.tensor(1.0))


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-40, 1e-60, 5e-324])
@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.9}])
def test_a_tiny_temperature_takes_the_largest(on_each_device, temperature, options):
    logits = weft.tensor([[0.0, 2.0, 1.0], [-5e30, -7.0, -float("inf")], [3e38, 0.0, -3e38]])
    assert weft.generation.sample(logits, temperature, **options).tolist() == [1, 1, 0]
    step = weft.compile(lambda x: weft.generation.sample(x, temperature, **options))
    assert step(logits).tolist() == [1, 1, 0]


def test_no_new_tokens_have_the_dtype_of_new_ones(on_each_device):
    tokens = weft.tensor([1, 2], dtype=weft.int32, device=on_each_device)

    def model(given):
        return nn.functional.one_hot((given + 1) % 5, 5).float()

    for count in (0, 2):
        assert weft.generation.generate(model, tokens, count, temperature=0).dtype is weft.int64
