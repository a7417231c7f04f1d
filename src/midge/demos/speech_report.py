"""What the demonstration on speech shows: a table, and one page with everything in it."""

from __future__ import annotations

import html
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from midge.data import Utterance
from midge.decoding import Comparison, Interval, UtteranceResult, align
from midge.decoding.evaluation import ALL
from midge.demos import speech_pictures as pictures
from midge.demos import web_page
from midge.demos.homophones import FirstWords, Pair, first_words, pairs_of
from midge.demos.speech import Results, Trained
from midge.demos.speech_posteriors import decision, first_word_lattice, label_posteriors
from midge.demos.web_page import Section
from midge.drawing import draw
from midge.encoders import Encoder, LSTMConfig

_SHOWN_DIGITS = range(3, 6)  # a recording with so many words fits into a picture
_SYNTHETIC = "synthetic speech by espeak-ng, held-out voices"


def table(results: Results) -> str:
    """Word error rates of both models side by side, in plain text."""
    heading = ("synthetic speech", "utterances", "local", "global", "difference", "95 % interval")
    best_paths = ("best path: local", "global")
    rows = [(*heading, *best_paths), *map(_text_row, *_both_searches(results))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            f"{text:<{width}}" if place == 0 else f"{text:>{width}}"
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    notes = [
        f"Word error rates in %, {_SYNTHETIC}; both models after {results.plan.num_steps} steps.",
        "",
        lines[0],
        "-" * len(lines[0]),
        *lines[1:],
        "",
        f"Intervals by bootstrap over {_units(results)}. By the most probable text, summed over",
        f"all its alignments ({_search(results)}); the last columns by the best alignment alone.",
        "",
        "First words of the homophones (synthetic):",
    ]
    return "\n".join([*notes, *map(_first_words_line, results.models, _first_words(results))])


def transcription(results: Results) -> str:
    """A held-out recording as both models hear it, in plain text."""
    shown = shown_utterance(results.test)
    lines = [f"A held-out recording, {shown.audio} (synthetic):", f"  {'said':8}{shown.text}"]
    lines += [f"  {model.name:8}{_result(model, shown).hypothesis}" for model in results.models]
    return "\n".join(lines)


def page(
    results: Results, folder: Path, label_bias: Mapping[str, Any] | None, command: Sequence[str]
) -> str:
    """The page, as HTML.

    Args:
        results: of the demonstration on speech.
        folder: of the label-bias demonstration it has the picture.
        label_bias: results.json of that, if it ran.
        command: what was typed.
    """
    sections = [
        *([] if label_bias is None else [_label_bias(label_bias, folder)]),
        _errors(results),
        _learning(results),
        _homophones(results),
        *_decision(results),
        _alignment(results),
        _lattice(results),
        _commands(results, command),
        _next(results),
    ]
    return web_page.page("midge: what global normalization does", _summary(results), sections)


def shown_utterance(test: Sequence[Utterance]) -> Utterance:
    """The recording that is shown: the first of a few digits, whatever the models make of it."""
    digits = (
        each
        for each in test
        if each.group.get("kind") == "digits" and len(each.words) in _SHOWN_DIGITS
    )
    return next(digits, test[0])


def _summary(results: Results) -> str:
    config = results.job.config
    encoder = results.models[0].recognizer.encoder
    parameters = sum(x.numel() for x in results.models[0].recognizer.parameters())
    (overall, *_) = results.comparisons
    return web_page.paragraphs(
        f"Two recognizers of the same size ({parameters / 1e6:.2f} million parameters, "
        f"{_encoder_words(encoder)}, a context of {_context_words(results)}) were trained on "
        f"{config.minutes:g} minutes of <strong>synthetic</strong> speech (espeak-ng) for the "
        f"same {results.plan.num_steps} steps, on the same batches. They differ in one thing: the "
        "<em>local</em> one (HAT) normalizes its weights at every frame, the <em>global</em> one "
        "(GNAT) once, over all paths through the whole utterance.",
        "Theory says where that matters. A streaming, locally normalized model that writes a word "
        "before it has heard what decides it must guess, and cannot take the guess back; a "
        "globally normalized one can. The test set therefore holds pairs of homophones that only "
        "the next word tells apart, beside digits, commands and spelled words, where there is "
        "nothing to revise.",
        f"Over all of the test set the word error rates are {overall.first:.1%} (local) and "
        f"{overall.second:.1%} (global). All figures here are on synthetic speech, and from one "
        f"seed ({config.seed}).",
    )


def _encoder_words(encoder: Encoder) -> str:
    hearing = "hears no future" if encoder.is_streaming else "hears the whole recording"
    return f"an encoder that {hearing}"


def _context_words(results: Results) -> str:
    size = results.models[0].recognizer.config.lattice.parts().context_size
    return "all labels so far" if size is None else f"the last {size} labels"


def _label_bias(found: Mapping[str, Any], folder: Path) -> Section:
    rows = [
        (
            html.escape(model["name"]),
            "near 0" if want["can_succeed"] else f"&ge; {want['bound']:.3f}",
            f"{got['loss']:.3f}",
            f"{want['accuracy']:.0%}",
            f"{got['accuracy']:.1%}",
            "yes" if model["agrees"] else '<span class="wrong">no</span>',
        )
        for model in found["models"]
        for want, got in [(model["prediction"], model["measurement"])]
    ]
    headings = ("model", "loss: theory", "measured", "accuracy: theory", "measured", "agree")
    body = web_page.paragraphs(
        "First a task so small that theory gives exact numbers: the label of a frame is the symbol "
        "of the <em>next</em> frame. Whoever hears only the past must guess. The loss is "
        "-log P per utterance in nats; accuracy is that of the labels which are ambiguous when "
        "their frame is heard. The task is artificial; so are its frames."
    )
    body += web_page.table(headings, rows, is_numeric=True)
    picture = folder / "label-bias.svg"
    if picture.exists():
        body += web_page.picture(
            picture.read_text("utf-8"),
            "Beliefs of a local and a global streaming model about each label, frame by frame",
            "How each streaming model revises, or cannot revise, its early decisions.",
        )
    return Section("label-bias", "Label bias, on a task of five frames", body)


def _errors(results: Results) -> Section:
    rows = [
        (
            html.escape(f"synthetic {_group_words(each.name)}"),
            str(each.num_utterances),
            *(_rate(model, each.name) for model in results.models),
            f"{100 * each.difference.estimate:+.1f} {_range(each.difference, '+')}",
            f"{100 * best.first:.1f}, {100 * best.second:.1f}",
        )
        for each, best in zip(*_both_searches(results), strict=True)
    ]
    headings = (
        "word error rate, %",
        "utterances",
        "local",
        "global",
        "global - local",
        "best path",
    )
    figure = pictures.error_rates(
        {model.name: model.evaluation for model in results.models},
        [each.name for each in _in_order(results.comparisons)],
    )
    body = web_page.paragraphs(
        f"On the test set: {_SYNTHETIC}. In brackets 95&nbsp;% intervals by bootstrap over "
        f"{_units(results)}; the difference is paired, on the same utterances.",
        "The words are those of the most probable text, summed over all its alignments "
        f"(<code>{_search(results)}</code>). The last column, local and global, is of the best "
        "alignment alone. With short frames there are many alignments of a text, and a local model "
        "shares its probability out among them: an alignment that writes next to nothing may beat "
        "each of them, and the sum is needed to see it.",
    )
    body += web_page.table(headings, rows, is_numeric=True)
    body += web_page.picture(
        web_page.svg_of(figure),
        "Word error rates of both models for each kind of utterance, with intervals",
        "The same as a picture.",
    )
    return Section("error-rates", "Word error rates, side by side", body)


def _learning(results: Results) -> Section:
    figure = pictures.learning_curves({model.name: model.log for model in results.models})
    body = web_page.paragraphs(
        f"Both models: {results.plan.num_steps} steps, the same batches in the same order "
        f"({html.escape(results.plan.reason)}). The model that is kept is the one with the lowest "
        "word error rate, by best paths, on the development set."
    )
    body += web_page.picture(
        web_page.svg_of(figure),
        "Loss and word error rate of both models against the training step",
        "Synthetic speech. Both losses are -log P(text | sound), so they can be compared.",
    )
    return Section("learning", "How they learned", body)


def _homophones(results: Results) -> Section:
    counts = [
        (
            pictures.HEADINGS[model.name],
            *(
                f"{number} ({number / max(found.total, 1):.0%})"
                for number in (found.num_right, found.num_swapped, found.num_other)
            ),
        )
        for model, found in zip(results.models, _first_words(results), strict=True)
    ]
    first_of: dict[tuple[str, str], Pair] = {}
    for pair in pairs_of(results.test):
        first_of.setdefault(pair.words, pair)
    rows = [
        (html.escape(utterance.text), *(_said(model, utterance) for model in results.models))
        for pair in first_of.values()
        for utterance in pair.utterances
    ]
    body = web_page.paragraphs(
        "Both recordings of a pair are the same samples until the second word begins, so that the "
        "first word alone tells nothing. They are spoken fast and end soon: a model that waits for "
        "the second word has little time left to write both. What became of the first words:"
    )
    body += web_page.table(
        ("first word, synthetic", "right", "the other of the pair", "neither"),
        counts,
        is_numeric=True,
    )
    body += web_page.paragraphs(
        "The first recording of each pair in the test set, and what the models wrote (words that "
        "were not said are marked):"
    )
    body += web_page.table(("said (synthetic)", "local", "global"), rows, is_numeric=False)
    return Section("homophones", "Homophones that the next word decides", body)


def _decision(results: Results) -> Iterator[Section]:
    """One pair, frame by frame; none without a pair or a model that streams."""
    pairs = pairs_of(results.test)
    if not pairs or not results.models[0].recognizer.encoder.is_streaming:
        return
    pair = pairs[0]
    front_end = results.models[0].recognizer.front_end
    figure = pictures.decisions(
        [pictures.Sound.of(utterance, front_end) for utterance in pair.utterances],
        {
            model.name: [
                decision(model.recognizer, utterance, pair.words) for utterance in pair.utterances
            ]
            for model in results.models
        },
    )
    body = web_page.paragraphs(
        f"{pair.words[0]} and {pair.words[1]} sound alike. At each moment: the probability, given "
        "the sound so far, that the text begins like the one or like the other, summed over all "
        "texts and alignments. Dashed lines are the true times of the words; the shaded part is "
        "the silence that the front end adds. The local model's curves can only rise: what it has "
        "spent on one spelling no later frame takes back. The global model's may fall again."
    )
    body += web_page.picture(
        web_page.svg_of(figure),
        f"Probabilities of {pair.words[0]} and {pair.words[1]} over time, for both models",
        f"The first pair of the test set, voice {html.escape(str(pair.utterances[0].speaker))} "
        "(synthetic); chosen by its place, not by the result.",
    )
    yield Section("decision", "A decision, and its revision", body)


def _alignment(results: Results) -> Section:
    shown = shown_utterance(results.test)
    sound = pictures.Sound.of(shown, results.models[0].recognizer.front_end)
    found = {model.name: label_posteriors(model.recognizer, shown) for model in results.models}
    body = web_page.paragraphs(
        f"A held-out recording (synthetic, voice {html.escape(str(shown.speaker))}): "
        f"<strong>{html.escape(shown.text)}</strong>."
    )
    audio = Path(shown.audio)
    if audio.suffix == ".flac":
        body += web_page.sound(audio.read_bytes(), "audio/flac")
    body += web_page.table(
        ("model", "transcript"),
        [(pictures.HEADINGS[model.name], _said(model, shown)) for model in results.models],
        is_numeric=False,
    )
    body += web_page.picture(
        web_page.svg_of(pictures.alignment_posteriors(sound, found)),
        "Spectrogram of a recording, and the probability of each label at each frame",
        "Above, what the front end hears, with the true words. Below, the probability that a frame "
        "emits a label, summed over all paths of the lattice (<code>arc_marginals</code>); "
        "\u2423 is the space between words.",
    )
    return Section("alignment", "One recording, transcribed", body)


def _lattice(results: Results) -> Section:
    shown, model = shown_utterance(results.test), results.models[-1]
    automaton = first_word_lattice(model.recognizer, shown)
    figure = draw(automaton, highlight="posteriors")
    word = html.escape(shown.text.split()[0])
    body = web_page.paragraphs(
        f"All alignments of {word}, the first word of that recording, over the frames around it, "
        f"with the weights of the {model.name} model: a state is the number of frames heard and "
        "the letters written, \u03b5 is blank, and an arc is as wide as it is probable. Training "
        "sums over such paths; the denominator of the global model over all texts as well."
    )
    body += web_page.picture(
        web_page.svg_of(figure),
        f"Recognition lattice of the word {word}",
        "Drawn by <code>midge.draw</code>; <code>midge draw --help</code> draws other parts of "
        "the theory.",
    )
    return Section("lattice", "The lattice", body)


def _commands(results: Results, command: Sequence[str]) -> Section:
    lines = [shlex.join(command), "", "# the same, step by step:"]
    lines += results.job.commands(results.plan)
    return Section("commands", "The commands that made this", web_page.commands(lines))


def _next(results: Results) -> Section:
    job = results.job
    model, test = str(job.run_folder("global")), str(job.manifest("test"))
    train = ["midge", "train", job.config.recipe]
    sets = [f"--set={each}" for each in job.assignments("global")]
    lines = [
        "# your own voice, or any recording (it knows few words):",
        shlex.join(["midge", "transcribe", model, "recording.wav"]),
        "# what the model is:",
        shlex.join(["midge", "info", model]),
        "# all differences between the two models, utterance by utterance:",
        shlex.join(
            [
                *("midge", "evaluate", model, test, "--group=kind", "--group=pair"),
                *(f"--decoder={job.search}", "--output=pairs"),
                f"--compare={job.results_folder('local', job.search)}",
            ]
        ),
        "# longer training, or another context, encoder or normalization:",
        shlex.join([*train, "--output=runs/longer", *sets, "--set=training.num_steps=3000"]),
        "# a model that hears the whole recording has nothing to revise:",
        shlex.join([*train, "--output=runs/full", *sets, f"--set={_full_context(results)}"]),
    ]
    return Section("next", "What to try next", web_page.commands(lines))


def _full_context(results: Results) -> str:
    """The assignment that lets an encoder hear the future."""
    is_lstm = isinstance(results.models[0].recognizer.config.encoder, LSTMConfig)
    return "encoder.is_bidirectional=true" if is_lstm else "encoder.is_streaming=false"


def _first_words(results: Results) -> list[FirstWords]:
    pairs = pairs_of(results.test)
    return [first_words(model.evaluation.results, pairs) for model in results.models]


def _first_words_line(model: Trained, found: FirstWords) -> str:
    return (
        f"  {model.name:8}{found.num_right} of {found.total} right, {found.num_swapped} the other "
        f"word of the pair, {found.num_other} neither"
    )


def _in_order(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Digits and homophones first, then the other kinds, then all."""
    ranks = {"kind=digits": 0, "kind=homophones": 1, ALL: 3}
    return sorted(comparisons, key=lambda each: ranks.get(each.name, 2))


def _group_words(name: str) -> str:
    return "speech, all" if name == ALL else pictures.kind_name(name)


def _both_searches(results: Results) -> tuple[list[Comparison], list[Comparison]]:
    """The comparisons by the most probable texts and by best paths, in the same order."""
    return _in_order(results.comparisons), _in_order(results.best_path_comparisons)


def _search(results: Results) -> str:
    return results.job.search


def _text_row(each: Comparison, best: Comparison) -> tuple[str, ...]:
    return (
        pictures.kind_name(each.name),
        str(each.num_utterances),
        f"{100 * each.first:.1f}",
        f"{100 * each.second:.1f}",
        f"{100 * each.difference.estimate:+.1f}",
        _range(each.difference, "+"),
        f"{100 * best.first:.1f}",
        f"{100 * best.second:.1f}",
    )


def _rate(model: Trained, group: str) -> str:
    (found,) = [rates.words for rates in model.evaluation.rates if rates.name == group]
    return f"{100 * found.estimate:.1f} {_range(found)}"


def _range(interval: Interval, sign: str = "") -> str:
    return f"[{100 * interval.low:{sign}.1f}, {100 * interval.high:{sign}.1f}]"


def _units(results: Results) -> str:
    return results.comparisons[0].units.replace("speaker", "voice")


def _result(model: Trained, utterance: Utterance) -> UtteranceResult:
    (found,) = [each for each in model.evaluation.results if each.id == utterance.id]
    return found


def _said(model: Trained, utterance: Utterance) -> str:
    """What a model wrote, as HTML; words that were not said are marked."""
    found = _result(model, utterance)
    words = [
        html.escape(pair.hypothesis)
        if pair.operation == "="
        else f'<span class="wrong">{html.escape(pair.hypothesis)}</span>'
        for pair in align(found.reference.split(), found.hypothesis.split())
        if pair.hypothesis is not None
    ]
    return " ".join(words) or '<span class="wrong">(nothing)</span>'
