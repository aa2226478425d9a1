"""Execute the chapters whose results are out of date, two at a time. Each is kept as soon as it is finished."""

import concurrent.futures as futures
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import NoReturn

import nbformat

from atlas import facts, inputs
from atlas.chapter import Chapter, chapters
from atlas.environment import JOBS, settle
from atlas.execute import ChapterFailed, Result, execute
from atlas.project import Project, write_if_changed

_STOPPED = "Stopped. Finished chapters are kept."


def stale(cache, chapter: Chapter) -> bool:
    """Whether a chapter has no result for its present code, or one that was computed from other files."""
    try:
        record = cache.match_cache_notebook(chapter.notebook())
    except KeyError:
        return True
    known = record.data
    return inputs.snapshot(chapter.project.root, known["modules"]) != known["files"]


def keep(cache, result: Result) -> None:
    from jupyter_cache.base import CacheBundleIn

    files = inputs.snapshot(result.chapter.project.root, result.modules)
    data = {"seconds": result.seconds, "modules": result.modules, "files": files}
    bundle = CacheBundleIn(result.notebook, str(result.chapter.path), data=data)
    cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def run(project: Project, jobs: int = JOBS) -> list[str]:
    """Bring every chapter up to date and lay its executed notebook under `_build/executed`. Returns what was executed."""
    from jupyter_cache import get_cache

    cache = get_cache(str(project.cache))
    everything = chapters(project)
    todo = [chapter for chapter in everything if stale(cache, chapter)]
    if todo:
        print(f"Executing {len(todo)} of {len(everything)} chapters", flush=True)
    pool = futures.ThreadPoolExecutor(jobs)
    with _scratch_folder():
        waiting = [pool.submit(execute, chapter) for chapter in todo]
        try:
            for done in futures.as_completed(waiting):
                result = done.result()
                keep(cache, result)
                print(f"  chapter {result.chapter.doc} … {result.seconds:.1f} s", flush=True)
        except BaseException:
            # The first failure, or Ctrl-C, stops everything at once. The threads end by themselves when their kernels do.
            pool.shutdown(wait=False, cancel_futures=True)
            stop_kernels()
            raise
    _lay_out(project, cache, everything)
    facts.write(project, everything)
    return [chapter.doc for chapter in todo]


@contextlib.contextmanager
def _scratch_folder():
    """Kernels start in an empty folder of their own, so that nothing a chapter writes lands beside its source."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="chapters-", ignore_cleanup_errors=True) as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def stop_kernels() -> None:
    import psutil

    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def _lay_out(project: Project, cache, everything: list[Chapter]) -> None:
    wanted = set()
    for chapter in everything:
        _, notebook = cache.merge_match_into_notebook(chapter.notebook())
        write_if_changed(chapter.executed, nbformat.writes(notebook) + "\n")
        wanted.add(chapter.executed)
    for left in set(project.executed.rglob("*.ipynb")) - wanted:
        left.unlink()


def main(arguments: list[str]) -> int:
    """`python book/_ext execute [ROOT]`"""

    def interrupt(*_):
        # Python drops what a signal raises while an object is being finalised: then the timer ends the run.
        timer = threading.Timer(2, _leave, (_STOPPED, 130))
        timer.daemon = True
        timer.start()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    settle()
    project = Project(Path(arguments[0]).resolve()) if arguments else Project.here()
    try:
        run(project)
        return 0
    except ChapterFailed as failure:
        width = shutil.get_terminal_size().columns
        _leave(f"{'─' * min(width, 100)}\n{failure}", 1)
    except KeyboardInterrupt:
        _leave(_STOPPED, 130)


def _leave(message: str, code: int) -> NoReturn:
    stop_kernels()
    print(message, file=sys.stderr, flush=True)
    os._exit(code)  # not sys.exit: that would wait for threads whose kernels have just been killed
