from transport.packet cimport Packet

cdef long long NEVER
cdef long long US
cdef long long CE
cdef long long CLASS_CONTROL
cdef long long NOT_ECT
cdef long long _SPIN
cdef long long _FITS
cdef long long _MARKED
cdef long long _DROPPED
cdef long long _END

cdef class Port:
    cdef public Network network
    cdef public object data
    cdef public object control
    cdef public long long data_bytes
    cdef public long long control_bytes
    cdef public long long free_at
    cdef public bint serving_control
    cdef public object line
    cdef public bint scheduled
    cdef public object inbox
    cdef public object on_arrival
    cdef public long long sent
    cdef public long long delivered
    cdef public long long dropped
    cdef public long long marked
    cpdef long long held(self, bint control, long long now)
    cpdef object serve(self, long long now)
    cpdef object enter(self, long long now, Packet packet)
    cpdef object _queue(self, long long now, Packet packet, bint control)
    cpdef long long collect(self, long long now)

cdef class Network:
    cdef public long long rate
    cdef public double byte_time
    cdef public long long delay
    cdef public long long queue_limit
    cdef public long long ecn_threshold
    cdef public bint priorities
    cdef public bint virtual
    cdef public object caps
    cdef public long long clock
    cdef public dict ports
    cdef public list events
    cdef public long long serial
    cdef public long long waiting
    cdef public long long unreachable
    cdef public object condition
    cpdef long long now(self)
    cpdef long long next_event(self)
    cpdef object advance(self, long long to)
    cpdef object alarm(self, long long due)
    cpdef object deliver(self, long long now)
    cpdef object schedule(self, Port port)

cdef class LoopbackNic:
    cdef public Network network
    cdef public object address
    cdef public object caps
    cdef public Port port
    cdef public bint closed
