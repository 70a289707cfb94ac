"""Measure how often something acts on what nobody said, and how often commands act.

    scripts/measure acts [FOLDER...] [--bundle tiny.en] [--against CHECKOUT]
    scripts/measure acts [FOLDER...] --fit

Makes commands from the built-in list of expected sentences, and of each what is near to it and no
command: a report, a question, a part of it. flite, espeak-ng and festival (what is installed) speak
them, every third in pink noise at 12 dB. TESTED sentences by TEST_VOICES are measured; all others,
by FIT_VOICES, are what --fit fits a phrase_calibration to, with the recordings of the folders, and
the table is then with it. A near miss acts if a listed sentence would be acted on; a command acts
rightly if that one has its words, but for plurals and articles. Folders have a MANIFEST.tsv or
transcripts.tsv (columns file and text). --against lets another checkout's appliance hear the same.
"""

import argparse
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rigs.checkout import ROOT
from rigs.sounds import Sound, cut, quiet, read, to_int16, with_noise

from appliance.config import PhrasesSettings, Settings
from appliance.daemon.transcripts import compose
from appliance.infer.gates import Gates
from appliance.infer.numbers import in_words
from appliance.infer.opening import SENTENCES_FILE, open_transcriber
from appliance.infer.phrases import Evidence
from appliance.infer.sentences import END, START, WordNetwork, build_network, plain
from appliance.infer.transcriber import Transcriber
from appliance.infer.wording import compare, past
from appliance.lab.fit.statistics import logistic
from appliance.lab.recordings import read_list
from appliance.model import load_bundle
from appliance.model.bundle import PhraseCalibration
from appliance.records import Window, acting_text, why_not_act

FIT_VOICES = ("flite slt", "flite rms", "espeak-ng en-us+f2", "espeak-ng en-gb")
TEST_VOICES = ("flite awb", "flite kal16", "espeak-ng en-gb-scotland", "text2wave slt_arctic_hts")
PROGRAMS = {
    "flite": "-voice {} -f /dev/stdin -o {}",
    "espeak-ng": "-v {} -s 155 -w {} --stdin",
    "text2wave": "-eval (voice_cmu_us_{}) -o {}",
}
TESTED = {
    *("light_off", "cover_close", "climate", "lock", "unlock", "timer_start", "volume", "list_add"),
    *("device_on", "light_colour", "alarm", "scene"),
}
"""Names of sentences that nothing is fitted to."""
LOCKS = {"lock", "unlock"}
NUMBERED = {
    *("alarm", "timer_start", "light_level", "climate", "volume", "name_level", "light_colour")
}
"""Names of which more sentences are made."""
EACH = 4, 8
"""Sentences of a name, and of NUMBERED and LOCKS."""
HOME = ["desk fan", "christmas tree", "aquarium", "coffee corner"]
NOISE_DB = 12
ALWAYS = PhraseCalibration(50.0, *[0.0] * 9)
"""Each sentence is sure, so that all evidence is looked for."""
RULES = {"changed": -0.6, "sense": -4.0, "report": -2.0}
"""Weights that are chosen, not fitted: few examples have these alone."""
SEED = 7
COMMAND, PAST = "listed command", "report: past"
TWICE = {COMMAND, PAST, "half", "quantity", "time"}
"""Kinds that two voices say."""
KINDS = {
    "report: somebody": "{i have just|she|we already|somebody|the house} {past} {rest}",
    "question": "{did you|who will|why did you|should we|could somebody} {sentence}",
    "condition": "{if you|before you|when we|as soon as they} {sentence}",
    "negation": "{do not|don't|never|please do not|you must not} {sentence}",
    "exception": "{sentence} {except in the kitchen|but not in the bedroom|except the small one|"
    "unless it is dark|but leave the other one}",
    "place or time": "{sentence} {in the greenhouse|at the cabin|in ten minutes|at midnight|"
    "next week|in berlin|after lunch}",
    "longer": "{sentence} {is what she said|was the first thing|and the dog barked|"
    "they told us in the film|because of the noise}",
    "two values": "{sentence} {and|or} {the radio|the heating|the fan}",
}
"""Templates of near misses: one of some words, or the command's."""
OTHERS = {
    "colour": ("transparent", "black", "brown", "silver"),
    "area": ("greenhouse", "chapel", "barn", "sauna", "elevator"),
    "item": ("screws", "candles", "tickets", "a bicycle"),
}
"""Values that their slots do not have."""
UNITS = {"percent", "degrees", "minutes", "seconds", "hours", "timer"}
"""Last words without which a command is as good."""
PASTLESS = {"set", "shut", "put", "it", "volume", "previous", "next", "what", "what's"}
"""First words without another form in the past."""
OUTSIDE = {"percent": (110, 120, 150, 33, 47), "degrees": (5, 35, 40, 60)}
TIMES = "half past", "quarter to", "quarter past", "ten to", "twenty past"
TABLE: dict[str, Any] = tomllib.loads(SENTENCES_FILE.read_text("utf-8"))


@dataclass(frozen=True, slots=True)
class Clip:
    """A sentence that somebody or a synthesiser says."""

    kind: str
    text: str
    voice: str
    sound: Sound


@dataclass(frozen=True, slots=True)
class Heard:
    """What was made of it."""

    clip: Clip
    acts_on: str
    """The listed sentence that would be acted on; "" for none."""
    found: Evidence | None


def main() -> int:
    """Print the table; the exit status."""
    parser = argparse.ArgumentParser("scripts/measure acts", description=__doc__)
    parser.add_argument("folders", type=Path, nargs="*", metavar="FOLDER")
    parser.add_argument("--bundle", default="tiny.en")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    parser.add_argument("--clips", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    bundle = load_bundle(options.bundle)
    if options.fit:
        clips = [*spoken_clips(FIT_VOICES), *people(options.folders)]
        fit = fitted(list(listen(replace(bundle, phrase_calibration=ALWAYS), clips)))
        bundle = replace(bundle, phrase_calibration=fit)
        print("phrase_calibration", asdict(fit))
    if options.clips:
        clips = pickle.load(sys.stdin.buffer)
    else:
        clips = [*spoken_clips(TEST_VOICES), *people(options.folders)]
    heard = list(listen(bundle, clips))
    for key in ("kind", "voice"):
        print(f"\n{key:24} {'sentences':>9} {'act':>5} {'rightly':>8} {'wrongly':>8}")
        for name in sorted({getattr(one.clip, key) for one in heard}):
            some = [one for one in heard if getattr(one.clip, key) == name]
            acts = [one for one in some if one.acts_on]
            rightly = sum(same_order(one.clip.text, one.acts_on) for one in acts)
            share = (len(acts) - rightly) / len(some)
            print(f"{name:24} {len(some):9} {len(acts):5} {rightly:8} {share:8.1%}")
    if options.against:
        print(f"\n{options.against}:", flush=True)
        folder, given = bundle.folder.resolve(), pickle.dumps(clips)
        command = [sys.executable, "-m", "figures.acts", "--clips", f"--bundle={folder}"]
        env = os.environ | {"PYTHONPATH": f"{ROOT}/tests:{ROOT}/scripts"}
        subprocess.run(command, input=given, cwd=options.against, env=env, check=True)
    return 0


def same_order(said: str, sentence: str) -> bool:
    """True if two sentences order the same."""
    said, sentence = (re.sub(r"s\b", "", plain(one)) for one in (said, sentence))
    return not any(compare(said, sentence))


def listen(bundle: Any, clips: Iterable[Clip]) -> Iterator[Heard]:
    """What is made of each clip of one window."""
    rng = np.random.default_rng(SEED)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(f"[phrases]\nown = ['activate the {HOME[0]}']\n[slots]\nname = {HOME}\n")
        file.flush()
        settings = replace(Settings(), phrases=PhrasesSettings(file=file.name))
        with open_transcriber(settings, bundle=bundle) as transcriber:
            transcriber.warm_up()
            for clip in clips:
                stream = np.concatenate((quiet(rng, 1), clip.sound, quiet(rng, 2)))
                windows = cut(to_int16(stream), settings, bundle.window_s)
                if len(windows) == 1 and isinstance(windows[0], Window):
                    yield judged(transcriber, windows[0], clip)


def judged(transcriber: Transcriber, window: Window, clip: Clip) -> Heard:
    """What is made of a window, by the product's own rule."""
    phrases = transcriber.phrases
    assert phrases
    result = transcriber.transcribe(window)
    found = phrases.evidence if result.text else None
    result, reason = Gates(transcriber.gates).apply(window, result)
    one = compose(window, result, transcriber.bundle.name, 0.0)
    acts_on = "" if reason or why_not_act(one) else acting_text(one)
    return Heard(clip, acts_on if phrases.holds(acts_on) else "", found)


def fitted(heard: Sequence[Heard]) -> PhraseCalibration:
    """The logistic regression of a right sentence on its evidence, beside RULES. People count
    threefold, and right sentences as much as all others."""
    known = [(one, one.found) for one in heard if one.found]
    table = [{"offset": 1.0} | found.values() for _, found in known]
    names = [name for name in table[0] if name not in RULES]
    given = np.array([sum(RULES[name] * row[name] for name in RULES) for row in table])
    right = np.array([same_order(one.clip.text, found.sentence) for one, found in known])
    weights = np.array([3.0 if one.clip.voice == "people" else 1.0 for one, _ in known])
    weights[right] *= weights[~right].sum() / weights[right].sum()
    features = np.array([[row[name] for name in names] for row in table])
    found = logistic(features, right.astype(float), weights, ridge=1.0, given=given)
    fit = {name: round(float(one), 2) for name, one in zip(names, found, strict=True)}
    return PhraseCalibration(**fit | RULES)


def people(folders: Sequence[Path]) -> Iterator[Clip]:
    """Recordings of the folders' lists; those that have only what was meant (SLOTS:) say no
    command."""
    for folder in folders:
        listed = read_list(folder)
        if listed is None:
            sys.exit(f"{folder}: expected MANIFEST.tsv or transcripts.tsv in it, found neither")
        network = built_in_network(*TABLE["phrases"])
        for name, (text, _) in listed.items():
            is_command = network.parse(plain(text).split()) is not None
            kind = f"people: {'commands' if is_command else 'other'}"
            yield Clip(kind, text, "people", read(folder / name))


def spoken_clips(voices: Sequence[str]) -> Iterator[Clip]:
    """Sentences by some voices: what is measured, or what is fitted to."""
    voices = [voice for voice in voices if shutil.which(voice.split()[0])]
    if not voices:
        sys.exit("install flite, espeak-ng or festival with festvox-us-slt-hts")
    rng, noise = random.Random(SEED), np.random.default_rng(SEED)
    names = [name for name in TABLE["phrases"] if (name in TESTED) == (voices[0] in TEST_VOICES)]
    made = [one for name in names for one in sentences(name, rng)]
    rng.shuffle(made)
    for number, (kind, text) in enumerate(made):
        for turn in range(number, number + 1 + (kind in TWICE)):
            voice = voices[turn % len(voices)]
            sound = speak(voice, text)
            loud = with_noise(noise, sound, NOISE_DB) if turn % 3 == 2 else sound
            yield Clip(kind, text, voice, loud)


def speak(voice: str, text: str) -> Sound:
    """The sound of a sentence, its numbers in words."""
    text = re.sub(r"\d+", lambda number: in_words(int(number[0])), text)
    asks = re.match(r"(did|who|why|should|could|is|are|how|what|which|will|do i|where)\b", text)
    text = f"{text[:1].upper()}{text[1:]}{'?' if asks else '.'}"
    program, name = voice.split()
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        command = [program, *PROGRAMS[program].format(name, file.name).split()]
        subprocess.run(command, input=text.encode(), check=True)
        return read(Path(file.name))


def built_in_network(*names: str) -> WordNetwork:
    """The network of some of the built-in sentences, with a home's names."""
    phrases = {name: TABLE["phrases"][name] for name in names}
    slots = TABLE["slots"] | {"name": HOME}
    return build_network({"phrases": phrases, "slots": slots}, "", None)


def sentences(name: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Commands of a name, and what is near to them, each with its kind."""
    network, whole = built_in_network(name), built_in_network(*TABLE["phrases"])
    commands = dict(walk(network, rng) for _ in range(EACH[name in NUMBERED | LOCKS]))
    for text, slots in commands.items():
        yield COMMAND, text
        for kind, other in (*near_misses(text, slots, rng), *other_values(text, slots, rng)):
            if whole.parse(other.split()) is None:
                yield f"{name}: all kinds" if name in LOCKS else kind, other


def walk(network: WordNetwork, rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A random sentence of a network and its slots."""
    state, words, slots = START, list[str](), dict[str, Any]()
    while state != END:
        ways: list[Any] = [(end, "", meaning) for end, meaning in network._steps(state)]
        ways += [(end, word, None) for word, end in network.words(state)]
        state, word, meaning = rng.choice(ways)
        words += [word] * bool(word)
        slots |= dict([meaning]) if meaning else {}
    return " ".join(words), slots


def near_misses(text: str, slots: dict[str, Any], rng: random.Random) -> Iterator[tuple[str, str]]:
    """What is near to an order of several words, and to other sentences."""
    first, _, rest = text.partition(" ")
    if not rest:
        return
    is_order = slots[""] not in ("question", "ask", "timer_ask", "word", "name_ask", "scene")
    told = {"sentence": text, "past": past(first), "rest": rest}
    if is_order and first not in PASTLESS and not first[0].isdigit():
        yield PAST, f"{past(first)} {rest}"
    for kind, template in KINDS.items():
        if is_order or template.startswith("{sentence}"):
            parts = re.split(r"[{}]", template)[1::2]
            yield kind, " ".join(told.get(one) or rng.choice(one.split("|")) for one in parts)
    if rest.rpartition(" ")[2] not in UNITS:
        yield "half", text.rpartition(" ")[0]


def other_values(text: str, slots: dict[str, Any], rng: random.Random) -> Iterator[tuple[str, str]]:
    """A sentence with values that its slots do not have, and with two values."""
    for slot in sorted(slots.keys() & {"percent", "degrees", "hour", "number"}):
        said = rf"\b({slots[slot]}|{in_words(slots[slot])})\b"
        if slot == "hour":
            for before in rng.sample(TIMES, 3):
                yield "time", re.sub(rf"{said}.*", rf"{before} \1", text, count=1)
            continue
        wrong = in_words(rng.choice(OUTSIDE.get(slot, (75, 120))))
        yield "quantity", re.sub(said, wrong, text, count=1)
        yield "quantity", re.sub(said, r"\1 and a half", text, count=1)
        yield "two values", re.sub(said, rf"\1 or {in_words(slots[slot] % 9 + 3)}", text, count=1)
    for slot in sorted(slots.keys() & OTHERS.keys()):
        value, other = str(slots[slot]), rng.choice(OTHERS[slot])
        both = f"{value} or {rng.choice([one for one in TABLE['slots'][slot] if one != value])}"
        yield "other object", text.replace(value, other, 1)
        yield "two values", text.replace(value, both, 1)


if __name__ == "__main__":
    sys.exit(main())
