from transport.packet cimport Packet
from transport.timers cimport Ready, Source, Timers
from transport.clock cimport transmit_time

cdef long long NEVER
cdef long long US
cdef long long DATAGRAM
cdef long long _HEADERS

cdef class Account:
    cdef public long long first
    cdef public long long patience
    cdef public long long wanted
    cdef public long long spent
    cdef public long long unsolicited
    cdef public long long granted
    cdef public long long lost
    cdef public long long told
    cdef public long long told_lost
    cdef public long long told_at
    cdef public long long heard_at
    cpdef object want(self, long long size, bint resting)
    cpdef bint may_send(self)
    cpdef bint blocked(self)
    cpdef long long due(self)
    cpdef object demand(self, long long now)

cdef class Grant:
    cdef public object context
    cdef public long long demand
    cdef public long long unsolicited
    cdef public long long lost
    cdef public long long granted
    cdef public long long received
    cdef public long long burst
    cdef public long long epoch
    cdef public long long served
    cdef public long long serial
    cdef public long long entropy
    cdef public long long plane
    cdef public long long renewed_at
    cdef public bint ended
    cpdef long long missing(self)
    cpdef long long outstanding(self)

cdef class Granter(Source):
    cdef public Timers timers
    cdef public Ready ready
    cdef public long long rate
    cdef public long long bdp
    cdef public long long cap
    cdef public long long most
    cdef public long long quantum
    cdef public bint shortest
    cdef public long long silence
    cdef public long long slack
    cdef public list heap
    cdef public long long serial
    cdef public long long level
    cdef public long long due
    cdef public long long burst
    cdef public long long burst_at
    cdef public long long epoch
    cpdef object on_demand(self, long long now, Grant grant, object demand, Packet packet, long long plane)
    cpdef object arrived(self, long long now, Grant grant, long long size, bint trimmed)
    cpdef object end(self, Grant grant)
    cdef object _enter(self, long long now, Grant grant)
    cdef object _arrived(self, long long now, Grant grant, long long size)
    cdef object _fresh(self, Grant grant)
    cdef object _tell(self, Grant grant)
    cdef Packet _credit(self, Grant grant)
