"""The bus: tells the parts of the appliance what happens. It is made first."""

from collections.abc import Callable

from appliance.records import Listener


class Bus(Listener):
    """Passes all news on to its listeners, in the order in which they were added."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def add(self, *listeners: Listener | None) -> None:
        """Pass news on to these from now on; None stands for a part that is not configured."""
        self._listeners += tuple(filter(None, listeners))

    @property
    def wants_partials(self) -> bool:
        """True while any listener does."""
        return any(listener.wants_partials for listener in self._listeners)


def _pass_on(name: str) -> Callable[..., None]:
    def tell(bus: Bus, *news: object) -> None:
        for listener in bus._listeners:
            getattr(listener, name)(*news)

    return tell


for _name in vars(Listener):
    if _name.startswith("on_"):
        setattr(Bus, _name, _pass_on(_name))
