"""The worker: the one thread that owns the model, and steps all streams together."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from midge.decoding.streams import StreamingDecoder
from midge.serve.jobs import Job
from midge.serve.metrics import Metrics
from midge.serve.searches import Searcher, give_way
from midge.serve.sessions import Delivery, News, Session

_logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class Worker:
    """Decodes sessions in a thread of its own.

    It works in rounds. Each steps all streams that are ready by one block, together, takes the new
    sound of all others meanwhile, in a second thread, and tells what came of it. A stream alone is
    decoded at once; the more there are, the more have become ready during a round, and the larger
    the batches. The alternatives of segments are another thread's, because all streams would wait
    for them.

    Args:
        decoder: what streams run on; other threads may step other streams of it.
        metrics: where to count.
        keep_folder: where samples are kept; None keeps none.
        gives_way: whether other threads come first.
    """

    def __init__(
        self,
        decoder: StreamingDecoder,
        metrics: Metrics,
        keep_folder: Path | None = None,
        *,
        gives_way: bool = False,
    ) -> None:
        self._decoder = decoder
        self._metrics = metrics
        self._keep_folder = keep_folder
        self._jobs: list[Job] = []
        self._new: deque[Session] = deque()
        self._gives_way = gives_way
        self._is_stopping = False
        self._searcher = Searcher(metrics)
        self._ear = ThreadPoolExecutor(1, "midge-ear")
        self._signal = threading.Event()
        self._thread = threading.Thread(target=self._run, name="midge-worker", daemon=True)
        self._deliver: Callable[[Sequence[Delivery]], None]

    def start(self, deliver: Callable[[Sequence[Delivery]], None]) -> None:
        """Starts the thread.

        Args:
            deliver: called with what each round found, in the thread or that of the searches.
        """
        self._deliver = deliver
        self._searcher.start(deliver)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, after the present round; waits for it."""
        self._is_stopping = True
        self.wake()
        self._thread.join()
        self._ear.shutdown()
        self._searcher.stop()

    def wake(self) -> None:
        """Says that there is something to do. Any thread may."""
        self._signal.set()

    def add(self, session: Session) -> None:
        """Takes a session on, until it is over. Any thread may."""
        self._new.append(session)
        self.wake()

    def _run(self) -> None:
        if self._gives_way:
            give_way()
        while not self._is_stopping:
            self._signal.wait()
            self._signal.clear()
            # What is asked for during a round sets the signal again, and is not missed.
            while self._round() and not self._is_stopping:
                pass

    def _round(self) -> bool:
        """Does what there is to do now; whether there was anything."""
        started = time.perf_counter()
        while self._new:
            self._begin(self._new.popleft())
        ready = [job for job in self._jobs if job.stream.is_ready]
        if ready:
            waiting = [job for job in self._jobs if not job.stream.is_ready]
            hearing = self._ear.submit(self._hear, waiting)
            self._step(ready)
            heard = hearing.result()
        else:
            heard = self._hear(self._jobs)
            ready = [job for job in heard if not job.is_over and job.stream.is_ready]
            self._step(ready)
        # Of who has just heard enough there is news after the next round.
        told = [*ready, *(job for job in heard if not job.stream.is_ready)]
        touched = [job for job in dict.fromkeys(told) if not job.is_over]
        found = [(job.session, self._safely(job, job.news)) for job in touched]
        news = [(session, each) for session, each in found if each is not None]
        self._jobs = [job for job in self._jobs if not job.is_over]
        if touched or heard:
            self._metrics.busy_seconds.add(time.perf_counter() - started)
        searches = [(job.session, search) for job in touched for search in job.take_searches()]
        if news:
            self._deliver(news)
        for session, search in searches:  # after their segments were told
            self._searcher.add(session, search)
        return bool(touched or heard)

    def _hear(self, jobs: Sequence[Job]) -> list[Job]:
        """Takes new sound of sessions; those for which there was any."""
        return [job for job in jobs if self._safely(job, job.hear)]

    def _begin(self, session: Session) -> None:
        try:
            job = Job(session, self._decoder, self._metrics, self._keep_folder)
        except Exception as error:  # a stream that cannot start must not end the others
            self._fail(session, error)
        else:
            self._jobs.append(job)

    def _safely(self, job: Job, act: Callable[[], _Result]) -> _Result | None:
        """What an act of one job gives; None if it fails, which ends the job alone."""
        try:
            return act()
        except Exception as error:
            self._give_up(job, error)
            return None

    def _step(self, jobs: Sequence[Job]) -> None:
        """Steps streams together.

        An error in here is ours: bad sound is refused before. Which stream caused it is not known,
        and what was taken out of the others cannot be put back, so all of the batch end.
        """
        if not jobs:
            return
        self._metrics.batch_size.observe(len(jobs))
        try:
            self._decoder.step([job.stream for job in jobs])
        except Exception as error:
            for job in jobs:
                self._give_up(job, error)

    def _give_up(self, job: Job, error: Exception) -> None:
        job.release()
        self._fail(job.session, error)

    def _fail(self, session: Session, error: Exception) -> None:
        _logger.error("a stream failed", exc_info=error, extra={"fields": {"session": session.id}})
        self._deliver([(session, News(failure="the server could not go on with this stream"))])
