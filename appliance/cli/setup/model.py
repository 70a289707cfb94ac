"""Question 4: the model, tried on a known sentence before it is taken."""

from __future__ import annotations

from dataclasses import replace

from appliance.cli import model as models
from appliance.cli.setup.answers import Answers, Context
from appliance.config import ModelSettings
from appliance.errors import DeviceError, ModelError, RoomscribeError

ADVICE = (
    "Names with .en know English, the others 99 languages. base takes twice the time of tiny. You "
    "can also give a folder: a model of faster-whisper (CTranslate2), or a checkpoint of Hugging "
    "Face's."
)


def ask_model(context: Context, answers: Answers) -> Answers:
    """Ask for the model until one works, or the old one is kept.

    Raises RoomscribeError for a wrong --model where nobody is asked.
    """
    from appliance.convert import WRONG_WORDS
    from appliance.model import installed_bundles, library

    dialog, name = context.dialog, context.options.model
    if name is None and not dialog.interactive:
        dialog.say(answers.model)
        return answers
    while True:
        if name is None:
            installed = list(installed_bundles())
            names = list(dict.fromkeys([*installed, *library.PUBLISHED, answers.model]))
            for number, each in enumerate(names, 1):
                published = library.PUBLISHED.get(each)
                download = f"download {published.download_mb} MB" if published else ""
                wrong = f"  {WRONG_WORDS[each]} % of words wrong" if each in WRONG_WORDS else ""
                where = "installed" if each in installed else download
                dialog.say(f"{number:3} {each:10} {where:16}{wrong}".rstrip())
            dialog.say(f"{ADVICE} {recommendation()}")
            name = dialog.choose("Which model?", names, answers.model, accepts=is_source)
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


def recommendation() -> str:
    """Return which of the measured models gets the fewest words wrong on this machine, and on which
    processor: a Hailo's encoder with a shorter window than the CPU's gets more wrong."""
    from appliance.convert import find_hef
    from appliance.infer import find_chip
    from appliance.model import WINDOW_S

    try:
        chip = find_chip()
    except DeviceError as error:
        return f"{error}."
    hef = find_hef(chip, "base") if chip else None
    if hef and hef.window_s >= WINDOW_S:
        return "Recommended: base, on the Hailo."
    where = ", both on the CPU, not on the Hailo" if chip else ""
    return f"Recommended: base, or tiny.en where that is too slow{where}."


def is_source(answer: str) -> bool:
    """Return True for a folder, or a model's id on the hub."""
    return "/" in answer or answer.startswith(("~", "."))


def take_model(context: Context, answers: Answers, source: str) -> Answers:
    """Return the answers with that model, added if it is not installed, after it has read a
    sentence.

    Raises RoomscribeError if it cannot be added or fails. The model in use is only reported.
    """
    from appliance.model import installed_bundles

    name = source
    pinned = source == context.settings.model.bundle and "/" in source
    if source not in installed_bundles() and not pinned:
        context.dialog.say(f"Adding {source}.")
        name = models.add_source(source)
    works, found = try_model(context, name)
    if not works and name != answers.model:
        raise ModelError(found)
    context.dialog.say(found)
    return replace(answers, model=name)


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
