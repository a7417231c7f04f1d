"""The Conformer against plain loops, its configuration, and what a stream costs."""

import math

import pytest
import torch

from midge.configuration import from_table, to_table
from midge.encoders import ConformerConfig, EncoderConfig, EncoderStream, LSTMConfig
from midge.encoders.attention import SelfAttention
from midge.encoders.convolution import Convolution
from midge.encoders.dropout import Dropout
from midge.encoders.positions import RelativePositions, RotaryPositions
from tolerances import EXACT

NUM_HEADS, HEAD_SIZE, SIZE = 2, 4, 8


def noise(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def randomized(module, seed=1):
    """In double precision, with no parameter left at zero or one."""
    module = module.double().eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    return module


def angles(time, size):
    return [time * 10000.0 ** (-2 * pair / size) for pair in range(size // 2)]


def turned(vector, time):
    """A vector with its pairs (e, e + size / 2) turned by their angles, as complex numbers."""
    half = len(vector) // 2
    pairs = torch.complex(vector[:half], vector[half:])
    factors = [complex(math.cos(x), math.sin(x)) for x in angles(time, len(vector))]
    product = pairs * torch.tensor(factors, dtype=torch.complex128)
    return torch.cat((product.real, product.imag))


def score(attention, query, key, head, query_time, key_time):
    """The score of one query and one key of one head, by definition."""
    positions = attention.positions
    if isinstance(positions, RotaryPositions):
        return turned(query, query_time) @ turned(key, key_time) / math.sqrt(HEAD_SIZE)
    waves = angles(query_time - key_time, SIZE)
    waves = [math.sin(x) for x in waves] + [math.cos(x) for x in waves]
    embedded = positions.projection(torch.tensor(waves, dtype=torch.float64))
    embedded = embedded.view(NUM_HEADS, HEAD_SIZE)[head]
    by_position = (query + positions.position_bias[head]) @ embedded
    return (query @ key + by_position) / math.sqrt(HEAD_SIZE)


def attended(attention, frames, is_seen):
    """Self-attention of one utterance [T, size], frame by frame and head by head."""
    projected = attention.projection(attention.norm(frames)).view(-1, 3, NUM_HEADS, HEAD_SIZE)
    rows = []
    for t in range(len(frames)):
        seen = [s for s in range(len(frames)) if is_seen(t, s)]
        heads = []
        for head in range(NUM_HEADS):
            query = projected[t, 0, head]
            scores = [score(attention, query, projected[s, 1, head], head, t, s) for s in seen]
            heads.append(torch.stack(scores).softmax(0) @ projected[seen, 2, head])
        rows.append(torch.cat(heads))
    return attention.output(torch.stack(rows))


@pytest.mark.parametrize("left_context", [None, 1, 3])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("kind", ["rotary", "relative"])
@pytest.mark.parametrize("block_size", [3, 128])
def test_attention_against_loops(kind, is_causal, left_context, block_size, monkeypatch):
    monkeypatch.setattr("midge.encoders.attention._BLOCK_SIZE", block_size)
    positions = (
        RotaryPositions(HEAD_SIZE) if kind == "rotary" else RelativePositions(NUM_HEADS, HEAD_SIZE)
    )
    attention = randomized(
        SelfAttention(SIZE, NUM_HEADS, positions, left_context=left_context, is_causal=is_causal)
    )
    frames, num_frames = noise(2, 10, SIZE), (10, 4)

    def is_seen(t, s):
        is_near = left_context is None or t - s <= left_context
        return is_near and (s <= t or not is_causal)

    is_padding = torch.arange(10) >= torch.tensor(num_frames)[:, None]
    result = attention(frames, is_padding)
    for row, expected, length in zip(result, frames, num_frames, strict=True):
        oracle = attended(attention, expected[:length], is_seen)
        torch.testing.assert_close(row[:length], oracle, **EXACT)


@pytest.mark.parametrize("right_context", [0, 1, 2])
def test_convolution_against_loops(right_context):
    convolution = randomized(Convolution(SIZE, 5, right_context))
    frames = noise(1, 7, SIZE)
    is_padding = (torch.arange(7) >= 6)[None]
    values, gates = convolution.expand(convolution.norm(frames[0])).chunk(2, -1)
    gated = values * gates.sigmoid()
    for t in range(6):
        total = convolution.depthwise.bias.clone()
        for place in range(5):
            s = t + right_context - 4 + place
            if 0 <= s < 6:
                total += convolution.depthwise.weight[:, 0, place] * gated[s]
        normalized = convolution.depthwise_norm(total)
        expected = convolution.contract(normalized * normalized.sigmoid())
        torch.testing.assert_close(convolution(frames, is_padding)[0, t], expected, **EXACT)


@pytest.mark.parametrize("positions", ["rotary", "relative"])
def test_streaming_and_full_context_differ_in_the_right_context_alone(positions):
    settings = {"num_layers": 2, "size": 16, "num_heads": 2, "kernel_size": 7}
    forms = [
        ConformerConfig(**settings, positions=positions, is_streaming=True),
        ConformerConfig(**settings, positions=positions, is_streaming=True, look_ahead=4),
        ConformerConfig(**settings, positions=positions, is_streaming=False),
    ]
    encoders = [form.build(5).eval() for form in forms]
    assert all(form.is_parameter_matched for form in forms)
    assert len({encoder.num_parameters for encoder in encoders}) == 1
    for encoder in encoders[1:]:
        encoder.load_state_dict(encoders[0].state_dict())  # strict: the same names and shapes
    frames, num_frames = noise(1, 12, 5, dtype=torch.float32), torch.tensor([12])
    outputs = [encoder(frames, num_frames) for encoder in encoders]
    assert not torch.allclose(outputs[0], outputs[1], atol=1e-3)
    assert not torch.allclose(outputs[0], outputs[2], atol=1e-3)


def test_lstm_forms_are_not_matched_and_say_so():
    one, both = (LSTMConfig(is_bidirectional=is_both) for is_both in (False, True))
    assert not one.is_parameter_matched and not both.is_parameter_matched
    assert both.build(4).num_parameters > one.build(4).num_parameters


def test_the_defaults_are_the_papers():
    config = ConformerConfig(projection_size=640)
    assert (config.num_layers, config.size, config.num_heads, config.kernel_size) == (
        12,
        512,
        8,
        32,
    )
    assert config.output_size == 640
    assert ConformerConfig(is_streaming=False).right_contexts() == [15] * 12
    assert ConformerConfig().right_contexts() == [0] * 12
    assert ConformerConfig(look_ahead=20).right_contexts() == [15, 5] + [0] * 10


@pytest.mark.parametrize("look_ahead", [0, 3])
def test_a_stream_with_limited_left_context_costs_the_same_for_ever(look_ahead):
    config = ConformerConfig(
        num_layers=2, size=8, num_heads=2, kernel_size=5, left_context=6, look_ahead=look_ahead
    )
    encoder = config.build(3).eval()
    _, state = encoder.step(noise(1, 3, 3, dtype=torch.float32), encoder.start(1))
    shapes = [x.shape for x in tensors_of(state)]
    for seed in range(20):
        _, state = encoder.step(noise(1, 3, 3, dtype=torch.float32, seed=seed), state)
        assert [x.shape for x in tensors_of(state)] == shapes
    assert shapes == [x.shape for x in tensors_of(encoder.start(1))]


def tensors_of(state):
    for part in state:
        yield from [part] if isinstance(part, torch.Tensor) else tensors_of(part)


def test_a_long_recording_is_encoded_in_blocks_as_at_once():
    config = ConformerConfig(num_layers=1, size=8, num_heads=2, kernel_size=5, left_context=16)
    encoder = config.build(3).eval()
    frames = noise(3000, 3, dtype=torch.float32)
    stream = EncoderStream(encoder, block_size=200)
    parts = [stream.accept(piece) for piece in frames.split(333)]
    encoded = torch.cat((*parts, stream.finish()))
    whole = encoder(frames, torch.tensor(3000))
    torch.testing.assert_close(encoded, whole, rtol=0.0, atol=1e-4)


@pytest.mark.parametrize("positions", ["rotary", "relative"])
def test_positions_are_exact_after_many_hours(positions):
    config = ConformerConfig(
        num_layers=2, size=16, num_heads=2, kernel_size=3, left_context=20, positions=positions
    )
    encoder = config.build(3).eval()
    frames = noise(1, 60, 3, dtype=torch.float32)
    early, _ = encoder.step(frames, encoder.start(1))
    hours = 10_000_000  # frames of 30 ms: 83 hours
    start = encoder.start(1)
    # A stream that heard so much silence that only the time is left of it.
    old = start._replace(num_heard=start.num_heard + hours)
    late, _ = encoder.step(frames, old)
    # After both contexts have filled with the same frames, the outputs should agree.
    torch.testing.assert_close(late[:, 45:], early[:, 45:], rtol=0.0, atol=1e-4)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"num_layers": 0}, "num_layers should be at least 1, got 0"),
        ({"size": 20, "num_heads": 4}, r"size should be a multiple of 2 \* num_heads = 8, got 20"),
        ({"dropout": 1.0}, r"dropout should be in \[0, 1\), got 1.0"),
        ({"left_context": 0}, "left_context should be at least 1, got 0"),
        ({"projection_size": 0}, "projection_size should be at least 1, got 0"),
        ({"look_ahead": -1}, "look_ahead should be at least 0, got -1"),
        ({"look_ahead": 181}, "look_ahead should be at most .* = 180, .* got 181"),
        ({"look_ahead": 1, "is_streaming": False}, "look_ahead should be 0 if is_streaming"),
        ({"positions": "absolute"}, r"positions should be .*rotary.*relative.*got 'absolute'"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ConformerConfig(**settings)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"num_layers": 0}, "num_layers should be at least 1, got 0"),
        ({"size": 0}, "size should be at least 1, got 0"),
        ({"dropout": -0.1}, r"dropout should be in \[0, 1\), got -0.1"),
    ],
)
def test_wrong_lstm_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        LSTMConfig(**settings)


@pytest.mark.parametrize(
    "config",
    [
        ConformerConfig(left_context=64, look_ahead=2, positions="relative", projection_size=640),
        ConformerConfig(is_streaming=False),
        LSTMConfig(is_bidirectional=True),
    ],
)
def test_a_table_fills_the_settings(config):
    kinds = {"conformer": ConformerConfig, "lstm": LSTMConfig}
    assert set(EncoderConfig.__args__) == set(kinds.values())
    assert from_table(kinds[config.kind], to_table(config)) == config


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_dropout_drops_its_share_and_keeps_the_mean(probability):
    torch.manual_seed(0)
    dropout = Dropout(probability)
    values = torch.ones(200_001)  # no multiple of four
    dropped = dropout(values)
    deviation = math.sqrt(probability * (1 - probability) / len(values))
    assert abs((dropped == 0).double().mean() - probability) < 5 * deviation
    assert dropped.max() == pytest.approx(1 / (1 - probability), rel=1e-3)
    assert abs(dropped.double().mean() - 1) < 6 * deviation / (1 - probability)
    for shift in (1, 2, 3, 4):  # the four values of one draw are independent
        both = ((dropped == 0) & (dropped == 0).roll(shift)).double().mean()
        assert abs(both - probability**2) < 5 * deviation
    assert dropout.eval()(values) is values
    assert Dropout(0.0)(values) is values
