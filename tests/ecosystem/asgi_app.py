"""A Starlette application for uvicorn: what each route is for is said by the tests of uvicorn."""
import asyncio
import contextlib
import hashlib

from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute

CHUNK = b"0123456789abcdef" * 4096      # 64 KiB


@contextlib.asynccontextmanager
async def lifespan(app):
    loop = asyncio.get_running_loop()
    print("startup", flush=True)
    yield {"loop": type(loop).__module__.partition(".")[0]}
    print("shutdown", flush=True)


async def about(request):
    return JSONResponse({"loop": request.state.loop, "scheme": request.url.scheme,
                         "http": request.scope["http_version"]})


async def upload(request):
    if "announce" in request.query_params:
        print("entered", flush=True)
    sink, count = hashlib.blake2b(), 0
    async for chunk in request.stream():
        sink.update(chunk)
        count += len(chunk)
    return JSONResponse({"digest": sink.hexdigest(), "received": count})


async def stream(request):
    count = int(request.query_params["chunks"])

    async def chunks():
        for _ in range(count):
            yield CHUNK
    return StreamingResponse(chunks(), media_type="application/octet-stream")


async def websocket(ws):
    await ws.accept()
    async for message in ws.iter_bytes():
        await ws.send_bytes(message[::-1])


app = Starlette(lifespan=lifespan, routes=[
    Route("/", about), Route("/upload", upload, methods=["POST"]), Route("/stream", stream),
    WebSocketRoute("/ws", websocket)])
