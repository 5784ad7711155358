from transport.channel cimport Channel
from transport.context cimport Context
from transport.packet cimport Packet
from transport.receiver cimport Receiver
from transport.recovery cimport Recovery
from transport.sender cimport Sender
from transport.timers cimport Source

cdef class Connection(Source):
    cdef public object endpoint
    cdef public Context context
    cdef public object parameters
    cdef public object state
    cdef public long long qpn
    cdef public object error
    cdef public object datagrams
    cdef public Channel channel
    cdef public Sender sender
    cdef public Receiver receiver
    cdef public Recovery recovery
    cdef public object responder
    cdef public bint closing
    cdef public bint close_sent
    cdef public bint tombstone
    cdef public long long close_mark
    cdef public object peer_close
    cdef public long long linger_until
    cdef public long long active_at
    cpdef object receive(self, long long now, Packet packet)
    cdef object _rearm(self, long long now)
