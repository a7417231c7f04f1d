"""What holds for every encoder: shapes, padding, streams, causality, precision."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from midge.encoders import ConformerConfig, EncoderStream, LSTMConfig, join_states, split_state
from midge.encoders.linear import bfloat16_products
from tolerances import EXACT, SINGLE

INPUT_SIZE = 6
TINY = {"num_layers": 2, "size": 16, "num_heads": 2, "kernel_size": 5}

STREAMING = {
    "causal": ConformerConfig(**TINY),
    "limited": ConformerConfig(**TINY, left_context=4),
    "look-ahead": ConformerConfig(**TINY, look_ahead=3),
    "limited, look-ahead": ConformerConfig(**TINY, left_context=2, look_ahead=4),
    "relative": ConformerConfig(**TINY, positions="relative"),
    "relative, limited, look-ahead": ConformerConfig(
        **TINY, positions="relative", left_context=4, look_ahead=1, projection_size=7
    ),
    "kernel of 4": ConformerConfig(**TINY | {"kernel_size": 4}, look_ahead=2),
    "kernel of 1": ConformerConfig(**TINY | {"kernel_size": 1}),
    "lstm": LSTMConfig(num_layers=2, size=8),
    "one lstm layer": LSTMConfig(num_layers=1, size=8),
}
FULL = {
    "full": ConformerConfig(**TINY, is_streaming=False),
    "full, limited": ConformerConfig(**TINY, is_streaming=False, left_context=3),
    "full, relative": ConformerConfig(**TINY, is_streaming=False, positions="relative"),
    "bidirectional lstm": LSTMConfig(num_layers=2, size=8, is_bidirectional=True),
}
ALL = STREAMING | FULL


def newly_built(name, dtype=torch.float64):
    torch.manual_seed(1)
    return ALL[name].build(INPUT_SIZE).eval().to(dtype)


built = functools.cache(newly_built)
"""For tests that leave the encoder as it is."""


def noise(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def stepped(encoder, frames, sizes):
    """The output for a stream [batch, n, size] that comes in pieces of some sizes."""
    state, parts = encoder.start(len(frames)), []
    for piece in frames.split(sizes, 1):
        part, state = encoder.step(piece, state)
        parts.append(part)
    return torch.cat((*parts, encoder.finish(state)), 1)


def sizes_of_pieces(num_frames):
    """Cuts of a stream into pieces, empty ones too."""
    cuts = st.lists(st.integers(0, num_frames), max_size=6).map(
        lambda cuts: [0, *sorted(cuts), num_frames]
    )
    return cuts.map(lambda cuts: [b - a for a, b in zip(cuts, cuts[1:], strict=False)])


@pytest.mark.parametrize("name", ALL)
def test_one_frame_out_for_each_in(name):
    encoder, config = built(name), ALL[name]
    encoded = encoder(noise(2, 9, INPUT_SIZE), torch.tensor([9, 5]))
    assert encoded.shape == (2, 9, config.output_size) == (2, 9, encoder.output_size)
    assert encoder.input_size == INPUT_SIZE
    assert encoder.num_parameters == sum(x.numel() for x in encoder.state_dict().values())
    assert encoder.is_streaming == config.is_streaming == (name in STREAMING)


@pytest.mark.parametrize("name", ALL)
def test_padding_changes_nothing_and_gives_zeros(name):
    encoder = built(name)
    frames, num_frames = noise(4, 11, INPUT_SIZE), torch.tensor([11, 6, 1, 0])
    expected = encoder(frames, num_frames)
    for junk in (torch.nan, torch.inf, 1e30):
        changed = frames.clone()
        for row, length in zip(changed, num_frames, strict=True):
            row[length:] = junk
        assert torch.equal(encoder(changed, num_frames), expected)
    for row, full, length in zip(frames, expected, num_frames.tolist(), strict=True):
        assert not full[length:].any()
        alone = encoder(row[None, :length], torch.tensor([length]))
        torch.testing.assert_close(full[None, :length], alone, **EXACT)


@pytest.mark.parametrize("name", ALL)
def test_any_batch_dims(name):
    encoder = built(name)
    frames, num_frames = noise(2, 3, 5, INPUT_SIZE), torch.tensor([[5, 3, 1], [0, 5, 2]])
    expected = encoder(frames, num_frames)
    for i in range(2):
        torch.testing.assert_close(encoder(frames[i], num_frames[i]), expected[i], **EXACT)
        for j in range(3):
            single = encoder(frames[i, j], num_frames[i, j])
            torch.testing.assert_close(single, expected[i, j], **EXACT)
    assert encoder(frames[:, :0], num_frames[:, :0]).shape == (2, 0, 5, encoder.output_size)
    nothing = encoder(frames[0, :, :0], torch.zeros(3, dtype=torch.int64))
    assert nothing.shape == (3, 0, encoder.output_size)


@pytest.mark.parametrize("name", ALL)
def test_gradients_are_finite_and_reach_every_parameter(name):
    encoder = newly_built(name).train()
    frames = noise(3, 8, INPUT_SIZE)
    frames[1, 4:] = torch.nan
    frames.requires_grad_()
    encoder(frames, torch.tensor([8, 4, 0])).square().sum().backward()
    for parameter_name, parameter in encoder.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.any() or "projection.bias" in parameter_name, parameter_name
    assert frames.grad.isfinite().all()
    assert not frames.grad[1, 4:].any()


@pytest.mark.parametrize("name", ALL)
def test_single_precision_is_near_double(name):
    double, single = built(name), built(name, torch.float32)
    frames, num_frames = noise(2, 40, INPUT_SIZE), torch.tensor([40, 33])
    encoded = single(frames.float(), num_frames)
    assert encoded.dtype == torch.float32
    torch.testing.assert_close(encoded.double(), double(frames, num_frames), **SINGLE)


@pytest.mark.parametrize("has_autocast", [True, False])
@pytest.mark.parametrize("name", ALL)
def test_bfloat16_keeps_the_dtype_and_is_near(name, has_autocast):
    encoder = newly_built(name, torch.float32)
    frames, num_frames = noise(2, 20, INPUT_SIZE, dtype=torch.float32), torch.tensor([20, 12])
    expected = encoder(frames, num_frames)
    autocast = torch.autocast("cpu", torch.bfloat16)
    with autocast if has_autocast else bfloat16_products("cpu"):
        encoded = encoder(frames, num_frames)
    encoded.sum().backward()
    assert encoded.dtype == torch.float32
    assert all(x.grad.isfinite().all() for x in encoder.parameters())
    torch.testing.assert_close(encoded, expected, rtol=0.1, atol=0.1)
    is_lower = not torch.equal(encoded, expected)
    assert is_lower == isinstance(ALL[name], ConformerConfig)  # it did run in bfloat16


@pytest.mark.parametrize("name", STREAMING)
def test_a_stream_runs_under_bfloat16_autocast(name):
    encoder = built(name, torch.float32)
    frames = noise(1, 12, INPUT_SIZE, dtype=torch.float32)
    expected = encoder(frames, torch.tensor([12]))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        encoded = stepped(encoder, frames, [5, 1, 6])
    assert encoded.dtype == torch.float32
    torch.testing.assert_close(encoded, expected, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("name", STREAMING)
@given(data=st.data(), num_frames=st.integers(0, 14), batch_size=st.integers(1, 2))
@settings(max_examples=8, deadline=None)
def test_pieces_give_what_the_whole_gives(name, data, num_frames, batch_size):
    encoder = built(name)
    frames = noise(batch_size, num_frames, INPUT_SIZE, seed=num_frames)
    whole = encoder(frames, torch.full((batch_size,), num_frames))
    in_pieces = stepped(encoder, frames, data.draw(sizes_of_pieces(num_frames)))
    torch.testing.assert_close(in_pieces, whole, **EXACT)


@pytest.mark.parametrize("name", STREAMING)
def test_pieces_in_single_precision(name):
    encoder = built(name, torch.float32)
    frames = noise(2, 140, INPUT_SIZE, dtype=torch.float32)
    whole = encoder(frames, torch.tensor([140, 140]))
    for size in (3, 130, 140):  # attention runs in blocks of 128
        in_pieces = stepped(encoder, frames, size)
        torch.testing.assert_close(in_pieces, whole, rtol=0.0, atol=1e-4)


@pytest.mark.parametrize("name", STREAMING)
def test_the_future_beyond_the_look_ahead_changes_no_bit(name):
    encoder = built(name, torch.float32)
    frames, num_frames = noise(1, 16, INPUT_SIZE, dtype=torch.float32), torch.tensor([16])
    expected = encoder(frames, num_frames)
    for t in range(15):
        changed = frames.clone()
        changed[:, t + 1 :] = noise(1, 15 - t, INPUT_SIZE, dtype=torch.float32, seed=1)
        last = t + 1 - encoder.look_ahead  # the first output that may hear frame t + 1
        encoded = encoder(changed, num_frames)
        assert torch.equal(encoded[:, : max(0, last)], expected[:, : max(0, last)])
        assert not torch.equal(encoded[:, max(0, last)], expected[:, max(0, last)])


@pytest.mark.parametrize("name", STREAMING)
def test_an_output_depends_on_exactly_its_look_ahead(name):
    encoder = built(name)
    frames = noise(1, 20, INPUT_SIZE).requires_grad_()
    encoded = encoder(frames, torch.tensor([20]))
    for t in range(14):
        (gradient,) = torch.autograd.grad(encoded[0, t].square().sum(), frames, retain_graph=True)
        heard = gradient[0].abs().sum(-1).nonzero().flatten()
        assert heard.max() == t + encoder.look_ahead


@pytest.mark.parametrize("name", FULL)
def test_full_context_hears_the_last_frame_at_once(name):
    encoder = built(name)
    frames = noise(1, 20, INPUT_SIZE).requires_grad_()
    encoded = encoder(frames, torch.tensor([20]))
    (gradient,) = torch.autograd.grad(encoded[0, 0].square().sum(), frames)
    assert gradient[0, -1].any()


@pytest.mark.parametrize("name", STREAMING)
def test_streams_of_different_ages_are_joined_and_split(name):
    encoder = built(name)
    streams = [noise(30, INPUT_SIZE, seed=seed) for seed in range(3)]
    expected = [encoder(frames, torch.tensor(30)) for frames in streams]
    ages = (encoder.look_ahead, 9, 20)
    states, outputs = [], []
    for frames, age in zip(streams, ages, strict=True):
        output, state = encoder.step(frames[None, :age], encoder.start(1))
        states.append(state)
        outputs.append([output[0]])
    for chunk in range(2):  # joined, split and joined again
        pieces = [x[age + 5 * chunk :][:5] for x, age in zip(streams, ages, strict=True)]
        joined, state = encoder.step(torch.stack(pieces), join_states(states))
        states = split_state(state)
        for output, row in zip(outputs, joined, strict=True):
            output.append(row)
    for index, (frames, age) in enumerate(zip(streams, ages, strict=True)):
        rest, state = encoder.step(frames[None, age + 10 :], states[index])
        encoded = torch.cat((*outputs[index], rest[0], encoder.finish(state)[0]))
        torch.testing.assert_close(encoded, expected[index], **EXACT)


def test_states_are_split_by_sizes():
    encoder = built("limited, look-ahead")
    _, state = encoder.step(noise(3, 7, INPUT_SIZE), encoder.start(3))
    first, second = split_state(state, [1, 2])
    again = join_states([first, second])
    assert first.num_heard.tolist() == [7] and second.num_heard.tolist() == [7, 7]
    assert torch.equal(encoder.finish(again), encoder.finish(state))
    with pytest.raises(ValueError, match=r"sizes should add up to 3 streams, got \[1, 1\]"):
        split_state(state, [1, 1])
    with pytest.raises(ValueError, match="at least one state"):
        join_states([])


def test_a_young_stream_does_not_keep_the_memory_of_an_old_one():
    encoder = built("causal")
    _, old = encoder.step(noise(1, 50, INPUT_SIZE), encoder.start(1))
    _, both = encoder.step(noise(2, 2, INPUT_SIZE), join_states([old, encoder.start(1)]))
    _, young = encoder.step(noise(1, 1, INPUT_SIZE), split_state(both)[1])
    assert [layer.memory.keys.shape[1] for layer in young.layers] == [3, 3]


def test_a_step_leaves_the_old_state_as_it_was():
    encoder = built("limited, look-ahead")
    frames = noise(1, 12, INPUT_SIZE)
    _, state = encoder.step(frames[:, :6], encoder.start(1))
    first, _ = encoder.step(frames[:, 6:], state)
    encoder.step(frames[:, 6:] + 1.0, state)
    again, _ = encoder.step(frames[:, 6:], state)
    assert torch.equal(first, again)


def test_a_new_stream_with_look_ahead_is_not_stepped_with_an_older_one():
    encoder = built("look-ahead")
    _, old = encoder.step(noise(1, 8, INPUT_SIZE), encoder.start(1))
    with pytest.raises(ValueError, match="look_ahead = 3 frames, or equally many, got 0 and 3"):
        encoder.step(noise(2, 2, INPUT_SIZE), join_states([encoder.start(1), old]))


@pytest.mark.parametrize("name", ["causal", "limited, look-ahead", "relative", "lstm"])
@given(data=st.data())
@settings(max_examples=6, deadline=None)
def test_equal_blocks_give_equal_bits(name, data):
    encoder = built(name, torch.float32)
    frames = noise(23, INPUT_SIZE, dtype=torch.float32)
    outputs = []
    for sizes in ([23], data.draw(sizes_of_pieces(23))):
        stream = EncoderStream(encoder, block_size=4)
        parts = [stream.accept(piece) for piece in frames.split(sizes)]
        outputs.append(torch.cat((*parts, stream.finish())))
    assert torch.equal(*outputs)
    torch.testing.assert_close(outputs[0], encoder(frames, torch.tensor(23)), rtol=0.0, atol=1e-4)


def test_a_finished_stream_accepts_nothing():
    stream = EncoderStream(built("causal"))
    assert stream.finish().shape == (0, 16)
    with pytest.raises(ValueError, match="finished"):
        stream.accept(noise(1, INPUT_SIZE))
    with pytest.raises(ValueError, match="finished"):
        stream.finish()


@pytest.mark.parametrize("name", FULL)
def test_a_full_context_encoder_refuses_to_stream(name):
    with pytest.raises(ValueError, match="full-context encoder cannot run in a stream"):
        built(name).start(1)


@pytest.mark.parametrize("name", ALL)
def test_the_seed_decides_parameters_and_dropout(name):
    first, second = newly_built(name).train(), newly_built(name).train()
    assert all(torch.equal(a, b) for a, b in zip(*map(parameters, (first, second)), strict=True))
    frames, num_frames = noise(2, 9, INPUT_SIZE), torch.tensor([9, 5])
    torch.manual_seed(5)
    expected = first(frames, num_frames)
    torch.manual_seed(5)
    assert torch.equal(second(frames, num_frames), expected)
    assert not torch.equal(second(frames, num_frames), expected)


def parameters(encoder):
    return list(encoder.parameters())


@pytest.mark.parametrize(
    "frames, num_frames, message",
    [
        (
            torch.zeros(2, 5, 7),
            torch.tensor([5, 5]),
            r"\[\*batch, num_frames, 6\], got \[2, 5, 7\]",
        ),
        (torch.zeros(6), torch.tensor(1), "frames should be"),
        (torch.zeros(2, 5, 6), torch.tensor([5]), r"num_frames should be \[2\]"),
        (torch.zeros(2, 5, 6), torch.tensor([5, 6]), r"num_frames should be in 0\.\.5"),
        (torch.zeros(2, 5, 6), torch.tensor([5, -1]), r"num_frames should be in 0\.\.5"),
    ],
)
def test_wrong_shapes_are_refused(frames, num_frames, message):
    with pytest.raises(ValueError, match=message):
        built("causal")(frames, num_frames)


def test_wrong_shapes_of_streams_are_refused():
    encoder = built("causal")
    with pytest.raises(ValueError, match=r"frames should be \[batch, n, input_size\]"):
        encoder.step(noise(3, INPUT_SIZE), encoder.start(1))
    for wrong in (noise(1, 3, INPUT_SIZE), noise(3, INPUT_SIZE + 1)):
        with pytest.raises(ValueError, match=r"frames should be \[n, 6\]"):
            EncoderStream(encoder).accept(wrong)
    with pytest.raises(ValueError, match="block_size should be at least 1, got 0"):
        EncoderStream(encoder, 0)
    with pytest.raises(ValueError, match="input_size should be at least 1, got 0"):
        LSTMConfig().build(0)
