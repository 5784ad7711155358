from transport.channel cimport Channel, Reliable
from transport.context cimport Context
from transport.credits cimport Account
from transport.flight cimport Flow, Send, Subflow
from transport.packet cimport Packet
from transport.starter cimport Starter
from transport.work cimport Work
from transport.sequence cimport wrap

cdef long long NEVER
cdef long long CLASS_DATA
cdef long long DATA
cdef long long ECT_0
cdef long long _FREE
cdef long long _IN_FLIGHT
cdef long long _LOST
cdef long long MAX_COPIES

cdef class Sender:
    cdef public Context context
    cdef public Channel channel
    cdef public object connection
    cdef public object queue
    cdef public Starter starter
    cdef public Work current
    cdef public long long next
    cdef public long long una
    cdef public long long mask
    cdef public list ring
    cdef public unsigned char[::1] state
    cdef public long long in_flight
    cdef public object missing
    cdef public Flow flow
    cdef public bint probe_tail
    cdef public bint everywhere
    cdef public bint window_limited
    cdef public long long last_sent_at
    cpdef bint idle(self)
    cpdef bint has_more(self)
    cpdef bint responding(self)
    cpdef long long transmit(self, long long now, object out, long long limit)
    cpdef long long paced_until(self, long long now)
    cdef bint _window_open(self, long long size)
    cdef bint _paced_out(self, long long now)
    cdef bint _uncredited(self)
    cdef bint _readable(self, long long now, Work work)
    cdef bint _send_new(self, long long now, object out)
    cdef bint _retransmit(self, long long now, object out)
    cdef long long _tail_probe(self, long long now, object out)
    cdef Send _track(self, long long now, Work work, long long dsn, long long count, long long path, long long copies)
    cdef Packet _packet(self, long long now, Send send)
    cpdef object lose(self, long long now, Send send, long long dsn)
    cpdef long long requeue(self, long long now, Send send, long long below)
    cpdef long long go_back(self, long long now, long long start)
    cpdef long long acknowledge(self, Send send, long long dsn)
    cpdef object finish(self, Work work)
    cpdef long long size(self, Work work, long long dsn)
    cdef object _leave(self, Send send, long long dsn)
