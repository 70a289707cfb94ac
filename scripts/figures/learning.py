"""Measure whether 20 corrections of a speaker make that speaker's other sentences better.

    scripts/measure learning [--recordings FOLDER] [--keep FILE]

Speakers with at least 6 sentences are measured: people of the folder's MANIFEST.tsv (default:
$ROOMSCRIBE_SHARED/data/audio), and synthetic voices that say names of a home which the model never
saw. People have few sentences, the voices have 40. A speaker's sentences are split into folds (2
with 40 sentences, otherwise 5); sentences with the same words are in one fold. The wrong texts of
the other folds, at most 20, are corrected, and the fold is heard again. Other speakers' sentences
are 4 of each other speaker of the folder, and tests/speech; they are heard with the corrections of
all folds. Each recording of at most 9 s is one window, with silence around it; gates are not used.

Methods, in this order:
  words         the words that the page offers are added to the vocabulary
  replacements  the replacements that the page offers are added
  both          both
  careful       both, but a replacement only if the words heard have some letters, and no other
                sentence of the log has them that was left as it is
  tokens        a number is added to the logits of the tokens that were missing or too many
  layer norm    a bias of the decoder's last layer norm, by ridge regression (multinomial logistic,
                Newton's method) on the decoder's logits for the corrected texts, and for the right
                texts of the speaker's last 50 sentences

The log is what was heard of all people, of the voice itself and of tests/speech, without the
corrected and the tested sentences, and those with the same words as a tested one. The sentences of
others are tested in two halves, each with the other half in the log.

The strength of the last three is chosen on the other speakers of the group: the one with the fewest
errors in their own sentences, of those that add at most 0.3 points to other speakers'. All tried
strengths are printed, too. --keep writes each result to a file, and continues from there, unless a
synthesiser speaks differently this time, so that other words are wrong before any correction.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
from evening_run.results import processor, weights_checksum
from figures.model import alike, read, to_int16
from numpy.typing import NDArray
from rigs.checkout import TINY_EN
from rigs.recordings import SHARED_AUDIO, manifest, sentences as speech_sentences
from rigs.word_errors import words as split_words

from appliance.cli.doctor.comparison import word_errors as count_errors
from appliance.config import Settings
from appliance.daemon.correction_commands import LEAST_LETTERS, find_differences
from appliance.infer.corrections import Corrections
from appliance.infer.decoder import Decoder
from appliance.infer.encoder import CpuEncoder
from appliance.infer.network import Embedding, Network, Step
from appliance.infer.opening import open_transcriber
from appliance.infer.phrases import in_words
from appliance.infer.tokenizer import Tokenizer
from appliance.infer.transcriber import Encoded
from appliance.model import Bundle
from appliance.records import SAMPLE_RATE, Mel, Samples, States, Tier, Window
from appliance.store.tables import has_words

Floats = NDArray[np.float32]

CORRECTIONS, LAST = 20, 50
LEAST_SENTENCES, FOLDS, OTHERS = 6, 5, 4
LONGEST_S = 9.0
BEFORE, AFTER = SAMPLE_RATE * 6 // 10, SAMPLE_RATE * 3 // 10
"""Samples of silence around a recording."""
METHODS: dict[str, tuple[float, ...]] = {
    "words": (0.0,),
    "replacements": (0.0,),
    "both": (0.0,),
    "careful": (1.0, 4.0, 5.0, 6.0),
    "tokens": (0.5, 1.0, 2.0),
    "layer norm": (0.03, 0.3, 3.0),
}
"""Methods and their strengths. For "careful" it is the fewest letters of the words that are
replaced, with the spaces between them. For "tokens" it is added to a logit, or subtracted; for
"layer norm" it is the ridge (`fit_bias`), so that a larger one learns less."""
NEWTON_STEPS, HALVINGS = 12, 20
GOAL_CHANGE, GOAL_POINTS = -25.0, 0.3
VOICES = ("flite:awb", "flite:kal16", "festival:hts", "espeak:en-gb-x-rp+f2")
NAMES = (4, 2, 1, 1)
"""Names of a home: people, rooms, devices and places."""
SAID_BY_A_VOICE = 40
PEOPLE, SYNTHETIC, BESIDE = "people", "synthetic voices", "beside"
"""Groups of speakers. Those beside are only heard with the others' corrections."""


@dataclass(frozen=True, slots=True, eq=False)
class Sentence:
    """A recorded sentence as the encoder left it."""

    key: str
    speaker: str
    group: str
    text: str
    """What is said."""
    encoded: Encoded


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """A sentence and what was heard before any correction."""

    sentence: Sentence
    heard: str
    tokens: tuple[int, ...]
    """Of `heard`."""

    @property
    def is_right(self) -> bool:
        """True if the text has the same words."""
        return alike(self.heard) == alike(self.sentence.text)


@dataclass(frozen=True, slots=True, eq=False)
class Learnt:
    """What a method made of corrections."""

    words: tuple[str, ...] = ()
    replace: Mapping[str, str] = field(default_factory=dict)
    bias: Floats | None = None
    """(K,), added to the logits."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Word errors of each sentence, by its key, after a speaker's corrections."""

    speaker: str
    corrections: int
    """How many all folds together give, at most CORRECTIONS."""
    own: dict[str, int]
    others: dict[str, int]
    learning_s: float
    """CPU time."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Word errors before and after, in percent of `words`."""

    words: int
    before: float
    after: float

    @property
    def change(self) -> float:
        """Relative change in percent; 0 without errors before."""
        return 100 * (self.after / self.before - 1) if self.before else 0.0


@dataclass(frozen=True, slots=True)
class Baseline:
    """Each sentence before any correction, by its key."""

    speaker: Mapping[str, str]
    words: Mapping[str, int]
    errors: Mapping[str, int]

    def choose(self, tables: Mapping[float, Sequence[Outcome]], speaker: str) -> float:
        """Return the strength that is best for all speakers except one, by no sentence of whom it
        is chosen."""
        scored = []
        for strength, outcomes in tables.items():
            rest = [one for one in outcomes if one.speaker != speaker]
            own, others = self.rates(rest, "own", speaker), self.rates(rest, "others", speaker)
            harmful = others.after - others.before > GOAL_POINTS
            scored.append((harmful, others.after if harmful else own.after, strength))
        return min(scored)[-1]

    def rates(self, outcomes: Sequence[Outcome], side: str, without: str = "") -> Rates:
        """Return the word errors of all outcomes' `own` or `others`, without one speaker's."""
        words = before = after = 0
        for outcome in outcomes:
            found: dict[str, int] = getattr(outcome, side)
            for key, errors in found.items():
                if self.speaker[key] != without:
                    words += self.words[key]
                    before += self.errors[key]
                    after += errors
        return Rates(words, 100 * before / max(1, words), 100 * after / max(1, words))


class BiasedNetwork(Network):
    """The decoder's network on the CPU, with a number added to each logit."""

    def __init__(self, bundle: Bundle) -> None:
        """Raises ModelError, and ValueError for a model whose logits are not exact."""
        if bundle.vocabulary_scan != "exact":
            raise ValueError(f"{bundle.name}: expected exact logits, found an int4 scan")
        super().__init__(bundle, 1)
        self.bias: Floats = np.zeros(len(bundle.kept), np.float32)

    def advance(
        self, tokens: Sequence[int], wanted: Sequence[int], started: Sequence[int] = ()
    ) -> Step:
        """See Network."""
        step = super().advance(tokens, wanted, started)
        if self.bias.any():
            np.add(step.logits, self.bias, out=step.logits)
            np.copyto(step.odds, softmax(step.logits))
        return step


class RememberingEncoder(CpuEncoder):
    """An encoder that computes each spectrogram once."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle, 1)
        self._known: dict[bytes, States] = {}

    def encode(self, mel: Mel) -> States:
        """See CpuEncoder."""
        key = hashlib.blake2b(mel.tobytes()).digest()
        if key not in self._known:
            self._known[key] = super().encode(mel).copy()
        return self._known[key]


class Listener:
    """The built-in model, with what a speaker's corrections taught it."""

    def __init__(self) -> None:
        plain = Settings()
        settings = replace(
            plain,
            phrases=replace(plain.phrases, file=""),
            encoder=replace(plain.encoder, threads=1),
            decoder=replace(plain.decoder, threads=1),
        )
        self._transcriber = open_transcriber(settings)
        self.bundle = self._transcriber.bundle
        decoder, second_pass = self._transcriber._decoder, self._transcriber._vtln
        if not isinstance(decoder, Decoder) or second_pass is None:
            raise TypeError("expected the built-in model on the CPU, with its second pass")
        self._positions = decoder.rules.positions
        self._network = decoder._network = BiasedNetwork(self.bundle)
        self._transcriber.encoder = second_pass._encoder = RememberingEncoder(self.bundle)
        self._listed: tuple[str, ...] = ("priscilla",)
        self._transcriber.set_names([(word, Tier.CALLED) for word in self._listed])
        self._transcriber.warm_up()  # measures how many words it can try in time
        self.tokenizer = Tokenizer.open(self.bundle)
        self._known: dict[tuple[tuple[str, ...], str], tuple[str, tuple[int, ...]]] = {}
        """Texts and tokens without a bias, by the vocabulary and the sentence."""

    @property
    def embedding(self) -> Floats:
        """The rows (K, d_model) of the tokens that it may write: they turn the output of the last
        layer norm into logits."""
        rows = np.empty((len(self.bundle.kept), self.bundle.d_model), np.float32)
        Embedding(self.bundle).look_up([int(token) for token in self.bundle.kept], rows)
        return rows

    def encode(self, samples: Samples) -> Encoded:
        """Return a recording (n,) as one window, with silence around it."""
        samples = np.pad(samples, (BEFORE, AFTER))
        return self._transcriber.encode(Window("", 1, True, samples, 0.0, 0.0, 0.0))

    def listen(self, sentence: Sentence, learnt: Learnt) -> tuple[str, tuple[int, ...]]:
        """Return text and tokens of a sentence."""
        key = learnt.words, sentence.key
        if learnt.bias is None and key in self._known:
            return self._known[key]
        if learnt.words != self._listed:
            self._listed = learnt.words
            self._transcriber.set_names([(word, Tier.CALLED) for word in learnt.words])
        self._network.bias[:] = 0.0 if learnt.bias is None else learnt.bias
        result = self._transcriber.decode(sentence.encoded)
        self._network.bias[:] = 0.0
        if learnt.bias is None:
            self._known[key] = result.text, result.tokens
        return result.text, result.tokens

    def count_errors(self, sentence: Sentence, learnt: Learnt) -> int:
        """Return the word errors of a sentence."""
        text = Corrections(learnt.replace).correct(self.listen(sentence, learnt)[0])
        return count_errors(alike(sentence.text), alike(text))

    def columns(self, tokens: Sequence[int]) -> NDArray[np.intp]:
        """Return the columns of tokens among the logits."""
        return np.searchsorted(self.bundle.kept, np.array(tokens, np.intp))

    def logits(self, states: States, tokens: Sequence[int]) -> Floats:
        """Return the logits (n + 1, K) for each of n tokens and the end of the text."""
        network, prompt = self._network, self.bundle.prompt
        network.begin(states, self._positions)
        rows = [network.advance(prompt, (len(prompt) - 1,)).logits[0].copy()]
        rows += [network.advance((token,), (0,)).logits[0].copy() for token in tokens]
        return np.array(rows)

    def spell(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text as the model writes it: in lower case, numbers in words."""
        spelled = re.sub(r"\d{1,3}", lambda number: f" {in_words(int(number[0]))} ", text)
        return self.tokenizer.tokenize(" " + " ".join(split_words(spelled)))


def main() -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(
        "scripts/measure learning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--recordings", type=Path, default=SHARED_AUDIO)
    parser.add_argument("--keep", type=Path, metavar="FILE")
    options = parser.parse_args()
    if not (options.recordings / "MANIFEST.tsv").is_file():
        sys.exit(f"{options.recordings}: expected MANIFEST.tsv in it, found none")
    if options.keep and not options.keep.absolute().parent.is_dir():
        sys.exit(f"{options.keep}: its folder does not exist; make it, or name another file")
    begun_s = time.process_time()
    listener = Listener()
    everything = [*people(listener, options.recordings), *beside(listener), *synthetic(listener)]
    study = Study(listener, everything, options.keep)
    study.run()
    for group in (PEOPLE, SYNTHETIC):
        study.show(group)
    print(f"{processor()}; {time.process_time() - begun_s:.0f} s of CPU time since this start")
    return 0


def people(listener: Listener, folder: Path) -> Iterator[Sentence]:
    """What the folder's speakers say in at most LONGEST_S."""
    for file, row in manifest(folder):
        text = row["transcript"]
        spoken = row["category"].startswith(("speech", "tts"))
        short = float(row["duration_s"]) <= LONGEST_S
        if spoken and short and text and not text.startswith("SLOTS:"):
            group = PEOPLE if row["category"].startswith("speech") else BESIDE
            encoded = listener.encode(to_int16(read(file)))
            yield Sentence(row["path"], row["speaker"], group, text, encoded)


def beside(listener: Listener) -> Iterator[Sentence]:
    """The sentences of tests/speech: home commands that the model knows."""
    for one in speech_sentences():
        encoded = listener.encode(to_int16(read(one.file)))
        yield Sentence(one.file.name, "tests/speech", BESIDE, one.text, encoded)


def synthetic(listener: Listener) -> Iterator[Sentence]:
    """Synthetic voices, each of which speaks of its own home."""
    from figures.words import SAID, spelled
    from train.bank import finish
    from train.voices import Synthesizers

    synthesizers = Synthesizers()
    for voice in VOICES:
        rng = random.Random(voice)
        texts = [
            template.format(name)
            for (templates, listed), count in zip(SAID["report"], NAMES, strict=True)
            for name in rng.sample(spelled(listed), count)
            for template in templates
        ]
        for number, text in enumerate(rng.sample(texts, SAID_BY_A_VOICE)):
            # the same draws for each sentence: rate, pitch and vocal tract stay the same
            done = finish(*synthesizers.say(voice, text, random.Random(voice)))
            if done is not None and len(done[0]) <= LONGEST_S * SAMPLE_RATE:
                encoded = listener.encode(done[0])
                yield Sentence(f"{voice} {number}", voice, SYNTHETIC, text, encoded)


class Study:
    """Applies each method to each speaker."""

    def __init__(self, listener: Listener, everything: Sequence[Sentence], keep: Path | None):
        """`keep` is a file with earlier results; None: nothing is kept."""
        self._listener, self._keep = listener, keep
        by_speaker = defaultdict[str, list[Sentence]](list)
        for one in everything:
            by_speaker[one.speaker].append(one)
        self.speakers = {
            name: said
            for name, said in by_speaker.items()
            if said[0].group != BESIDE and len(said) >= LEAST_SENTENCES
        }
        """Speakers who are measured, and their sentences."""
        self._others = [
            one
            for said in by_speaker.values()
            if said[0].group != SYNTHETIC
            for one in (said if said[0].group == BESIDE else said[:OTHERS])
        ]
        self._parts = split_folds(self._others)
        heard = {one.key: listener.listen(one, Learnt()) for one in everything}
        self._lessons = {one.key: Lesson(one, *heard[one.key]) for one in everything}
        self._baseline = Baseline(
            {one.key: one.speaker for one in everything},
            {one.key: len(alike(one.text)) for one in everything},
            {one.key: listener.count_errors(one, Learnt()) for one in everything},
        )
        self._state = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
        self._state += f" {weights_checksum(TINY_EN)}"
        before = json.dumps(dict(self._baseline.errors)).encode()
        self._state += f" {hashlib.sha256(before).hexdigest()[:16]}"
        self._outcomes = self._read_kept()

    def run(self) -> None:
        """Apply what is not in the kept file yet."""
        for speaker in self.speakers:
            for method, strengths in METHODS.items():
                for strength in strengths:
                    key = f"{method}|{strength:g}|{speaker}"
                    if key not in self._outcomes:
                        self._outcomes[key] = self._apply(method, strength, speaker)
                        self._write_kept()
            print(f"{speaker}: measured", file=sys.stderr, flush=True)

    def _apply(self, method: str, strength: float, speaker: str) -> Outcome:
        own: dict[str, int] = {}
        said, learning_s = self.speakers[speaker], 0.0
        for fold in split_folds(said):
            tested = {one.key for one in fold}
            lessons = [self._lessons[one.key] for one in said if one.key not in tested]
            learnt, seconds = self._learn(method, strength, lessons)
            learning_s = max(learning_s, seconds)
            own |= self._test(fold, lessons, learnt, method, strength)
        lessons = [self._lessons[one.key] for one in said]
        learnt, seconds = self._learn(method, strength, lessons)
        others: dict[str, int] = {}
        for part in self._parts:
            rest = [one for one in part if one.speaker != speaker]
            others |= self._test(rest, lessons, learnt, method, strength)
        count = len(choose_lessons(lessons)[0])
        return Outcome(speaker, count, own, others, max(learning_s, seconds))

    def _test(
        self,
        tested: Sequence[Sentence],
        lessons: Sequence[Lesson],
        learnt: Learnt,
        method: str,
        strength: float,
    ) -> dict[str, int]:
        """Return the word errors of the tested sentences, by their keys."""
        if method == "careful":
            speaker = lessons[0].sentence.speaker
            everything = [
                one
                for one in self._lessons.values()
                if one.sentence.group != SYNTHETIC or one.sentence.speaker == speaker
            ]
            log = list_log(everything, tested, choose_lessons(lessons)[0])
            learnt = replace(learnt, replace=keep_unused(learnt.replace, log, strength))
        return {one.key: self._listener.count_errors(one, learnt) for one in tested}

    def _learn(
        self, method: str, strength: float, lessons: Sequence[Lesson]
    ) -> tuple[Learnt, float]:
        """Return what a method learns, and the seconds of CPU time."""
        begun_s = time.process_time()
        wrong, right = choose_lessons(lessons)
        learnt = learn(self._listener, method, strength, wrong, right)
        return learnt, time.process_time() - begun_s

    def show(self, group: str) -> None:
        """Print the rows of a group: each strength, and the one chosen on the other speakers."""
        names = [name for name, said in self.speakers.items() if said[0].group == group]
        sentences = sum(len(self.speakers[name]) for name in names)
        first = [self._outcomes[f"words|0|{name}"] for name in names]
        counts = sorted(one.corrections for one in first)
        print(
            f"\n{group}: {len(names)} speakers, {sentences} sentences, "
            f"{counts[0]} to {counts[-1]} corrections each; "
            f"others: {len(self._others)} sentences of "
            f"{len({one.speaker for one in self._others})} speakers\n"
            f"{'method':14}{'strength':>10}{'own WER before':>16}{'after':>7}{'change':>9}"
            f"{'better':>8}{'worse':>7}{'others before':>15}{'after':>7}{'points':>8}{'s':>6}"
        )
        for method, strengths in METHODS.items():
            tables = {
                strength: [self._outcomes[f"{method}|{strength:g}|{name}"] for name in names]
                for strength in strengths
            }
            if len(strengths) == 1:
                self._print_row(method, "", tables[strengths[0]])
                continue
            for strength, outcomes in tables.items():
                self._print_row(f"  {method}", f"{strength:g}", outcomes)
            chosen = {name: self._baseline.choose(tables, name) for name in names}
            rows = [
                next(one for one in tables[strength] if one.speaker == name)
                for name, strength in chosen.items()
            ]
            self._print_row(method, "/".join(f"{s:g}" for s in sorted({*chosen.values()})), rows)

    def _print_row(self, method: str, strength: str, outcomes: Sequence[Outcome]) -> None:
        base = self._baseline
        own, others = base.rates(outcomes, "own"), base.rates(outcomes, "others")
        each = [base.rates([one], "own").change for one in outcomes]
        points = others.after - others.before
        met = own.change <= GOAL_CHANGE and points <= GOAL_POINTS
        print(
            f"{method:14}{strength:>10}{own.before:16.1f}{own.after:7.1f}{own.change:+8.1f}%"
            f"{sum(one < 0 for one in each):8}{sum(one > 0 for one in each):7}"
            f"{others.before:15.1f}{others.after:7.1f}{points:+8.1f}"
            f"{max(one.learning_s for one in outcomes):6.1f}{'  meets the goal' * met}",
            flush=True,
        )

    def _read_kept(self) -> dict[str, Outcome]:
        if self._keep is None or not self._keep.exists():
            return {}
        try:
            kept = json.loads(self._keep.read_text(encoding="utf-8"))
            outcomes = {key: Outcome(**one) for key, one in kept["outcomes"].items()}
        except (OSError, ValueError, KeyError, TypeError) as error:
            sys.exit(f"{self._keep}: no results of this command ({error}); name another file")
        if kept.get("state") != self._state:
            print(f"{self._keep}: of another version; it is written anew", file=sys.stderr)
            return {}
        return outcomes

    def _write_kept(self) -> None:
        if self._keep:
            outcomes = {key: asdict(one) for key, one in self._outcomes.items()}
            new = self._keep.with_name(f"{self._keep.name}.new")
            new.write_text(json.dumps({"state": self._state, "outcomes": outcomes}), "utf-8")
            new.replace(self._keep)


def split_folds(said: Sequence[Sentence]) -> list[list[Sentence]]:
    """Return a speaker's sentences in folds; those with the same words are in the same fold."""
    texts = list(dict.fromkeys(tuple(alike(one.text)) for one in said))
    count = 2 if len(texts) >= 2 * CORRECTIONS else FOLDS
    fold_of = {text: at % count for at, text in enumerate(texts)}
    folds = [[one for one in said if fold_of[tuple(alike(one.text))] == at] for at in range(count)]
    return [fold for fold in folds if fold]


def choose_lessons(lessons: Sequence[Lesson]) -> tuple[list[Lesson], list[Lesson]]:
    """Return the texts that the user corrects, and right ones among the last sentences. A sentence
    without a text is not in the log, so nobody can correct it."""
    wrong = [one for one in lessons if one.heard and not one.is_right][:CORRECTIONS]
    right = [one for one in lessons if one.is_right][: LAST - len(wrong)]
    return wrong, right


def list_log(
    everything: Sequence[Lesson], tested: Sequence[Sentence], corrected: Sequence[Lesson]
) -> list[str]:
    """Return what was heard of all sentences except the corrected ones, and those with the words of
    a tested one."""
    keys = {one.sentence.key for one in corrected}
    texts = {tuple(alike(one.text)) for one in tested}
    return [
        one.heard
        for one in everything
        if one.sentence.key not in keys and tuple(alike(one.sentence.text)) not in texts
    ]


def keep_unused(
    replacements: Mapping[str, str], log: Sequence[str], letters: float
) -> dict[str, str]:
    """Return the replacements of words that have enough letters, and are in no text of the log."""
    return {
        heard: written
        for heard, written in replacements.items()
        if len(heard) >= letters and not any(has_words(text, heard) for text in log)
    }


def learn(
    listener: Listener,
    method: str,
    strength: float,
    wrong: Sequence[Lesson],
    right: Sequence[Lesson],
) -> Learnt:
    """Return what a method learns of corrections, and of sentences that were right."""
    if method == "tokens":
        pairs = [(one.tokens, listener.spell(one.sentence.text)) for one in wrong]
        missing, extra = (listener.columns(tokens) for tokens in differing_tokens(pairs))
        return Learnt(bias=bias_tokens(missing, extra, len(listener.bundle.kept), strength))
    if method == "layer norm":
        texts = [(one, listener.spell(one.sentence.text)) for one in wrong]
        texts += [(one, one.tokens) for one in right]
        if not texts:
            return Learnt()
        end = listener.bundle.tokens.end_of_text
        logits = [listener.logits(one.sentence.encoded.states, tokens) for one, tokens in texts]
        wanted = [listener.columns([*tokens, end]) for _, tokens in texts]
        embedding = listener.embedding
        bias = fit_bias(np.concatenate(logits), np.concatenate(wanted), embedding, strength)
        return Learnt(bias=embedding @ bias)
    words, replacements = offer([(one.heard, one.sentence.text) for one in wrong])
    if method == "words":
        return Learnt(words=words)
    return Learnt(words=words if method != "replacements" else (), replace=replacements)


def offer(pairs: Sequence[tuple[str, str]]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the words and replacements that the page offers for texts and what was said."""
    words, replacements = dict[str, None](), dict[str, str]()
    for heard, spoken in pairs:
        for wrong, right in find_differences(heard, spoken):
            replacements[wrong] = right
            if len(right) >= LEAST_LETTERS:
                words[right] = None
    return tuple(words), replacements


def differing_tokens(
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
) -> tuple[list[int], list[int]]:
    """Return the tokens that are missing in what was heard, and those that are too many."""
    missing, extra = list[int](), list[int]()
    for heard, spoken in pairs:
        blocks = SequenceMatcher(None, heard, spoken, autojunk=False).get_opcodes()
        for kind, a, b, c, d in blocks:
            if kind != "equal":
                extra += heard[a:b]
                missing += spoken[c:d]
    return missing, extra


def bias_tokens(
    missing: NDArray[np.intp], extra: NDArray[np.intp], size: int, strength: float
) -> Floats:
    """Return a bias (size,) of at most `strength` for each column: positive if it was missing more
    often than it was too many."""
    more = np.bincount(missing, minlength=size) - np.bincount(extra, minlength=size)
    either = np.bincount(missing, minlength=size) + np.bincount(extra, minlength=size)
    return np.asarray(strength * more / np.maximum(either, 1), np.float32)


def fit_bias(
    logits: Floats, wanted: NDArray[np.intp], embedding: Floats, strength: float
) -> Floats:
    """Return the bias (D,) for the layer norm's output that makes the wanted columns (n,) likely.

    logits (n, K) are those without it, embedding is (K, D). The ridge is `strength` times the mean
    curvature of the negative log-likelihood if all columns were equally likely.
    """
    rows = embedding.astype(np.float64)
    ridge = strength * len(wanted) * float(rows.var(axis=0).mean())
    bias = np.zeros(rows.shape[1])

    def loss(bias: NDArray[np.float64]) -> float:
        scores = logits + rows @ bias
        peaks = scores.max(axis=1)
        totals = peaks + np.log(np.exp(scores - peaks[:, None]).sum(axis=1))
        return float((totals - scores[np.arange(len(wanted)), wanted]).sum()) + (
            ridge / 2 * float(bias @ bias)
        )

    for _ in range(NEWTON_STEPS):
        odds = softmax(logits + rows @ bias)
        total, means = odds.sum(axis=0), odds @ rows
        bend = (rows.T * total) @ rows - means.T @ means
        slope = means.sum(axis=0) - rows[wanted].sum(axis=0) + ridge * bias
        step = np.linalg.solve(bend + ridge * np.eye(len(bias)), slope)
        # where few columns are likely, a whole step goes far beyond the minimum
        better = [bias - step / 2**n for n in range(HALVINGS)]
        found = next((one for one in better if loss(one) < loss(bias)), None)
        if found is None:
            break
        bias = found
    return bias.astype(np.float32)


def softmax(logits: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the softmax of each row (n, K)."""
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


if __name__ == "__main__":
    sys.exit(main())
