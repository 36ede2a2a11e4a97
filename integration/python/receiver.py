"""A receiver of one transfer: what a decode worker does, in another implementation.

    receiver.py --proto DIR --layout-digest N --layers N --slice-bytes N --blocks N [--held N] --out FILE

It prints its ticket, serialized and in base64, as a line of JSON; then the outcome
as another, with the slices that came in FILE: block after block, in each layer
after layer, zeros where a block is held. It ends with its standard input.
"""

import argparse
import base64
import concurrent.futures
import json
import queue
import random
import sys
import threading

import grpc

import crc32c
import generated
import int8kv

EPOCH = 78
VERSION = 2
CREDIT_BYTES = 4 << 10  # small, so that senders have to wait
MAX_CHUNK_BYTES = 2 << 10


class Wrong(Exception):
    """Ends the transfer, with a FailReason."""


class Stripe:
    """What came over one stream."""

    def __init__(self):
        self.outgoing = queue.Queue()
        self.number = None
        self.credit = CREDIT_BYTES
        self.chunks = 0
        self.committed = self.aborted = False


class Receiver:
    """One reservation, and the session that fills it."""

    def __init__(self, pb, args):
        self._pb, self._args = pb, args
        self._encoding = pb.ENCODING_NATIVE
        self._stripes, self._count, self._session = {}, 0, None
        self._slices = {}
        self._tokens, self._bytes, self._ended = [], 0, False
        self._lock = threading.Lock()
        self.outcome = queue.Queue()
        self.ticket = pb.Ticket(
            transfer_id=random.getrandbits(64), epoch=EPOCH, secret=random.getrandbits(64),
            layout_digest=args.layout_digest, blocks=args.blocks, held_blocks=args.held,
            receiver="python", encoding=pb.Encoding.Value("ENCODING_" + args.encoding.upper()))
        self.ticket.lease.FromSeconds(10)

    def stream(self, requests, context):
        """One stream, from its hello to its end."""
        stripe = Stripe()

        def read():
            try:
                for message in requests:
                    with self._lock:
                        self._take(stripe, message)
            except grpc.RpcError:
                pass
            stripe.outgoing.put(None)

        threading.Thread(target=read, daemon=True).start()
        return iter(stripe.outgoing.get, None)

    def _take(self, stripe, message):
        pb, kind = self._pb, message.WhichOneof("message")
        if (kind == "hello") != (stripe.number is None):
            raise ValueError(f"{kind} out of turn")
        try:
            {"hello": self._hello, "open": self._open, "chunk": self._chunk, "commit": self._commit,
             "abort": self._abort, "renew": lambda stripe, renew: None}[kind](stripe, getattr(message, kind))
        except Wrong as wrong:
            if not self._ended:
                self._ended = True
                reason = pb.FailReason.Value("FAIL_REASON_" + wrong.args[0])
                self._lead(failed=pb.Failed(transfer_id=self.ticket.transfer_id, reason=reason, detail=str(wrong.args[1])))

    def _lead(self, **message):
        self._stripes[0].outgoing.put(self._pb.ReceiverMessage(**message))

    def _hello(self, stripe, hello):
        if hello.version < VERSION or hello.layout_digest != self._args.layout_digest:
            raise ValueError(f"hello of a sender of another kind: {hello}")
        session = (hello.sender, hello.epoch, hello.session, max(hello.stripes, 1))
        if self._session is None:
            self._session, self._count = session, session[-1]
        if session != self._session or hello.stripe in self._stripes:
            raise ValueError(f"hello of another session: {hello}")
        stripe.number = hello.stripe
        self._stripes[hello.stripe] = stripe
        stripe.outgoing.put(self._pb.ReceiverMessage(hello=self._pb.ReceiverHello(
            receiver="python", epoch=EPOCH, version=VERSION, credit_bytes=CREDIT_BYTES,
            max_chunk_bytes=MAX_CHUNK_BYTES, layout_digest=self._args.layout_digest)))

    def _open(self, stripe, message):
        t = self.ticket
        if (message.transfer_id, message.epoch, message.secret, message.layout_digest) != (
                t.transfer_id, t.epoch, t.secret, t.layout_digest) or stripe.number != 0:
            raise ValueError(f"opened with another ticket: {message}")
        self._encoding = message.encoding
        self._lead(accept=self._pb.Accept(transfer_id=t.transfer_id))

    def _chunk(self, stripe, chunk):
        stripe.credit -= len(chunk.payload)
        if stripe.credit < 0 or len(chunk.payload) > MAX_CHUNK_BYTES:
            raise ValueError("the sender has used more than its credit")
        try:
            if not self._ended:
                self._store(stripe, chunk)
        finally:
            stripe.credit += len(chunk.payload)
            stripe.outgoing.put(self._pb.ReceiverMessage(grant=self._pb.Grant(credit_bytes=len(chunk.payload))))

    def _store(self, stripe, chunk):
        if chunk.crc32c != crc32c.of_chunk(chunk):
            raise Wrong("CHECKSUM", f"chunk {chunk.sequence} of stripe {stripe.number}")
        if chunk.sequence != stripe.chunks:
            raise Wrong("INCOMPLETE", f"chunk {chunk.sequence} of stripe {stripe.number}, {stripe.chunks} was due")
        stripe.chunks += 1
        blocks = [block for run in chunk.runs for block in range(run.first_block, run.first_block + run.blocks)]
        size = len(chunk.payload) // len(blocks)
        for i, block in enumerate(blocks):
            if not self._args.held <= block < self._args.blocks or (block, chunk.layer) in self._slices:
                raise Wrong("INCOMPLETE", f"block {block} of layer {chunk.layer} is not awaited")
            encoded = chunk.payload[i * size : (i + 1) * size]
            int8 = self._encoding == self._pb.ENCODING_INT8
            self._slices[block, chunk.layer] = int8kv.decode(encoded, self._args.kv_heads) if int8 else encoded
        self._bytes += len(chunk.payload)

    def _commit(self, stripe, commit):
        if self._ended:
            return
        if commit.crc32c != crc32c.of_commit(commit):
            raise Wrong("CHECKSUM", f"commit of stripe {stripe.number}")
        if commit.epoch != EPOCH or commit.chunks != stripe.chunks or stripe.committed:
            raise Wrong("INCOMPLETE", f"commit of {commit.chunks} chunks on stripe {stripe.number}, {stripe.chunks} came")
        stripe.committed = True
        if stripe.number == 0:
            self._tokens = list(commit.sampled_token_ids)
        if sum(s.committed for s in self._stripes.values()) < self._count:
            return
        if len(self._slices) != self._args.layers * (self._args.blocks - self._args.held):
            raise Wrong("INCOMPLETE", f"{len(self._slices)} slices came")
        self._ended = True
        self._lead(committed=self._pb.Committed(transfer_id=self.ticket.transfer_id))
        self._end("committed", tokens=self._tokens, bytes=self._bytes, chunks=[self._stripes[i].chunks for i in range(self._count)])

    def _abort(self, stripe, abort):
        self._ended = stripe.aborted = True
        if sum(s.aborted for s in self._stripes.values()) == self._count:
            self._lead(drained=self._pb.Drained(transfer_id=self.ticket.transfer_id))
            self._end("drained", reason=self._pb.AbortReason.Name(abort.reason))

    def _end(self, outcome, **more):
        with open(self._args.out, "wb") as f:
            for block in range(self._args.blocks):
                for layer in range(self._args.layers):
                    f.write(self._slices.get((block, layer), bytes(self._args.slice_bytes)))
        self.outcome.put({"outcome": outcome, **more})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proto", required=True, help="the folder that holds tandem/kvtransfer")
    parser.add_argument("--layout-digest", type=int, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--slice-bytes", type=int, required=True)
    parser.add_argument("--kv-heads", type=int, default=1)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--held", type=int, default=0)
    parser.add_argument("--encoding", choices=["native", "int8"], default="native")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()

    pb = generated.load(args.proto)
    receiver = Receiver(pb, args)
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=16), options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("tandem.kvtransfer.v1.KVTransfer", {
        "Stream": grpc.stream_stream_rpc_method_handler(
            receiver.stream,
            request_deserializer=pb.SenderMessage.FromString,
            response_serializer=pb.ReceiverMessage.SerializeToString),
    })])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    receiver.ticket.addresses.append(f"127.0.0.1:{port}")
    print(json.dumps({"ticket": base64.b64encode(receiver.ticket.SerializeToString()).decode()}), flush=True)
    try:
        print(json.dumps(receiver.outcome.get(timeout=60)), flush=True)
        sys.stdin.read()
    finally:
        server.stop(None)


if __name__ == "__main__":
    main()
