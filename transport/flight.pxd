from transport.path cimport Path
from transport.timers cimport Timed

cdef class Send:
    cdef public long long first
    cdef public long long count
    cdef public long long left
    cdef public long long psn
    cdef public long long order
    cdef public long long sent_at
    cdef public long long copies
    cdef public long long lost_on
    cdef public Subflow subflow
    cdef public object sender
    cdef public object work
    cdef public Send older
    cdef public Send newer
    cdef public Send previous
    cdef public Send path_older
    cdef public Send path_newer

cdef class Flow:
    cdef public Send oldest
    cdef public Send newest
    cpdef object append(self, Send send)
    cpdef object remove(self, Send send)

cdef class Subflow(Timed):
    cdef public Path path
    cdef public long long next_order
    cdef public long long high1
    cdef public long long high2
    cdef public long long high3
    cdef public Send oldest
    cdef public Send newest
    cdef public long long reorder
    cdef public object detector
    cpdef object append(self, Send send)
    cpdef object remove(self, Send send)
    cpdef bint acknowledged(self, long long order)
    cpdef object expire(self, long long now)
