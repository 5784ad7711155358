from transport.control cimport Ack
from transport.sequence cimport wrap

cdef class Ledger:
    cdef public long long edge
    cdef public long long top
    cdef public long long base
    cdef public long long previous_edge
    cdef public long long window
    cdef public long long mask
    cdef unsigned char[::1] ring
    cdef public long long marked_packets
    cdef public long long marked_bytes
    cdef public long long duplicates
    cdef public long long last_duplicate
    cpdef int classify(self, long long sequence)
    cpdef object record(self, long long sequence, long long size, bint marked)
    cpdef object fill(self, Ack ack, long long limit)
    cdef object _move_base(self, long long to)
    cdef object _grow(self, long long sequence)
