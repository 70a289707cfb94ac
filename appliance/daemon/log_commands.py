"""Commands of the control socket that read, count and delete the log."""

import itertools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from appliance.daemon.command_group import CommandGroup, bad_request, parse_integer, parse_time
from appliance.mqtt import events
from appliance.store import Store, Wanted
from appliance.system import BackgroundTask

HISTORY_LIMIT, DELETE_LIMIT, TIMES_LIMIT = 200, 1000, 100
QUERY_LETTERS, ID_LETTERS = 1000, 64
HIGHEST_SEQ = (1 << 63) - 1


class LogCommands(CommandGroup):
    """`history`, `count` and `delete`."""

    def __init__(
        self, store: Store, node: str, on_delete: Callable[[], object] = lambda: None
    ) -> None:
        """`on_delete` is called after transcripts were deleted, in a thread of its own."""
        self._store, self._node, self._on_delete = store, node, on_delete
        self._deleting = threading.Lock()

    def _answer_history(
        self, query: Any, since: Any, until: Any, before: Any, limit: Any
    ) -> dict[str, Any]:
        if query is not None and (not isinstance(query, str) or len(query) > QUERY_LETTERS):
            raise bad_request(f"query: expected a text of at most {QUERY_LETTERS} letters")
        words = tuple((query or "").split())
        wanted = Wanted(parse_time("since", since), parse_time("until", until), words)
        limit = parse_integer("limit", limit, 1, HISTORY_LIMIT, 50)
        before = parse_integer("before", before, 1, HIGHEST_SEQ, HIGHEST_SEQ)
        found = self._store.read_page(wanted, before, limit + 1)
        shown, more = events.fit_transcripts(found, self._node, limit)
        return {"transcripts": shown, "total": self._store.count(wanted), "more": more}

    def _answer_count(self, times: Any) -> dict[str, Any]:
        """Count the sentences between each two of `times`.

        One statement each, over the index of "end" alone: the log is never locked for all of them.
        """
        if not isinstance(times, list) or not 2 <= len(times) <= TIMES_LIMIT:
            raise bad_request(f"times: expected a list of 2 to {TIMES_LIMIT} times")
        moments = [moment for one in times if (moment := parse_time("times", one))]
        if len(moments) < len(times) or moments != sorted(moments):
            raise bad_request("times: expected times in order, the oldest first")
        spans = itertools.pairwise(moments)
        return {"counts": [self._store.count(Wanted(since, until)) for since, until in spans]}

    def _answer_delete(
        self, ids: Any, since: Any, until: Any, grep: Any
    ) -> Future[Mapping[str, Any]]:
        """Delete in a thread of its own: in a long log it takes minutes on a slow card."""
        grep = [] if grep is None else grep
        if not isinstance(grep, list) or not all(isinstance(text, str) for text in grep):
            raise bad_request("grep: expected a list of texts")
        if sum(map(len, grep)) > QUERY_LETTERS:
            raise bad_request(f"grep: expected at most {QUERY_LETTERS} letters")
        if ids is None:
            if since is None and until is None and not any(grep):
                raise bad_request("expected ids, since, until or grep")
            texts = tuple(text for text in grep if text)
            wanted = Wanted(parse_time("since", since), parse_time("until", until), texts)
        else:
            fits = isinstance(ids, list) and 0 < len(ids) <= DELETE_LIMIT
            if not fits or not all(isinstance(id, str) and len(id) <= ID_LETTERS for id in ids):
                raise bad_request(f"ids: expected a list of 1 to {DELETE_LIMIT} transcripts' ids")
            if since is not None or until is not None or grep:
                raise bad_request("expected ids, or since, until and grep")
            wanted = Wanted(ids=[id.encode("utf-8", "replace").decode() for id in ids])
        answer: Future[Mapping[str, Any]] = Future()

        def delete() -> None:
            try:
                with self._deleting:  # one after the other
                    deleted = self._store.delete(wanted)
                self._on_delete()
                answer.set_result({"deleted": deleted.count, "gone": deleted.gone})
            except Exception as error:
                answer.set_exception(error)

        BackgroundTask(delete, "deletion")
        return answer
