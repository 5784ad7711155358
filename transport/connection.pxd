from transport.channel cimport Channel
from transport.closing cimport Closing
from transport.context cimport Context
from transport.dormant cimport Dormant
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
    cdef public list datagrams
    cdef public Dormant dormant
    cdef public Channel channel
    cdef public Sender sender
    cdef public Receiver receiver
    cdef public Recovery recovery
    cdef public object responder
    cdef public Closing closing
    cdef public long long active_at
    cdef public long long posted_at
    cpdef object receive(self, long long now, Packet packet)
    cpdef object rearm(self, long long now)
