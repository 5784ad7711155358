"""One queue pair: ties its parts together and keeps its state. No policy, no mechanism of its own.

A Connection is driven by its Endpoint: packets come by `receive`, turns to send by `transmit`, time by `expire`. Users
post work requests on it and read completions from the endpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cython

from cc import registry
from cc.base import Environment
from transport import go_back, requests
from transport.channel import Channel, Reliable
from transport.clock import NEVER, US
from transport.closing import Closing
from transport.completion import Completion, Opcode, Status
from transport.config import CLASSIC, ConnectionParameters, negotiate
from transport.context import Context
from transport.control import (
    OUT_OF_ORDER,
    Ack,
    Atomic,
    AtomicReply,
    Close,
    Credit,
    Demand,
    Msg,
    Nack,
    Probe,
    ProbeReply,
    ReadReq,
    RecvAdvert,
    Reject,
    Terminate,
)
from transport.credits import Granter
from transport.dormant import Dormant, awaken, fall_asleep
from transport.errors import ConfigError, LocalProtocolError, NegotiationError
from transport.packet import CE, CNP, CONTROL, DATA, DATAGRAM, Packet, Packets
from transport.placement import EXPOSED
from transport.receiver import Receiver
from transport.recovery import Recovery
from transport.responder import Responder
from transport.sender import Sender
from transport.sequence import unwrap, wrap
from transport.states import POST_RECV, POST_SEND, State, check_transition
from transport.timers import Source
from transport.wire import max_ack_bits, max_advert
from transport.work import PostedReceive, Work

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from transport.control import Control
    from transport.endpoint import Endpoint

#: By number: calling the enumeration costs ten times as much.
_OPCODES = {int(opcode): opcode for opcode in Opcode}
_STATES = tuple(State)
_RESET = int(State.RESET)
_INIT = int(State.INIT)
_RTR = int(State.RTR)
_RTS = int(State.RTS)
_SQD = int(State.SQD)
_ERR = int(State.ERR)
_KIND_MESSAGE = 0
_KIND_REQUEST = 1
_KIND_CONNECTION = 2
_MESSAGES = (Opcode.SEND, Opcode.RDMA_WRITE)


class Connection(Source):
    """A queue pair of `endpoint`. Times are picoseconds; wr_id is the user's own and comes back in the completion.

    dormant: what is left of its parts while it is idle, None while it has them.
    """

    def __init__(
        self, endpoint: Endpoint, context: Context, parameters: ConnectionParameters, first: tuple[int, int]
    ) -> None:
        Source.__init__(self)
        self.endpoint = endpoint
        self.context = context
        self.parameters = parameters
        self._state = _INIT
        self.qpn = context.qpn
        self.error = ""
        self.datagrams: list[Packet] = []
        self.active_at = 0
        self.posted_at = 0
        # None while dormant; every entry wakes the connection before it touches them.
        self.dormant: Dormant | None = Dormant(*first)
        self.channel: Channel = None  # type: ignore[assignment]
        self.sender: Sender = None  # type: ignore[assignment]
        self.recovery: Recovery = None  # type: ignore[assignment]
        self.receiver: Receiver = None  # type: ignore[assignment]
        self.responder: Responder = None  # type: ignore[assignment]
        self.closing: Closing = None  # type: ignore[assignment]

    @property
    def state(self) -> State:
        """Where it is in the life of a queue pair."""
        return _STATES[self._state]

    @state.setter
    def state(self, state: State) -> None:
        self._state = int(state)

    # Setting up

    def connect(self, now: int, remote: ConnectionParameters) -> None:
        """Agree with the peer's parameters and go to RTS. NegotiationError or ConfigError changes nothing."""
        if self._state != _INIT:
            raise LocalProtocolError(f"queue pair {self.qpn:#x} is in {self.state.name}: connect needs INIT")
        agreed = negotiate(self.parameters, remote)
        context = self.context
        caps = self.endpoint.caps
        config = context.config
        environment = Environment(
            segment=agreed.mtu, rate=caps.rate, base_rtt=caps.base_rtt, max_window=agreed.window * agreed.mtu, now=now
        )
        chosen = registry.resolve(config.control) if isinstance(config.control, str) else config.control
        for need in sorted(chosen.needs):
            if not getattr(caps, need, False):
                raise ConfigError(f"control {chosen.name} needs {need}, which this Nic does not give")
        if chosen.credits and remote.control != self.parameters.control:
            raise NegotiationError(
                f"control: {self.parameters.control} here, {remote.control} at the peer: credits need the same at both"
            )
        context.control = registry.make(chosen, config.control_parameters, environment)
        peer = self.endpoint.peer(tuple(map(bytes.fromhex, remote.addresses)))
        peer.users += 1
        context.peer = peer
        context.planes = peer.planes
        context.paths = peer.paths
        context.generation = peer.paths.generation
        context.peer_qpn = remote.qpn
        context.tag_out = remote.tag
        context.segment = agreed.mtu
        context.max_run = max(1, min(config.max_run, caps.max_run))
        context.window = agreed.window
        context.classic = config.mode == CLASSIC
        context.max_ack_bits = max_ack_bits(agreed.mtu)
        context.max_advert = max_advert(agreed.mtu)
        context.inline = agreed.inline
        context.max_rd_atomic = agreed.max_rd_atomic
        context.ack_every = max(config.ack_every, context.max_run * agreed.mtu)
        context.base_rtt = caps.base_rtt
        context.rto_min = config.least_rto(caps)
        context.pacer.slack = 0 if caps.virtual_time else 100 * US
        if chosen.credits:
            self.endpoint.give_credits(context, context.control)
        if self.dormant is None:  # receives were posted
            fall_asleep(self)
        rest: Dormant = self.dormant  # type: ignore[assignment]
        rest.peer_dsn = remote.dsn
        rest.peer_csn = remote.csn
        self.active_at = now
        self._move(State.RTR)
        self._move(State.RTS)
        if rest.receives is not None:
            awaken(self)
            context.wake()

    # Posting (ibv_post_send, ibv_post_recv)

    def post_write(
        self, now: int, wr_id: int, data: Buffer | int, remote_address: int, rkey: int, imm: int | None = None
    ) -> None:
        """RDMA WRITE, WITH IMM if `imm` is given. An int as `data` stands for that many phantom bytes."""
        work = requests.make(wr_id, Opcode.RDMA_WRITE, data, imm)
        requests.aim(work, remote_address, rkey)
        self._post(now, work)

    def post_send(self, now: int, wr_id: int, data: Buffer | int, imm: int | None = None) -> None:
        """SEND into the peer's next posted receive; waits for one."""
        self._post(now, requests.make(wr_id, Opcode.SEND, data, imm))

    def post_read(self, now: int, wr_id: int, buffer: Buffer | int, remote_address: int, rkey: int) -> None:
        """RDMA READ into `buffer`, all of it."""
        work = requests.make(wr_id, Opcode.RDMA_READ, buffer, None)
        if work.data is not None and work.length and work.data.readonly:
            raise ConfigError("buffer is read-only: a READ writes to it")
        requests.aim(work, remote_address, rkey)
        self._post(now, work)

    def post_fetch_add(self, now: int, wr_id: int, remote_address: int, rkey: int, add: int) -> None:
        """Add to 8 remote bytes; the completion's `value` is what was there before."""
        work = requests.make(wr_id, Opcode.FETCH_ADD, 8, None)
        work.operand = requests.check_u64("add", add)
        requests.aim(work, remote_address, rkey)
        self._post(now, work)

    def post_cmp_swap(self, now: int, wr_id: int, remote_address: int, rkey: int, compare: int, swap: int) -> None:
        """Store `swap` in 8 remote bytes if they equal `compare`; the completion's `value` is what was there before."""
        work = requests.make(wr_id, Opcode.COMP_SWAP, 8, None)
        work.operand = requests.check_u64("swap", swap)
        work.compare = requests.check_u64("compare", compare)
        requests.aim(work, remote_address, rkey)
        self._post(now, work)

    def post_recv(self, now: int, wr_id: int, buffer: Buffer | int) -> None:
        """Post a receive; its buffer is advertised to the peer with a key for one use. Allowed before `connect`."""
        if self.state not in POST_RECV:
            raise LocalProtocolError(f"queue pair {self.qpn:#x} is in {self.state.name}: receives cannot be posted")
        if self._state == _ERR:
            self._complete(wr_id, Status.WR_FLUSH_ERR, Opcode.RECV, error=self.error)
            return
        self._awaken()
        self.receiver.check_depth()
        self.receiver.post(wr_id, self.context.domain.expose(buffer, EXPOSED, self.qpn))
        self.context.wake()

    def close(self, now: int) -> None:
        """Finish what was posted, tell the peer, and free the queue pair. New requests are refused from now on."""
        if self._state != _RESET:
            self._awaken()
        if self._state == _RTS:
            self._move(State.SQD)
            self.closing.begin(now)
            self.context.wake()
        elif self._state == _ERR and self.channel.pending():
            if not self.closing.begun:  # time for the peer to be told why
                self.closing.begun = True
                self.closing.until = now + 2 * self.context.rto()
                self.rearm(now)
        elif self._state in (_INIT, _ERR):
            self.destroy()

    # The endpoint's side

    def receive(self, now: cython.longlong, packet: Packet) -> None:
        """A packet for this queue pair, from the peer's address."""
        counters = self.context.counters
        if self._state == _RESET or self._state == _INIT:
            counters.dropped_wrong_state += packet.count
            return
        kind: cython.int = packet.kind
        if kind == CNP:  # has no tag, so anybody could send it: congestion is learnt from marks alone
            counters.dropped_cnp += 1
            return
        if kind != DATA and packet.tag != self.context.tag_in:
            counters.dropped_wrong_tag += 1
            return
        if self.dormant is not None:
            if kind == DATAGRAM and isinstance(packet.control, (Probe, ProbeReply)):
                self._on_datagram(now, packet)
                return
            awaken(self)
        self.active_at = now
        if kind == DATA:
            if self._state == _ERR:
                counters.dropped_wrong_state += packet.count
                return
            self.receiver.on_data(now, packet)
            self.receiver.deliver(now)
            if self.responder.pending:
                self.responder.run(now)
        elif kind == CONTROL:
            self._on_control(now, packet)
        else:
            self._on_datagram(now, packet)
        self.rearm(now)

    def transmit(self, now: cython.longlong, out: Packets, limit: cython.longlong) -> cython.bint:
        if self._state < _RTR:
            return False
        sent: cython.longlong = 0
        if self.dormant is None:
            sent += self.receiver.transmit_ack(now, out)
        while self.datagrams and sent < limit:
            waited = self.datagrams.pop(0)
            if isinstance(waited.control, ProbeReply):
                waited.control.hold = now - waited.received_at
            out.append(waited)
            sent += 1
        if self.dormant is not None:
            return sent >= limit
        if self._state != _ERR:
            self.receiver.advertise()
        ahead: cython.longlong = len(out)
        if sent < limit and (self._state == _RTS or self._state == _SQD):
            idle = self.sender.flow.oldest is None
            sent += self.sender.transmit(now, out, limit - sent)
            account = self.context.account
            if account is not None and account.due() <= now:
                path = self.context.paths.paths[self.context.paths.select(now, self.context.flow, -1)]
                packet = self.context.packet(DATAGRAM, path.entropy, 1, path.plane)
                packet.control = account.demand(now)
                out.insert(ahead, packet)
                ahead += 1
                sent += 1
            if idle and len(out) > ahead:
                self.context.peer.activity(now, self)
            if self.responder.pending and not self.sender.responding():
                self.endpoint.deferred.append(self.responder)
        # Beginning a message posts its MSG. It leaves before the message's data, whose end asks for the ACK of both.
        if self.channel.busy():
            control: Packets = []
            sent += self.channel.transmit(now, control, max(1, limit - sent))
            out[ahead:ahead] = control
        if self._state == _SQD:
            self.closing.progress(now)
        self.rearm(now)
        return sent >= limit

    def expire(self, now: cython.longlong) -> None:
        if self._state == _RESET:
            return
        if now >= self.closing.until:
            self.closing.expire(now)
            return
        if self.receiver.ack_due <= now:
            self.receiver.ack_now = True
        self.recovery.handle_timeout(now)
        if self._state != _ERR and now >= self._keep_alive_at():
            self.ask(now)
        if now >= self._asleep_at() and self.idle():
            self.context.timers.arm(self, NEVER)
            fall_asleep(self)
            return
        self.context.wake()
        self.rearm(now)

    def ask(self, now: int) -> None:
        """Ask whether the peer lives: if it does, its acknowledgement moves `recovery.acked_at`."""
        self._awaken()
        self.channel.post(RecvAdvert(wrap(self.receiver.advertised), ()), ask=True)

    def send_datagram(self, packet: Packet) -> None:
        """Queue an unreliable answer; few are kept, a peer that asks faster loses them."""
        if len(self.datagrams) < 16:
            self.datagrams.append(packet)
            self.context.wake()

    # What the parts report

    def complete_send(self, work: Work, status: Status, error: str) -> None:
        byte_len = work.length if work.opcode == Opcode.RDMA_READ and status == Status.SUCCESS else 0
        self._complete(work.wr_id, status, _OPCODES[work.opcode], byte_len, None, work.value, error)

    def complete_receive(
        self, receive: PostedReceive, status: Status, opcode: Opcode, imm: int | None, error: str
    ) -> None:
        self._complete(receive.wr_id, status, opcode, receive.length, imm, None, error)

    def find_read(self, number: int) -> Work | None:
        """The outstanding READ or atomic with this number on the wire."""
        starter = self.sender.starter
        return starter.reads.get(unwrap(number, starter.next_read))

    def finish_read(self, work: Work) -> None:
        """The answer to a READ or atomic is complete."""
        self.sender.starter.reads.pop(work.number, None)
        if work.region is not None:
            work.region.deregister()
        self.sender.finish(work)
        self.context.wake()

    def refuse(self, now: int, status: Status, number: int, cause: str) -> None:
        """A READ or atomic of the peer is invalid: tell it and go to ERR, as a responder does (IB spec 9.9.5)."""
        self.fail(
            now,
            Status.WR_FLUSH_ERR,
            f"refused the peer's request: {cause}",
            None,
            Terminate(status, _KIND_REQUEST, number),
        )

    def refuse_message(self, now: int, receive: PostedReceive) -> None:
        """A SEND is longer than the receive it consumes."""
        cause = f"SEND of {receive.length} bytes into a receive of {receive.region.length}"
        answer = Terminate(Status.REM_INV_REQ_ERR, _KIND_MESSAGE, wrap(receive.number))
        self.receiver.queue.popleft()
        self.receiver.head += 1
        receive.region.deregister()
        self.complete_receive(receive, Status.LOC_LEN_ERR, Opcode.RECV, None, self.describe(cause))
        self.fail(now, Status.WR_FLUSH_ERR, cause, None, answer)

    def fail(self, now: int, status: Status, cause: str, guilty: Work | None, answer: Terminate | None = None) -> None:
        """Go to ERR. `guilty` completes with `status`, the rest with WR_FLUSH_ERR; without a guilty one, all requests
        complete with `status`. `answer`, if any, tells the peer."""
        self._awaken()
        if self._state in (_ERR, _RESET):
            self.channel.abandon()
            return
        self.error = self.describe(cause)
        self._move(State.ERR)
        self.context.peer.leave(self)
        works = list(self.sender.queue)
        self.sender.queue.clear()
        for work in works:
            mine = guilty is None or work is guilty
            self.complete_send(work, status if mine else Status.WR_FLUSH_ERR, self.error)
        self.sender.abandon()
        self.receiver.flush(self.error)
        self.responder.pending.clear()
        self.channel.abandon()
        # Who asked for the end does not ask twice: time for the peer to be told, then the queue pair is freed.
        self.closing.until = now + 2 * self.context.rto() if self.closing.begun else NEVER
        if answer is not None:
            self.channel.post(answer, ask=True)
        self.rearm(now)

    # Control

    def _on_control(self, now: int, packet: Packet) -> None:
        if self._state == _ERR and not isinstance(packet.control, (Terminate, Close)):
            # Neither taken nor acknowledged: an acknowledgement would let the peer believe it was delivered.
            self.context.counters.dropped_wrong_state += 1
            return
        sequence = self.channel.arrived(packet.seq)
        if sequence == -2:
            self.context.counters.dropped_outside_window += 1
            return
        if sequence == -1:
            self.context.counters.control_duplicates += 1
        self.receiver.on_control_arrival(now, packet)
        if sequence >= 0 and not self._dispatch(now, sequence, packet.control):
            self.context.counters.dropped_bad_control += 1
            if isinstance(packet.control, (Msg, ReadReq, Atomic)):  # acknowledged, and yet nothing will come of it
                answer = Terminate(Status.REM_INV_REQ_ERR, _KIND_CONNECTION, 0)
                self.fail(now, Status.WR_FLUSH_ERR, f"the peer's {packet.control} is not valid here", None, answer)
        if self._state not in (_ERR, _RESET):
            self.receiver.deliver(now)
            self.responder.run(now)

    def _dispatch(self, now: int, sequence: int, control: Control | None) -> bool:
        if self._state == _ERR:
            return True
        if isinstance(control, Msg):
            return self.receiver.on_msg(now, control)
        if isinstance(control, RecvAdvert):
            self.context.wake()
            return self.sender.starter.advertised(control)
        if isinstance(control, (ReadReq, Atomic)):
            return self.responder.on_request(sequence, control)
        if isinstance(control, AtomicReply):
            work = self.find_read(control.number)
            if work is None or work.opcode not in (Opcode.FETCH_ADD, Opcode.COMP_SWAP):
                return False
            work.value = control.value
            self.finish_read(work)
            return True
        if isinstance(control, Close):
            self.closing.peer_closed = True
            if self._state == _RTS:
                self.close(now)
            self.context.wake()
            return True
        if isinstance(control, Terminate):
            self._terminated(now, control)
            return True
        return False

    def _terminated(self, now: int, notice: Terminate) -> None:
        """The peer went to ERR and says why."""
        status = Status(notice.status) if notice.status in Status._value2member_map_ else Status.REM_OP_ERR
        if status == Status.SUCCESS:  # no reason to end
            status = Status.REM_OP_ERR
        guilty: Work | None = None
        if notice.kind == _KIND_REQUEST:
            guilty = self.find_read(notice.number)
        elif notice.kind == _KIND_MESSAGE:
            for work in self.sender.queue:
                if work.number >= 0 and work.opcode in _MESSAGES and wrap(work.number) == notice.number:
                    guilty = work
        cause = f"the peer terminated with {status.name}"
        self.fail(now, Status.WR_FLUSH_ERR if guilty is None else status, cause, guilty)

    def _on_datagram(self, now: cython.longlong, packet: Packet) -> None:
        control = packet.control
        counters = self.context.counters
        if isinstance(control, Ack):
            counters.acks_received += 1
            if not self.recovery.on_ack(now, control):
                counters.dropped_bad_ack += 1
                return
            if self.sender.flow.oldest is not None:  # data flows; an answer to a keep-alive is none
                self.context.peer.activity(now, self)
            self.context.wake()
        elif isinstance(control, Probe):
            counters.probes_received += 1
            answer = self.context.packet(DATAGRAM, control.entropy, 1, packet.plane)
            answer.control = ProbeReply(control.nonce, control.entropy, 0, packet.ecn == CE)
            answer.received_at = now  # of the probe, until the reply leaves and says how long it was held
            self.send_datagram(answer)
        elif isinstance(control, ProbeReply):
            if not self.context.peer.probe_reply(now, control, packet.plane):
                counters.dropped_bad_probe += 1
        elif isinstance(control, Reject):
            self._rejected(now, control)
        elif isinstance(control, Credit) and self.context.account is not None:
            if not self.context.account.credit(now, control.total):
                counters.dropped_bad_control += 1
            self.context.wake()
        elif isinstance(control, Demand) and self.context.grant is not None:
            plane = packet.plane
            granter: Granter = self.endpoint.granter  # type: ignore[assignment]
            if not granter.on_demand(now, self.context.grant, control, packet, plane):
                counters.dropped_bad_control += 1
        elif isinstance(control, Nack):
            if not self._on_nack(now, control):
                counters.dropped_bad_control += 1
        else:
            counters.dropped_bad_control += 1

    def _on_nack(self, now: int, notice: Nack) -> bool:
        """The peer asks for data again. False if it cannot be so: in each mode there is one reason."""
        if notice.reason == OUT_OF_ORDER:
            return self.context.classic and go_back.nacked(now, self.recovery, notice.seq)
        return not self.context.classic and self.recovery.trimmed(now, notice.seq, notice.psn)

    def _rejected(self, now: int, notice: Reject) -> None:
        """The responder refused a data packet. Believed only if exactly that was sent and is outstanding."""
        sender = self.sender
        dsn = unwrap(notice.seq, sender.una)
        send = sender.ring[dsn & sender.mask] if sender.una <= dsn < sender.next else None
        if send is None:
            self.context.counters.dropped_bad_reject += 1
            return
        work: Work = send.work
        address = work.address + (dsn - work.first) * self.context.segment
        if work.response or work.rkey != notice.rkey or address != notice.address:
            self.context.counters.dropped_bad_reject += 1
            return
        answer = Terminate(Status.REM_ACCESS_ERR, _KIND_CONNECTION, 0)
        self.fail(now, Status.REM_ACCESS_ERR, "the peer refused key, right or bounds of a write", work, answer)

    def control_acknowledged(self, now: int, item: Reliable) -> None:
        """A reliable control packet of ours has arrived."""
        if item.charge:
            self.sender.charge_back(item)
        work = item.work
        if work is not None and isinstance(item.control, Msg) and not work.response:
            work.waiting -= 1
            self.sender.finish(work)

    # Timers and the end

    def rearm(self, now: cython.longlong) -> None:
        """One deadline for everything this connection waits for."""
        if self._state < _RTR:
            return
        due: cython.longlong = min(self.receiver.ack_due, self.closing.until)
        due = min(due, self.recovery.next_timeout(now))
        due = min(due, self.sender.paced_until(now))
        if self.context.account is not None and self._state != _ERR:
            due = min(due, max(self.context.account.due(), now))
        if due == NEVER:
            due = self._asleep_at() if self.idle() else self._keep_alive_at()
        if due != self.deadline:
            self.context.timers.arm(self, due)

    def idle(self) -> cython.bint:
        """Whether nothing needs the parts: nothing posted to send, outstanding, missing or unanswered."""
        receiver = self.receiver
        ledger = receiver.ledger
        return (
            self._state == _RTS
            and self.sender.idle()
            and not self.sender.starter.early_adverts
            and not self.channel.pending()
            and not self.channel.seen
            and ledger.edge == ledger.top
            and receiver.ack_due == NEVER
            and not receiver.ack_now
            and receiver.advertised == receiver.head + len(receiver.queue)
            and not self.responder.pending
            and not self.datagrams
            and not self.closing.begun
        )

    def _asleep_at(self) -> cython.longlong:
        return min(NEVER, self.active_at + (self.context.config.idle_after or 2 * self.context.rto()))

    def _awaken(self) -> None:
        if self.dormant is not None:
            awaken(self)

    def _keep_alive_at(self) -> cython.longlong:
        """When to ask whether the peer lives: requests wait for it, yet nothing is outstanding that a timeout
        covers."""
        if self.channel.pending() or self.sender.flow.oldest is not None or not self.sender.queue:
            return NEVER
        # What arrives is no reason to wait on: strangers' packets and replays arrive too.
        return max(self.posted_at, self.recovery.heard_at, self.sender.last_sent_at) + 8 * self.context.rto()

    def destroy(self) -> None:
        """Free the queue pair: what is posted is flushed, its number rests."""
        self._awaken()
        self.receiver.flush(self.error or self.describe("the connection was closed"))
        self.sender.abandon()
        self.channel.abandon()
        self._move(State.RESET)
        self.context.timers.arm(self, NEVER)
        self.endpoint.forget(self)

    def _move(self, state: State) -> None:
        check_transition(self.state, state)
        self.state = state

    def describe(self, cause: str) -> str:
        """`cause` with peer and path, as the error of a completion."""
        peer = self.context.peer
        where = f"peer {peer.name}" if peer is not None else "no peer"
        path = ""
        if self.dormant is None:
            send = self.sender.flow.oldest
            if send is not None:
                path = f" path {self.context.paths.name(send.subflow.path.index)}"
            elif self.channel.outstanding and self.context.paths is not None:
                path = f" path {self.context.paths.name(self.channel.outstanding[0].path)}"
        return f"{where} qpn {self.context.peer_qpn:#x}{path}: {cause}"

    def _post(self, now: int, work: Work) -> None:
        if self.state not in POST_SEND:
            raise LocalProtocolError(f"queue pair {self.qpn:#x} is in {self.state.name}: sends cannot be posted")
        if self._state == _ERR:
            self._complete(work.wr_id, Status.WR_FLUSH_ERR, Opcode(work.opcode), error=self.error)
            return
        self._awaken()
        self.sender.post(work)
        self.active_at = self.posted_at = now
        self.context.wake()

    def _complete(
        self, wr_id: int, status: Status, opcode: Opcode, byte_len: int = 0, imm: int | None = None,
        value: int | None = None, error: str = "",
    ) -> None:  # fmt: skip
        if status == Status.SUCCESS:
            self.context.counters.requests_completed += 1
        else:
            self.context.counters.requests_failed += 1
        self.endpoint.completions.append(Completion(wr_id, status, opcode, self.qpn, byte_len, imm, value, error))
