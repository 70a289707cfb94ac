"""Question 5: the model, tried on a known sentence before it is taken."""

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
ON_A_SMALL_CHIP = (
    "Their encoders run on the CPU: Hailo's own one of base for this chip hears 5 s at once and "
    "gets 4 words more of 100 wrong. The Hailo runs tiny, and tiny.en or base with a HEF of 10 s "
    "that you compile (docs/hailo.md)."
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
            return take_model(context, answers, name, ask_hef(context, name))
        except RoomscribeError as error:
            if not dialog.interactive:
                raise
            dialog.report(error)
        if name == answers.model:
            dialog.say(f"The model stays as it was: {name}")
            return answers
        name = None


def recommendation() -> str:
    """Return which model to take on this machine: that with the fewest wrong words, its encoder on
    the Hailo if Hailo's own encoder for it costs at most 2 words in 100 (docs/hailo.md)."""
    from appliance.infer import find_chip

    try:
        chip = find_chip()
    except DeviceError as error:
        return f"{error}."
    if chip and _hears_whole_window(chip, "base"):
        return "Recommended: base, on the Hailo."
    advice = "Recommended: base, or tiny.en where that is too slow"
    return f"{advice}. {ON_A_SMALL_CHIP}" if chip else f"{advice}."


def _hears_whole_window(chip: str, model: str) -> bool:
    """Return True if Hailo publishes an encoder with the CPU's window."""
    from appliance.convert import find_hef
    from appliance.model import WINDOW_S

    hef = find_hef(chip, model)
    return hef is not None and hef.window_s >= WINDOW_S


def ask_hef(context: Context, name: str) -> str:
    """Return the file of the user's own encoder for a model; "" without one. Asks on a machine with
    a Hailo for which none is published."""
    from appliance.infer import find_chip

    given, dialog = context.options.hef, context.dialog
    if given or not dialog.interactive:
        return given or ""
    try:
        chip = find_chip()
    except DeviceError:
        return ""
    if not chip or _hears_whole_window(chip, name):
        return ""
    return dialog.ask("A HEF that you compiled for its encoder (a path; Enter: none)?", "")


def is_source(answer: str) -> bool:
    """Return True for a folder, or a model's id on the hub."""
    return "/" in answer or answer.startswith(("~", "."))


def take_model(context: Context, answers: Answers, source: str, hef: str = "") -> Answers:
    """Return the answers with that model, after it has read a sentence. It is added if it is not
    installed, and again with `hef`, the user's own encoder for the Hailo.

    Raises RoomscribeError if it cannot be added or fails. The model in use is only reported.
    """
    from appliance.model import installed_bundles

    name = source
    pinned = source == context.settings.model.bundle and "/" in source
    if hef or (source not in installed_bundles() and not pinned):
        context.dialog.say(f"Adding {source}.")
        name = models.add_source(source, hef)
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
