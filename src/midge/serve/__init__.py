"""A model as a live service: WebSockets, whole files, a page to speak to.

One thread, the worker, steps all streams together; one more those that expect phrases, and one each
looks for their alternatives. The event loop only moves bytes: it hands what it receives to the
workers' inboxes and sends what comes back.

    settings    what a server, and what a stream, may be asked for
    sessions    one stream between its connection and the worker
    worker      the thread that decodes; jobs: a session as that thread sees it; searches: the
                thread of the alternatives
    service     what all connections share: admission, worker, metrics
    live, vosk  the two protocols over WebSockets; writing: JSON; uploads: whole files
    web         the application; runner: the process around it

It needs the packages of the extra `midge[serve]`.
"""
