"""The line editor of ``cellgate console``: entries of several lines, completion, history, answers to input().

It uses prompt_toolkit and asks the kernel what it can't know itself: whether an entry is complete, its
completions, which lexer highlights it. All requests have a short timeout.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.lexers import Lexer, PygmentsLexer, SimpleLexer
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from cellgate.client import Gateway
from cellgate.client.kernel import KernelQuestions

_COMPLETION = 30.0  # seconds: a kernel's first completion takes long, and typing on does not wait for it


class Prompt:
    """A terminal's prompt for the kernel of one session."""

    def __init__(self, gateway: Gateway, session: str) -> None:
        self._name = session
        self._questions = gateway.questions(session)
        self._waiting: list[KeyPress] | None = None

    async def start(self, history: list[str]) -> None:
        """Create the editor; `history` is oldest first."""
        info = await self._questions.ask("kernel_info_request", {}) or {}
        self._lines: PromptSession[str] = PromptSession(
            message=f"{self._name}> ",
            lexer=_lexer(info.get("language_info", {})),
            completer=_KernelCompleter(self._questions),
            complete_while_typing=False,
            history=InMemoryHistory(history),
            key_bindings=self._bindings(),
            multiline=True,
            prompt_continuation=lambda width, _number, _wrapped: ("." * (width - 2)).rjust(width - 1) + " ",
        )
        self._answers: PromptSession[str] = PromptSession()

    async def cell(self) -> str | None:
        """Return the next entry; None when the user leaves."""
        while True:
            try:
                return await self._lines.prompt_async(handle_sigint=False)
            except KeyboardInterrupt:
                continue
            except EOFError:
                return None

    async def answer(self, prompt: str, *, password: bool) -> str | None:
        """Return a line for a cell, hidden if it is a password; None for Ctrl-C and Ctrl-D."""
        try:
            return await self._answers.prompt_async(ANSI(prompt), is_password=password, handle_sigint=False)
        except (KeyboardInterrupt, EOFError):
            return None

    async def close(self) -> None:
        """Close the connection to the kernel."""
        await self._questions.close()

    # Keys

    def _bindings(self) -> KeyBindings:
        """Enter asks the kernel. Keys pressed before it has answered are queued."""
        bindings = KeyBindings()
        plain = Condition(
            lambda: self._waiting is None and self._lines.app.layout.has_focus("DEFAULT_BUFFER")
        )

        @bindings.add("enter", filter=plain)
        def _(event: KeyPressEvent) -> None:
            self._waiting = []
            event.app.create_background_task(self._enter_and_go_on(event))

        @bindings.add("escape", "enter", filter=plain)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.newline(copy_margin=False)

        @bindings.add(Keys.Any, eager=True, filter=Condition(lambda: self._waiting is not None))
        def _(event: KeyPressEvent) -> None:
            assert self._waiting is not None
            self._waiting += event.key_sequence

        return bindings

    async def _enter_and_go_on(self, event: KeyPressEvent) -> None:
        try:
            await self._enter(event)
        finally:
            keys = self._waiting or []
            self._waiting = None
            event.app.key_processor.feed_multiple(keys)
            # After the end of this prompt they stay queued for the next one.
            if not event.app.is_done:
                event.app.key_processor.process_keys()

    async def _enter(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None:
            buffer.complete_state = None
            return
        document = buffer.document
        if document.line_count > 1 and document.text_after_cursor.strip():
            buffer.newline(copy_margin=True)
            return
        if document.text.strip():
            # An empty line ends a block; the kernel must see it as one.
            ended = document.line_count > 1 and not document.current_line.strip()
            question = {"code": document.text + ("\n" if ended else "")}
            answer = await self._questions.ask("is_complete_request", question) or {}
            if answer.get("status") == "incomplete":
                buffer.insert_text("\n" + str(answer.get("indent", "")))
                return
        # The history gets it without the empty line that ended it.
        buffer.document = Document(document.text.rstrip())
        buffer.validate_and_handle()


class _KernelCompleter(Completer):
    """Completions by the kernel."""

    def __init__(self, questions: KernelQuestions) -> None:
        self._questions = questions

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> list[Completion]:
        """Return no completion: the kernel is asked asynchronously."""
        return []

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """Yield the kernel's matches; positions are in characters."""
        place = document.cursor_position
        question = {"code": document.text, "cursor_pos": place}
        answer = await self._questions.ask("complete_request", question, timeout=_COMPLETION) or {}
        start = int(answer.get("cursor_start", place))
        for match in answer.get("matches", []):
            yield Completion(str(match), start_position=min(0, start - place))


def _lexer(language: dict[str, Any]) -> Lexer:
    """Return the lexer that highlights an entry, by the kernel's language_info."""
    name = str(language.get("pygments_lexer") or language.get("name") or "text")
    try:
        return PygmentsLexer(type(get_lexer_by_name(name)))
    except ClassNotFound:
        return SimpleLexer()
