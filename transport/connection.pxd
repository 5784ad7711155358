from transport.channel cimport Channel
from transport.closing cimport Closing
from transport.context cimport Context
from transport.dormant cimport Dormant
from transport.packet cimport Packet
from transport.receiver cimport Receiver
from transport.recovery cimport Recovery
from transport.responder cimport Responder
from transport.sender cimport Sender
from transport.sequence cimport unwrap, wrap
from transport.timers cimport Source

cdef int _RESET
cdef int _INIT
cdef int _RTR
cdef int _RTS
cdef int _SQD
cdef int _ERR

cdef long long NEVER
cdef long long US
cdef long long CE
cdef long long CNP
cdef long long CONTROL
cdef long long DATA
cdef long long DATAGRAM
cdef long long EXPOSED
cdef long long _RESET
cdef long long _INIT
cdef long long _RTR
cdef long long _RTS
cdef long long _SQD
cdef long long _ERR
cdef long long _KIND_MESSAGE
cdef long long _KIND_REQUEST
cdef long long _KIND_CONNECTION

cdef class Connection(Source):
    cdef public object endpoint
    cdef public Context context
    cdef public object parameters
    cdef int _state
    cdef public long long qpn
    cdef public str error
    cdef public list datagrams
    cdef public Dormant dormant
    cdef public Channel channel
    cdef public Sender sender
    cdef public Receiver receiver
    cdef public Recovery recovery
    cdef public Responder responder
    cdef public Closing closing
    cdef public long long active_at
    cdef public long long posted_at
    cpdef object receive(self, long long now, Packet packet)
    cpdef object rearm(self, long long now)
    cpdef bint idle(self)
    cdef long long _asleep_at(self)
    cdef long long _keep_alive_at(self)
    cdef object _on_datagram(self, long long now, Packet packet)
