"""Live decoding: sound that comes in pieces, words that come as soon as they are known.

A `StreamingDecoder` holds what streams share: the model, and its context states embedded once. A
`Stream` holds everything that is one stream's. Encoder and search run in blocks of a fixed number
of frames, counted from the start of a segment, so that pieces of any sizes give the same result.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor, nn

from midge.decoding.decoded import Alternative, DecodedTranscript, joined
from midge.decoding.endpointing import EndpointConfig
from midge.decoding.events import EndReason, Partial, Segment
from midge.decoding.late_decoding import bounded_rules, phrase_decoder
from midge.decoding.live_alternatives import AlternativesSearch
from midge.decoding.live_lattices import LiveLattice
from midge.decoding.offline import PHRASE_BONUS, OfflineDecoder
from midge.decoding.open_segment import Inputs, OpenSegment
from midge.encoders import ConformerConfig, join_states, split_state
from midge.lattices import SearchState
from midge.models import BestPathRules, Recognizer, Transcript
from midge.models.best_paths import MARGIN, MAX_TAIL_SECONDS

BLOCK_SIZE = 4
"""Frames that are encoded together. A live stream waits for as many, 0.12 s at 30 ms a frame; with
larger blocks words cost less and come later."""
LONG_SEGMENT_SECONDS = 600.0
"""Of a longer segment an encoder without a limit to its left context says that it grows."""
_PIECE_SECONDS = 10.0


class StreamingDecoder:
    """A recognizer ready for any number of streams, by the best path.

    The parameters are read once, here; later training does not reach the search.

    Args:
        recognizer: with a streaming encoder and a finite label context, in evaluation mode.
        margin: how far below the best, in nats, a state may fall; see `BestPathSearch`.
        max_tail_seconds: how much may stay uncommitted; None is no limit.
        block_size: frames that are encoded together.

    Raises:
        ValueError: for a recognizer that cannot run live, or a number out of range.

    Example:
        >>> import midge, numpy as np
        >>> tokens = midge.build_tokens(midge.TokensConfig(), [("a", "one two")])
        >>> config = midge.RecognizerConfig(
        ...     encoder=midge.LSTMConfig(num_layers=1, size=8),
        ...     lattice=midge.LatticeConfig(context_size=1, hidden_size=8, rnn_size=8),
        ... )
        >>> decoder = StreamingDecoder(midge.Recognizer(config, tokens).eval())
        >>> stream = decoder.stream(sample_rate=16000)
        >>> for _ in range(10):
        ...     stream.accept(np.zeros(1600, np.float32))
        >>> stream.result().seconds, stream.finish().seconds
        (1.0, 1.0)
    """

    def __init__(
        self,
        recognizer: Recognizer,
        *,
        margin: float = MARGIN,
        max_tail_seconds: float | None = MAX_TAIL_SECONDS,
        block_size: int = BLOCK_SIZE,
    ) -> None:
        """Checks the arguments, and embeds the context states."""
        _check_live(recognizer)
        if block_size < 1:
            raise ValueError(f"block_size should be at least 1 frame, got {block_size}")
        self.recognizer = recognizer
        self.block_size = block_size
        self._rules = BestPathRules(margin=margin, max_tail_seconds=max_tail_seconds)
        self._has_warned = False
        self._plain_lattice = self._new_lattice(0.0)
        # A lattice lives as long as a stream that uses it.
        self._lattices: WeakValueDictionary[float, LiveLattice] = WeakValueDictionary()
        self._lattices[0.0] = self._plain_lattice

    def stream(
        self,
        sample_rate: int,
        *,
        endpointing: EndpointConfig | None = None,
        blank_penalty: float = 0.0,
        has_confidence: bool = False,
        num_best: int = 0,
        has_late_alternatives: bool = False,
        phrases: Sequence[str] = (),
        phrase_bonus: float = PHRASE_BONUS,
        segment_decoder: OfflineDecoder | None = None,
    ) -> Stream:
        """Starts a stream; see `Stream`."""
        return Stream(
            self,
            sample_rate,
            endpointing=endpointing,
            blank_penalty=blank_penalty,
            has_confidence=has_confidence,
            num_best=num_best,
            has_late_alternatives=has_late_alternatives,
            phrases=phrases,
            phrase_bonus=phrase_bonus,
            segment_decoder=segment_decoder,
        )

    @torch.no_grad()
    def step(self, streams: Sequence[Stream]) -> int:
        """Takes every stream that is ready one block further, all of them together.

        A stream's labels and times are those of the stream alone, its score up to 1e-4: matrix
        products of other sizes differ in the last bit.

        Args:
            streams: of this decoder.

        Returns:
            How many were ready; 0 if all wait for more sound.

        Raises:
            ValueError: if a stream is another decoder's.
        """
        if any(stream.decoder is not self for stream in streams):
            raise ValueError("streams should be of the decoder that steps them")
        ready = list(dict.fromkeys(stream for stream in streams if stream.is_ready))
        encoded = self._encode(ready)
        for group in _grouped(ready, lambda stream: id(stream._lattice)):
            self._search(group, [encoded[stream] for stream in group])
        for stream in ready:
            stream._settle()
        return len(ready)

    def _encode(self, streams: Sequence[Stream]) -> dict[Stream, Tensor]:
        """The encoder frames [m, output_size] of the next block of each stream."""
        blocks = {stream: stream._inputs.take(self.block_size) for stream in streams}
        look_ahead = self.recognizer.encoder.look_ahead
        encoded: dict[Stream, Tensor] = {}
        for group in _grouped(
            streams,
            # The encoder wants streams that are equally far behind their input.
            lambda each: (len(blocks[each]), min(each._open.num_inputs, look_ahead)),
        ):
            outputs = self._encode_together(group, [blocks[stream] for stream in group])
            encoded.update(zip(group, outputs, strict=True))
        return encoded

    def _encode_together(
        self, streams: Sequence[Stream], blocks: Sequence[Sequence[Tensor]]
    ) -> list[Tensor]:
        encoder = self.recognizer.encoder
        nothing = self.recognizer.front_end.mean.new_zeros(0, encoder.input_size)
        flat = [frame for block in blocks for frame in block]
        frames = (torch.stack(flat) if flat else nothing).view(
            len(blocks), len(blocks[0]), encoder.input_size
        )
        segments = [stream._open for stream in streams]
        state = segments[0].encoder_state
        if len(segments) > 1:
            state = join_states([segment.encoder_state for segment in segments])
        outputs, state = encoder.step(frames, state)
        states = [state] if len(segments) == 1 else split_state(state)
        found = []
        for stream, segment, part, output in zip(streams, segments, states, outputs, strict=True):
            segment.encoder_state = part
            segment.num_inputs += frames.shape[1]
            if stream._is_last_block:
                output = torch.cat((output, encoder.finish(part)[0]))
            found.append(output)
        return found

    def _search(self, streams: Sequence[Stream], encoded: Sequence[Tensor]) -> None:
        """Takes streams that share a search through their encoder frames."""
        segments = [stream._open for stream in streams]
        num_frames = torch.tensor([len(frames) for frames in encoded])
        frames = nn.utils.rnn.pad_sequence(list(encoded), batch_first=True)
        state = segments[0].search_state
        if len(segments) > 1:
            state = SearchState.join([segment.search_state for segment in segments])
        search = streams[0]._lattice.search
        state = search.step(frames, num_frames, state)
        found = search.partial(state)
        states = [state] if len(segments) == 1 else state.split()
        for segment, part, path, heard in zip(segments, states, found, encoded, strict=True):
            segment.step(part, path, heard)

    def _warn_of_growth(self, seconds: float) -> None:
        """Says once that a segment of this length is too long for the encoder's memory."""
        if self._has_warned or seconds <= LONG_SEGMENT_SECONDS:
            return
        config = self.recognizer.config.encoder
        if isinstance(config, ConformerConfig) and config.left_context is None:
            self._has_warned = True
            warnings.warn(
                f"a segment is longer than {LONG_SEGMENT_SECONDS / 60:g} minutes, and the encoder "
                "keeps all of it: memory and time grow until it ends. Cut the stream at pauses "
                "(endpointing), or train with a number as encoder.left_context",
                RuntimeWarning,
                stacklevel=2,
            )

    def _lattice_for(self, blank_penalty: float) -> LiveLattice:
        """The lattice with a penalty, shared by all streams that have it."""
        lattice = self._lattices.get(blank_penalty)
        if lattice is None:
            lattice = self._lattices[blank_penalty] = self._new_lattice(blank_penalty)
        return lattice

    def _new_lattice(self, blank_penalty: float) -> LiveLattice:
        return LiveLattice(self.recognizer, self._rules, blank_penalty)


class Stream:
    """A recording that comes in pieces.

    Fed in pieces of any size it ends with what it gives for the whole at once: the same labels,
    times and score. No silence at the end is needed; the front end adds its own.

    With endpointing it is cut into segments. A new segment starts in the middle of the pause (at
    most half of `EndpointConfig.pause` before its end): it hears that part again, so that a word
    that has just begun is not lost. Encoder and label context start afresh there, as at the
    beginning of an utterance of the training data.

    Args:
        decoder: what it runs on; for a recognizer one is made, which takes a while.
        sample_rate: of the samples to come, in hertz; any.
        endpointing: where to cut it into segments; None leaves it whole.
        blank_penalty: see `with_blank_penalty`.
        has_confidence: whether words get their posterior probabilities.
        num_best: how many alternatives each segment that is over lists.
        has_late_alternatives: whether segments come without their alternatives, and `take_searches`
            gives what finds them: a search may take longer than the segment was long.
        phrases: that are to be expected. All words of a segment then stay tentative until it ends,
            and become those of `OfflineDecoder` by beam with the same phrases, its alternatives
            too. That takes about a tenth of the segment's length; a segment ends after 20 seconds
            at the latest.
        phrase_bonus: for each label of a phrase, in nats.
        segment_decoder: of the same recognizer, such as one by sum-path or with a language model.
            It decodes each segment when it ends and gives its words, alternatives (as many as it
            lists, whatever `num_best` is) and confidences; until then all words are tentative. The
            frames of a segment are kept, so a long stream needs endpoints.

    Raises:
        ValueError: if an argument does not fit.
    """

    def __init__(
        self,
        decoder: StreamingDecoder | Recognizer,
        sample_rate: int,
        *,
        endpointing: EndpointConfig | None = None,
        blank_penalty: float = 0.0,
        has_confidence: bool = False,
        num_best: int = 0,
        has_late_alternatives: bool = False,
        phrases: Sequence[str] = (),
        phrase_bonus: float = PHRASE_BONUS,
        segment_decoder: OfflineDecoder | None = None,
    ) -> None:
        """Starts the stream."""
        self.decoder = (
            decoder if isinstance(decoder, StreamingDecoder) else StreamingDecoder(decoder)
        )
        self.sample_rate = sample_rate
        recognizer = self.decoder.recognizer
        if endpointing is not None and not recognizer.lattice.alignment.has_blank:
            raise ValueError("endpointing should be None for a model without blank: it never waits")
        if num_best < 0:
            raise ValueError(f"num_best should be at least 0, got {num_best}")
        if segment_decoder is not None and segment_decoder.recognizer is not recognizer:
            raise ValueError("segment_decoder should be of the stream's recognizer")
        if segment_decoder is not None and phrases:
            raise ValueError("phrases should be given to the segment_decoder")
        self._recognizer = recognizer
        self._endpointing = bounded_rules(endpointing) if phrases else endpointing
        self._has_confidence = has_confidence
        self._num_best = num_best
        self._has_late_alternatives = has_late_alternatives
        self._searches: list[AlternativesSearch] = []
        self._lattice = self.decoder._lattice_for(blank_penalty)
        self._segment_decoder = segment_decoder
        self._num_texts = num_best if segment_decoder is None else None
        if phrases:
            self._segment_decoder = phrase_decoder(
                recognizer,
                phrases,
                phrase_bonus,
                blank_penalty=blank_penalty,
                has_confidence=has_confidence,
                num_best=num_best,
            )
        self._features = recognizer.front_end.stream(sample_rate)
        # What a new segment may have to hear again.
        num_kept = (
            0 if self._endpointing is None else self._most_rewound() + recognizer.encoder.look_ahead
        )
        self._inputs = Inputs(num_kept)
        self._num_samples = 0
        self._num_decoded = 0
        self._is_closed = False
        self._is_done = False
        self._is_silent = False
        self._segments: list[Segment] = []
        self._open = self._new_segment(0)

    @property
    def seconds(self) -> float:
        """Length of the sound so far."""
        return self._num_samples / self.sample_rate

    @property
    def decoded_seconds(self) -> float:
        """How much of it has been decoded. What a new segment hears again counts once."""
        if self._is_done:
            return self.seconds
        return min(self.seconds, self._num_decoded * self._recognizer.front_end.frame_seconds)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments that are over. Without endpointing there is one, after the end."""
        return tuple(self._segments)

    def accept(self, samples: np.ndarray) -> None:
        """Hears more, and decodes what can be.

        Args:
            samples: [num_samples] mono, floats in [-1, 1]; any number, also none.

        Raises:
            ValueError: if the samples are no such thing, or the stream is finished.
        """
        size = max(1, round(_PIECE_SECONDS * self.sample_rate))
        # In pieces: the features of hours would not fit.
        for first in range(0, max(1, len(samples)), size):
            self.feed(samples[first : first + size])
            self._catch_up()

    def result(self, *, is_sure: bool = True) -> Partial:
        """What the current segment seems to say so far; after the end, what it said.

        Args:
            is_sure: whether confidences are computed anew, which takes longer than all else, or are
                those of the last time; a word that was not there then has none.
        """
        if self._is_done:
            last = self._segments[-1]
            words, num_committed = last.transcript.words, len(last.transcript.words)
        else:
            words, num_committed = self._open.words(self._limit, is_sure=is_sure)
        return Partial(
            words=words,
            num_committed=num_committed,
            segment=self._open.number,
            seconds=self.seconds,
            num_cuts=self._open.num_cuts,
            decoded_seconds=self.decoded_seconds,
        )

    def finish(self) -> Transcript:
        """Ends the stream and decodes the rest.

        Returns:
            What was said in all of it; segments are joined.
        """
        self.close()
        self._catch_up()
        return self.transcript()

    def feed(self, samples: np.ndarray) -> None:
        """Hears more without decoding, for streams that are stepped together."""
        if self._is_closed:
            raise ValueError("the stream is finished: start a new one")
        frames = self._features.accept(samples)
        self._num_samples += len(samples)
        self._inputs.append(frames)

    def close(self) -> None:
        """Says that no more sound comes, for streams that are stepped together."""
        if not self._is_closed:
            self._inputs.append(self._features.finish())
            self._is_closed = True

    @property
    def is_ready(self) -> bool:
        """Whether `StreamingDecoder.step` would take it further."""
        if self._is_done:
            return False
        return self._is_closed or len(self._inputs) >= self.decoder.block_size

    def take_searches(self) -> list[AlternativesSearch]:
        """What finds the alternatives of the segments that ended since the last call."""
        searches, self._searches = self._searches, []
        return searches

    def transcript(self) -> Transcript:
        """What was said in all of a stream that is closed and decoded to its end.

        Raises:
            ValueError: if it is not.
        """
        if not self._is_done:
            raise ValueError("the stream has no transcript before its end: call finish()")
        if len(self._segments) == 1:
            return self._segments[0].transcript
        whole = joined([segment.transcript for segment in self._segments])
        return dataclasses.replace(whole, seconds=self.seconds)

    def _catch_up(self) -> None:
        while self.is_ready:
            self.decoder.step([self])

    @property
    def _limit(self) -> float:
        """No word ends later: the silence that the front end adds is not part of the stream."""
        return self.seconds if self._is_closed else math.inf

    @property
    def _is_last_block(self) -> bool:
        """Whether the block that was taken is the last of the stream."""
        return self._is_closed and not len(self._inputs)

    def _settle(self) -> None:
        """After a block: words that are committed, and the end of the segment or the stream."""
        self._num_decoded = max(self._num_decoded, self._open.first + self._open.num_frames)
        self._open.take_committed()
        if self._is_last_block:
            self._add_segment(self.seconds, "end")
            self._is_done = True
            return
        frame_seconds = self._recognizer.front_end.frame_seconds
        self.decoder._warn_of_growth(self._open.num_frames * frame_seconds)
        if self._endpointing is not None:
            self._end_segment(self._endpointing)

    def _end_segment(self, rules: EndpointConfig) -> None:
        """Starts a new segment if the rules say so."""
        segment, frame_seconds = self._open, self._recognizer.front_end.frame_seconds
        heard, last = segment.num_frames, segment.last_label_frame()
        num_trailing = heard if last is None else heard - 1 - last
        trailing = None if last is None else num_trailing * frame_seconds
        reason = rules.reason(heard=heard * frame_seconds, trailing=trailing)
        if reason is None:
            return
        first = heard - min(num_trailing // 2, self._most_rewound())
        # In one silence one segment: the next ones only forget.
        if not (reason == "silence" and self._is_silent):
            self._add_segment((segment.first + first) * frame_seconds, reason)
        self._is_silent = reason == "silence"
        self._inputs.rewind(segment.num_inputs - first)
        self._open = self._new_segment(segment.first + first)

    def _add_segment(self, end: float, reason: EndReason) -> None:
        start = self._segments[-1].end if self._segments else 0.0
        end = min(end, self._limit)
        transcript = self._open.close(start, end, self._limit, self._num_texts)
        alternatives: tuple[Alternative, ...] = ()
        if self._segment_decoder is not None and isinstance(transcript, DecodedTranscript):
            alternatives = transcript.segments[0].alternatives
        search = self._open.alternatives_search()
        if search is not None and self._has_late_alternatives:
            self._searches.append(search)
        elif search is not None:
            alternatives = search.run()
        self._segments.append(
            Segment(self._open.number, start, end, transcript, reason, alternatives)
        )

    def _new_segment(self, first: int) -> OpenSegment:
        """A segment that begins at a frame of the stream."""
        return self._lattice.open_segment(
            len(self._segments),
            first,
            has_confidence=self._has_confidence,
            num_best=self._num_best,
            decoder=self._segment_decoder,
        )

    def _most_rewound(self) -> int:
        """The most frames that a new segment hears again, besides the encoder's look-ahead."""
        assert self._endpointing is not None
        return int(self._endpointing.pause / self._recognizer.front_end.frame_seconds / 2)


def _check_live(recognizer: Recognizer) -> None:
    if not recognizer.encoder.is_streaming:
        raise ValueError(
            "recognizer should have a streaming encoder to run live, got a full-context one; "
            "transcribe whole recordings with it, or train with encoder.is_streaming = true "
            "(LSTM: encoder.is_bidirectional = false)"
        )
    if not recognizer.can_run_live:
        raise ValueError(
            "recognizer should move along frames, with a finite label context and a bounded number "
            f"of labels per frame, to run live; got {recognizer.lattice.context} and "
            f"{recognizer.lattice.alignment}; transcribe whole recordings with it, or train with "
            "lattice.context_size = 2 and a number as lattice.max_labels_per_frame"
        )
    if recognizer.training:
        raise ValueError("recognizer should be in evaluation mode: call eval() before")


def _grouped(streams: Iterable[Stream], key: Callable[[Stream], Hashable]) -> list[list[Stream]]:
    """Streams of equal keys together."""
    groups: dict[Hashable, list[Stream]] = {}
    for stream in streams:
        groups.setdefault(key(stream), []).append(stream)
    return list(groups.values())
