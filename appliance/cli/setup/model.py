"""Question 4: the model, tried on a known sentence before it is taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from appliance.cli import model as models
from appliance.cli.setup.answers import Answers, Context
from appliance.cli.setup.suggestion import Estimate, estimate_models, suggest
from appliance.config import ModelSettings
from appliance.errors import ModelError, RoomscribeError
from appliance.system import shorten


def ask_model(context: Context, answers: Answers) -> Answers:
    """Ask for the model until one works, or the old one is kept.

    Raises RoomscribeError for a wrong --model where nobody is asked.
    """
    dialog, name = context.dialog, context.options.model
    if name is None and not dialog.interactive:
        dialog.say(answers.model)
        return answers
    choices: Sequence[str] = ()
    while True:
        default = answers.model
        if name is None and not choices:
            choices, default = show_models(context, answers)
        name = name or dialog.choose("Which model?", choices, default)
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


def show_models(context: Context, answers: Answers) -> tuple[list[str], str]:
    """Print the models that there are, with estimates; return their names and the proposed one."""
    from appliance.convert import hub_is_reachable
    from appliance.infer import find_chip
    from appliance.model import installed_bundles, library

    dialog, installed = context.dialog, list(installed_bundles())
    dialog.say("Measuring this machine ...")
    estimates = estimate_models()
    with suppress(OSError, RoomscribeError):
        if chip := find_chip():
            dialog.say(f"This machine has a {chip}, which is faster than the estimates below.")
    names = list(dict.fromkeys([*installed, *library.PUBLISHED, answers.model]))
    for number, name in enumerate(names, 1):
        dialog.say(f"  {number}  {name:9} {describe(name, installed, estimates)}")
    reachable = hub_is_reachable()
    proposed = suggest(answers.model, installed, estimates, reachable=reachable)
    dialog.say(explain(proposed, answers.model, estimates, reachable=reachable))
    return names, proposed


def explain(
    proposed: str, present: str, estimates: Mapping[str, Estimate], *, reachable: bool
) -> str:
    """Return a sentence or two on why that model is proposed."""
    from appliance.model import BUILT_IN

    if proposed != present:
        return (
            f"Recommended: {proposed}, the largest model that should answer within a second on "
            "this machine. The times are estimates; setup measures the model that you choose."
        )
    if present != BUILT_IN:
        return f"{present} is in use."
    only = f"{present} is only a demonstration."
    if not reachable:
        return f"{only} A real model cannot be downloaded now: no connection to the hub."
    if not estimates:
        return f"{only} There is no recommendation because this machine could not be measured."
    return (
        f"{only} No real model is expected to answer within a second here, or there is too little "
        "memory."
    )


def describe(name: str, installed: Sequence[str], estimates: Mapping[str, Estimate]) -> str:
    """Return a model in a few words: what it is, its size, its expected time and memory."""
    from appliance.model import BUILT_IN, library, load_bundle

    if name == BUILT_IN:
        return "built in; a demonstration with a few hundred household words"
    if name in installed or name not in library.PUBLISHED:
        try:
            bundle = load_bundle(name)
        except RoomscribeError as error:
            return shorten(str(error), 80)
        size_mb = models.folder_bytes(bundle.folder) / 1e6
        npu = ", with an encoder for the NPU" if "encoder.hef" in bundle.files else ""
        return f"installed, {size_mb:.0f} MB{npu}; {bundle.source or bundle.description}"
    found = library.PUBLISHED[name]
    languages = "English" if name.endswith(".en") else "99 languages"
    line = f"{languages}, download {found.download_mb} MB"
    return f"{line}, {estimates[name]}" if name in estimates else line


def take_model(context: Context, answers: Answers, name: str) -> Answers:
    """Return the answers with that model, downloaded if need be, after it has read a sentence.

    Raises RoomscribeError if it cannot be added or fails. The model in use is only reported.
    """
    from appliance.model import installed_bundles

    if name not in installed_bundles() and name != answers.model:
        context.dialog.say(f"Adding {name}. After the download this takes about a minute.")
        models.add_source(name)
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
        return False, f"{name}: {outcome.found}; {outcome.fix}"
    return True, f"{name}: {outcome.found}"
