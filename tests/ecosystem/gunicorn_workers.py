"""The worker class of docs/from-uvloop.md."""
from uvicorn_worker import UvicornWorker


class ZcloopWorker(UvicornWorker):
    CONFIG_KWARGS = UvicornWorker.CONFIG_KWARGS | {"loop": "zcloop:new_event_loop"}
