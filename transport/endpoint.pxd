from transport.connection cimport Connection
from transport.counters cimport Counters
from transport.credits cimport Granter
from transport.packet cimport Packet
from transport.table cimport Table
from transport.timers cimport Ready, Source, Timers

cdef long long MAX_PLANES
cdef long long PROTOCOL_VERSION
cdef long long QUANTUM

cdef class Endpoint:
    cdef public object config
    cdef public object address
    cdef public object addresses
    cdef public object told
    cdef public object caps
    cdef public object rng
    cdef public list entropies
    cdef public Counters totals
    cdef public Timers timers
    cdef public Ready ready
    cdef public tuple signals
    cdef public object completions
    cdef public Table connections
    cdef public dict peers
    cdef public object resting
    cdef public list deferred
    cdef public long long now
    cdef public long long late
    cdef public Granter granter
    cdef object _notice_standstill(self, long long now)
    cpdef object receive(self, Packet packet, long long now)
    cpdef object fill(self, long long now, list out, long long limit)
    cpdef object handle_timeout(self, long long now)
    cpdef long long poll_timeout(self)
