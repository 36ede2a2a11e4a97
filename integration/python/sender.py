"""A sender of one transfer: what a prefill worker does, in another implementation.

    sender.py --proto DIR --ticket FILE --kv FILE --layers N --slice-bytes N [--stripes N]

The ticket is a serialized Ticket. The KV is the slices of all blocks of the
reservation, held ones included: block after block, in each layer after layer. The
outcome is printed as one line of JSON.
"""

import argparse
import json
import queue
import random
import threading

import grpc

import crc32c
import generated
import int8kv

METHOD = "/tandem.kvtransfer.v1.KVTransfer/Stream"
PATIENCE_SECONDS = 20
VERSION = 2


class Stripe:
    """One stream of the session, on a connection of its own."""

    def __init__(self, pb, address, hello, changed):
        self._outgoing = queue.Queue()
        self._answers = queue.Queue()
        self._credit = 0
        self._changed = changed  # of the session: there is credit, or an answer
        self.chunks = 0
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self._channel = grpc.insecure_channel(address, options=options)
        call = self._channel.stream_stream(
            METHOD,
            request_serializer=pb.SenderMessage.SerializeToString,
            response_deserializer=pb.ReceiverMessage.FromString,
        )
        self._responses = call(iter(self._outgoing.get, None))
        self.send(pb.SenderMessage(hello=hello))
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, message):
        self._outgoing.put(message)

    def answer(self):
        """The next message that is no Grant."""
        message = self._answers.get(timeout=PATIENCE_SECONDS)
        if isinstance(message, Exception):
            raise message
        return message

    def take_credit(self, size, over):
        """Waits until size bytes may be sent; False if over() is true before."""
        with self._changed:
            if not self._changed.wait_for(lambda: over() or self._credit >= size, PATIENCE_SECONDS):
                raise TimeoutError("no credit came")
            if over():
                return False
            self._credit -= size
            return True

    def failed(self):
        """The Failed or the error that waits to be read, if there is one."""
        return any(isinstance(m, Exception) or m.HasField("failed") for m in list(self._answers.queue))

    def close(self):
        self._outgoing.put(None)
        self._channel.close()

    def _read(self):
        try:
            for message in self._responses:
                with self._changed:
                    if message.HasField("grant"):
                        self._credit += message.grant.credit_bytes
                    else:
                        if message.HasField("hello"):
                            self._credit = message.hello.credit_bytes
                        self._answers.put(message)
                    self._changed.notify_all()
            self._answers.put(EOFError("the stream has ended"))
        except grpc.RpcError as err:
            self._answers.put(err)


class Sender:
    """A session with one transfer."""

    def __init__(self, pb, ticket, stripes):
        self._pb, self._ticket = pb, ticket
        session, changed = random.getrandbits(63) + 1, threading.Condition()
        self._stripes = [
            Stripe(pb, ticket.addresses[0], pb.SenderHello(
                sender="python", epoch=77, version=VERSION, layout_digest=ticket.layout_digest,
                session=session, stripe=i, stripes=stripes), changed)
            for i in range(stripes)
        ]
        hellos = [s.answer().hello for s in self._stripes]
        if any(h.epoch != ticket.epoch or h.version != VERSION for h in hellos):
            raise ValueError(f"hello of another receiver: {hellos}")
        self._max_chunk_bytes = min(h.max_chunk_bytes for h in hellos)

    def open(self):
        t = self._ticket
        self._lead().send(self._pb.SenderMessage(open=self._pb.Open(
            transfer_id=t.transfer_id, epoch=t.epoch, secret=t.secret, layout_digest=t.layout_digest,
            request_id="python", encoding=t.encoding)))
        return self._lead().answer()

    def send(self, kv, layers, slice_bytes, kv_heads, corrupt):
        """All slices that the receiver does not hold, in as few chunks as fit; the
        blocks of a layer in two runs with a gap, then the gap."""
        t = self._ticket
        def slice_of(layer, block):
            at = (block * layers + layer) * slice_bytes
            native = kv[at : at + slice_bytes]
            return int8kv.encode(native, kv_heads) if t.encoding == self._pb.ENCODING_INT8 else native

        size = len(slice_of(0, 0))
        most = self._max_chunk_bytes // size
        turn = 0
        for layer in range(layers):
            blocks = list(range(t.held_blocks, t.blocks))
            for part in (blocks[0::3] + blocks[1::3], blocks[2::3]):
                part.sort()
                for first in range(0, len(part), most):
                    named = part[first : first + most]
                    stripe = self._stripes[turn % len(self._stripes)]
                    turn += 1
                    if not stripe.take_credit(size * len(named), self._lead().failed):
                        return
                    chunk = self._pb.Chunk(transfer_id=t.transfer_id, sequence=stripe.chunks, layer=layer, runs=self._runs(named))
                    chunk.payload = b"".join(slice_of(layer, block) for block in named)
                    chunk.crc32c = crc32c.of_chunk(chunk)
                    if turn == corrupt:
                        chunk.payload = bytes([chunk.payload[0] ^ 1]) + chunk.payload[1:]
                    stripe.chunks += 1
                    stripe.send(self._pb.SenderMessage(chunk=chunk))

    def commit(self, tokens):
        t = self._ticket
        for i, stripe in enumerate(self._stripes):
            commit = self._pb.Commit(transfer_id=t.transfer_id, epoch=t.epoch, chunks=stripe.chunks,
                                     sampled_token_ids=tokens if i == 0 else [])
            commit.crc32c = crc32c.of_commit(commit)
            stripe.send(self._pb.SenderMessage(commit=commit))
        return self._lead().answer()

    def abort(self, reason):
        """Ends the transfer, and waits until nothing of it can land any more."""
        for stripe in self._stripes:
            stripe.send(self._pb.SenderMessage(abort=self._pb.Abort(transfer_id=self._ticket.transfer_id, reason=reason)))
        while not self._lead().answer().HasField("drained"):
            pass

    def close(self):
        for stripe in self._stripes:
            stripe.close()

    def _lead(self):
        return self._stripes[0]

    def _runs(self, blocks):
        runs = []
        for block in blocks:
            if runs and runs[-1].first_block + runs[-1].blocks == block:
                runs[-1].blocks += 1
            else:
                runs.append(self._pb.Run(first_block=block, blocks=1))
        return runs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proto", required=True, help="the folder that holds tandem/kvtransfer")
    parser.add_argument("--ticket", required=True)
    parser.add_argument("--kv", required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--slice-bytes", type=int, required=True)
    parser.add_argument("--kv-heads", type=int, default=1)
    parser.add_argument("--stripes", type=int, default=1)
    parser.add_argument("--tokens", default="1", help="sampled tokens, as 1,2,3")
    parser.add_argument("--corrupt", type=int, default=0, help="flip a bit of this chunk, counted from 1")
    args = parser.parse_args()

    pb = generated.load(args.proto)
    with open(args.ticket, "rb") as f:
        ticket = pb.Ticket.FromString(f.read())
    with open(args.kv, "rb") as f:
        kv = f.read()
    sender = Sender(pb, ticket, args.stripes)
    answer = sender.open()
    outcome = {"answer": answer.WhichOneof("message")}
    if answer.HasField("accept"):
        sender.send(kv, args.layers, args.slice_bytes, args.kv_heads, args.corrupt)
        answer = sender.commit([int(token) for token in args.tokens.split(",")])
        outcome = {"answer": answer.WhichOneof("message")}
    if answer.HasField("failed"):
        outcome["reason"] = pb.FailReason.Name(answer.failed.reason)
        sender.abort(pb.ABORT_REASON_ACKNOWLEDGED)
    elif answer.HasField("refuse"):
        outcome["reason"] = pb.RefuseReason.Name(answer.refuse.reason)
    sender.close()
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
