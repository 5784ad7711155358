from transport.clock cimport transmit_time

cdef class Pacer:
    cdef public long long slack
    cdef public long long next_at
    cpdef object spend(self, long long now, long long size, long long rate)
