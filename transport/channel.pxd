from transport.context cimport Context
from transport.control cimport Ack
from transport.sequence cimport unwrap, wrap

cdef long long NEVER
cdef long long CONTROL_WINDOW
cdef long long CLASS_CONTROL
cdef long long CLASS_DATA
cdef long long CONTROL
cdef long long ECT_0

cdef class Reliable:
    cdef public object control
    cdef public object work
    cdef public long long charge
    cdef public bint ask
    cdef public long long sequence
    cdef public long long sent_at
    cdef public long long psn
    cdef public long long path
    cdef public long long copies
    cdef public bint acked
    cdef public bint missing

cdef class Channel:
    cdef public Context context
    cdef public object acknowledged
    cdef public long long next
    cdef public long long una
    cdef public object waiting
    cdef public object outstanding
    cdef public long long missing
    cdef public bint everywhere
    cdef public long long newest_acked
    cdef public long long edge_in
    cdef public object seen
    cpdef bint pending(self)
    cpdef bint busy(self)
    cpdef object fill(self, Ack ack)
    cpdef long long transmit(self, long long now, object out, long long limit)
    cpdef bint knows(self, Ack ack)
    cpdef long long on_ack(self, long long now, Ack ack)
    cpdef object detect(self, long long now)
    cpdef long long next_loss(self)
    cpdef long long oldest_sent_at(self)
