"""The environments of packages that operators add beside the one of ``cellgate setup``, each by a name.

An environment is a kernelspec of its name, so all that works with kernelspecs works with it. Its packages are
in a folder that is named after their digest and never changes; the kernelspec says which one, so a renewed
environment is another folder, and kernels that run keep theirs. Used by ``cellgate environment``; the
``catalog`` of a gateway that serves sees changes by itself. It waits for child processes and locks: not for
the event loop. All files are below ``<prefix>/share/cellgate``.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from jupyter_client.kernelspec import KernelSpec
from traitlets import TraitError

from cellgate_kernels.base.errors import BackendUnavailable, InvalidInput, in_words
from cellgate_kernels.base.regular import read_regular
from cellgate_kernels.specs.catalog import data_folder
from cellgate_kernels.specs.environments import OWN, ListedEnvironment
from cellgate_kernels.specs.install import (
    STAMP,
    configured_uv,
    has_kernel,
    install_packages,
    kernelspec_for,
    place_start_up_files,
    write_kernelspec,
    write_manifest,
)
from cellgate_kernels.specs.interpreters import Interpreter, find_interpreter
from cellgate_kernels.specs.manifest import MANIFEST, read_manifest
from cellgate_kernels.specs.named_environment import METADATA, NamedEnvironment, check_name, named_environment
from cellgate_kernels.specs.requirement_list import (
    MOST_LIST_BYTES,
    MOST_LOCK_BYTES,
    RequirementList,
    read_list,
)
from cellgate_kernels.specs.setup_programs import SetupPrograms, replace_file, wait_for

LOCK = "environment.lock"
"""The file beside an environment's start-up files that has its lock."""
ALWAYS = ("ipykernel", "pip")
"""What each list gets: the kernel of Python, and what ``%pip`` runs."""

_RECIPE = "environment.json"
_DIGITS = 16
"""How many digits of a digest name a folder. Programs' first lines have its path, which must be short."""
_WORK = "work-"


class Recipe(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What an environment is made of, and made of again: `base`, with the packages that it has now, and the
    list `requirements`, for the Python that `python` names.
    """

    base: str = ""
    requirements: str = ""
    python: str = ""


@dataclass(frozen=True, slots=True)
class AddedEnvironment:
    """An environment that has been added: its folder, its Python, the number of its packages, its base."""

    named: NamedEnvironment
    folder: Path
    python: str
    packages: int
    base: str


@dataclass(frozen=True, slots=True)
class Built:
    """What was built. `changed`: whether it differs from before; `left`: folders that stay for now, because a
    gateway serves whose sessions may use them.
    """

    environment: AddedEnvironment
    changed: bool
    left: int


class AddedEnvironments:
    """The added environments below a prefix. `step` receives a description of each step, `detail` more."""

    def __init__(
        self,
        prefix: Path,
        step: Callable[[str], None] = lambda _: None,
        detail: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._root = data_folder(prefix.absolute())
        self._kernels = self._root / "kernels"
        self._made = self._root / "environments"
        self._step = step
        self._detail = detail

    def all(self) -> list[AddedEnvironment]:
        """Return all, by name. Raises BackendUnavailable if one can't be read."""
        with _in_words(self._root):
            found = [self._find(folder.name) for folder in sorted(self._kernels.glob("*"))]
        return [environment for environment in found if environment is not None]

    def add(self, name: str, recipe: Recipe) -> Built:
        """Add an environment. Raises InvalidInput for a name or a recipe that is not one; as `build`."""
        check_name(name)
        with self._alone() as programs:
            if self._find(name) is not None:
                raise InvalidInput(
                    f"There is an environment {name!r} already: `cellgate environment build {name}` renews"
                    f" it, `cellgate environment remove {name}` removes it"
                )
            if (self._kernels / name).exists():
                raise InvalidInput(f"{name!r} is a kernelspec of this gateway; choose another name")
            if recipe.base not in ("", *ListedEnvironment) and not recipe.python:
                self._named(recipe.base)
                recipe = msgspec.structs.replace(recipe, python=self._recipe(recipe.base).python)
            named, folder = self._build(name, recipe, programs)
            draft = Path(tempfile.mkdtemp(prefix=_WORK, dir=self._made))
            draft.chmod(0o755)
            replace_file(draft / _RECIPE, msgspec.json.encode(recipe))
            write_kernelspec(draft, _kernelspec(named, folder))
            self._kernels.mkdir(exist_ok=True)
            draft.rename(self._kernels / name)
            return self._built(name, changed=True)

    def build(self, name: str) -> Built:
        """Build an environment again, of the newest versions that fit its recipe.

        If that gives the same digest, nothing is done. Raises InvalidInput for a name that is not there;
        BackendUnavailable, with the end of uv's output, if it can't be built: the former one stays.
        """
        with self._alone() as programs:
            before = self._named(name)
            named, folder = self._build(name, self._recipe(name), programs)
            if named != before.named:
                write_kernelspec(self._kernels / name, _kernelspec(named, folder))
            return self._built(name, changed=named != before.named)

    def remove(self, name: str) -> int:
        """Remove an environment; return how many folders stay, because a gateway serves."""
        with self._alone():
            self._named(name)
            aside = Path(tempfile.mkdtemp(prefix=_WORK, dir=self._made))
            (self._kernels / name).rename(aside / name)
            return self._tidy()

    def renew_start_up_files(self) -> None:
        """Put this version's start-up files into all environments. Raises BackendUnavailable."""
        if not self._made.is_dir():
            return
        with self._alone():
            for environment in self.all():
                self._step(f"renewing the start-up files of {environment.named.name}")
                place_start_up_files(environment.folder)

    @contextmanager
    def _alone(self) -> Iterator[SetupPrograms]:
        """Keep other set-ups of this prefix out."""
        with _in_words(self._root), ExitStack() as stack:
            self._made.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((self._root / "setup.lock").open("w"))
            log = stack.enter_context((self._root / "setup.log").open("a"))
            wait_for(lock, self._step)
            # What was interrupted before: nobody works on it now.
            self._remove_unfinished()
            try:
                yield SetupPrograms(self._root, log, lock, self._detail)
            finally:
                self._remove_unfinished()

    def _find(self, name: str) -> AddedEnvironment | None:
        """Return the environment of this name; None if it is another kernelspec, or none."""
        folder = self._kernels / name
        try:
            spec = KernelSpec.from_resource_dir(str(folder))
            named = named_environment(spec.metadata)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, TypeError, TraitError) as error:
            raise BackendUnavailable(f"The kernelspec in {folder} can't be used: {error}") from error
        if named is None or not spec.argv:
            return None
        environment = Path(spec.argv[0]).parents[1]
        try:
            manifest = read_manifest(data_folder(environment) / MANIFEST)
        except ValueError as error:
            raise BackendUnavailable(f"The manifest of {environment} can't be read: {error}") from error
        python, packages = ("", 0) if manifest is None else (manifest.python, len(manifest.packages))
        return AddedEnvironment(named, environment, python, packages, self._recipe(name).base)

    def _named(self, name: str) -> AddedEnvironment:
        """Return the environment of this name. Raises InvalidInput, which names those that there are."""
        found = self._find(name) if "/" not in name else None
        if found is None:
            known = ", ".join(each.named.name for each in self.all()) or "none"
            raise InvalidInput(f"There is no environment {name[:40]!r}. Added so far: {known}")
        return found

    def _recipe(self, name: str) -> Recipe:
        path = self._kernels / name / _RECIPE
        try:
            return msgspec.json.decode(read_regular(path, 2 * MOST_LIST_BYTES), type=Recipe)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BackendUnavailable(
                f"{path} is damaged ({error}). Remove {name}, and add it again"
            ) from error

    def _build(self, name: str, recipe: Recipe, programs: SetupPrograms) -> tuple[NamedEnvironment, Path]:
        """Return the environment of a recipe, made unless there is one of the same digest, and its folder."""
        interpreter = find_interpreter(recipe.python, self._root)
        lock = self._lock(recipe, interpreter, programs)
        digest = hashlib.sha256(f"{interpreter.about}\n{lock.text()}".encode()).hexdigest()
        folder = self._made / digest[:_DIGITS]
        if _is_made(folder, digest):
            self._step(f"{len(lock)} packages of these versions are there already")
        else:
            self._step(f"making the environment in {folder}")
            self._make(folder, lock, interpreter, programs)
            (folder / STAMP).write_text(digest)
        return NamedEnvironment(name, digest), folder

    def _make(
        self, folder: Path, lock: RequirementList, interpreter: Interpreter, programs: SetupPrograms
    ) -> None:
        with self._workplace() as work:
            given = work / "requirements.txt"
            given.write_text(lock.text())
            install_packages(folder, given, programs, self._step, str(interpreter.program))
        if not has_kernel(folder):
            raise InvalidInput(
                f"The list has no {ALWAYS[0]}, which kernels of Python are: one with hashes needs it, too"
            )
        self._step("writing its start-up files and matplotlib's list of fonts")
        place_start_up_files(folder)
        write_manifest(folder, OWN)
        replace_file(data_folder(folder) / LOCK, lock.text().encode())

    def _lock(self, recipe: Recipe, interpreter: Interpreter, programs: SetupPrograms) -> RequirementList:
        """Return the versions and hashes of all packages: the list's own, or those that uv chooses."""
        asked = read_list(recipe.requirements, "the list")
        if asked.is_lock:
            if recipe.base:
                raise InvalidInput("a list with hashes is whole: leave out --from, or the hashes")
            return asked
        base = self._lock_of(recipe.base).text(hashes=False) if recipe.base else ""
        self._step("choosing the versions of its packages")
        with self._workplace() as work:
            listed, chosen = work / "list.txt", work / "chosen.txt"
            listed.write_text("\n".join([base, asked.text(), *ALWAYS]) + "\n")
            words = ["pip", "compile", "--quiet", "--generate-hashes", "--no-build", "--no-header"]
            words += ["--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
            words += ["--python", str(interpreter.program), "--output-file", str(chosen), str(listed)]
            programs.run(*configured_uv(words))
            return _read_lock(chosen)

    def _lock_of(self, base: str) -> RequirementList:
        if base in list(ListedEnvironment):
            return _read_lock(ListedEnvironment(base).lock)
        return _read_lock(data_folder(self._named(base).folder) / LOCK)

    @contextmanager
    def _workplace(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix=_WORK, dir=self._made) as folder:
            yield Path(folder)

    def _built(self, name: str, *, changed: bool) -> Built:
        return Built(self._named(name), changed, self._tidy())

    def _remove_unfinished(self) -> None:
        """Remove what is no finished environment: no kernelspec has ever named it."""
        for folder in self._made.iterdir():
            if not (folder / STAMP).is_file():
                shutil.rmtree(folder, ignore_errors=True)

    def _tidy(self) -> int:
        """Remove environments that have no name any more; return how many stay, because a gateway serves."""
        used = {environment.folder for environment in self.all()}
        unused = [
            folder for folder in self._made.iterdir() if folder not in used and (folder / STAMP).exists()
        ]
        with ExitStack() as stack:
            if unused and not _may_remove(self._kernels, stack):
                return len(unused)
            for folder in unused:
                (folder / STAMP).unlink()
        for folder in unused:
            shutil.rmtree(folder, ignore_errors=True)
        return 0


def lock_of(spec: KernelSpec) -> str:
    """Return the lock of the environment of a kernelspec. Raises OSError and ValueError."""
    path = data_folder(Path(spec.argv[0]).parents[1]) / LOCK
    text = read_regular(path, MOST_LOCK_BYTES + 1)
    if len(text) > MOST_LOCK_BYTES:
        raise ValueError("it is too large")
    return text.decode()


def keep_in_use(kernels: str) -> int:
    """Keep the environments of the kernelspecs in this folder until the descriptor is closed that it returns.

    Waits for a command that removes some just now: a moment. Raises OSError, as where a disk has no locks.
    """
    descriptor = os.open(kernels, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _may_remove(kernels: Path, stack: ExitStack) -> bool:
    """Return whether no gateway serves kernelspecs of this folder, nor begins to while the stack is open."""
    try:
        descriptor = os.open(kernels, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_made(folder: Path, digest: str) -> bool:
    try:
        return (folder / STAMP).read_text() == digest
    except OSError:
        return False


def _read_lock(path: Path) -> RequirementList:
    found = read_list(read_regular(path, MOST_LOCK_BYTES).decode(), path.name)
    if not found.is_lock:
        raise BackendUnavailable(f"{path} has no hashes")
    return found


def _kernelspec(named: NamedEnvironment, folder: Path) -> dict[str, object]:
    """Return the kernelspec of an environment, as JSON values."""
    spec = kernelspec_for(folder)
    metadata = {**spec["metadata"], METADATA: msgspec.to_builtins(named)}
    return {**spec, "display_name": f"Python 3 ({named.name})", "metadata": metadata}


@contextmanager
def _in_words(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BackendUnavailable(f"The environments in {root} can't be used: {in_words(error)}") from error
