"""Open documents of Jupyter's clients: each principal's own, and never too many."""

from __future__ import annotations

from cellgate.sessions.document_sessions import MOST_OF_ONE, NotebookSession, NotebookSessions


def document(principal: str, number: int, kernel: str = "k") -> NotebookSession:
    return NotebookSession(principal, f"{number}.ipynb", "", "notebook", kernel, f"{principal}-{number}")


def test_the_oldest_are_forgotten_first_and_nobody_elses() -> None:
    documents = NotebookSessions()
    documents.put(document("bob", 0))
    for number in range(MOST_OF_ONE + 5):
        documents.put(document("ada", number))
    assert [entry.path for entry in documents.of("ada", {"k"})] == [
        f"{number}.ipynb" for number in range(5, MOST_OF_ONE + 5)
    ]
    assert len(documents.of("bob", {"k"})) == 1


def test_a_document_goes_with_its_kernel() -> None:
    documents = NotebookSessions()
    kept = document("ada", 1, "kept")
    documents.put(kept)
    documents.put(document("ada", 2, "gone"))
    assert documents.of("ada", {"kept"}) == [kept]
    assert documents.of("ada", ()) == []


def test_a_changed_document_stays_in_its_place() -> None:
    documents = NotebookSessions()
    entries = [document("ada", number) for number in range(3)]
    for entry in [*entries, entries[0]]:
        documents.put(entry)
    assert documents.of("ada", {"k"}) == entries
